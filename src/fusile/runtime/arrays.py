"""Where a call's arrays lie, collected by native code (`targets/cpu/arrays.py`) that also checks what they are.

NumPy's own ways to an array's address make an object each and take longer than many kernels.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_FUNCTION = ctypes.PYFUNCTYPE(
    ctypes.c_int64, ctypes.py_object, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
"""Keeps the interpreter's lock: the arrays must not change meanwhile."""
Spec = tuple[np.dtype[Any], tuple[int, ...]]


class ArrayAddresses:
    """Collects the addresses of arrays of fixed dtypes and sizes. `function`: where `fusile_arrays` is."""

    def __init__(self, function: int, specs: Sequence[Spec]) -> None:
        self.specs, self.count = list(specs), len(specs)
        self._function = _FUNCTION(function)
        self._sizes = [np.array(sizes, np.int64) for _, sizes in specs]
        rows = [[id(d), len(sizes), a.ctypes.data] for (d, sizes), a in zip(specs, self._sizes, strict=True)]
        self._table = np.array(rows or [[0] * 3], np.uint64)
        self._specs, self._array = self._table.ctypes.data, id(np.ndarray)
        self._native = _objects_are_known(function)

    def collect(self, arrays: tuple[Any, ...], out: int) -> int:
        """Writes the arrays' addresses to the memory at `out`. Returns how many were arrays as specified,
        C-contiguous and aligned; what comes after the first that was not, was not looked at. -1 when there are not as
        many."""
        if self._native:
            return int(self._function(arrays, self.count, self._specs, self._array, out))
        if len(arrays) != self.count:
            return -1
        for number, (array, (dtype, sizes)) in enumerate(zip(arrays, self.specs, strict=True)):
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != sizes:
                return number
            if not (array.flags.c_contiguous and array.flags.aligned):
                return number
            ctypes.c_void_p.from_address(out + 8 * number).value = array.ctypes.data
        return self.count


_known: dict[int, bool] = {}


def _objects_are_known(function: int) -> bool:
    """Whether objects of this interpreter and this NumPy have their fields where the native code reads them."""
    if function not in _known:
        _known[function] = _probe(function)
    return _known[function]


def _probe(function: int) -> bool:
    # Other builds of the interpreter (free-threaded, tracing) have other headers; their fields must not even be read.
    plain = getattr(sys, "_is_gil_enabled", lambda: True)() and not hasattr(sys, "getobjects")
    if not plain or object.__basicsize__ != 16 or tuple.__basicsize__ != 24 or np.ndarray.__basicsize__ < 72:
        return False
    collector = ArrayAddresses.__new__(ArrayAddresses)
    right = np.arange(6, dtype=np.float32).reshape(2, 3)
    wrong: tuple[Any, ...] = (
        right.astype(np.float64),
        right.reshape(3, 2),
        right[:, ::2],
        np.zeros((3, 2), np.float32).T,
        right.reshape(-1),
        object(),
    )
    _known[function] = True
    collector.__init__(function, [(right.dtype, right.shape)] * 2)  # type: ignore[misc]
    out = np.zeros(2, np.uint64)
    other = right.copy()
    if collector.collect((right, other), out.ctypes.data) != 2:
        return False
    if [int(a) for a in out] != [right.ctypes.data, other.ctypes.data]:
        return False
    return all(collector.collect((right, w), out.ctypes.data) == 1 for w in wrong)
