"""Reads and assigns eager variables in bulk; the converters are in `convert/variable.py`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import gen_resource_variable_ops

MANY = 8
"""From so many variables on, one function that assigns them all takes less time than an op for each."""
ASSIGNING = threading.RLock()
"""Held by a call that assigns variables, from reading to assigning them: no other one's changes are lost."""
EXCHANGING = threading.RLock()
"""Held while several variables are read or assigned, so that whoever reads sees all new values or none."""


class VariableReader:
    """Reads a fixed list of variables by one TensorFlow op, some ten times cheaper than one by one. The tensors share
    the variables' memory."""

    def __init__(self, handles: Sequence[Any]) -> None:
        context = eager_context.context()
        context.ensure_initialized()
        types = tuple(h._handle_data.shape_and_type[0].dtype for h in handles)
        self._arguments = (
            context._handle,
            None,
            "_ReadVariablesOp",
            list(handles),
            ("N", len(types), "dtypes", types),
            len(types),
        )

    def __call__(self) -> list[Any]:
        if not self._arguments[3]:
            return []
        return pywrap_tfe.TFE_Py_Execute(*self._arguments)  # type: ignore[no-any-return]


class VariableWriter:
    """Assigns a fixed list of variables; each takes over its tensor's memory."""

    def __init__(self, handles: Sequence[Any]) -> None:
        context = eager_context.context()
        context.ensure_initialized()
        self._context, self._handles = context._handle, list(handles)
        self._types = [h._handle_data.shape_and_type[0].dtype for h in handles]
        self._function = _AssigningFunction(self._handles) if len(handles) >= MANY else None

    def __call__(self, tensors: Sequence[Any]) -> None:
        if self._function is not None:
            pywrap_tfe.TFE_Py_Execute(self._context, None, self._function.name, [*tensors, *self._handles], (), 0)
            return
        for handle, kind, tensor in zip(self._handles, self._types, tensors, strict=True):
            attributes = ("dtype", kind, "validate_shape", False)
            pywrap_tfe.TFE_Py_Execute(self._context, None, "AssignVariableOp", [handle, tensor], attributes, 0)


class _AssigningFunction:
    """A TensorFlow function (tensors, handles) -> () that assigns them: the eager runtime's 7 microseconds an op are
    paid once."""

    def __init__(self, handles: Sequence[Any]) -> None:
        described = [h._handle_data.shape_and_type[0] for h in handles]
        shapes = [tf.TensorShape(d.shape) for d in described]

        def assign(*given: Any) -> None:
            for handle, tensor in zip(given[len(handles) :], given, strict=False):
                gen_resource_variable_ops.assign_variable_op(handle, tensor)

        specs = [tf.TensorSpec(s, d.dtype) for s, d in zip(shapes, described, strict=True)]
        specs += [tf.TensorSpec((), tf.resource) for _ in handles]
        self._kept = tf.function(assign, autograph=False).get_concrete_function(*specs)
        self.name = self._kept.name.decode() if isinstance(self._kept.name, bytes) else self._kept.name
