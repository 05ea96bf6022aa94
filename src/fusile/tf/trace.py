"""Traces a Python function into a TensorFlow graph whose inputs are the call's arrays, then what it captures."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util

from fusile.base.errors import UnsupportedOpError
from fusile.tf.generators import Generators
from fusile.tf.signature import Hole, array_names, replace_arrays, take


@dataclass
class Trace:
    """A traced function.

    `concrete` takes the call's arrays, in order, and gives the tensors of its result; `restore` puts tensors into the
    result's structure; `kept` holds objects alive whose identity is in the signature; `generators` are the states of
    its random ops; `frozen`, when it was lowered so, are the values that became constants. Its gradient shares both.
    """

    name: str
    concrete: Any
    restore: Callable[[Sequence[Any]], Any]
    kept: Any = field(repr=False, default=None)
    generators: Generators = field(repr=False, default_factory=Generators)
    frozen: dict[int, Any] = field(repr=False, default_factory=dict)
    """By the id of a variable's handle."""

    @property
    def graph(self) -> Any:
        return self.concrete.graph

    @property
    def arguments(self) -> int:
        """How many inputs are arguments of the call; the rest are captured."""
        return len(self.graph.inputs) - len(self.captured)

    @property
    def captured(self) -> list[Any]:
        """The eager tensors and variables' handles that the last inputs of the graph stand for."""
        return list(self.concrete.captured_inputs)


def trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arrays: Sequence[Any]) -> Trace:
    """Traces `function` for arguments of these shapes and element types; what it raises goes to the caller."""
    converted = autograph_util.py_func_from_autograph(function)
    arguments = replace_arrays((tuple(args), dict(kwargs)), lambda _: Hole())
    restore: list[Any] = []

    def flat(*tensors: Any) -> list[Any]:
        new_args, new_kwargs = replace_arrays(arguments, take(iter(tensors)))
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
            outputs, rebuild = flatten_result(converted(*new_args, **new_kwargs))
        restore[:] = [rebuild]
        return outputs

    names = array_names(function, args, kwargs)
    specs = [tf.TensorSpec(a.shape, a.dtype, name) for a, name in zip(arrays, names, strict=True)]
    traced = tf.function(flat, autograph=False)
    concrete = traced.get_concrete_function(*specs)
    name = getattr(function, "__name__", type(function).__name__)
    return Trace(name, concrete, restore[0], (function, traced, arguments))


def _result(leaf: Any, index: int) -> Any:
    """A tensor of a result. Raises UnsupportedOpError for what is none."""
    hint = "return numeric tensors, None and structures of them (a TensorArray's stack(), a variable's value)"
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        message = f"result {index} of the function is a {type(leaf).__name__}, not a tensor"
        raise UnsupportedOpError(message, hint=hint) from error
    if tensor.dtype in (tf.string, tf.variant, tf.resource):
        raise UnsupportedOpError(f"result {index} of the function is of {tensor.dtype.name} elements", hint=hint)
    return tensor


def flatten_result(result: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The tensors of a function's result, None left out, and a function that puts others in their places."""
    result = tf.nest.map_structure(lambda x: tf.convert_to_tensor(x) if isinstance(x, tf.Variable) else x, result)
    leaves = tf.nest.flatten(result, expand_composites=True)
    places = [i for i, leaf in enumerate(leaves) if leaf is not None]
    tensors = [_result(leaves[i], i) for i in places]
    if len(leaves) == 1 and leaves[0] is result and places:
        return tensors, lambda new: new[0]
    if type(result) in (list, tuple) and len(result) == len(places) and all(map(operator.is_, result, leaves)):
        return tensors, type(result)

    def rebuild(new: Sequence[Any]) -> Any:
        filled: list[Any] = [None] * len(leaves)
        for place, tensor in zip(places, new, strict=True):
            filled[place] = tensor
        return tf.nest.pack_sequence_as(result, filled, expand_composites=True)

    return tensors, rebuild
