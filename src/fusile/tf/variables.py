"""Reads and assigns eager variables in bulk; the converters are in `convert/variable.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context as eager_context


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

    def __call__(self, tensors: Sequence[Any]) -> None:
        for handle, kind, tensor in zip(self._handles, self._types, tensors, strict=True):
            attributes = ("dtype", kind, "validate_shape", False)
            pywrap_tfe.TFE_Py_Execute(self._context, None, "AssignVariableOp", [handle, tensor], attributes, 0)
