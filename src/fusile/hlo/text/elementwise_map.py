"""`map` is no op of ours: its computation's scalar ops are applied to whole arrays instead."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.ir import OPS, Computation, Instruction


def apply_map(target: Computation, scalar: Computation, operands: Sequence[Instruction]) -> Instruction:
    """Adds to `target` what applying `scalar` to each element of the operands (of equal dimensions) gives.

    Raises UnsupportedOpError when the computation holds an op that does not work element by element.
    """
    dimensions = operands[0].array_shape.sizes if operands else ()
    new: dict[Instruction, Instruction] = dict(zip(scalar.parameters, operands, strict=True))
    for instruction in scalar.post_order():
        if instruction in new:
            continue
        inputs = [new[o] for o in instruction.operands]
        if instruction.opcode == "constant":
            new[instruction] = _spread(target, target.add(instruction.op, source=instruction.source), dimensions)
        elif type(instruction.op).elementwise:
            new[instruction] = target.add(instruction.op, inputs, source=instruction.source)
        else:
            raise UnsupportedOpError(
                f"map with a computation that holds {instruction.opcode}",
                source=instruction.source,
                hint="only elementwise ops are supported in a map's computation",
            )
    return new[scalar.root]


def _spread(target: Computation, constant: Instruction, dimensions: tuple[int, ...]) -> Instruction:
    if not dimensions or not isinstance(constant.shape, Shape) or constant.shape.dimensions:
        return constant
    return target.add(OPS["broadcast"](dimensions=dimensions, broadcast_dimensions=()), [constant])  # type: ignore[call-arg]
