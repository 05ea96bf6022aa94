"""One product or convolution inside a kernel: its tiles, where its operands' elements come from, what becomes of its
sums.

A kernel around one of them, or around two of which the second multiplies the rows that the first has made, is put
together from these in `contraction`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from fusile.base.element_type import S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import Reshape, Transpose
from fusile.loops.ir import (
    Alloc,
    Apply,
    Body,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    Space,
    Stmt,
    Store,
    Var,
    compare,
    const,
)
from fusile.loops.lowering.block import Block, Names
from fusile.loops.lowering.contraction_shape import contraction_shape
from fusile.loops.lowering.contraction_tile import Tile, choose_tile, panel_vectors, reusing_rows, with_whole_rows
from fusile.loops.lowering.elemental import Elemental, reshaped, transcendental
from fusile.loops.lowering.product_tile import Left, ProductTile, Right, Vectors, accumulator_type, prefetches
from fusile.loops.lowering.row_stages import RowStages
from fusile.loops.lowering.staging import (
    MOST_BYTES,
    collide,
    computes,
    first_places,
    row_bytes,
    stage_columns,
    stage_rows,
    staged_columns_bytes,
)
from fusile.loops.simplify import IndexMath

LEAST_STAGED_ROWS = 24
"""Rows of the left-hand side from which packing an operand pays."""


class Product:
    """Writes the tiles of one Dot or Convolution of a fusion, the `hero`."""

    def __init__(self, elemental: Elemental, hero: Instruction) -> None:
        self.elemental, self.math, self.machine = elemental, elemental.math, elemental.machine
        self.hero, self.shape = hero, contraction_shape(hero)
        self.type = accumulator_type(hero)
        self.tile = self._choose_tile()
        self.tiles = ProductTile(elemental, self.type, self.tile.lanes, self.shape.depth)
        self.heavy = any(transcendental(i) for i in _after(hero))
        self.batch_count = math.prod(self.shape.batch)
        self.stages_right = self._should_stage_right()
        if self.stages_right:
            self.with_whole_rows()
        self.stages_left = self._should_stage()
        if self.stages_left:
            self.tile = reusing_rows(self.tile, self.shape.column_count)

    def with_whole_rows(self) -> None:
        """From now on one task has all columns of its rows."""
        self.tile = with_whole_rows(self.tile, self.batch_count, self.shape.row_count, self.shape.column_count)

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

    def _should_stage_right(self) -> bool:
        """Whether a batch element's right-hand side is better packed in scratch memory, by each task that uses it: it
        is small, has rows enough to use it, and lies neither packed nor in short rows."""
        depth, columns = self.shape.depth, self.shape.column_count
        if self.left_varies or not self.shape.batch or self.shape.row_count < LEAST_STAGED_ROWS or not math.prod(depth):
            return False
        if staged_columns_bytes(columns, depth, self.type, self.tile.lanes * panel_vectors(self.machine)) > MOST_BYTES:
            return False
        block = self.elemental.block()
        batch = [const(0)] * len(self.shape.batch)
        k = [self.math.bound(self.fresh("probe"), size) for size in depth]
        here, beside, below = (
            self.right_at(batch, const(column), at, block)
            for column, at in ((0, k), (1, k), (0, [*k[:-1], self.math.add(k[-1], const(1))]))
        )
        if block.statements or not (isinstance(here, Load) and isinstance(beside, Load) and isinstance(below, Load)):
            return True
        apart = self.math.subtract(beside.indices[0], here.indices[0])
        step = self.math.subtract(below.indices[0], here.indices[0])
        near = self.tile.lanes * panel_vectors(self.machine) * 2
        return not (apart == const(1) and isinstance(step, Const) and 0 < int(step.value) <= near)

    def right(self, block: Block, batch: Expr) -> Right:
        """What reads the right-hand side of a batch element; appends to the block what that needs."""
        coordinates = self.math.unflatten(batch, self.shape.batch)

        def where_it_lies(column: Expr, depth: Sequence[Expr], b: Block) -> Expr:
            return self.right_at(coordinates, column, depth, b)

        if not self.stages_right:
            return where_it_lies
        panel = self.tile.lanes * panel_vectors(self.machine)
        read = stage_columns(
            self.elemental, block, self.shape.column_count, self.shape.depth, self.type, panel, where_it_lies
        )
        return lambda column, depth, b: read(column, depth)

    def left(self, block: Block, batch: Expr, base: Expr, rows: int) -> Left:
        """What reads the left-hand side of some rows; appends to the block what that needs."""
        coordinates = self.math.unflatten(batch, self.shape.batch)
        if self.stages_left:

            def element(i: Expr, depth: Sequence[Expr], b: Block) -> Expr:
                row = self.math.unflatten(self.math.add(base, i), self.shape.rows)
                return self.left_at(coordinates, row, const(0), depth, b)

            read = stage_rows(self.elemental, block, rows, self.shape.depth, self.type, element)
            return lambda i, column, depth, b: read(const(i), depth)
        places = [self.row_at(block.statements, self.math.add(base, const(i))) for i in range(rows)]
        return lambda i, column, depth, b: self.left_at(coordinates, places[i], column, depth, b)

    # -- tiles --------------------------------------------------------------------------------------------------------

    def row_at(self, body: list[Stmt], flat: Expr) -> tuple[Expr, ...]:
        """A row's coordinates, named, so that divisions happen once a tile and not once a load."""
        return tuple(self.tiles.named(body, "m", c) for c in self.math.unflatten(flat, self.shape.rows))

    def column_tiles(
        self, rows: int, column_block: Expr, left: Left, right: Right, finish: Callable[..., None]
    ) -> Body:
        """The tiles of one block of columns; `finish(body, first column, vectors, sums)` appends what becomes of the
        sums."""
        tile = self.tile
        full, rest = divmod(self.shape.column_count, tile.columns)

        def one(first_column: Expr, count: int) -> Body:
            vectors = self.tiles.vectors(count)
            body: list[Stmt] = []
            sums = self.tiles.sums(body, rows, first_column, vectors, left, right)
            finish(body, first_column, vectors, sums)
            return tuple(body)

        return tiled(
            self.math, self.elemental.names, full, rest, tile.block_columns, tile.columns, column_block, "column", one
        )

    def rows_of_sums(
        self,
        block: Block,
        batch: Expr,
        base: Expr,
        rows: int,
        left: Left,
        right: Right,
        after: RowStages,
        index: Var | None = None,
    ) -> None:
        """All columns of some rows into scratch memory, then what is done with each row, which is number `index` of
        them."""
        kind = self.hero.array_shape.element_type
        columns = -(-self.shape.column_count // self.tile.lanes) * self.tile.lanes
        made = Buffer(self.fresh("made").name, kind, (rows, columns), Space.SCRATCH)
        block.emit(Alloc(made))

        def keep(body: list[Stmt], first_column: Expr, vectors: Vectors, sums: Buffer) -> None:
            def one(cell: tuple[Expr, ...], column: Expr) -> Body:
                total = Load(sums, cell)
                value = total if kind is self.type else Apply("convert", (total,), kind)
                return (Store(made, (cell[0], column), value),)

            body += self.tiles.cells(sums, vectors, one, first_column)

        block.statements += self.column_tiles(rows, const(0), left, right, keep)
        index = index or self.math.bound(self.fresh("i"), rows)
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
        block.loop(index, rows, inner)

    def epilogue(
        self, block: Block, batch: Expr, base: Expr, rows: int, left: Left, right: Right, columns: Expr
    ) -> None:
        """Tiles of some rows and a block of columns, each followed by what is done to its elements."""
        coordinates = self.math.unflatten(batch, self.shape.batch)
        places = [self.row_at(block.statements, self.math.add(base, const(i))) for i in range(rows)]

        def finish(body: list[Stmt], first_column: Expr, vectors: Vectors, sums: Buffer) -> None:
            epilogue: list[Stmt] = []
            self._epilogue(epilogue, coordinates, base, places, first_column, vectors, sums)
            body[:] = [*prefetches(epilogue, self.machine.l2_bytes), *body, *epilogue]

        block.statements += self.column_tiles(rows, columns, left, right, finish)

    def _epilogue(self, body: list[Stmt], batch: Sequence[Expr], base: Expr, rows: Sequence[tuple[Expr, ...]],
                  first_column: Expr, vectors: Vectors, sums: Buffer) -> None:  # fmt: skip
        """Light epilogues are written out over the registers; heavy ones (exp, erf, ...) loop over a copy in L1, so
        that their code exists once a vector instead of once an accumulator."""
        if not self.heavy or len(rows) == 1:
            for i, row in enumerate(rows):
                results = partial(self._result_of, batch, row, sums)
                body += self.tiles.row_cells(const(i), vectors, results, first_column)
            return
        copy = Buffer(self.fresh("tile").name, self.type, sums.dimensions, Space.SCRATCH)
        body.append(Alloc(copy))
        body += self.tiles.cells(
            sums, vectors, lambda cell, column: (Store(copy, cell, Load(sums, cell)),), first_column, full=True
        )
        index = self.math.bound(self.fresh("i"), len(rows))
        inner: list[Stmt] = []
        row = self.row_at(inner, self.math.add(base, index))
        inner += self.tiles.row_cells(
            index, vectors, lambda cell, column: self._results(batch, row, column, Load(copy, cell)), first_column
        )
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


def _after(hero: Instruction) -> list[Instruction]:
    """What is computed from the hero's result."""
    found: dict[Instruction, None] = {}
    stack = list(hero.users)
    while stack:
        i = stack.pop()
        if i not in found:
            found[i] = None
            stack += i.users
    return list(found)


def tiled(math_: IndexMath, names: Names, full: int, rest: int, block: int, size: int, block_index: Expr, name: str,
      body: Callable[[Expr, int], Body]) -> Body:  # fmt: skip
    """Loops over the tiles of one block of a dimension: `full` tiles of `size` and one of `rest` in all of them."""
    statements: list[Stmt] = []
    first = math_.scale(block_index, block)
    if full:
        index = math_.bound(names.var(name), block)
        count: Expr = const(block)
        if full % block or rest:
            left = math_.subtract(const(full), first)
            count = Apply("minimum", (count, left), S64)
        inner = body(math_.scale(math_.add(first, index), size), size)
        statements.append(For(index, count, inner))
    if rest:
        inside = compare("eq", block_index, const(full // block))
        only = full // block == 0
        statements += body(const(full * size), rest) if only else [If(inside, body(const(full * size), rest))]
    return tuple(statements)
