"""Products and convolutions: register-tiled contractions with fused index prologues and elementwise epilogues.

What it writes, for rows 128, columns 768 and depth 768 on a machine with 16 registers of 8 lanes::

    parallel t in 10:                                   # blocks of columns whose packed panels stay in L2
      serial r in 21:                                   # tiles of 6 rows
        serial c in 5:                                  # tiles of 2 x 8 columns
          alloc acc: f32[6,2,8] register                # 12 vectors, in registers
          acc = 0
          serial k in 768:
            vector l in 8: b = w[c, k, l];  acc[0,0,l] = fma(x[r*6,k], b, acc[0,0,l]);  ...
          y[...] = epilogue(acc + bias[...])            # on registers
      rows and columns left over: the same tile, smaller

Depth is never cut: on current cores a tile streams its panel from L2 at no cost, sums keep one order, and the epilogue
always has the whole sum. What the operands' index chains (transpose, slice, packing) cost is simplified away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from fusile.base.element_type import S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.shape import Reshape, Transpose
from fusile.loops.ir import (
    Alloc,
    Apply,
    Body,
    Buffer,
    Expr,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Space,
    Stmt,
    Store,
    Var,
    compare,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.contraction_shape import contraction_shape
from fusile.loops.lowering.contraction_tile import Tile, choose_tile, reusing_rows, with_whole_rows
from fusile.loops.lowering.elemental import Elemental, reshaped, transcendental
from fusile.loops.lowering.product_tile import Left, ProductTile, Right, Vectors, accumulator_type, prefetches
from fusile.loops.lowering.row_space import reachable, row_reductions, space_of_rows
from fusile.loops.lowering.row_stages import RowStages
from fusile.loops.lowering.staging import MOST_BYTES, collide, computes, first_places, row_bytes, stage_rows
from fusile.loops.lowering.vector_loops import lanes_for
from fusile.loops.machine import Machine


def lower_contraction(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a fusion around one Dot or Convolution. Operands and results as in `lower_fusion`."""
    from fusile.loops.lowering.rows import lower_rows

    hero = hero_of(fusion)
    shape = hero.array_shape
    if shape.element_type.is_complex or shape.element_type.bits < 8 or not shape.elements:
        return lower_rows(fusion, name, machine)
    writer = _Writer(Elemental(fusion, machine), hero)
    return writer.elemental.kernel(name, writer.phase())


def hero_of(fusion: Instruction) -> Instruction:
    """The one Dot or Convolution in a contraction fusion."""
    (computation,) = fusion.op.computations()
    return next(i for i in computation.post_order() if isinstance(i.op, Dot | Convolution))


