"""Elements of ops that only move elements: they ask operands at other indices. Loads never leave an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusile.base.element_type import PRED, S64
from fusile.hlo.ir import Instruction
from fusile.hlo.opset import shape as sh
from fusile.loops.ir import Apply, Const, Expr, Var, compare, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, Indices, chosen, converted, reshaped, rule


@rule(sh.Broadcast)
def _broadcast(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Broadcast)
    return e.value(i.operands[0], tuple(at[d] for d in i.op.broadcast_dimensions), block)


@rule(sh.Reshape)
def _reshape(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return e.value(i.operands[0], reshaped(e.math, at, i.array_shape.sizes, i.operands[0].array_shape.sizes), block)


@rule(sh.Transpose)
def _transpose(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Transpose)
    source: list[Expr] = [const(0)] * len(at)
    for d, p in enumerate(i.op.permutation):
        source[p] = at[d]
    return e.value(i.operands[0], tuple(source), block)


@rule(sh.Slice)
def _slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Slice)
    source = tuple(
        e.math.add(e.math.scale(x, stride), const(start))
        for x, start, stride in zip(at, i.op.starts, i.op.strides, strict=True)
    )
    return e.value(i.operands[0], source, block)


@rule(sh.Reverse)
def _reverse(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.Reverse)
    sizes = i.array_shape.sizes
    source = tuple(e.math.subtract(const(sizes[d] - 1), x) if d in i.op.dimensions else x for d, x in enumerate(at))
    return e.value(i.operands[0], source, block)


@dataclass
class Guarded:
    """The tests that an index is inside, joined; None when it always is."""

    test: Expr | None = None

    def also(self, test: Expr) -> None:
        self.test = test if self.test is None else Apply("and", (self.test, test), PRED)


def guarded(e: Elemental, place: Expr, size: int, step: int, guard: Guarded, block: Block) -> Expr:
    """The operand's index for a place in a dimension of `size` elements `step` apart, moved inside. `guard` gets the
    tests that an element really is at that place."""
    low, high = e.math.range_of(place)
    last = max(0, (size - 1) * step)
    if low < 0:
        guard.also(compare("ge", place, const(0)))
    if high > last:
        guard.also(compare("le", place, const(last)))
    if low < 0 or high > last:
        place = block.let(e.math.clamp(place, 0, last), "at")
        if isinstance(place, Var):
            e.math.ranges[place.name] = (0, last)
    if step == 1:
        return place
    guard.also(compare("eq", e.math.modulo(place, step), const(0)))
    return block.let(e.math.floor_divide(place, step), "at")


@rule(sh.Pad)
def _pad(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """Inside, the operand at an index moved inside; outside, the padding value."""
    assert isinstance(i.op, sh.Pad)
    x, padding = i.operands
    if not x.array_shape.elements:
        return e.value(padding, (), block)
    guard = Guarded()
    source = []
    for d, size in enumerate(x.array_shape.sizes):
        place = e.math.subtract(at[d], const(i.op.low[d]))
        source.append(guarded(e, place, size, i.op.interior[d] + 1, guard, block))
    value = e.value(x, source, block)
    return value if guard.test is None else chosen(guard.test, value, e.value(padding, (), block), block)


@rule(sh.Concatenate)
def _concatenate(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """A chain of selects; each operand is asked at an index moved inside it."""
    assert isinstance(i.op, sh.Concatenate)
    d = i.op.dimension
    low, high = e.math.range_of(at[d])
    start, value = 0, None
    for operand in i.operands:
        size = operand.array_shape.sizes[d]
        if size and low < start + size and high >= start:
            place = guarded(e, e.math.subtract(at[d], const(start)), size, 1, Guarded(), block)
            part = e.value(operand, (*at[:d], place, *at[d + 1 :]), block)
            value = part if value is None else chosen(compare("ge", at[d], const(start)), part, value, block)
        start += size
    return value


def clamped_start(e: Elemental, value: Expr, room: int, block: Block) -> Expr:
    """A start index moved into [0, room], as an s64."""
    if isinstance(value, Const):
        return const(min(max(int(value.value), 0), room))
    if room == 0:
        return const(0)
    t = value.element_type
    if t.is_unsigned and t.bits == 64:
        value = Apply("minimum", (value, Const(room, t)), t)
    wide = converted(value, S64)
    var = block.let(Apply("maximum", (Apply("minimum", (wide, const(room)), S64), const(0)), S64), "start")
    if isinstance(var, Var):
        e.math.ranges[var.name] = (0, room)
    return var


@rule(sh.DynamicSlice)
def _dynamic_slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, sh.DynamicSlice)
    x, *starts = i.operands
    source = []
    for index, start, size, total in zip(at, starts, i.op.sizes, x.array_shape.sizes, strict=True):
        source.append(e.math.add(index, clamped_start(e, e.value(start, (), block), total - size, block)))
    return e.value(x, tuple(source), block)


@rule(sh.DynamicUpdateSlice)
def _dynamic_update_slice(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """Not in place: the update where the index is inside its window, else the operand."""
    x, update, *starts = i.operands
    if not update.array_shape.elements:
        return e.value(x, at, block)
    guard = Guarded()
    source = []
    for index, start, size, total in zip(at, starts, update.array_shape.sizes, x.array_shape.sizes, strict=True):
        begin = clamped_start(e, e.value(start, (), block), total - size, block)
        source.append(guarded(e, e.math.subtract(index, begin), size, 1, guard, block))
    value = e.value(update, source, block)
    return value if guard.test is None else chosen(guard.test, value, e.value(x, at, block), block)


@rule(sh.Gather)
def _gather(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    op = i.op
    assert isinstance(op, sh.Gather)
    x, indices = i.operands
    batch = [at[d] for d in range(len(at)) if d not in op.offset_dims]
    offsets = iter([at[d] for d in op.offset_dims])
    source: list[Expr] = []
    for d in range(x.array_shape.rank):
        dropped = d in op.collapsed_slice_dims or d in op.operand_batching_dims
        source.append(const(0) if dropped else next(offsets))
    for number, d in enumerate(op.start_index_map):
        place = list(batch)
        if op.index_vector_dim < indices.array_shape.rank:
            place.insert(op.index_vector_dim, const(number))
        start = clamped_start(
            e, e.value(indices, tuple(place), block), x.array_shape.sizes[d] - op.slice_sizes[d], block
        )
        source[d] = e.math.add(source[d], start)
    batch_dims = [d for d in range(indices.array_shape.rank) if d != op.index_vector_dim]
    for d, from_dim in zip(op.operand_batching_dims, op.start_indices_batching_dims, strict=True):
        source[d] = batch[batch_dims.index(from_dim)]
    return e.value(x, tuple(source), block)
