"""LLVM text to machine code.

llvmlite guards every call with one process-wide lock. LLVM itself needs only that a context stays with one thread at a
time, and each compilation here has a context of its own, so the lock is taken off the four calls that take the time:
two threads then compile two kernels at once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from fusile.base.errors import CompileError

_LONG_CALLS = ("LLVMPY_ParseAssembly", "LLVMPY_VerifyModule", "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory")


@dataclass(frozen=True)
class HostInfo:
    """What code is made for: LLVM's triple, processor name and feature string."""

    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for name in _LONG_CALLS:
        wrapper = getattr(ffi.lib, name)
        wrapper._lock = contextlib.nullcontext()


@functools.cache
def host() -> HostInfo:
    """This machine."""
    _initialize()
    features = llvm.get_host_cpu_features()
    return HostInfo(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten())


def _target_machine(target: HostInfo, level: int) -> Any:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="small"
    )


def _optimized(text: str, machine: Any, target: HostInfo, level: int) -> Any:
    try:
        module = llvm.parse_assembly(text, context=llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM does not take the generated code: {error}", hint="this is a bug in Fusile; please report it") from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    if level > 0:
        options = llvm.create_pipeline_tuning_options(speed_level=level)
        options.loop_vectorization = False
        options.slp_vectorization = False
        options.loop_unrolling = False
        options.loop_interleaving = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    return module


def compile_object(text: str, target: HostInfo | None = None, level: int = 2) -> bytes:
    """The relocatable ELF object of LLVM text. Raises CompileError when LLVM rejects it."""
    target = target or host()
    machine = _target_machine(target, level)
    return bytes(machine.emit_object(_optimized(text, machine, target, level)))


def assembly(text: str, target: HostInfo | None = None, level: int = 2) -> str:
    """The assembly of LLVM text."""
    target = target or host()
    machine = _target_machine(target, level)
    return str(machine.emit_assembly(_optimized(text, machine, target, level)))


def compile_many(texts: Sequence[str], target: HostInfo | None = None, level: int = 2, threads: int = 1) -> list[bytes]:
    """The objects of several texts, in order, compiled on `threads` threads at once."""
    target = target or host()
    if threads <= 1 or len(texts) <= 1:
        return [compile_object(t, target, level) for t in texts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda t: compile_object(t, target, level), texts))
