"""Kernels of single instructions that are algorithms of their own."""

from __future__ import annotations

from collections.abc import Callable

from fusile.base.errors import UnsupportedOpError
from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset.other import Cholesky, Fft, RngBitGenerator, TriangularSolve
from fusile.hlo.opset.structure import Constant, Parameter
from fusile.loops.ir import Kernel
from fusile.loops.lowering.fft import lower_fft
from fusile.loops.lowering.linear_algebra import lower_cholesky, lower_triangular_solve
from fusile.loops.lowering.random_bits import lower_random_bits
from fusile.loops.machine import Machine

KERNELS: dict[type[Op], Callable[[Instruction, str, Machine], Kernel]] = {
    Cholesky: lower_cholesky,
    TriangularSolve: lower_triangular_solve,
    Fft: lower_fft,
    RngBitGenerator: lower_random_bits,
}


def lower_library(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `library` fusion, whose root is the instruction.

    Raises UnsupportedOpError when there is no kernel for it.
    """
    (computation,) = fusion.op.computations()
    instruction = next(i for i in computation.post_order() if not isinstance(i.op, Parameter | Constant))
    kernel = KERNELS.get(type(instruction.op))
    if kernel is None:
        raise UnsupportedOpError(f"the CPU target has no kernel for {instruction.opcode}", source=instruction.source)
    return kernel(fusion, name, machine)