class _Writer:
    """Writes one contraction: what stays the same over its tiles is its state."""

    def __init__(self, elemental: Elemental, hero: Instruction) -> None:
        self.elemental, self.math, self.machine = elemental, elemental.math, elemental.machine
        self.hero, self.shape = hero, contraction_shape(hero)
        self.type = accumulator_type(hero)
        self.tile = self._choose_tile()
        self.product = ProductTile(elemental, self.type, self.tile.lanes, self.shape.depth)
        self.heavy = any(transcendental(i) for i in elemental.computation.instructions)
        self.after = self._rows_after()
        if self.after is not None:
            self.tile = with_whole_rows(
                self.tile, math.prod(self.shape.batch), self.shape.row_count, self.shape.column_count
            )
        self.staged = self._should_stage()
        if self.staged:
            self.tile = reusing_rows(self.tile, self.shape.column_count)

    def _choose_tile(self) -> Tile:
        shape = self.shape
        probe = self.math.bound(Var("probe"), shape.column_count)
        batch, row = [const(0)] * len(shape.batch), [const(0)] * len(shape.rows)
        depth = [const(0)] * len(shape.depth)
        columns = self.math.unflatten(probe, shape.columns)
        self.left_varies = shape.lhs(batch, row, columns, depth) != shape.lhs(
            batch, row, [const(0)] * len(columns), depth
        )
        return choose_tile(self.machine, self.type, math.prod(shape.batch), shape.row_count, shape.column_count,
                           shape.depth_count, self.left_varies)  # fmt: skip

    def fresh(self, name: str, element_type: ElementType = S64) -> Var:
        return self.elemental.names.var(name, element_type)

    # -- operands -----------------------------------------------------------------------------------------------------

    def left_at(
        self, batch: Sequence[Expr], row: Sequence[Expr], column: Expr, depth: Sequence[Expr], block: Block
    ) -> Expr:
        """An element of the left-hand side, where it lies."""
        columns = self.math.unflatten(column, self.shape.columns)
        value: Expr = self.elemental.value(self.hero.operands[0], self.shape.lhs(batch, row, columns, depth), block)
        return value

    def right_at(self, batch: Sequence[Expr], column: Expr, depth: Sequence[Expr], block: Block) -> Expr:
        """An element of the right-hand side, where it lies."""
        columns = self.math.unflatten(column, self.shape.columns)
        value: Expr = self.elemental.value(self.hero.operands[1], self.shape.rhs(batch, (), columns, depth), block)
        return value

    # -- rows made of sums ---------------------------------------------------------------------------------------------

    def _rows_after(self) -> RowStages | None:
        """What is done with whole rows of the product, if something reduces them."""
        reductions = row_reductions(reachable(self.elemental.roots))
        if not reductions:
            return None
        results = [(root, partial(self.elemental.store, buffer, root)) for root, buffer in self.elemental.results]
        lanes = lanes_for(reachable(self.elemental.roots), self.machine)
        return RowStages(self.elemental, results, reductions, space_of_rows(reductions[0]), lanes)

    def _rows_of_sums(
        self, block: Block, batch: Expr, base: Expr, rows: Sequence[tuple[Expr, ...]], left: Left, after: RowStages
    ) -> None:
        """All columns of some rows into scratch memory, then what is done with each row."""
        coordinates = self.math.unflatten(batch, self.shape.batch)
        kind = self.hero.array_shape.element_type
        columns = -(-self.shape.column_count // self.tile.lanes) * self.tile.lanes
        made = Buffer(self.fresh("made").name, kind, (len(rows), columns), Space.SCRATCH)
        block.emit(Alloc(made))

        def keep(body: list[Stmt], first_column: Expr, vectors: Vectors, sums: Buffer) -> None:
            def one(cell: tuple[Expr, ...], column: Expr) -> Body:
                total = Load(sums, cell)
                value = total if kind is self.type else Apply("convert", (total,), kind)
                return (Store(made, (cell[0], column), value),)

            body += self.product.cells(sums, vectors, one, first_column)

        block.statements += self._column_tiles(coordinates, len(rows), const(0), left, keep)
        index = self.math.bound(self.fresh("i"), len(rows))
        inner = block.child()
        width = len(self.shape.columns)
        self.elemental.override(
            self.hero, lambda at: Load(made, (index, self.math.flatten(at[len(at) - width :], self.shape.columns)))
        )
        row = self.math.add(self.math.scale(batch, self.shape.row_count), self.math.add(base, index))
        named = inner.let(row, "r")
        if isinstance(named, Var):
            self.math.ranges[named.name] = (0, after.space.rows - 1)
        after.row(inner, named)
        block.loop(index, len(rows), inner)

    # -- staging ------------------------------------------------------------------------------------------------------

    def _should_stage(self) -> bool:
        """Whether a tile's rows are better copied: they would share sets of the cache, or take computing."""
        tile, depth = self.tile, self.shape.depth
        if self.left_varies or tile.rows * row_bytes(depth, self.type) > MOST_BYTES or not math.prod(depth):
            return False
        if self.shape.column_count <= tile.columns:
            return False
        batch = [const(0)] * len(self.shape.batch)

        def element(i: Expr, at: Sequence[Expr], block: Block) -> Expr:
            return self.left_at(batch, self.math.unflatten(i, self.shape.rows), const(0), at, block)

        if computes(self.elemental, depth, element):
            return True
        places, along = first_places(self.elemental, tile.rows, depth, element)
        return along and collide(places, self.hero.operands[0].array_shape.element_type.bytes)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def phase(self) -> For:
        """The parallel loop over tasks: one block of rows and columns of one batch element each."""
        tile, shape = self.tile, self.shape
        row_tiles, column_tiles = -(-shape.row_count // tile.rows), -(-shape.column_count // tile.columns)
        row_blocks, column_blocks = -(-row_tiles // tile.block_rows), -(-column_tiles // tile.block_columns)
        batch = math.prod(shape.batch)
        task = self.math.bound(self.fresh("task"), batch * row_blocks * column_blocks)
        batch_index, row_block, column_block = self.math.unflatten(task, (batch, row_blocks, column_blocks))
        body: list[Stmt] = []
        row_block = self.product.named(body, "rows", row_block)
        column_block = self.product.named(body, "columns", column_block)
        batch_index = self.product.named(body, "batch", batch_index) if batch > 1 else const(0)
        body += self._row_tiles(batch_index, row_block, column_block)
        return For(task, const(batch * row_blocks * column_blocks), tuple(body), LoopKind.PARALLEL)

    def _row_tiles(self, batch: Expr, row_block: Expr, column_block: Expr) -> Body:
        tile = self.tile
        full, rest = divmod(self.shape.row_count, tile.rows)
        return self._tiled(
            full, rest, tile.block_rows, tile.rows, row_block, "row",
            lambda first, count: self._row_tile(batch, first, count, column_block),
        )  # fmt: skip

    def _row_tile(self, batch_index: Expr, first_row: Expr, rows: int, column_block: Expr) -> Body:
        """The tiles of some rows, which are staged first if that pays."""
        block = self.elemental.block()
        batch = self.math.unflatten(batch_index, self.shape.batch)
        base = self.product.named(block.statements, "row", first_row)
        coordinates = [self._rows_at(block.statements, self.math.add(base, const(i))) for i in range(rows)]

        def where_it_lies(i: int, column: Expr, depth: Sequence[Expr], b: Block) -> Expr:
            return self.left_at(batch, coordinates[i], column, depth, b)

        left: Left = where_it_lies
        if self.staged:

            def element(i: Expr, depth: Sequence[Expr], b: Block) -> Expr:
                row = self.math.unflatten(self.math.add(base, i), self.shape.rows)
                return self.left_at(batch, row, const(0), depth, b)

            read = stage_rows(self.elemental, block, rows, self.shape.depth, self.type, element)
            left = lambda i, column, depth, b: read(const(i), depth)  # noqa: E731
        if self.after is not None:
            self._rows_of_sums(block, batch_index, base, coordinates, left, self.after)
            return block.body()

        def finish(body: list[Stmt], first_column: Expr, vectors: Vectors, sums: Buffer) -> None:
            epilogue: list[Stmt] = []
            self._epilogue(epilogue, batch, base, coordinates, first_column, vectors, sums)
            body[:] = [*prefetches(epilogue, self.machine.l2_bytes), *body, *epilogue]

        block.statements += self._column_tiles(batch, rows, column_block, left, finish)
        return block.body()

    def _rows_at(self, body: list[Stmt], flat: Expr) -> tuple[Expr, ...]:
        """A row's coordinates, named, so that divisions happen once a tile and not once a load."""
        return tuple(self.product.named(body, "m", c) for c in self.math.unflatten(flat, self.shape.rows))

    def _column_tiles(
        self, batch: Sequence[Expr], rows: int, column_block: Expr, left: Left, finish: Callable[..., None]
    ) -> Body:
        """The tiles of one block of columns; `finish(body, first column, vectors, sums)` appends what becomes of the sums."""
        tile = self.tile
        full, rest = divmod(self.shape.column_count, tile.columns)

        def one(first_column: Expr, count: int) -> Body:
            vectors = self.product.vectors(count)
            body: list[Stmt] = []
            right: Right = lambda column, depth, b: self.right_at(batch, column, depth, b)  # noqa: E731
            sums = self.product.sums(body, rows, first_column, vectors, left, right)
            finish(body, first_column, vectors, sums)
            return tuple(body)

        return self._tiled(full, rest, tile.block_columns, tile.columns, column_block, "column", one)

    def _tiled(self, full: int, rest: int, block: int, size: int, block_index: Expr, name: str,
               body: Callable[[Expr, int], Body]) -> Body:  # fmt: skip
        """Loops over the tiles of one block of a dimension: `full` tiles of `size` and one of `rest` in all of them."""
        statements: list[Stmt] = []
        first = self.math.scale(block_index, block)
        if full:
            index = self.math.bound(self.fresh(name), block)
            count: Expr = const(block)
            if full % block or rest:
                left = self.math.subtract(const(full), first)
                count = Apply("minimum", (count, left), S64)
            inner = body(self.math.scale(self.math.add(first, index), size), size)
            statements.append(For(index, count, inner))
        if rest:
            inside = compare("eq", block_index, const(full // block))
            only = full // block == 0
            statements += body(const(full * size), rest) if only else [If(inside, body(const(full * size), rest))]
        return tuple(statements)

    # -- epilogue -----------------------------------------------------------------------------------------------------

    def _epilogue(self, body: list[Stmt], batch: Sequence[Expr], base: Expr, rows: Sequence[tuple[Expr, ...]],
                  first_column: Expr, vectors: Vectors, sums: Buffer) -> None:  # fmt: skip
        """Light epilogues are written out over the registers; heavy ones (exp, erf, ...) loop over a copy in L1, so that
        their code exists once a vector instead of once an accumulator."""
        if not self.heavy or len(rows) == 1:
            for i, row in enumerate(rows):
                results = partial(self._result_of, batch, row, sums)
                body += self.product.row_cells(const(i), vectors, results, first_column)
            return
        copy = Buffer(self.fresh("tile").name, self.type, sums.dimensions, Space.SCRATCH)
        body.append(Alloc(copy))
        body += self.product.cells(
            sums, vectors, lambda cell, column: (Store(copy, cell, Load(sums, cell)),), first_column, full=True)  # fmt: skip
        index = self.math.bound(self.fresh("i"), len(rows))
        inner: list[Stmt] = []
        row = self._rows_at(inner, self.math.add(base, index))
        inner += self.product.row_cells(
            index, vectors, lambda cell, column: self._results(batch, row, column, Load(copy, cell)), first_column)  # fmt: skip
        body.append(For(index, const(len(rows)), tuple(inner)))

    def _result_of(
        self, batch: Sequence[Expr], row: Sequence[Expr], sums: Buffer, cell: tuple[Expr, ...], column: Expr
    ) -> Body:
        return self._results(batch, row, column, Load(sums, cell))

    def _results(self, batch: Sequence[Expr], row: Sequence[Expr], column: Expr, total: Expr) -> Body:
        """Applies the epilogue to one element of the contraction and stores every result."""
        block = self.elemental.block()
        columns = self.math.unflatten(column, self.shape.columns)
        indices = self.shape.output(batch, row, columns, ())
        hero_type = self.hero.array_shape.element_type
        value = total if hero_type is self.type else Apply("convert", (total,), hero_type)
        named = block.let(value, "total")
        self.elemental.override(self.hero, named)
        for root, buffer in self.elemental.results:
            place = self._indices_of(root, indices)
            self.elemental.store(buffer, root, place, self.elemental.value(root, place, block), block)
        return block.body()

    def _indices_of(self, root: Instruction, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where `root` has the hero's element, through the epilogue's reshapes and transposes."""
        place = tuple(indices)
        for user in self._way_to(root):
            if isinstance(user.op, Reshape):
                place = reshaped(self.math, place, user.operands[0].array_shape.sizes, user.array_shape.sizes)
            elif isinstance(user.op, Transpose):
                place = tuple(place[p] for p in user.op.permutation)
        return place

    def _way_to(self, root: Instruction) -> list[Instruction]:
        """Instructions from the hero (left out) to the root, along one path of uses."""
        came_from: dict[Instruction, Instruction] = {}
        stack = [self.hero]
        while stack:
            i = stack.pop()
            for user in i.users:
                if user not in came_from:
                    came_from[user] = i
                    stack.append(user)
        way = []
        while root is not self.hero:
            way.append(root)
            root = came_from[root]
        return way[::-1]
