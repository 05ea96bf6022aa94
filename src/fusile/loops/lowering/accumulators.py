"""The accumulators of one reduction in a loop: vectors of lanes joined by a fixed tree, or single cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusile.base.element_type import PRED, ElementType
from fusile.hlo.builder import neutral
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import combiner_opcode
from fusile.hlo.opset.structure import Iota
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    Const,
    Expr,
    For,
    Load,
    LoopKind,
    Space,
    Store,
    Var,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, converted
from fusile.loops.lowering.scalar_bodies import (
    accumulator_types,
    combiner_of,
    from_parts,
    part_types,
    parts_of,
    substituted,
)
from fusile.loops.lowering.vector_loops import UNROLL

WITH_NEUTRAL = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
"""Ops whose neutral element is known; any other reduction starts from its initial value, which must be neutral."""


class Accumulators:
    """Allocated in `block`, filled by `accumulate` or `join`, read by `joined`; a complex value has two parts.

    `lanes`: UNROLL vectors of so many lanes, or one cell when it is 0.
    """

    def __init__(self, elemental: Elemental, instruction: Instruction, block: Block, lanes: int) -> None:
        self.elemental, self.instruction, self.lanes = elemental, instruction, lanes
        self.types = accumulator_types(instruction)
        count = len(self.types)
        self.inputs = instruction.operands[:count]
        self.combiner = combiner_of(instruction.op.computations()[0], self.types, elemental.names)
        self.initial = self._parts(instruction.operands[count:], (), block)
        self.opcode = combiner_opcode(instruction.op.computations()[0])
        self.identity = tuple(self._neutral())
        self.joining = self._ordered()
        self.buffers = self._allocate(block)

    def _allocate(self, block: Block) -> list[Buffer]:
        names = self.elemental.names
        size = UNROLL * self.lanes or 1
        buffers = [Buffer(names.var("acc").name, t, (size,), Space.REGISTER) for t in part_types(self.types)]
        for buffer, identity in zip(buffers, self.identity, strict=True):
            block.emit(Alloc(buffer))
            if not self.lanes:
                block.emit(Store(buffer, (const(0),), identity))
            for slot in range(UNROLL if self.lanes else 0):
                lane = self._lane()
                store = Store(buffer, (self._place(lane, slot),), identity)
                block.emit(For(lane, const(self.lanes), (store,), LoopKind.VECTOR))
        return buffers

    def _neutral(self) -> list[Expr]:
        if self.opcode not in WITH_NEUTRAL:
            return self.initial
        return parts_of(_number(neutral(self.opcode, t.real if t.is_complex else t), t) for t in self.types)

    def _ordered(self) -> Combiner:
        """The combiner for joining accumulators. With a running index among the operands, the side whose index is lower
        counts as the left one: what an argmax does with several NaNs then doesn't depend on how lanes interleave."""
        index = next((n for n, o in enumerate(self.inputs) if _counts(o)), None)
        if index is None or len(self.inputs) == 1 or any(t.is_complex for t in self.types):
            return self.combiner
        left, right = self.combiner.left, self.combiner.right
        first = Apply("le", (left[index], right[index]), PRED)
        swapped: dict[Var, Expr] = {}
        for a, b in zip(left, right, strict=True):
            swapped[a] = Apply("select", (first, a, b), a.element_type)
            swapped[b] = Apply("select", (first, b, a), b.element_type)
        return Combiner(left, right, tuple(substituted(self.combiner.results, swapped)))

    # -- filling ------------------------------------------------------------------------------------------------------

    def operands(self, at: Sequence[Expr], block: Block) -> list[Expr]:
        """The inputs' elements, in parts."""
        return self._parts(self.inputs, at, block)

    def _parts(self, instructions: Sequence[Instruction], at: Sequence[Expr], block: Block) -> list[Expr]:
        values = [self.elemental.value(i, at, block) for i in instructions]
        return parts_of(converted(v, t) for v, t in zip(values, self.types, strict=True))

    def accumulate(self, block: Block, at: Sequence[Expr], slot: int, lane: Expr) -> None:
        """One vector of elements into the accumulators of a slot."""
        self._step(block, self._place(lane, slot), self.operands(at, block), self.combiner)

    def join(self, block: Block, parts: Sequence[Expr]) -> None:
        """Values into the one cell."""
        self._step(block, const(0), parts, self.joining)

    def _step(self, block: Block, place: Expr, parts: Sequence[Expr], combiner: Combiner) -> None:
        cells = tuple((b, (place,)) for b in self.buffers)
        block.emit(Accumulate(cells, tuple(parts), combiner, self.identity))

    def _lane(self) -> Var:
        return self.elemental.math.bound(self.elemental.names.var("lane"), self.lanes)

    def _place(self, lane: Expr, slot: int) -> Expr:
        return self.elemental.math.add(lane, const(slot * self.lanes))

    # -- reading ------------------------------------------------------------------------------------------------------

    def cells(self) -> list[Expr]:
        return [Load(b, (const(0),)) for b in self.buffers]

    def joined(self, block: Block) -> list[Expr]:
        """The slots joined in pairs, then the lanes by halves: a tree that never changes."""
        if not self.lanes:
            return self.cells()
        width = UNROLL
        while width > 1:
            width //= 2
            for slot in range(width):
                lane, inner = self._lane(), block.child()
                values = [Load(b, (self._place(lane, slot + width),)) for b in self.buffers]
                self._step(inner, self._place(lane, slot), values, self.joining)
                block.loop(lane, self.lanes, inner, LoopKind.VECTOR)
        return self._join_lanes(block)

    def _join_lanes(self, block: Block) -> list[Expr]:
        names = self.elemental.names
        cells = [Buffer(names.var("cell").name, b.element_type, (1,), Space.REGISTER) for b in self.buffers]
        for cell, identity in zip(cells, self.identity, strict=True):
            block.emit(Alloc(cell))
            block.emit(Store(cell, (const(0),), identity))
        lane, inner = self._lane(), block.child()
        values = tuple(Load(b, (lane,)) for b in self.buffers)
        inner.emit(Accumulate(tuple((c, (const(0),)) for c in cells), values, self.joining, self.identity))
        block.loop(lane, self.lanes, inner, LoopKind.VECTOR)
        return [Load(c, (const(0),)) for c in cells]

    def finish(self, block: Block) -> None:
        """Names the results and makes them the reduction's value."""
        parts = self.joined(block)
        if list(self.identity) != self.initial:
            parts = self._with_initial(parts)
        leaves = [s.element_type for s in self.instruction.shape.leaves()]
        values = [converted(v, t) for v, t in zip(from_parts(parts, self.types), leaves, strict=True)]
        named = from_parts([block.let(p, "total") for p in parts_of(values)], leaves)
        self.elemental.override(self.instruction, named[0] if len(named) == 1 else lambda _: named)

    def _with_initial(self, parts: Sequence[Expr]) -> list[Expr]:
        values = dict(zip((*self.combiner.left, *self.combiner.right), (*self.initial, *parts), strict=True))
        return substituted(self.combiner.results, values)


def _counts(i: Instruction) -> bool:
    return isinstance(i.op, Iota) and i.array_shape.element_type.is_integer


def _number(value: Any, t: ElementType) -> Any:
    from fusile.loops.lowering.elemental import Pair

    if t.is_complex:
        return Pair(Const(float(value), t.real), Const(0.0, t.real))
    return Const(float(value) if t.is_float else bool(value) if t.is_predicate else int(value), t)
