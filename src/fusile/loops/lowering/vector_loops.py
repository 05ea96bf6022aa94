"""Loops over neighbours in memory, in vectors: whole groups of vectors, whole vectors, then a masked rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusile.base.element_type import S64
from fusile.hlo.ir import Instruction
from fusile.loops.ir import Apply, Const, Expr, LoopKind, Var, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.machine import Machine

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
    """Writes such loops into blocks. `body(block, column, slot, lane)` writes one vector's work."""

    def __init__(self, elemental: Elemental, lanes: int) -> None:
        self.elemental, self.lanes = elemental, lanes

    def run(self, block: Block, count: int, start: Expr, body: Callable[[Block, Expr, int, Expr], None], unroll: int = UNROLL,
            total: int | None = None) -> None:  # fmt: skip
        """Loops over `count` columns from `start`: whole groups of vectors, whole vectors, then a masked rest. `total`: where
        the row ends, when the last piece of it may be short."""
        lanes, math_, names = self.lanes, self.elemental.math, self.elemental.names
        total = count if total is None else total
        if count == 1:
            body(block, start, 0, const(0))
            return
        short = isinstance(start, Const) is False and total % count != 0

        def vector(into: Block, base: Expr, slot: int, active: Expr | None) -> None:
            lane = math_.bound(names.var("lane"), lanes)
            inner = into.child()
            body(inner, math_.add(base, lane), slot, lane)
            into.loop(lane, lanes, inner, LoopKind.VECTOR, active)

        if short:
            self._short_pieces(block, start, count, total, vector)
            return
        done = 0
        for width in (lanes * unroll, lanes):
            times = (count - done) // width
            if times:
                index = math_.bound(names.var("j"), times)
                inner = block.child()
                for slot in range(width // lanes):
                    base = math_.add(math_.add(start, math_.scale(index, width)), const(done + slot * lanes))
                    vector(inner, base, slot, None)
                block.loop(index, times, inner)
                done += times * width
            if unroll == 1:
                break
        if done < count:
            vector(block, math_.add(start, const(done)), 0, const(count - done) if lanes > 1 else None)

    def _short_pieces(self, block: Block, start: Expr, count: int, total: int, vector: Callable[[Block, Expr, int, Expr | None], None]) -> None:
        """A piece that may be the last: its vectors are counted at run time, with one masked vector at the end."""
        math_, names, lanes = self.elemental.math, self.elemental.names, self.lanes
        left = block.let(Apply("minimum", (const(count), math_.subtract(const(total), start)), S64), "left")
        whole = block.let(Apply("floor_divide", (left, const(lanes)), S64), "whole")
        index = math_.bound(names.var("j"), count // lanes)
        inner = block.child()
        vector(inner, math_.add(start, math_.scale(index, lanes)), 0, None)
        block.loop(index, whole, inner)
        rest = math_.subtract(left, math_.scale(whole, lanes))
        if total % lanes:
            done = block.let(math_.scale(whole, lanes), "done")
            if isinstance(done, Var):
                math_.ranges[done.name] = (0, count)
            vector(block, math_.add(start, done), 0, rest)
