"""CHLO's `scan`: a loop over one dimension of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.control import Call
from fusile.hlo.opset.structure import GetTupleElement, Tuple
from fusile.stablehlo.conversion.context import Context, converts


@converts("chlo.scan")
def _scan(context: Context) -> list[Instruction]:
    """The body takes a slice of each input and the carried values; it gives a slice of each output, then those values
    for the next step. `is_reverse` starts at the dimension's end."""
    segments = context.integers("operandSegmentSizes")
    if len(segments) != 2 or sum(segments) != len(context.operands):
        raise ValueError(f"operandSegmentSizes {segments} do not split {len(context.operands)} operands in two")
    inputs, carries = context.operands[: segments[0]], context.operands[segments[0] :]
    outputs = [context.result_shape(i) for i in range(len(context.operation.result_types) - len(carries))]
    dimension = context.integer("dimension")
    length = _length(context, [*(x.array_shape for x in inputs), *outputs], dimension)
    empty = [context.broadcast(context.constant(np.zeros((), s.element_type.dtype)), s.dimensions) for s in outputs]
    if not length:
        return [*empty, *carries]
    captured = context.program.captured_names(context, [context._region(0)])
    step = context.program.region(context, context._region(0), captured, tuple_root=True)
    first = context.constant(np.zeros((), np.int32))
    state = [first, *empty, *carries, *inputs, *map(context._operand, captured)]
    counts = (len(outputs), len(carries), len(inputs))
    body = _body(state, counts, dimension, length if context.boolean("is_reverse") else 0, step)
    loop = context.add("while", state, condition=_condition(state, length), body=body)
    return context.parts(loop, 1 + len(outputs) + len(carries))[1:]


def _length(context: Context, scanned: Sequence[Shape], dimension: int) -> int:
    """How many steps there are. Raises ValueError where arrays disagree."""
    if any(not 0 <= dimension < shape.rank for shape in scanned):
        raise ValueError(f"dimension {dimension} is none of all its arrays'")
    lengths = {shape.sizes[dimension] for shape in scanned}
    if context.attribute("scan_dim_size") is not None:
        lengths.add(context.integer("scan_dim_size"))
    if len(lengths) != 1:
        raise ValueError(f"it scans arrays of lengths {sorted(lengths)}")
    return lengths.pop()


def _condition(state: Sequence[Instruction], length: int) -> Computation:
    b = Builder("scan.condition")
    number, *_ = [b.parameter(x.shape) for x in state]
    return b.build(b.compare(number, b.constant(length, S32), "LT"))


def _body(
    state: Sequence[Instruction], counts: tuple[int, int, int], dimension: int, reverse_from: int, step: Computation
) -> Computation:
    b = Builder("scan.body")
    number, *rest = [b.parameter(x.shape) for x in state]
    outputs, rest = rest[: counts[0]], rest[counts[0] :]
    carries, rest = rest[: counts[1]], rest[counts[1] :]
    inputs, captured = rest[: counts[2]], rest[counts[2] :]
    at = b.subtract(b.constant(reverse_from - 1, S32), number) if reverse_from else number
    slices = [_slice(b, x, at, dimension) for x in inputs]
    result = b.emit(Call(step), *slices, *carries, *captured)
    given = [b.emit(GetTupleElement(i), result) for i in range(len(result.shape.leaves()))]
    if len(given) != len(outputs) + len(carries):
        raise ValueError(f"its body returns {len(given)} values, not {len(outputs) + len(carries)}")
    written = [_write(b, x, y, at, dimension) for x, y in zip(outputs, given, strict=False)]
    following = b.add(number, b.constant(1, S32))
    return b.build(b.emit(Tuple(), following, *written, *given[len(outputs) :], *inputs, *captured))


def _starts(b: Builder, rank: int, at: Instruction, dimension: int) -> list[Instruction]:
    zero = b.constant(0, S32)
    return [at if d == dimension else zero for d in range(rank)]


def _slice(b: Builder, x: Instruction, at: Instruction, dimension: int) -> Instruction:
    sizes = x.array_shape.sizes
    one = b.dynamic_slice(x, _starts(b, len(sizes), at, dimension), _with(sizes, dimension, [1]))
    return b.reshape(one, _with(sizes, dimension, []))


def _write(b: Builder, x: Instruction, part: Instruction, at: Instruction, dimension: int) -> Instruction:
    sizes = x.array_shape.sizes
    update = b.reshape(part, _with(sizes, dimension, [1]))
    return b.dynamic_update_slice(x, update, _starts(b, len(sizes), at, dimension))


def _with(sizes: Sequence[int], dimension: int, instead: Sequence[int]) -> list[int]:
    return [*sizes[:dimension], *instead, *sizes[dimension + 1 :]]
