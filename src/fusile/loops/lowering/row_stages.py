"""One row of a fusion: reductions by stages, each a loop over the row, then a loop that gives the results.

What a stage keeps for later stages lies in row-sized buffers. Whose row it is, and where the results go, is the
caller's business: a kernel of rows, or a product whose rows were just made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Dot
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.hlo.opset.shape import Gather
from fusile.loops.ir import Alloc, Buffer, Expr, Load, Space, Store, const
from fusile.loops.lowering.accumulators import Accumulators
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, Pair, transcendental
from fusile.loops.lowering.inline_loops import nest
from fusile.loops.lowering.row_space import RowSpace, reachable, root_indices
from fusile.loops.lowering.vector_loops import UNROLL, VectorLoops

ROW_BUFFER_BYTES = 128 << 10
"""What the buffers of one row may take: they stay in cache, and on the stack."""

RowBody = Callable[[Block, tuple[Expr, ...], int, Expr], None]
"""Writes one vector's work: `(block, indices, slot of the group, lane)`."""
Sink = Callable[[Sequence[Expr], object, Block], None]
"""Takes a result's element: `(index, value, block)`."""


class RowStages:
    """Writes rows of `space`, whose reductions are `reductions`, and gives each of `results` to its sink."""

    def __init__(
        self,
        elemental: Elemental,
        results: Sequence[tuple[Instruction, Sink]],
        reductions: Sequence[Instruction],
        space: RowSpace,
        lanes: int,
    ) -> None:
        self.elemental, self.math, self.names = elemental, elemental.math, elemental.names
        self.results, self.reductions, self.space, self.lanes = results, reductions, space, lanes
        self.order = reachable([r for r, _ in results])
        self.loops = VectorLoops(elemental, lanes)
        self.stages = self._stages()

    def _stages(self) -> list[list[Instruction]]:
        """The reductions by stages: each after those that it waits for."""
        level: dict[Instruction, int] = {}
        stages: list[list[Instruction]] = []
        for i in self.order:
            level[i] = max((level[o] for o in i.operands), default=0)
            if i in self.reductions:
                if len(stages) == level[i]:
                    stages.append([])
                stages[level[i]].append(i)
                level[i] += 1
        return stages

    def row(self, block: Block, row: Expr) -> None:
        kept = self._kept_values()
        saved = dict(self.elemental.overrides)
        for number, stage in enumerate(self.stages):
            stores = [(i, b) for i, (b, first) in kept.items() if first == number]
            block.statements += [Alloc(b) for _, b in stores]
            self._reduction_stage(block, row, stage, stores)
            for i, buffer in stores:
                self._read_from(i, buffer)
        self.final_stage(block, row)
        self.elemental.overrides = saved

    def _kept_values(self) -> dict[Instruction, tuple[Buffer, int]]:
        """Expensive full-sized values that several stages need, each with a row buffer and the first such stage."""
        users: dict[Instruction, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for i in self._needed([o for r in stage for o in r.operands[: len(r.operands) // 2]]):
                users.setdefault(i, []).append(number)
        for i in self._needed([r for r, _ in self.results if r.array_shape.sizes == self.space.sizes]):
            users.setdefault(i, []).append(len(self.stages))
        kept: dict[Instruction, tuple[Buffer, int]] = {}
        room = ROW_BUFFER_BYTES
        for i in self.order:
            if len(users.get(i, ())) < 2 or not self._is_worth_keeping(i):
                continue
            t = i.array_shape.element_type
            room -= self.space.columns * t.bytes
            if room >= 0:
                buffer = Buffer(self.names.var("row").name, t, (self.space.columns,), Space.SCRATCH)
                kept[i] = buffer, users[i][0]
        return kept

    def _is_worth_keeping(self, i: Instruction) -> bool:
        if i.shape.is_tuple or i.array_shape.sizes != self.space.sizes or i.array_shape.element_type.is_complex:
            return False
        if i in self.elemental.overrides:
            return False
        return transcendental(i) or isinstance(i.op, Dot | Reduce | ReduceWindow | Gather)

    def _needed(self, roots: Sequence[Instruction]) -> list[Instruction]:
        """What is computed for each element of these: the way stops at this fusion's reductions."""
        seen: dict[Instruction, None] = {}
        stack = list(roots)
        while stack:
            i = stack.pop()
            if i not in seen and i not in self.reductions:
                seen[i] = None
                stack += i.operands
        return list(seen)

    def _column(self, at: Sequence[Expr]) -> Expr:
        """The place in its row of an element of the space."""
        return self.math.flatten([at[d] for d in self.space.inner], self.space.inner_sizes)

    def _read_from(self, i: Instruction, buffer: Buffer) -> None:
        """From now on the instruction's value comes from its row buffer."""
        self.elemental.override(i, lambda at: Load(buffer, (self._column(at),)))

    # -- stages --------------------------------------------------------------------------------------------------------

    def _reduction_stage(
        self, block: Block, row: Expr, stage: Sequence[Instruction], stores: Sequence[tuple[Instruction, Buffer]]
    ) -> None:
        """One loop over the row for all reductions of a stage; their results become named scalars."""
        groups = [Accumulators(self.elemental, r, block, self.lanes) for r in stage]

        def body(b: Block, at: tuple[Expr, ...], slot: int, lane: Expr) -> None:
            for instruction, buffer in stores:
                b.emit(Store(buffer, (self._column(at),), self.elemental.value(instruction, at, b)))
            for group in groups:
                group.accumulate(b, at, slot, lane)

        self._over_row(block, row, body, UNROLL)
        for group in groups:
            group.finish(block)

    def final_stage(self, block: Block, row: Expr, start: Expr | None = None, count: int = 0) -> None:
        """Writes every root: full-sized ones in a loop over the row, or `count` columns of it, row-sized ones once."""
        full = []
        for root, sink in self.results:
            shape = root.array_shape
            if self.reductions and shape.sizes != self.space.sizes and shape.elements == self.space.rows:
                at = self.math.unflatten(row, shape.sizes)
                sink(at, self.elemental.value(root, at, block), block)
            else:
                full.append((root, sink))

        def body(b: Block, at: tuple[Expr, ...], slot: int, lane: Expr) -> None:
            # A result may lie where an operand of another does: everything is read before anything is written.
            read_first = self.elemental.in_place and len(full) > 1
            made = []
            for root, sink in full:
                place = root_indices(self.math, root, self.space, at)
                assert place is not None, f"root {root.name} does not fit the space {self.space}"
                value = self.elemental.value(root, place, b)
                if read_first:
                    value = Pair(b.let(value.real), b.let(value.imag)) if isinstance(value, Pair) else b.let(value)
                made.append((sink, place, value))
            for sink, place, value in made:
                sink(place, value, b)

        if full:
            self._over_row(block, row, body, 1, start, count)

    def _over_row(
        self, block: Block, row: Expr, body: RowBody, unroll: int, start: Expr | None = None, count: int = 0
    ) -> None:
        """Loops over a row, or `count` columns from `start`: vectors run along its trailing dimensions that lie side by
        side, serial loops over inner dimensions that others lie between."""
        space = self.space
        outer = self.math.unflatten(row, space.outer_sizes)
        split = [d for d in space.inner if d not in space.run]
        serial = [(self.math.bound(self.names.var("i"), space.sizes[d]), space.sizes[d]) for d in split]
        sizes = [space.sizes[d] for d in space.run]
        run = math.prod(sizes)

        def vector(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            inner = (*(v for v, _ in serial), *self.math.unflatten(column, sizes))
            body(b, space.place(outer, inner), slot, lane)

        inside = block.child()
        self.loops.run(inside, count or run, start if start is not None else const(0), vector, unroll, total=run)
        nest(block, inside, serial)
