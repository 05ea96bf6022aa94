"""One operation of a TensorFlow graph, as converters see it."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import dtypes, tensor_shape

from fusile.base.element_type import ElementType, element_type
from fusile.base.errors import UnsupportedOpError
from fusile.base.source import Source

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = ("/tensorflow/", "/keras/", "/tf_keras/", "/autograph/", "<frozen", "<__autograph")


class Node:
    """A `tf.Operation`: its type, name, attributes in Python's terms, and the user's position that made it."""

    __slots__ = ("__dict__", "name", "operation", "type")

    def __init__(self, operation: Any) -> None:
        self.operation, self.type, self.name = operation, operation.type, operation.name

    def attribute(self, name: str) -> Any:
        """An attribute: bytes become str, an element type stays a tf.DType, a function becomes its name, and a shape a
        tuple (None for unknown sizes, or None as a whole)."""
        return _plain(self.operation.get_attr(name))

    def element_type(self, name: str = "T") -> ElementType:
        """The element type that the attribute `name` holds. Raises UnsupportedOpError for strings and the like."""
        return self._element_type(self.operation.get_attr(name))

    def output_type(self, index: int = 0) -> ElementType:
        return self._element_type(self.operation.outputs[index].dtype)

    def output_shape(self, index: int = 0) -> tuple[int | None, ...] | None:
        """What TensorFlow knows of an output's dimensions: None for each unknown one, or as a whole."""
        return _plain(self.operation.outputs[index].shape)  # type: ignore[no-any-return]

    def _element_type(self, dtype: Any) -> ElementType:
        try:
            return element_type(dtypes.as_dtype(dtype).as_numpy_dtype)
        except TypeError as error:
            raise UnsupportedOpError(
                f"{self.type} on {dtypes.as_dtype(dtype).name} tensors can't be compiled", source=self.source
            ) from error

    @cached_property
    def source(self) -> Source:
        """The op's name and type, and the innermost line of the user's own code that led to it."""
        file, line = "", 0
        traceback = self.operation.traceback
        for frame in reversed(traceback.get_user_frames() if traceback else ()):
            name = frame.filename
            if not name.startswith(_OURS) and not any(part in name for part in _LIBRARIES):
                file, line = name, frame.lineno
                break
        return Source(self.name, self.type, file, line)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, (tf.TensorShape,)) or type(value).__name__ == "TensorShapeProto":
        shape = tensor_shape.as_shape(value)
        return None if shape.rank is None else tuple(shape.as_list())
    if type(value).__name__ == "NameAttrList":
        return value.name
    return value
