"""A program loaded and ready to be called."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError, LoadError
from fusile.runtime.buffers import RESULTS
from fusile.runtime.elf import Image, standard_externals
from fusile.runtime.pool import pool
from fusile.runtime.profile import MOST_EVENTS, Profile
from fusile.runtime.program import ArraySpec, Kernel, Memory, Program

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 6)


class Executable:
    """Runs a compiled program on NumPy arrays, or anything with `__dlpack__` or `__array__`. Calls from several threads at once
    are safe. Results are NumPy arrays: one, or a tuple when the program gives a tuple."""

    def __init__(self, program: Program, threads: int, compile_times: dict[str, float] | None = None) -> None:
        self.program = program
        self.compile_times: dict[str, float] = compile_times or {}
        """Seconds of each stage of compilation; empty when the program came from a file."""
        self._pool = pool(program.pool_object, threads)
        self._image = Image(program.objects, {**standard_externals(), "fusile_parallel": self._pool.parallel})
        if "fusile_entry" not in self._image.symbols:
            raise LoadError("the compiled program has no entry")
        self._entry = _ENTRY(self._image.symbols["fusile_entry"])
        self._constants = [_aligned(c) for c in program.constants]
        self._constant_table = _table(self._constants)
        self._parameters = [(p, p.dtype, p.sizes) for p in program.parameters]
        self._results = [(r.sizes, r.dtype, math.prod(r.sizes)) for r in program.results]
        self._arguments_type = ctypes.c_void_p * max(1, len(self._parameters))
        self._results_type = ctypes.c_void_p * max(1, len(self._results))
        self._arenas: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, *arrays: Any) -> Any:
        """Raises ArgumentError when the arguments are not the parameters' number, element types and sizes."""
        if len(arrays) != len(self._parameters):
            raise ArgumentError(
                f"{self.program.name} takes {len(self._parameters)} arguments, not {len(arrays)}",
                hint=f"parameters: {self.signature()}",
            )
        results = self.call_flat([self._checked(p, a) for (p, _, _), a in zip(self._parameters, arrays, strict=True)])
        return tuple(results) if self.program.is_tuple else results[0]

    def profile(self, *arrays: Any, runs: int = 5) -> Profile:
        """When each kernel ran, in the fastest of `runs` runs. Raises ArgumentError as a call does."""
        self(*arrays)
        checked = [self._checked(p, a) for (p, _, _), a in zip(self._parameters, arrays, strict=True)]
        return min((self._observed(checked) for _ in range(runs)), key=lambda p: p.seconds)

    def _observed(self, arrays: Sequence[np.ndarray[Any, Any]]) -> Profile:
        log = np.zeros((1 + MOST_EVENTS, 2), np.int64)
        log[0, 1] = MOST_EVENTS
        begin = time.perf_counter()
        self.call_flat(arrays, log.ctypes.data)
        return Profile.of_log(log, time.perf_counter() - begin, self.program.kernels)

    def call_flat(self, arrays: Sequence[np.ndarray[Any, Any]], log: int | None = None) -> list[np.ndarray[Any, Any]]:
        """The results for arrays that are known to be C-contiguous, of the right element types and sizes."""
        results = [RESULTS.array(*r) for r in self._results]
        arena = self._take_arena()
        # Buffer addresses go straight to native code: the arrays outlive the call, and nothing is converted.
        arguments = self._arguments_type(*[a.ctypes.data for a in arrays])
        targets = self._results_type(*[r.ctypes.data for r in results])
        self._entry(arguments, targets, self._constant_table, arena[1], self._pool.address, log)
        self._arenas.append(arena)
        return results

    def _take_arena(self) -> Any:
        try:
            return self._arenas.pop()
        except IndexError:
            block = RESULTS.block(max(64, self.program.arena_bytes))
            return block, ctypes.addressof(block) + block.start

    def _checked(self, spec: ArraySpec, value: Any) -> np.ndarray[Any, Any]:
        array = _as_array(value)
        if array.dtype != spec.dtype and array.dtype.newbyteorder("=") == spec.dtype:
            array = array.astype(spec.dtype)
        if array.dtype != spec.dtype or array.shape != spec.sizes:
            raise ArgumentError(
                f"argument {spec.name!r} of {self.program.name} is {array.dtype}{list(array.shape)}, not {spec}",
                hint="convert or reshape it, or compile for this shape",
            )
        return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)

    def signature(self) -> str:
        """The parameters as text."""
        return ", ".join(f"{p.name}: {p}" for p in self.program.parameters)

    @property
    def kernels(self) -> list[Kernel]:
        """Every kernel that a run launches outside of loops, and each in a loop once."""
        return list(self.program.kernels)

    @property
    def memory(self) -> Memory:
        def total(specs: Sequence[ArraySpec]) -> int:
            return sum(math.prod(s.sizes) * s.dtype.itemsize for s in specs)

        p = self.program
        return Memory(
            total(p.parameters), total(p.results), sum(c.nbytes for c in p.constants), p.arena_bytes, p.temp_unshared
        )

    def text(self, stage: str) -> str:
        """The program at a stage: hlo, optimized, loops, llvm or asm. Raises ArgumentError for stages that were not kept."""
        if stage not in self.program.texts:
            raise ArgumentError(
                f"no text of the stage {stage!r} is kept", hint=f"there are: {', '.join(self.program.texts) or 'none'}"
            )
        return self.program.texts[stage]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to a file that `fusile.load` reads without the compiler."""
        Path(path).write_bytes(self.program.to_bytes())


def load(path: str | os.PathLike[str], threads: int | None = None) -> Executable:
    """The executable in a file written by `Executable.save`. Raises LoadError when it is none, whole and for this machine."""
    return Executable(Program.from_bytes(Path(path).read_bytes()), threads or len(os.sched_getaffinity(0)))


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _table(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
