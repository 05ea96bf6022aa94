"""Row-wise lowering: a fusion as parallel rows, each a sequence of inner loops over what stays in cache.

A fusion has a *space*, the dimensions of its full-sized instructions, cut in outer dimensions (rows) and inner ones. A
reduction over the inner dimensions gives one value a row. Reductions that do not wait for one another share a loop;
each loop is a stage; a last stage writes the results. Expensive values that several stages use are kept in a row-sized
buffer, the rest is computed again. Softmax, layer normalization, log-sum-exp and `reduce_sum + argmax` are one kernel
that way, and a fusion without reductions is the case of one stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import Reduce
from fusile.loops.ir import Expr, For, Kernel, LoopKind, Stmt, Var, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.row_space import (
    RowSpace,
    reachable,
    row_reductions,
    space_of_map,
    space_of_rows,
)
from fusile.loops.lowering.row_stages import RowStages
from fusile.loops.lowering.split_reductions import LongRows, TallColumns
from fusile.loops.lowering.vector_loops import UNROLL, lanes_for
from fusile.loops.machine import Machine

TASK_ELEMENTS = 16 << 10
"""Elements that one parallel iteration works on, at least."""
LEAST_ROWS = 64
"""With fewer rows than this, long rows are cut in pieces."""


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
        self.reductions = row_reductions(self.order)
        if self.reductions and self._rows_are_short():
            self.reductions = []
        self.space = space_of_rows(self.reductions[0]) if self.reductions else space_of_map(elemental)
        results = [(root, partial(elemental.store, buffer, root)) for root, buffer in elemental.results]
        self.stages = RowStages(elemental, results, self.reductions, self.space, self.lanes)

    def _rows_are_short(self) -> bool:
        """Whether lanes better run along the rows: shorter than a vector, and all results are a value a row."""
        space = space_of_rows(self.reductions[0])
        return space.columns < self.lanes <= space.rows and self._gives_row_values(space)

    def phases(self) -> list[Stmt]:
        if not self.reductions:
            columns = TallColumns(self.elemental, self.order, self.lanes)
            return columns.phases() if columns.pays() else [self._map_phase()]
        rows = LongRows(self.elemental, self.reductions, self.lanes, self.space)
        one_stage = len(self.stages.stages) == 1 and self._gives_row_values(self.space)
        return rows.phases() if one_stage and rows.pays() else [self._row_phase()]

    def _gives_row_values(self, space: RowSpace) -> bool:
        """Whether all results have a value a row."""
        return all(r.array_shape.elements == space.rows for r in self.elemental.roots)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _map_phase(self) -> For:
        """No rows' reductions: every root over its space. Few long rows are cut in pieces."""
        rows, columns = self.space.rows, self.space.columns
        if rows >= LEAST_ROWS or columns <= TASK_ELEMENTS:
            return self._grouped(max(1, columns * self._work()), self.stages.final_stage)
        piece = -(-TASK_ELEMENTS // (self.lanes * UNROLL)) * self.lanes * UNROLL
        pieces = -(-columns // piece)
        task = self.math.bound(self.names.var("task"), rows * pieces)
        block = self.elemental.block()
        row, number = self.math.unflatten(task, (rows, pieces))
        self.stages.final_stage(block, row, self.math.scale(number, piece), piece)
        return For(task, const(rows * pieces), block.body(), LoopKind.PARALLEL)

    def _row_phase(self) -> For:
        return self._grouped(max(1, self.space.columns), self.stages.row)

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
