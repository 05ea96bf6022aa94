"""What is known of an instruction's value when the program is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.hlo.ir import Computation, Instruction, Literal
from fusile.hlo.opset.shape import Broadcast
from fusile.hlo.opset.structure import Constant


def is_constant(instruction: Instruction) -> bool:
    """A constant, or a broadcast of one."""
    op = instruction.op
    return isinstance(op, Constant) or (isinstance(op, Broadcast) and isinstance(instruction.operands[0].op, Constant))


def constant_array(instruction: Instruction) -> np.ndarray[Any, Any] | None:
    """The value of a constant, or of a broadcast of one (a view, nothing is copied), else None."""
    op = instruction.op
    if isinstance(op, Constant):
        return op.literal.array
    if isinstance(op, Broadcast) and isinstance(instruction.operands[0].op, Constant):
        inner = instruction.operands[0].op.literal.array
        return np.asarray(op.evaluate(instruction, [inner], None))
    return None


def splat(instruction: Instruction) -> Any:
    """The one value (a NumPy scalar) of a constant of one element or a broadcast of one, else None."""
    op = instruction.op
    if isinstance(op, Broadcast):
        op = instruction.operands[0].op
    if isinstance(op, Constant) and op.literal.array.size == 1:
        return op.literal.array.reshape(())[()]
    return None


def add_constant(computation: Computation, value: Any, element_type: ElementType) -> Instruction:
    """A constant of this value in `computation`."""
    return computation.add(Constant(Literal(np.asarray(value).astype(element_type.dtype))))
