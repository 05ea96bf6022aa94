"""What tells two calls apart: element types and shapes of arrays, everything else by value or identity."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from fusile.base.errors import ArgumentError


def describe(value: Any, arrays: list[Any]) -> Hashable:
    """A key for `value`, equal for calls that one executable serves. Appends its tensors and NumPy arrays to `arrays`.

    Structures are dicts, lists, tuples and named tuples. A variable counts by identity; a Python value by type and
    value when it is hashable, by identity otherwise.
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
    if isinstance(value, (bool, int, float, str, bytes, complex)) and value != value:
        return kind, "nan"
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
