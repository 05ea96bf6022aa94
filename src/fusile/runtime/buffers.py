"""Memory for results and arenas, recycled: fresh pages cost more than many kernels that fill them.

`Buffers.array` gives an array whose memory comes back when the last array that looks into it is gone.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64
SMALL = 1 << 12
"""Below this many bytes NumPy's own allocator serves."""
LARGEST_KEPT = 1 << 30
"""Bytes kept for reuse, all sizes together."""


class Buffers:
    """A thread-safe allocator of 64-byte aligned blocks in power-of-two quarter sizes."""

    def __init__(self) -> None:
        self._free: dict[int, list[Any]] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def array(self, sizes: Sequence[int], dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
        """An uninitialized array of `count` elements in these sizes."""
        size = count * dtype.itemsize
        if size <= SMALL:
            return np.empty(sizes, dtype)
        block = self.block(size)
        view = np.frombuffer(block, dtype=np.uint8, count=size, offset=block.start).view(dtype).reshape(sizes)
        return view

    def block(self, size: int) -> Any:
        """A block of at least `size` bytes that returns here when it is garbage."""
        rounded = _rounded(size)
        with self._lock:
            stack = self._free.get(rounded)
            memory = stack.pop() if stack else None
            if memory is not None:
                self._kept -= rounded
        if memory is None:
            memory = (ctypes.c_char * (rounded + ALIGNMENT))()
        block = _view(memory)
        weakref.finalize(block, self._give_back, memory, rounded).atexit = False
        return block

    def _give_back(self, memory: Any, size: int) -> None:
        with self._lock:
            if self._kept + size <= LARGEST_KEPT:
                self._kept += size
                self._free.setdefault(size, []).append(memory)


_types: dict[int, Any] = {}


def _view(memory: Any) -> Any:
    """A new object over the memory, which a finalizer can watch; `start` is where it is aligned."""
    length = len(memory)
    if length not in _types:
        _types[length] = type("_Block", (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": length, "start": 0})
    block = _types[length].from_buffer(memory)
    block.start = -ctypes.addressof(memory) % ALIGNMENT
    return block


def _rounded(size: int) -> int:
    """The next of 1, 1.25, 1.5 or 1.75 times a power of two."""
    step = max(1, (1 << (size - 1).bit_length()) >> 3)
    return -(-size // step) * step


RESULTS = Buffers()
