"""When two fusions are one kernel: a key of their structure and shapes, without names and source positions."""

from __future__ import annotations

import dataclasses

from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.structure import Constant


def fusion_key(fusion: Instruction) -> str:
    """Equal for fusions that compute the same from operands of the same shapes in the same order."""
    op = fusion.op
    assert isinstance(op, Fusion)
    return f"{op.kind} {op.in_place} {op.shared}\n{_structure(op.computation)}"


def _structure(computation: Computation) -> str:
    numbers = {p: n for n, p in enumerate(computation.parameters)}
    lines = [f"p {p.shape}" for p in computation.parameters]
    for i in computation.post_order():
        if i not in numbers:
            numbers[i] = len(numbers)
            lines.append(f"{i.opcode}{_attributes(i)} {[numbers[o] for o in i.operands]} {i.shape}")
    lines.append(f"root {numbers[computation.root]}")
    return "\n".join(lines)


def _attributes(i: Instruction) -> str:
    parts = []
    for f in dataclasses.fields(i.op):
        value = getattr(i.op, f.name)
        if isinstance(value, Computation):
            value = f"({_structure(value)})"
        elif isinstance(i.op, Constant):
            array = i.op.literal.array
            value = (array.dtype.str, array.shape, array.tobytes())
        parts.append(f"{f.name}={value}")
    return ",".join(parts)
