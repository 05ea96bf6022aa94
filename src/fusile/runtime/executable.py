"""A program loaded and ready to be called."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError, LoadError
from fusile.base.records import PassRecord
from fusile.runtime.arrays import ArrayAddresses
from fusile.runtime.buffers import ALIGNMENT, RESULTS
from fusile.runtime.elf import Image, standard_externals
from fusile.runtime.host_calls import HostCalls
from fusile.runtime.pool import pool
from fusile.runtime.processor import require
from fusile.runtime.profile import MOST_EVENTS, Profile
from fusile.runtime.program import ArraySpec, Kernel, Memory, Program

LARGE = 1 << 16
"""From so many bytes on kernels may write results by instructions that ask for whole cache lines."""
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 6)


@dataclass(frozen=True)
class Prepared:
    """What a program made of arguments that seldom change. `addresses`: where those `inputs` lay."""

    addresses: bytes | None
    inputs: tuple[Any, ...]
    results: Sequence[np.ndarray[Any, Any]]


NOTHING_PREPARED = Prepared(b"", (), ())


class Executable:
    """Runs a compiled program on NumPy arrays, or anything with `__dlpack__` or `__array__`. Calls from several threads
    at once are safe. Results are NumPy arrays: one, or a tuple when the program gives a tuple.

    A program with donated arguments (`fusile.compile(..., donate=)`) overwrites them: the result is computed in the
    array that was given, and is that array. It gets one of its own when the argument is read-only, has to be converted,
    overlaps another argument, or is large and not at a multiple of 64 bytes.
    """

    def __init__(
        self,
        program: Program,
        threads: int,
        compile_times: dict[str, float] | None = None,
        passes: Sequence[PassRecord] = (),
        assembly: Callable[[str], str] | None = None,
    ) -> None:
        """`assembly`: what makes the text of the stage "asm" from that of "llvm", where there is a compiler."""
        require(program.target)
        self.program = program
        self.compile_times: dict[str, float] = compile_times or {}
        """Seconds of each stage of compilation; empty when the program came from a file."""
        self.passes = tuple(passes)
        """The runs of passes, likewise."""
        self.threads = threads
        self._assembly = assembly
        self._pool = pool(program.pool_object, threads)
        self._host_calls = HostCalls(program.host_calls) if program.host_calls else None
        externals = {**standard_externals(), "fusile_parallel": self._pool.parallel}
        if self._host_calls is not None:
            externals |= self._host_calls.addresses
        self._image = Image(program.objects, externals)
        if "fusile_entry" not in self._image.symbols:
            raise LoadError("the compiled program has no entry")
        self._entry = _ENTRY(self._image.symbols["fusile_entry"])
        self._constants = [_aligned(c) for c in program.constants]
        self._constant_table = _table(self._constants)
        self._preparation = None
        if program.preparation is not None:
            self._preparation = Executable(program.preparation, threads, assembly=assembly)
        prepared = 0 if self._preparation is None else len(self._preparation.program.results)
        self._count = len(program.parameters) - prepared
        """Arguments of a call; the other parameters are prepared."""
        self._results = [(r.sizes, r.dtype, math.prod(r.sizes)) for r in program.results]
        specs = [(s.dtype, s.sizes) for s in (*program.parameters, *program.results)]
        self._addresses = ArrayAddresses(self._pool.image.symbols["fusile_arrays"], specs)
        self._parameters = ArrayAddresses(self._pool.image.symbols["fusile_arrays"], specs[: len(program.parameters)])
        self._frames: list[_Frame] = []

    def __call__(self, *arrays: Any) -> Any:
        """Raises ArgumentError when the arguments are not the parameters' number, element types and sizes."""
        results = self.call_flat(arrays)
        return tuple(results) if self.program.is_tuple else results[0]

    def profile(self, *arrays: Any, runs: int = 5) -> Profile:
        """When each kernel ran, in the fastest of `runs` runs. Raises ArgumentError as a call does."""
        self(*arrays)
        return min((self._observed(arrays) for _ in range(runs)), key=lambda p: p.seconds)

    def _observed(self, arrays: Sequence[Any]) -> Profile:
        log = np.zeros((1 + MOST_EVENTS, 2), np.int64)
        log[0, 1] = MOST_EVENTS
        prepared = self.prepare(arrays)
        begin = time.perf_counter()
        self.call_flat(arrays, log.ctypes.data, prepared)
        return Profile.of_log(log, time.perf_counter() - begin, self.program.kernels)

    def call_flat(
        self, arrays: Sequence[Any], log: int | None = None, prepared: Prepared | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """The results, as a list. `prepared`: what `prepare` gave for these arguments, if that was asked. Raises
        ArgumentError as a call does."""
        if self._preparation is not None:
            arrays = (*arrays, *(prepared or self.prepare(arrays)).results)
        if self.program.aliases:
            arrays = self._all_checked(arrays)
            results = self._with_donated(arrays)
        else:
            results = [RESULTS.array(*r) for r in self._results]
        try:
            frame = self._frames.pop()
        except IndexError:
            count = len(self.program.parameters)
            frame = _Frame(len(self._results) + count, count, self.program.arena_bytes)
        # Addresses go straight to native code: the arrays outlive the call, and nothing is converted.
        if self._addresses.collect((*arrays, *results), frame.arguments) < self._addresses.count:
            arrays = self._all_checked(arrays)
            frame.fill((*arrays, *results))
        self._entry(frame.arguments, frame.results, self._constant_table, frame.arena, self._pool.address, log)
        self._frames.append(frame)
        if self._host_calls is not None:
            self._host_calls.raise_failure()
        return results

    def prepare(self, arrays: Sequence[Any], last: Prepared | None = None) -> Prepared:
        """What the program makes of arguments that seldom change (`fusile.compile(..., stable=)`), for a call's
        arguments.

        `last` is given back when those are where they were then. So only who knows that an array at the same address
        has the same elements may give it; `Prepared.inputs` keeps the arrays' memory from being used for others.
        """
        if self._preparation is None:
            return NOTHING_PREPARED
        self._check_count(len(arrays))
        inputs = tuple([arrays[n] for n in self.program.prepared_from])
        addresses = self._preparation.addresses(inputs)
        if last is not None and addresses is not None and last.addresses == addresses:
            return last
        return Prepared(addresses, inputs, self._preparation.call_flat(inputs))

    def addresses(self, arrays: tuple[Any, ...]) -> bytes | None:
        """Where a call's arguments lie; None when they aren't all arrays that need no conversion."""
        out = (ctypes.c_char * (8 * max(1, len(self._parameters.specs))))()
        found = self._parameters.collect(arrays, ctypes.addressof(out)) == self._parameters.count
        return out.raw if found else None

    def _with_donated(self, arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The results' arrays: donated arguments where they can be overwritten, new ones elsewhere."""
        donated = dict(self.program.aliases)
        overlapping = _overlapping(arrays)
        results = []
        for number, spec in enumerate(self._results):
            parameter = donated.get(number, -1)
            if parameter >= 0 and parameter not in overlapping and _overwritable(arrays[parameter]):
                results.append(arrays[parameter])
            else:
                results.append(RESULTS.array(*spec))
        return results

    def _all_checked(self, arrays: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """All parameters' arrays, converted where they have to be."""
        prepared = len(self.program.parameters) - self._count
        self._check_count(len(arrays) - prepared)
        return [self._checked(p, a) for p, a in zip(self.program.parameters, arrays, strict=True)]

    def _check_count(self, count: int) -> None:
        if count != self._count:
            raise ArgumentError(
                f"{self.program.name} takes {self._count} arguments, not {count}",
                hint=f"parameters: {self.signature()}",
            )

    def _checked(self, spec: ArraySpec, value: Any) -> np.ndarray[Any, Any]:
        array = as_array(value)
        if array.dtype != spec.dtype and array.dtype.newbyteorder("=") == spec.dtype:
            array = array.astype(spec.dtype)
        if array.dtype != spec.dtype or array.shape != spec.sizes:
            raise ArgumentError(
                f"argument {spec.name!r} of {self.program.name} is {array.dtype}{list(array.shape)}, not {spec}",
                hint="convert or reshape it, or compile for this shape",
            )
        if array.flags.c_contiguous and array.flags.aligned:
            return array
        return np.array(array, order="C", copy=True)

    def signature(self) -> str:
        """The parameters as text."""
        return ", ".join(f"{p.name}: {p}" for p in self.program.parameters[: self._count])

    @property
    def preparation(self) -> Executable | None:
        """What makes the last parameters from arguments that seldom change, if anything does."""
        return self._preparation

    @property
    def kernels(self) -> list[Kernel]:
        """Every kernel that a run launches outside of loops, and each in a loop once."""
        return list(self.program.kernels)

    @property
    def memory(self) -> Memory:
        def total(specs: Sequence[ArraySpec]) -> int:
            return sum(math.prod(s.sizes) * s.dtype.itemsize for s in specs)

        p = self.program
        constants = sum(c.nbytes for c in p.constants) + total(p.parameters[self._count :])
        return Memory(total(p.parameters[: self._count]), total(p.results), constants, p.arena_bytes, p.temp_unshared)

    def text(self, stage: str) -> str:
        """The program at a stage: hlo, decisions (of fusion, with reasons), optimized, loops, llvm or asm. Assembly is
        kept nowhere: it is made anew from the LLVM text. Raises ArgumentError for stages that were not kept."""
        if stage == "asm" and "llvm" in self.program.texts:
            if self._assembly is None:
                raise ArgumentError(
                    "a program loaded from a file has no compiler at hand to write its assembly",
                    hint="disassemble it, or compile its source: fusile.compile(source).text('asm')",
                )
            return self._assembly(self.program.texts["llvm"])
        if stage not in self.program.texts:
            raise ArgumentError(
                f"no text of the stage {stage!r} is kept", hint=f"there are: {', '.join(self.program.texts) or 'none'}"
            )
        return self.program.texts[stage]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the program to a file that `fusile.load` reads without the compiler."""
        Path(path).write_bytes(self.program.to_bytes())


def load(path: str | os.PathLike[str], threads: int | None = None) -> Executable:
    """The executable in a file written by `Executable.save`. Raises LoadError when it is none, whole and for this
    machine."""
    return Executable(Program.from_bytes(Path(path).read_bytes()), threads or len(os.sched_getaffinity(0)))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """An argument as an array, without a copy where there is one. Raises ArgumentError for what is none."""
    if isinstance(value, np.ndarray):
        return value
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"an argument of type {type(value).__name__} is no array: {error}") from error


class _Frame:
    """What one call at a time works with: the table of its arrays' addresses, and an arena."""

    def __init__(self, addresses: int, parameters: int, arena_bytes: int) -> None:
        self._table = (ctypes.c_void_p * max(1, addresses))()
        self.arguments = ctypes.addressof(self._table)
        self.results = self.arguments + 8 * parameters
        self._block = RESULTS.block(max(64, arena_bytes))
        self.arena = ctypes.addressof(self._block) + self._block.start

    def fill(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        """Writes the addresses of arrays that are known to be right."""
        self._table[:] = [a.ctypes.data for a in arrays]


def _overwritable(array: np.ndarray[Any, Any]) -> bool:
    return array.flags.writeable and (array.nbytes < LARGE or array.ctypes.data % ALIGNMENT == 0)


def _overlapping(arrays: Sequence[np.ndarray[Any, Any]]) -> set[int]:
    """The numbers of the arrays that share memory with another."""
    spans = sorted((a.ctypes.data, a.ctypes.data + a.nbytes, n) for n, a in enumerate(arrays) if a.nbytes)
    found: set[int] = set()
    reach, owner = 0, -1
    for begin, end, number in spans:
        if begin < reach:
            found |= {owner, number}
        if end > reach:
            reach, owner = end, number
    return found


def _aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _table(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
