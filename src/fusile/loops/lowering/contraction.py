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

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.loops.ir import (
    Alloc,
    Body,
    Buffer,
    Expr,
    For,
    Kernel,
    Load,
    LoopKind,
    Space,
    Store,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.product import Product, tiled
from fusile.loops.lowering.product_tile import Left, Right
from fusile.loops.lowering.row_space import reachable, row_reductions, space_of_rows
from fusile.loops.lowering.row_stages import RowStages, Sink
from fusile.loops.lowering.vector_loops import lanes_for
from fusile.loops.machine import Machine


def lower_contraction(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a fusion around a Dot or Convolution, or two. Operands and results as in `lower_fusion`."""
    from fusile.loops.lowering.rows import lower_rows

    heroes = heroes_of(fusion)
    shape = heroes[0].array_shape
    if shape.element_type.is_complex or shape.element_type.bits < 8 or not shape.elements:
        return lower_rows(fusion, name, machine)
    elemental = Elemental(fusion, machine)
    return elemental.kernel(name, _Writer(elemental, heroes).phase())


def heroes_of(fusion: Instruction) -> list[Instruction]:
    """The Dots and Convolutions in a contraction fusion: one, or two of which the second uses the first."""
    (computation,) = fusion.op.computations()
    return [i for i in computation.post_order() if isinstance(i.op, Dot | Convolution)]


class _Writer:
    """Writes the tasks of a contraction: what is done with some rows, in all or a block of the columns."""

    def __init__(self, elemental: Elemental, heroes: Sequence[Instruction]) -> None:
        self.elemental, self.math = elemental, elemental.math
        self.first = Product(elemental, heroes[0])
        self.second = Product(elemental, heroes[1]) if len(heroes) > 1 else None
        self.rows: RowStages | None = None
        """What is done with whole rows of the first product, if something reduces them."""
        self.reductions = row_reductions(reachable(elemental.roots))
        if self.reductions or self.second is not None:
            self.first.with_whole_rows()
        if self.second is not None:
            self.second.with_whole_rows()
            self.second.tile = replace(self.second.tile, rows=self.first.tile.rows)

    def phase(self) -> For:
        """The parallel loop over tasks: one block of rows and columns of one batch element each."""
        first = self.first
        tile, shape, names = first.tile, first.shape, self.elemental.names
        row_tiles, column_tiles = -(-shape.row_count // tile.rows), -(-shape.column_count // tile.columns)
        row_blocks, column_blocks = -(-row_tiles // tile.block_rows), -(-column_tiles // tile.block_columns)
        tasks = first.batch_count * row_blocks * column_blocks
        task = self.math.bound(names.var("task"), tasks)
        batch, row_block, column_block = self.math.unflatten(task, (first.batch_count, row_blocks, column_blocks))
        block = self.elemental.block()
        row_block = first.tiles.named(block.statements, "rows", row_block)
        column_block = first.tiles.named(block.statements, "columns", column_block)
        batch = first.tiles.named(block.statements, "batch", batch) if first.batch_count > 1 else const(0)
        rights = [p.right(block, batch) for p in (first, self.second) if p is not None]
        full, rest = divmod(shape.row_count, tile.rows)
        block.statements += tiled(
            self.math, names, full, rest, tile.block_rows, tile.rows, row_block, "row",
            lambda base, rows: self._row_tile(batch, base, rows, column_block, rights),
        )  # fmt: skip
        return For(task, const(tasks), block.body(), LoopKind.PARALLEL)

    def _row_tile(self, batch: Expr, first_row: Expr, rows: int, column_block: Expr, rights: Sequence[Right]) -> Body:
        """All that is done with some rows."""
        block = self.elemental.block()
        base = self.first.tiles.named(block.statements, "row", first_row)
        left = self.first.left(block, batch, base, rows)
        if self.second is not None:
            self._chain(block, batch, base, rows, left, rights, self.second)
        elif self.reductions:
            results = [(root, partial(self.elemental.store, buffer, root)) for root, buffer in self.elemental.results]
            self.first.rows_of_sums(block, batch, base, rows, left, rights[0], self._stages(results))
        else:
            self.first.epilogue(block, batch, base, rows, left, rights[0], column_block)
        return block.body()

    def _chain(self, block: Block, batch: Expr, base: Expr, rows: int, left: Left, rights: Sequence[Right],
               second: Product) -> None:  # fmt: skip
        """Rows of the first product, what is done with each, and their product with the second's right-hand side: as
        attention's scores, their softmax, and the weighted sum. The rows never leave the cache."""
        weights = second.hero.operands[0]
        kind = weights.array_shape.element_type
        width = -(-second.shape.depth_count // second.tile.lanes) * second.tile.lanes
        made = Buffer(self.elemental.names.var("weights").name, kind, (rows, width), Space.SCRATCH)
        block.emit(Alloc(made))
        index = self.math.bound(self.elemental.names.var("i"), rows)
        inner = len(second.shape.depth)

        def keep(at: Sequence[Expr], value: object, b: Block) -> None:
            column = self.math.flatten(at[len(at) - inner :], second.shape.depth)
            assert isinstance(value, Expr)
            b.emit(Store(made, (index, column), value))

        stages = self._stages([(weights, keep)])
        self.first.rows_of_sums(block, batch, base, rows, left, rights[0], stages, index)

        def from_rows(i: int, column: Expr, depth: Sequence[Expr], b: Block) -> Expr:
            return Load(made, (const(i), self.math.flatten(depth, second.shape.depth)))

        second.epilogue(block, batch, base, rows, from_rows, rights[1], const(0))

    def _stages(self, results: Sequence[tuple[Instruction, Sink]]) -> RowStages:
        order = reachable([root for root, _ in results])
        reductions = row_reductions(order)
        space = space_of_rows(reductions[0])
        return RowStages(self.elemental, results, reductions, space, lanes_for(order, self.elemental.machine))
