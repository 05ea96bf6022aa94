"""The sizes of a contraction's register tile and of the blocks that one task does: a model, not a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusile.base.element_type import ElementType
from fusile.loops.machine import Machine

LEAST_ROWS_AT_FULL_SPEED = 4
"""Fewer rows than this leave fewer accumulators than fused multiply-adds in flight."""
BLOCK_ROWS = 288
WANTED_TASKS = 32
"""Enough to share evenly among cores, whatever their number: blocks never depend on the number of threads."""
STAGED_COLUMNS = 4
"""Tiles that staged rows serve, at least: copying them costs about a tenth of a tile."""


@dataclass(frozen=True)
class Tile:
    """`rows` x `vectors` accumulators of `lanes` lanes; a task does `block_rows` x `block_columns` tiles."""

    rows: int
    vectors: int
    lanes: int
    block_rows: int
    block_columns: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def panel_vectors(machine: Machine) -> int:
    """Vectors in one row of a packed panel: 16 registers hold tiles of 6x2, 32 registers 14x2 or, with 4 lanes, 6x4."""
    return 4 if machine.vector_bytes <= 16 and machine.vector_registers >= 32 else 2


def choose_tile(machine: Machine, accumulator: ElementType, batch: int, rows: int, columns: int, depth: int,
                lhs_varies: bool) -> Tile:  # fmt: skip
    """The tile for a contraction of these sizes. `lhs_varies`: the left-hand side is a vector load (depthwise)."""
    lanes = machine.lanes(accumulator)
    panel = panel_vectors(machine)
    most_rows = max(1, (machine.vector_registers - 1 - panel) // panel)
    if lhs_varies:
        most_rows = max(1, (machine.vector_registers - panel) // (2 * panel))
    tile_rows = _balanced(rows, most_rows)
    vectors = panel
    room = (machine.vector_registers - 1) // (tile_rows + 1)
    while vectors + panel <= min(room, 4 * panel) and columns > vectors * lanes:
        vectors += panel
    while vectors > 1 and (vectors - 1) * lanes >= columns:
        vectors -= 1
    row_tiles, column_tiles = -(-rows // tile_rows), -(-columns // (vectors * lanes))
    bytes_per_column_tile = max(1, depth * vectors * lanes * accumulator.bytes)
    block_columns = max(1, min(column_tiles, machine.l2_bytes // 2 // bytes_per_column_tile))
    block_rows = max(1, min(row_tiles, BLOCK_ROWS // tile_rows))

    def tasks() -> int:
        return batch * -(-row_tiles // block_rows) * -(-column_tiles // block_columns)

    while tasks() < WANTED_TASKS and block_rows * tile_rows > 48:
        block_rows = -(-block_rows // 2)
    while tasks() < WANTED_TASKS // 2 and block_columns > 1 and block_columns * bytes_per_column_tile > 64 << 10:
        block_columns = -(-block_columns // 2)
    return Tile(tile_rows, vectors, lanes, block_rows, block_columns)


def reusing_rows(tile: Tile, columns: int) -> Tile:
    """The tile with blocks that use staged rows several times, though their panels then come from the third-level
    cache."""
    column_tiles = -(-columns // tile.columns)
    return replace(tile, block_columns=max(tile.block_columns, min(STAGED_COLUMNS, column_tiles)))


def with_whole_rows(tile: Tile, batch: int, rows: int, columns: int) -> Tile:
    """The tile with blocks of all columns, so that a task has whole rows; and of so few rows that there are enough
    tasks."""
    row_tiles = -(-rows // tile.rows)
    most = max(1, BLOCK_ROWS // tile.rows)
    block_rows = max(1, min(most, row_tiles * batch // WANTED_TASKS, row_tiles))
    return replace(tile, block_rows=block_rows, block_columns=-(-columns // tile.columns))


def _balanced(rows: int, most: int) -> int:
    """The number of rows a tile, at most `most`, that wastes the least on the tile that is left over."""
    if rows <= most:
        return rows

    def cost(size: int) -> int:
        full, rest = divmod(rows, size)
        return full * max(size, LEAST_ROWS_AT_FULL_SPEED) + (max(rest, LEAST_ROWS_AT_FULL_SPEED) if rest else 0)

    return min(range(most, max(0, most // 2), -1), key=cost)
