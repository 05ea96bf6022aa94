"""The least time that a kernel could take on this machine: the roofline (Williams, Waterman and Patterson, 2009).

A kernel takes at least its operations at the peak rate of f32 arithmetic, and its bytes at the peak rate of reads from
memory. Both peaks are measured once a machine and number of threads, and kept in the cache folder. Data that lies in
the caches already comes faster: a small kernel may beat the estimate. f64 arithmetic has half the rate.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from fusile.base.digest import digest
from fusile.base.settings import Settings
from fusile.llvm import compile_object
from fusile.runtime.buffers import ALIGNMENT
from fusile.runtime.elf import Image, standard_externals
from fusile.runtime.pool import Pool, pool
from fusile.runtime.processor import model
from fusile.runtime.program import Kernel
from fusile.targets.cpu.arrays import arrays_text
from fusile.targets.cpu.peak import READ_BYTES, arithmetic_flops, probe_text
from fusile.targets.cpu.pool import pool_text
from fusile.targets.target import target

LEAST_READ, MOST_READ = 64 << 20, 256 << 20
"""Bytes that the probe reads: more than caches hold."""
REPEATS = 5
_PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)


@dataclass(frozen=True)
class Peak:
    """What `threads` threads of a machine do at most: f32 operations and bytes read from memory, each in a second."""

    flops: float
    bytes: float
    threads: int

    def seconds(self, kernel: Kernel) -> float:
        """The least time of one launch."""
        return max(self.arithmetic(kernel), self.memory(kernel))

    def arithmetic(self, kernel: Kernel) -> float:
        """The seconds that its operations take."""
        return kernel.flops / self.flops

    def memory(self, kernel: Kernel) -> float:
        """The seconds that its bytes take."""
        return (kernel.bytes_read + kernel.bytes_written) / self.bytes

    def bound(self, kernel: Kernel) -> str:
        """What limits a launch: "arithmetic" or "memory"."""
        return "arithmetic" if self.arithmetic(kernel) > self.memory(kernel) else "memory"


def peak(settings: Settings) -> Peak:
    """This machine's peak with `settings.threads` threads: measured when nothing about it is kept in the cache folder,
    which takes about half a second."""
    return _peak(settings.threads, os.fspath(settings.cache_directory) if settings.cache else "")


@functools.cache
def _peak(threads: int, folder: str) -> Peak:
    name = digest(f"{target().key} {model()} {threads}".encode()).hex()[:16]
    path = os.path.join(folder, f"peak-{name}.json")
    if folder:
        with contextlib.suppress(OSError, ValueError, TypeError), open(path) as file:
            return Peak(**json.load(file))
    found = measure(threads)
    if folder:
        # A machine that can't keep it measures again.
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with open(path, "w") as file:
                json.dump(asdict(found), file)
    return found


def measure(threads: int) -> Peak:
    """Measures this machine's peak: the best of a few short runs."""
    host = target()
    code = compile_object(pool_text(host.details.triple) + arrays_text(), host.details, level=1)
    workers = pool(code, threads)
    image = Image([compile_object(probe_text(host.machine), host.details)], standard_externals())
    factors = np.array([0.999, 0.001], np.float32)
    units = 4 * threads
    fastest = _fastest(workers, image.symbols["probe_arithmetic"], factors, units)
    flops = units * arithmetic_flops(host.machine) / fastest
    size = min(MOST_READ, max(LEAST_READ, 4 * host.machine.l3_bytes)) // READ_BYTES * READ_BYTES
    memory = np.ones(size + ALIGNMENT, np.uint8)
    memory = memory[-memory.ctypes.data % ALIGNMENT :]
    fastest = _fastest(workers, image.symbols["probe_reads"], memory, size // READ_BYTES)
    return Peak(flops, size / fastest, threads)


def _fastest(workers: Pool, function: int, data: np.ndarray, units: int) -> float:
    """The least seconds of a probe over so many units, on all threads."""
    out = np.zeros(64 * units, np.uint8)
    buffers = (ctypes.c_void_p * 2)(data.ctypes.data, out.ctypes.data)
    parallel: Callable[..., None] = _PARALLEL(workers.parallel)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        parallel(workers.address, function, ctypes.addressof(buffers), units, 1)
        times.append(time.perf_counter() - begin)
    return min(times)
