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

from fusile.base.element_type import F32, S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
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
    Kernel,
    Let,
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
from fusile.loops.lowering.contraction_tile import Tile, choose_tile
from fusile.loops.lowering.elemental import Elemental, reshaped, transcendental
from fusile.loops.machine import Machine

Columns = Sequence[tuple[int, int]]
"""The vectors of a tile: (offset of the first column, live lanes), a vector each."""


def lower_contraction(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a fusion around one Dot or Convolution. Operands and results as in `lower_fusion`."""
    from fusile.loops.lowering.rows import lower_rows

    hero = hero_of(fusion)
    if (
        hero.array_shape.element_type.is_complex
        or hero.array_shape.element_type.bits < 8
        or not hero.array_shape.elements
    ):
        return lower_rows(fusion, name, machine)
    writer = _Writer(fusion, machine)
    return writer.elemental.kernel(name, writer.phase())


def hero_of(fusion: Instruction) -> Instruction:
    """The one Dot or Convolution in a contraction fusion."""
    (computation,) = fusion.op.computations()
    return next(i for i in computation.post_order() if isinstance(i.op, Dot | Convolution))


def accumulator_type(hero: Instruction) -> ElementType:
    """Narrow floats accumulate in f32, everything else in the result's own type."""
    result = hero.array_shape.element_type
    return F32 if result.is_float and result.bits < 32 else result


class _Writer:
    """Writes one contraction: what stays the same over its tiles is its state."""

    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        self.machine = machine
        self.elemental = Elemental(fusion, machine)
        self.math = self.elemental.math
        self.hero = hero_of(fusion)
        self.shape = contraction_shape(self.hero)
        self.type = accumulator_type(self.hero)
        self.tile = self._choose_tile()
        self.heavy = any(transcendental(i) for i in self.elemental.computation.instructions)

    def _choose_tile(self) -> Tile:
        shape = self.shape
        probe = self.math.bound(Var("probe"), shape.column_count)
        batch, row = [const(0)] * len(shape.batch), [const(0)] * len(shape.rows)
        depth = [const(0)] * len(shape.depth)
        columns = self.math.unflatten(probe, shape.columns)
        varies = shape.lhs(batch, row, columns, depth) != shape.lhs(batch, row, [const(0)] * len(columns), depth)
        return choose_tile(self.machine, self.type, math.prod(shape.batch), shape.row_count, shape.column_count,
                           shape.depth_count, varies)  # fmt: skip

    def fresh(self, name: str, element_type: ElementType = S64) -> Var:
        return self.elemental.names.var(name, element_type)

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
        row_block, column_block = self._let(body, "rows", row_block), self._let(body, "columns", column_block)
        batch_index = self._let(body, "batch", batch_index) if batch > 1 else const(0)
        coordinates = self.math.unflatten(batch_index, shape.batch)
        body += self._row_tiles(coordinates, row_block, column_block)
        return For(task, const(batch * row_blocks * column_blocks), tuple(body), LoopKind.PARALLEL)

    def _row_tiles(self, batch: Sequence[Expr], row_block: Expr, column_block: Expr) -> Body:
        tile = self.tile
        full, rest = divmod(self.shape.row_count, tile.rows)
        return self._tiled(
            full, rest, tile.block_rows, tile.rows, row_block, "row",
            lambda first, count: self._column_tiles(batch, first, count, column_block),
        )  # fmt: skip

    def _column_tiles(self, batch: Sequence[Expr], first_row: Expr, rows: int, column_block: Expr) -> Body:
        tile = self.tile
        full, rest = divmod(self.shape.column_count, tile.columns)

        def one(first_column: Expr, count: int) -> Body:
            vectors = [(v, min(tile.lanes, count - v)) for v in range(0, count, tile.lanes)]
            return self._tile(batch, first_row, rows, first_column, vectors)

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

    # -- one tile -----------------------------------------------------------------------------------------------------

    def _tile(self, batch: Sequence[Expr], first_row: Expr, rows: int, first_column: Expr, vectors: Columns) -> Body:
        lanes = self.tile.lanes
        accumulator = Buffer(self.fresh("acc").name, self.type, (rows, len(vectors), lanes), Space.REGISTER)
        body: list[Stmt] = [Alloc(accumulator)]
        row_base = self._let(body, "row", first_row)
        column_base = first_column
        row_coordinates = [self._rows_at(body, self.math.add(row_base, const(i))) for i in range(rows)]
        zero = Const(0.0 if self.type.is_float else 0, self.type)
        body += [self._vector(live, lambda lane, i=i, v=v: (Store(accumulator, (const(i), const(v), lane), zero),), full=True)
                 for i in range(rows) for v, (_, live) in enumerate(vectors)]  # fmt: skip
        body += self._depth_loops(batch, row_coordinates, column_base, vectors, accumulator)
        body += self._epilogue(batch, row_base, row_coordinates, column_base, vectors, accumulator)
        return tuple(body)

    def _rows_at(self, body: list[Stmt], flat: Expr) -> tuple[Expr, ...]:
        """A row's coordinates, named, so that divisions happen once a tile and not once a load."""
        coordinates = self.math.unflatten(flat, self.shape.rows)
        return tuple(self._let(body, "m", c) for c in coordinates)

    def _depth_loops(self, batch: Sequence[Expr], rows: Sequence[tuple[Expr, ...]], column_base: Expr, vectors: Columns,
                     accumulator: Buffer) -> Body:  # fmt: skip
        depth = [self.math.bound(self.fresh("k"), size) for size in self.shape.depth]
        coordinates = [const(0) if size == 1 else k for k, size in zip(depth, self.shape.depth, strict=True)]
        whole = [(v, offset) for v, (offset, live) in enumerate(vectors) if live == self.tile.lanes]
        groups = [(whole, self.tile.lanes)] if whole else []
        groups += [([(v, offset)], live) for v, (offset, live) in enumerate(vectors) if live < self.tile.lanes]

        def step(group: list[tuple[int, int]]) -> Callable[[Var], Body]:
            places = [(v, self.math.add(column_base, const(offset))) for v, offset in group]
            return lambda lane: self._multiply_add(
                batch, rows, [(v, self.math.add(p, lane)) for v, p in places], coordinates, accumulator, lane
            )

        body: Body = tuple(self._vector(live, step(group)) for group, live in groups)
        loops = [(k, size) for k, size in zip(depth, self.shape.depth, strict=True) if size != 1]
        for number, (k, size) in enumerate(reversed(loops)):
            kind = LoopKind.PIPELINED if number == 0 and size >= 8 else LoopKind.SERIAL
            body = (For(k, const(size), body, kind),)
        return body

    def _multiply_add(self, batch: Sequence[Expr], rows: Sequence[tuple[Expr, ...]], places: Sequence[tuple[int, Expr]],
                      depth: Sequence[Expr], accumulator: Buffer, lane: Var) -> Body:  # fmt: skip
        """Vectors of the right-hand side times one element (or vector) of each row. All vectors first, then row by row: so one
        broadcast element is live at a time and the accumulators stay in registers."""
        block = self.elemental.block()
        right = []
        for vector, column in places:
            columns = self.math.unflatten(column, self.shape.columns)
            right.append(
                (vector, columns, block.let(self._operand(1, self.shape.rhs(batch, (), columns, depth), block), "b"))
            )
        for i, row in enumerate(rows):
            for vector, columns, b in right:
                lhs = self._operand(0, self.shape.lhs(batch, row, columns, depth), block)
                cell = (const(i), const(vector), lane)
                block.emit(Store(accumulator, cell, self._fused(lhs, b, Load(accumulator, cell))))
        return block.body()

    def _operand(self, number: int, indices: tuple[Expr, ...], block: Block) -> Expr:
        value = self.elemental.value(self.hero.operands[number], indices, block)
        return value if value.element_type is self.type else Apply("convert", (value,), self.type)

    def _fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        if self.type.is_float and self.machine.has_fma:
            return Apply("fma", (a, b, c), self.type)
        return Apply("add", (Apply("multiply", (a, b), self.type), c), self.type)

    def _vector(self, live: int, body: Callable[[Var], Body], full: bool = False) -> For:
        lane = self.math.bound(self.fresh("lane"), self.tile.lanes)
        masked = live < self.tile.lanes and not full
        return For(lane, const(self.tile.lanes), body(lane), LoopKind.VECTOR, const(live) if masked else None)

    # -- epilogue -----------------------------------------------------------------------------------------------------

    def _epilogue(self, batch: Sequence[Expr], row_base: Expr, rows: Sequence[tuple[Expr, ...]], column_base: Expr, vectors: Columns,
                  accumulator: Buffer) -> Body:  # fmt: skip
        """Light epilogues are written out over the registers; heavy ones (exp, erf, ...) loop over a copy in L1, so that
        their code exists once a vector instead of once an accumulator."""
        if not self.heavy or len(rows) == 1:
            return tuple(
                self._vector(live, lambda lane, i=i, v=v, offset=offset: self._results(
                    batch, rows[i], self.math.add(self.math.add(column_base, const(offset)), lane), Load(accumulator, (const(i), const(v), lane))))
                for i in range(len(rows)) for v, (offset, live) in enumerate(vectors)
            )  # fmt: skip
        copy = Buffer(self.fresh("tile").name, self.type, accumulator.dimensions, Space.SCRATCH)
        body: list[Stmt] = [Alloc(copy)]
        body += [self._vector(live, lambda lane, i=i, v=v: (Store(copy, (const(i), const(v), lane), Load(accumulator, (const(i), const(v), lane))),), full=True)
                 for i in range(len(rows)) for v, (_, live) in enumerate(vectors)]  # fmt: skip
        index = self.math.bound(self.fresh("i"), len(rows))
        inner: list[Stmt] = []
        row = self._rows_at(inner, self.math.add(row_base, index))
        inner += [self._vector(live, lambda lane, v=v, offset=offset: self._results(
            batch, row, self.math.add(self.math.add(column_base, const(offset)), lane), Load(copy, (index, const(v), lane))))
            for v, (offset, live) in enumerate(vectors)]  # fmt: skip
        body.append(For(index, const(len(rows)), tuple(inner)))
        return tuple(body)

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

    def _let(self, body: list[Stmt], name: str, value: Expr) -> Expr:
        if isinstance(value, Const | Var):
            return value
        var = self.fresh(name)
        low, high = self.math.range_of(value)
        self.math.ranges[var.name] = (low, high)
        body.append(Let(var, value))
        return var

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
