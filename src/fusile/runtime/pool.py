"""The thread pool: memory that native code shares, and threads that enter its worker loop.

Its native half is `fusile_parallel` and `fusile_worker` (see `targets/cpu/pool.py` for how they work and for the
offsets below). One pool serves a number of threads for the whole process; threads are daemons that never come back to
Python while the process lives. After a fork the child starts with a fresh pool.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
import warnings
import weakref

from fusile.runtime.elf import Image, standard_externals

POOL_BYTES = 576
WORKERS, STOP, SYSCALL, FUTEX_NUMBER = 512, 520, 528, 536
_FUTEX = {"x86_64": 202, "aarch64": 98}

_pools: dict[int, Pool] = {}
_lock = threading.Lock()
_all: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    """A pool of `threads` threads, the caller among them. `address` is what native code is given."""

    def __init__(self, code: bytes, threads: int) -> None:
        self.image = Image([code], standard_externals())
        self.threads = threads
        self._memory = (ctypes.c_char * (POOL_BYTES + 64))()
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self._reset()
        _all.add(self)

    @property
    def parallel(self) -> int:
        """The address of `fusile_parallel`."""
        return self.image.symbols["fusile_parallel"]

    def _reset(self) -> None:
        ctypes.memset(self.address, 0, POOL_BYTES)
        libc = ctypes.CDLL(None)
        syscall = ctypes.cast(libc.syscall, ctypes.c_void_p).value or 0
        number = _FUTEX.get(platform.machine(), 0)
        ctypes.memmove(self.address + SYSCALL, struct.pack("<QQ", syscall, number), 16)
        self._start()

    def _start(self) -> None:
        worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.image.symbols["fusile_worker"])
        started = 0
        for number in range(self.threads - 1):
            try:
                threading.Thread(target=worker, args=(self.address,), name=f"fusile-{number}", daemon=True).start()
            except RuntimeError as error:
                # Fewer threads give the same results, later.
                warnings.warn(f"{started + 1} of {self.threads} threads run: {error}", RuntimeWarning, stacklevel=3)
                break
            started += 1
        ctypes.memmove(self.address + WORKERS, struct.pack("<Q", started), 8)


def pool(code: bytes, threads: int) -> Pool:
    """The process's pool of this many threads."""
    with _lock:
        if threads not in _pools:
            _pools[threads] = Pool(code, threads)
        return _pools[threads]


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for each in list(_all):
        each._reset()


os.register_at_fork(after_in_child=_after_fork)
