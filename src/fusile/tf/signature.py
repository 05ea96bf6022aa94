"""What tells two calls apart: element types and shapes of arrays, everything else by value or identity."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from fusile.base.errors import ArgumentError


def describe(value: Any, arrays: list[Any]) -> Hashable:
    """A key for `value`, equal for calls that one executable serves. Appends its tensors and NumPy arrays to `arrays`.

    Structures are dicts, lists, tuples and named tuples. A variable counts by identity; a Python value by type and
    value when it is hashable, by identity otherwise (a ragged tensor, whose rows' lengths shape the program, too).
    Floats count by their text: -0.0 isn't 0.0, and NaN is NaN.
    """
    kind = type(value)
    if kind is EagerTensor:
        arrays.append(value)
        return value._datatype_enum(), value._shape_tuple()
    if isinstance(value, (np.ndarray, np.generic)):
        arrays.append(value)
        return _enum_of(value.dtype), value.shape
    if isinstance(value, (list, tuple)):
        return kind, tuple([describe(v, arrays) for v in value])
    if isinstance(value, Mapping):
        return kind, tuple(value), tuple([describe(v, arrays) for v in value.values()])
    if isinstance(value, (float, complex)):
        return kind, repr(value)
    if isinstance(value, (set, bytearray)):
        return kind, frozenset(value) if kind is set else bytes(value)
    try:
        hash(value)
    except TypeError:
        return kind, id(value)
    return (kind, id(value)) if isinstance(value, tf.Variable) else (kind, value)


_ENUMS: dict[np.dtype, int] = {}


def _enum_of(dtype: np.dtype) -> int:
    """TensorFlow's number for a NumPy dtype. Raises ArgumentError when it has none."""
    if dtype not in _ENUMS:
        try:
            _ENUMS[dtype] = tf.as_dtype(dtype).as_datatype_enum
        except TypeError as error:
            raise ArgumentError(f"TensorFlow has no element type for arrays of {dtype}") from error
    return _ENUMS[dtype]


class Hole:
    """Stands where an array was, so that a structure can be kept without its arrays."""


def is_array(value: Any) -> bool:
    """True for what becomes a parameter of the compiled program."""
    return isinstance(value, (EagerTensor, np.ndarray, np.generic, Hole))


def replace_arrays(value: Any, replace: Callable[[Any], Any]) -> Any:
    """A copy of a structure with `replace(array)` for each array, in the order of `describe`."""
    if is_array(value):
        return replace(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replace_arrays(v, replace) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(replace_arrays(v, replace) for v in value)
    if isinstance(value, Mapping):
        replaced = {k: replace_arrays(v, replace) for k, v in value.items()}
        return replaced if type(value) is dict else _same_mapping(value, replaced)
    return value


def _same_mapping(value: Mapping[Any, Any], replaced: dict[Any, Any]) -> Any:
    try:
        return type(value)(replaced)  # type: ignore[call-arg]
    except TypeError:
        return replaced


def array_names(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for each array of a call, from the parameters' names and the places in structures: `x`, `batch_0_image`.
    Different ones, in the order of `describe`."""
    names: dict[str, None] = {}

    def visit(value: Any, path: str) -> None:
        if is_array(value):
            plain = base = re.sub(r"\W", "_", path).strip("_") or "argument"
            for number in itertools.count(1):
                if plain not in names:
                    break
                plain = f"{base}_{number}"
            names[plain] = None
        elif isinstance(value, (list, tuple)):
            fields = getattr(value, "_fields", range(len(value)))
            for field, part in zip(fields, value, strict=True):
                visit(part, f"{path}_{field}")
        elif isinstance(value, Mapping):
            for key, part in value.items():
                visit(part, f"{path}_{key}")

    for value, name in zip(args, _positional(function, len(args)), strict=True):
        visit(value, name)
    for name, value in kwargs.items():
        visit(value, name)
    return list(names)


def _positional(function: Callable[..., Any], count: int) -> list[str]:
    """Names of this many positional arguments."""
    parameters = _parameters(function)
    if parameters is None:
        return [f"argument_{n}" for n in range(count)]
    names = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    rest = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), "argument")
    return names + [f"{rest}_{n}" for n in range(count - len(names))]


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def check_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ArgumentError when the function does not take these arguments, before anything is traced."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentError(f"{name}{signature}: {error}") from error


def take(arrays: Iterator[Any]) -> Callable[[Any], Any]:
    return lambda _: next(arrays)


def as_numpy(value: Any) -> np.ndarray:
    """An argument as an array, without a copy where it lies in memory in order."""
    array = value._numpy_internal() if type(value) is EagerTensor else value
    return (
        array
        if type(array) is np.ndarray and array.flags.c_contiguous
        else np.ascontiguousarray(array).reshape(np.shape(array))
    )
