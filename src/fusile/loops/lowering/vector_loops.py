"""Loops over neighbours in memory, in vectors: whole groups of vectors, whole vectors, then a masked rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusile.hlo.ir import Instruction
from fusile.loops.ir import Const, Expr, LoopKind, Var, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.machine import Machine

VectorBody = Callable[[Block, Expr, int, Expr], None]
"""Writes one vector's work into a block: `(block, column, slot of the group, lane)`."""
UNROLL = 4
"""Independent accumulators of a vectorized reduction."""


def lanes_for(instructions: Sequence[Instruction], machine: Machine) -> int:
    """Lanes by the widest type among these, so that every value fits a register or two."""
    widest = 4
    for i in instructions:
        for leaf in i.shape.leaves():
            t = leaf.element_type
            if not t.is_predicate and leaf.elements > 1:
                widest = max(widest, t.real.bytes if t.is_complex else t.bytes)
    return max(1, machine.vector_bytes // min(widest, 8))


class VectorLoops:
    """Writes such loops into blocks."""

    def __init__(self, elemental: Elemental, lanes: int) -> None:
        self.elemental, self.lanes = elemental, lanes

    def run(self, block: Block, count: int, start: Expr, body: VectorBody, unroll: int = UNROLL,
            total: int | None = None) -> None:  # fmt: skip
        """Loops over `count` columns from `start`: whole groups of vectors, whole vectors, then a masked rest. `total`:
        where the row ends, when the last piece of it may be short."""
        lanes, math_, names = self.lanes, self.elemental.math, self.elemental.names
        total = count if total is None else total
        if count == 1:
            body(block, start, 0, const(0))
            return
        short = isinstance(start, Const) is False and total % count != 0
        if short:
            left = block.let(math_.minimum(const(count), math_.subtract(const(total), start)), "left")
            self.run_counted(block, start, left, count, body, total % lanes == 0)
            return
        done = 0
        for width in (lanes * unroll, lanes):
            times = (count - done) // width
            if times:
                index = math_.bound(names.var("j"), times)
                inner = block.child()
                for slot in range(width // lanes):
                    base = math_.add(math_.add(start, math_.scale(index, width)), const(done + slot * lanes))
                    self._vector(inner, base, slot, None, body)
                block.loop(index, times, inner)
                done += times * width
            if unroll == 1:
                break
        if done < count:
            active = const(count - done) if lanes > 1 else None
            self._vector(block, math_.add(start, const(done)), 0, active, body)

    def run_counted(
        self, block: Block, start: Expr, count: Expr, most: int, body: VectorBody, whole_only: bool = False
    ) -> None:
        """Loops over `count` columns, known at run time and at most `most`: whole vectors, then a masked one.
        `whole_only`: the count is a multiple of the lanes."""
        math_, names, lanes = self.elemental.math, self.elemental.names, self.lanes
        whole = block.let(math_.floor_divide(count, lanes), "whole")
        index = math_.bound(names.var("j"), most // lanes)
        inner = block.child()
        self._vector(inner, math_.add(start, math_.scale(index, lanes)), 0, None, body)
        block.loop(index, whole, inner)
        if whole_only or lanes == 1:
            return
        done = block.let(math_.scale(whole, lanes), "done")
        if isinstance(done, Var):
            math_.ranges[done.name] = (0, most)
        self._vector(block, math_.add(start, done), 0, math_.subtract(count, done), body)

    def _vector(self, into: Block, base: Expr, slot: int, active: Expr | None, body: VectorBody) -> None:
        lane = self.elemental.math.bound(self.elemental.names.var("lane"), self.lanes)
        inner = into.child()
        body(inner, self.elemental.math.add(base, lane), slot, lane)
        into.loop(lane, self.lanes, inner, LoopKind.VECTOR, active)
