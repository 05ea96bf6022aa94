"""Kernels to object code."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.errors import CompileError
from fusile.llvm import HostInfo, compile_many
from fusile.loops.ir import Alloc, Const, For, Kernel, LoopKind, Stmt
from fusile.loops.machine import Machine
from fusile.targets.cpu.emit import emit_kernel, shared_offsets
from fusile.targets.target import CompiledKernel, Phase


def compile_kernels(
    machine: Machine, info: HostInfo, kernels: Sequence[Kernel], threads: int = 1
) -> list[CompiledKernel]:
    """The kernels' code, in order, compiled on `threads` threads at once. Raises CompileError for what has no code."""
    texts = [emit_kernel(kernel, machine) for kernel in kernels]
    objects = compile_many(texts, info, threads=threads)
    return [compiled(*parts) for parts in zip(kernels, objects, texts, strict=True)]


def compiled(kernel: Kernel, code: bytes, text: str) -> CompiledKernel:
    """The record of a kernel whose code was made from `text`."""
    workspace = shared_offsets(kernel)[1]
    return CompiledKernel(kernel.name, code, phases_of(kernel), workspace, text)


def phases_of(kernel: Kernel) -> tuple[Phase, ...]:
    """The native functions of a kernel: SHARED allocations among its statements are no phases."""
    phases = [s for s in kernel.body if not isinstance(s, Alloc)]
    return tuple(_phase(f"{kernel.name}.{number}", s) for number, s in enumerate(phases))


def _phase(symbol: str, statement: Stmt) -> Phase:
    if not (isinstance(statement, For) and statement.kind is LoopKind.PARALLEL):
        return Phase(symbol, 1, parallel=False)
    if not isinstance(statement.extent, Const):
        raise CompileError(f"the parallel loop of {symbol} has an extent that isn't constant")
    return Phase(symbol, int(statement.extent.value), parallel=True)
