"""Reductions to few values: cut in pieces that do not depend on threads, joined in a fixed order by a second phase.

Long rows (a sum of everything)::

    alloc part: f32[16] shared
    parallel task in 16:   part[task] = sum of 65536 elements
    serial row in 1:       y[row] = sum of part

Tall columns (bias gradients, batch statistics) are cut the same way in chunks of rows, each a row of the shared buffer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import Reduce
from fusile.loops.ir import Alloc, Buffer, Expr, For, If, Load, LoopKind, Space, Stmt, Store, Var, compare, const
from fusile.loops.lowering.accumulators import Accumulators
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.row_space import RowSpace, reachable
from fusile.loops.lowering.scalar_bodies import accumulator_types, part_types
from fusile.loops.lowering.vector_loops import VectorLoops

PIECE = 64 << 10
"""Elements of a long row that one task reduces."""
MOST_SPLIT_ROWS = 8
"""From so many rows on there are tasks enough without cutting rows."""
LEAST_CHUNK_ROWS = 16
MOST_CHUNKS = 64
LEAST_ELEMENTS = 64 << 10
"""Fewer elements than this are not worth a second phase."""


class _Split:
    """What both share: partial results in shared buffers, one for each part of each reduction."""

    def __init__(self, elemental: Elemental, reductions: Sequence[Instruction], lanes: int) -> None:
        self.elemental, self.math, self.reductions, self.lanes = elemental, elemental.math, reductions, lanes
        self.loops = VectorLoops(elemental, lanes)
        self.partial: dict[Instruction, list[Buffer]] = {}

    def allocate(self, size: int) -> list[Stmt]:
        for r in self.reductions:
            kinds = part_types(accumulator_types(r))
            names = self.elemental.names
            self.partial[r] = [Buffer(names.var("part").name, t, (size,), Space.SHARED) for t in kinds]
        return [Alloc(b) for buffers in self.partial.values() for b in buffers]

    def store_partial(self, group: Accumulators, place: Expr, block: Block) -> None:
        for buffer, value in zip(self.partial[group.instruction], group.joined(block), strict=True):
            block.emit(Store(buffer, (place,), value))

    def join(self, block: Block, count: int, place: Callable[[Expr], Expr]) -> None:
        """Joins `count` partial results in order; the reductions' values are known after."""
        for r, buffers in self.partial.items():
            group = Accumulators(self.elemental, r, block, lanes=0)
            index = self.math.bound(self.elemental.names.var("part"), count)
            inner = block.child()
            at = place(index)
            group.join(inner, [Load(b, (at,)) for b in buffers])
            block.loop(index, count, inner)
            group.finish(block)

    def store_results(self, flat: Expr, block: Block) -> None:
        for root, buffer in self.elemental.results:
            at = self.math.unflatten(flat, root.array_shape.sizes)
            self.elemental.store(buffer, root, at, self.elemental.value(root, at, block), block)


