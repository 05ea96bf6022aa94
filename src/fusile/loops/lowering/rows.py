"""Row-wise lowering: a fusion as parallel rows, each a sequence of inner loops over what stays in cache.

A fusion has a *space*, the dimensions of its full-sized instructions, cut in outer dimensions (rows) and inner ones. A
reduction over the inner dimensions gives one value a row. Reductions that do not wait for one another share a loop;
each loop is a stage; a last stage writes the results. Expensive values that several stages use are kept in a row-sized
buffer, the rest is computed again. Softmax, layer normalization, log-sum-exp and `reduce_sum + argmax` are one kernel
that way, and a fusion without reductions is the case of one stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Dot
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.hlo.opset.shape import Gather
from fusile.loops.ir import Alloc, Buffer, Expr, For, Kernel, Load, LoopKind, Space, Stmt, Store, Var, const
from fusile.loops.lowering.accumulators import Accumulators
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, transcendental
from fusile.loops.lowering.inline_loops import nest
from fusile.loops.lowering.row_space import (
    RowSpace,
    reachable,
    root_indices,
    row_reductions,
    space_of_map,
    space_of_rows,
)
from fusile.loops.lowering.split_reductions import LongRows, TallColumns
from fusile.loops.lowering.vector_loops import UNROLL, VectorLoops, lanes_for
from fusile.loops.machine import Machine

TASK_ELEMENTS = 16 << 10
"""Elements that one parallel iteration works on, at least."""
ROW_BUFFER_BYTES = 128 << 10
"""What the buffers of one row may take: they stay in cache, and on the stack."""
LEAST_ROWS = 64
"""With fewer rows than this, long rows are cut in pieces."""

RowBody = Callable[[Block, tuple[Expr, ...], int, Expr], None]
"""Writes one vector's work: `(block, indices, slot of the group, lane)`."""


def lower_rows(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `loop` fusion."""
    elemental = Elemental(fusion, machine)
    if not any(b.elements for _, b in elemental.results):
        return elemental.kernel(name)
    return elemental.kernel(name, *_Writer(elemental).phases())


class _Writer:
    def __init__(self, elemental: Elemental) -> None:
        self.elemental, self.math, self.names = elemental, elemental.math, elemental.names
        self.order = reachable(elemental.roots)
        self.lanes = lanes_for(self.order, elemental.machine)
        self.loops = VectorLoops(elemental, self.lanes)
        self.reductions = row_reductions(self.order)
        if self.reductions and self._rows_are_short():
            self.reductions = []
        self.space = space_of_rows(self.reductions[0]) if self.reductions else space_of_map(elemental)
        self.stages = self._stages()

    def _rows_are_short(self) -> bool:
        """Whether lanes better run along the rows: shorter than a vector, and all results are a value a row."""
        space = space_of_rows(self.reductions[0])
        return space.columns < self.lanes <= space.rows and self._gives_row_values(space)

    def phases(self) -> list[Stmt]:
        if not self.reductions:
            columns = TallColumns(self.elemental, self.order, self.lanes)
            return columns.phases() if columns.pays() else [self._map_phase()]
        rows = LongRows(self.elemental, self.reductions, self.lanes, self.space)
        one_stage = len(self.stages) == 1 and self._gives_row_values(self.space)
        return rows.phases() if one_stage and rows.pays() else [self._row_phase()]

    def _gives_row_values(self, space: RowSpace) -> bool:
        """Whether all results have a value a row."""
        return all(r.array_shape.elements == space.rows for r in self.elemental.roots)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _map_phase(self) -> For:
        """No rows' reductions: every root over its space. Few long rows are cut in pieces."""
        rows, columns = self.space.rows, self.space.columns
        if rows >= LEAST_ROWS or columns <= TASK_ELEMENTS:
            return self._grouped(max(1, columns * self._work()), lambda b, row: self._final_stage(b, row))
        piece = -(-TASK_ELEMENTS // (self.lanes * UNROLL)) * self.lanes * UNROLL
        pieces = -(-columns // piece)
        task = self.math.bound(self.names.var("task"), rows * pieces)
        block = self.elemental.block()
        row, number = self.math.unflatten(task, (rows, pieces))
        self._final_stage(block, row, self.math.scale(number, piece), piece)
        return For(task, const(rows * pieces), block.body(), LoopKind.PARALLEL)

    def _row_phase(self) -> For:
        return self._grouped(max(1, self.space.columns), self._row)

    def _work(self) -> int:
        """Roughly how many elements are touched for one of the space: reductions inside count theirs."""
        total = 1
        for i in self.order:
            if isinstance(i.op, Reduce):
                kept = max(1, i.shape.leaves()[0].elements)
                total = max(total, i.operands[0].array_shape.elements // kept)
        return total

    def _grouped(self, row_elements: int, body: Callable[[Block, Expr], None]) -> For:
        """Rows of so many elements, as many a task as make it worth a thread's while."""
        rows = self.space.rows
        group = min(rows, max(1, TASK_ELEMENTS // row_elements))
        tasks = -(-rows // group)
        task = self.math.bound(self.names.var("task"), tasks)
        block = self.elemental.block()
        if group == 1:
            body(block, task)
            return For(task, const(tasks), block.body(), LoopKind.PARALLEL)
        index = self.math.bound(self.names.var("row"), group)
        inner = block.child()
        row = inner.let(self.math.add(self.math.scale(task, group), index), "r")
        if isinstance(row, Var):
            self.math.bound(row, rows)
        body(inner, row)
        left = self.math.subtract(const(rows), self.math.scale(task, group))
        block.loop(index, self.math.minimum(const(group), left) if rows % group else const(group), inner)
        return For(task, const(tasks), block.body(), LoopKind.PARALLEL)

    # -- one row -------------------------------------------------------------------------------------------------------

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

    def _row(self, block: Block, row: Expr) -> None:
        kept = self._kept_values()
        saved = dict(self.elemental.overrides)
        for number, stage in enumerate(self.stages):
            stores = [(i, b) for i, (b, first) in kept.items() if first == number]
            block.statements += [Alloc(b) for _, b in stores]
            self._reduction_stage(block, row, stage, stores)
            for i, buffer in stores:
                self._read_from(i, buffer)
        self._final_stage(block, row)
        self.elemental.overrides = saved

    def _kept_values(self) -> dict[Instruction, tuple[Buffer, int]]:
        """Expensive full-sized values that several stages need, each with a row buffer and the first such stage."""
        users: dict[Instruction, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for i in self._needed([o for r in stage for o in r.operands[: len(r.operands) // 2]]):
                users.setdefault(i, []).append(number)
        for i in self._needed([r for r in self.elemental.roots if r.array_shape.sizes == self.space.sizes]):
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

    def _final_stage(self, block: Block, row: Expr, start: Expr | None = None, count: int = 0) -> None:
        """Writes every root: full-sized ones in a loop over the row, or `count` columns of it, row-sized ones once."""
        full = []
        for root, buffer in self.elemental.results:
            if (
                self.reductions
                and root.array_shape.sizes != self.space.sizes
                and root.array_shape.elements == self.space.rows
            ):
                at = self.math.unflatten(row, root.array_shape.sizes)
                self.elemental.store(buffer, root, at, self.elemental.value(root, at, block), block)
            else:
                full.append((root, buffer))

        def body(b: Block, at: tuple[Expr, ...], slot: int, lane: Expr) -> None:
            for root, buffer in full:
                place = root_indices(self.math, root, self.space, at)
                assert place is not None, f"root {root.name} does not fit the space {self.space}"
                self.elemental.store(buffer, root, place, self.elemental.value(root, place, b), b)

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
