"""Memory for results and arenas, recycled: fresh pages cost more than many kernels that fill them.

`Buffers.array` gives an array whose memory comes back when the last array that looks into it is gone.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.errors import OutOfMemoryError

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
        # Collecting garbage while the lock is held may give blocks back.
        self._lock = threading.RLock()

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
            memory = _memory(rounded + ALIGNMENT)
        block = _block_type(len(memory)).from_buffer(memory)
        block.start = -ctypes.addressof(memory) % ALIGNMENT
        block.returns = self._give_back, memory, rounded
        return block

    def _give_back(self, memory: Any, size: int) -> None:
        with self._lock:
            if self._kept + size <= LARGEST_KEPT:
                self._kept += size
                self._free.setdefault(size, []).append(memory)


def _memory(size: int) -> Any:
    try:
        return (ctypes.c_char * size)()
    except (MemoryError, OverflowError) as error:
        raise OutOfMemoryError(
            f"there are no {size / 2**30:,.1f} GiB of memory for a result or for temporaries",
            hint="`executable.memory` says what a program needs; compute on smaller parts",
        ) from error


class _Returning:
    """What is garbage calls what it was told to. Ten times as fast as a finalizer of `weakref`."""

    returns: tuple[Any, Any, int] | None = None

    def __del__(self) -> None:
        if self.returns is not None:
            give_back, memory, size = self.returns
            give_back(memory, size)


_types: dict[int, Any] = {}


def _block_type(length: int) -> Any:
    """The type of blocks over so many bytes of memory; `start` is where one is aligned."""
    found = _types.get(length)
    if found is None:
        members = {"_type_": ctypes.c_char, "_length_": length, "start": 0}
        found = _types[length] = type("_Block", (_Returning, ctypes.Array), members)
    return found


def _rounded(size: int) -> int:
    """The next of 1, 1.25, 1.5 or 1.75 times a power of two."""
    step = max(1, (1 << (size - 1).bit_length()) >> 3)
    return -(-size // step) * step


RESULTS = Buffers()
