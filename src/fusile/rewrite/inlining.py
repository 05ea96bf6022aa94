"""Copies the instructions of a computation into another."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.hlo.ir import Computation, Instruction


def copy_into(target: Computation, source: Computation, arguments: Sequence[Instruction]) -> Instruction:
    """Copies `source`'s instructions into `target`, with `arguments` (instructions of `target`) for its parameters.

    Returns what stands for the root. Computations that `source` calls are referred to, not copied.
    """
    new: dict[Instruction, Instruction] = dict(zip(source.parameters, arguments, strict=True))
    for instruction in source.post_order():
        if instruction not in new:
            operands = [new[o] for o in instruction.operands]
            new[instruction] = target.add(
                instruction.op, operands, name=instruction.name, source=instruction.source, shape=instruction.shape
            )
    return new[source.root]