class LongRows(_Split):
    """Few rows, each long enough to be cut; all reductions in one loop and all results a value a row."""

    def __init__(self, elemental: Elemental, reductions: Sequence[Instruction], lanes: int, space: RowSpace) -> None:
        super().__init__(elemental, reductions, lanes)
        self.space = space

    def pays(self) -> bool:
        space = self.space
        return space.rows < MOST_SPLIT_ROWS and space.columns > 2 * PIECE and space.run == space.inner

    def phases(self) -> list[Stmt]:
        rows, columns = self.space.rows, self.space.columns
        pieces = -(-columns // PIECE)
        allocations = self.allocate(rows * pieces)
        task = self.math.bound(self.elemental.names.var("task"), rows * pieces)
        row, piece = self.math.unflatten(task, (rows, pieces))
        block = self.elemental.block()
        outer = self.math.unflatten(row, self.space.outer_sizes)
        groups = [Accumulators(self.elemental, r, block, self.lanes) for r in self.reductions]

        def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            at = self.space.place(outer, self.math.unflatten(column, self.space.inner_sizes))
            for group in groups:
                group.accumulate(b, at, slot, lane)

        whole, rest = divmod(columns, PIECE)
        usual, last = block.child(), block.child()
        self.loops.run(usual, PIECE, self.math.scale(piece, PIECE), body, total=whole * PIECE)
        if rest:
            self.loops.run(last, rest, const(whole * PIECE), body)
            block.emit(If(compare("lt", piece, const(whole)), usual.body(), last.body()))
        else:
            block.statements += usual.statements
        for group in groups:
            self.store_partial(group, task, block)
        first = For(task, const(rows * pieces), block.body(), LoopKind.PARALLEL)
        return [*allocations, first, self._second(rows, pieces)]

    def _second(self, rows: int, pieces: int) -> For:
        row = self.math.bound(self.elemental.names.var("row"), rows)
        block = self.elemental.block()
        self.join(block, pieces, lambda index: self.math.add(self.math.scale(row, pieces), index))
        self.store_results(row, block)
        return For(row, const(rows), block.body())


class TallColumns(_Split):
    """Reductions over leading dimensions to few columns: lanes run along the columns."""

    def __init__(self, elemental: Elemental, order: Sequence[Instruction], lanes: int) -> None:
        super().__init__(elemental, [i for i in order if isinstance(i.op, Reduce)], lanes)

    def pays(self) -> bool:
        """Whether everything is sums over the same leading dimensions, with rows enough to be cut."""
        found = self.reductions
        if not found or not all(map(_is_leading, found)) or len({_columns_of(r) for r in found}) != 1:
            return False
        if any(o in found for r in found for o in reachable(r.operands)):
            return False
        rows, columns = self._extent()
        if any(r.array_shape.elements != columns for r in self.elemental.roots):
            return False
        return rows >= 4 * LEAST_CHUNK_ROWS and rows * columns >= LEAST_ELEMENTS and columns <= 16 * rows

    def _extent(self) -> tuple[int, int]:
        outer, inner = _columns_of(self.reductions[0])
        return math.prod(outer), math.prod(inner)

    def phases(self) -> list[Stmt]:
        rows, columns = self._extent()
        chunk = max(LEAST_CHUNK_ROWS, -(-rows // MOST_CHUNKS), LEAST_ELEMENTS // 4 // columns)
        chunks = -(-rows // chunk)
        allocations = self.allocate(chunks * columns)
        task = self.math.bound(self.elemental.names.var("task"), chunks)
        block = self.elemental.block()
        first = self.math.scale(task, chunk)
        left = self.math.subtract(const(rows), first)
        count = block.let(self.math.minimum(const(chunk), left), "count")

        def piece(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            self._chunk(b, task, first, chunk, count, column)

        self.loops.run(block, columns, const(0), piece, unroll=1)
        second = self.elemental.block()

        def join(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            self.join(b, chunks, lambda index: self.math.add(self.math.scale(index, columns), column))
            self.store_results(column, b)

        self.loops.run(second, columns, const(0), join, unroll=1)
        once = self.elemental.names.var("once")
        parallel = For(task, const(chunks), block.body(), LoopKind.PARALLEL)
        return [*allocations, parallel, For(once, const(1), second.body())]

    def _chunk(self, block: Block, task: Expr, first: Expr, chunk: int, count: Expr, column: Expr) -> None:
        """One vector of columns of a chunk of rows."""
        outer_sizes, inner_sizes = _columns_of(self.reductions[0])
        groups = [Accumulators(self.elemental, r, block, lanes=0) for r in self.reductions]
        index = self.math.bound(self.elemental.names.var("i"), chunk)
        inner = block.child()
        row = inner.let(self.math.add(first, index), "row")
        if isinstance(row, Var):
            self.math.bound(row, math.prod(outer_sizes))
        at = (*self.math.unflatten(row, outer_sizes), *self.math.unflatten(column, inner_sizes))
        for group in groups:
            group.join(inner, group.operands(at, inner))
        block.loop(index, count, inner)
        place = self.math.add(self.math.scale(task, math.prod(inner_sizes)), column)
        for group in groups:
            self.store_partial(group, place, block)


def _is_leading(i: Instruction) -> bool:
    assert isinstance(i.op, Reduce)
    reduced = len(i.op.dimensions)
    return set(i.op.dimensions) == set(range(reduced)) and reduced < i.operands[0].array_shape.rank


def _columns_of(i: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The reduced and the kept sizes of a reduction over leading dimensions."""
    sizes, reduced = i.operands[0].array_shape.sizes, len(i.op.dimensions)  # type: ignore[attr-defined]
    return sizes[:reduced], sizes[reduced:]
