"""What a kernel computes and moves, from shapes alone: what people see, and what decides whether threads are worth
waking."""

from __future__ import annotations

import math

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.hlo.opset.structure import Constant, GetTupleElement, Parameter, Tuple
from fusile.runtime.program import Kernel

TRANSCENDENTAL_FLOPS = 16


def flops_of(fusion: Instruction) -> int:
    """Arithmetic operations of one launch; a multiply-add counts as two."""
    (body,) = fusion.op.computations()
    total = 0
    for i in body.instructions:
        if isinstance(i.op, Parameter | Constant | Tuple | GetTupleElement):
            continue
        elements = sum(s.elements for s in i.shape.leaves())
        if isinstance(i.op, Dot):
            total += 2 * elements * math.prod(i.operands[0].array_shape.sizes[d] for d in i.op.lhs_contracting)
        elif isinstance(i.op, Convolution):
            kernel = i.operands[1].array_shape
            total += (
                2 * elements * (kernel.elements // max(1, kernel.sizes[i.op.dimension_numbers.kernel_output_feature]))
            )
        elif isinstance(i.op, Reduce):
            total += sum(o.array_shape.elements for o in i.operands)
        elif isinstance(i.op, ReduceWindow):
            total += elements * math.prod(i.op.window.size)
        elif i.op.elementwise:
            total += elements
    return total


def kernel_record(fusion: Instruction, code: str = "") -> Kernel:
    """The record of one launch of the function `code`: each operand read once and each result written once."""
    (body,) = fusion.op.computations()
    ops = tuple(
        i.opcode for i in body.post_order() if not isinstance(i.op, Parameter | Constant | Tuple | GetTupleElement)
    )
    read = sum(s.bytes for o in fusion.operands for s in o.shape.leaves())
    written = sum(s.bytes for s in fusion.shape.leaves())
    return Kernel(fusion.name, ops, flops_of(fusion), read, written, code)


def work_of(fusion: Instruction) -> int:
    """Bytes moved and operations done, transcendental ones weighted."""
    from fusile.loops.lowering.elemental import transcendental

    (body,) = fusion.op.computations()
    record = kernel_record(fusion)
    costly = sum(i.array_shape.elements for i in body.instructions if not i.shape.is_tuple and transcendental(i))
    return record.bytes_read + record.bytes_written + record.flops + TRANSCENDENTAL_FLOPS * costly
