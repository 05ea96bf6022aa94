"""Diagonals of matrices: taken out, put in, made into matrices; any band of them, aligned as TensorFlow has it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.convert.indexing import take
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


@dataclass(frozen=True)
class Band:
    """Diagonals `low` to `high` of a matrix, stored one a row, the highest first, in rows as long as the longest."""

    rows: int
    columns: int
    low: int
    high: int
    align: str

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def width(self) -> int:
        return min(self.rows + min(self.high, 0), self.columns - max(self.low, 0))

    def _offset(self, d: np.ndarray) -> np.ndarray:
        """By how much diagonal d is moved right in its row."""
        length = np.minimum(self.rows + np.minimum(d, 0), self.columns - np.maximum(d, 0))
        above, below = self.align.split("_")
        right = ((d >= 0) & (above == "RIGHT")) | ((d <= 0) & (below == "RIGHT"))
        return np.where(right, self.width - length, 0)

    def places_in_matrix(self) -> tuple[np.ndarray, np.ndarray]:
        """For each stored element its flat place in the matrix, and whether it has one."""
        d = np.arange(self.high, self.low - 1, -1)[:, None]
        index = np.arange(self.width)[None, :] - self._offset(d)
        row, column = index - np.minimum(d, 0), index + np.maximum(d, 0)
        inside = (index >= 0) & (row < self.rows) & (column < self.columns)
        return np.where(inside, row * self.columns + column, 0).astype(np.int32), inside

    def places_in_band(self) -> tuple[np.ndarray, np.ndarray]:
        """For each element of the matrix its flat place in the band, and whether it has one."""
        row, column = np.arange(self.rows)[:, None], np.arange(self.columns)[None, :]
        d = column - row
        inside = (d >= self.low) & (d <= self.high)
        place = (self.high - d) * self.width + np.minimum(row, column) + self._offset(np.clip(d, self.low, self.high))
        return np.where(inside, place, 0).astype(np.int32), inside


def _band(context: Context, node: Node, rows: int, columns: int, k: Value | None) -> Band:
    ends = context.integers(k, "k") if k is not None else [0]
    low, high = ends[0], ends[-1]
    if low > high or not -rows < low < max(columns, 1) or not -rows < high < max(columns, 1):
        empty = rows == 0 or columns == 0
        if low > high or not empty:
            raise context.unsupported(f"diagonals {low} to {high} of a {rows} by {columns} matrix")
    align = node.attribute("align") if node.type.endswith("V3") else "LEFT_LEFT"
    return Band(rows, columns, low, high, align)


def _taken(b: Builder, x: Instruction, places: np.ndarray, inside: np.ndarray, padding: Instruction) -> Instruction:
    """x's last dimension at known places, the padding elsewhere: [..., *places.shape]."""
    batch = x.array_shape.sizes[:-1]
    if not math.prod(x.array_shape.sizes) or not places.size:
        return b.broadcast(padding, (*batch, *places.shape), ())
    found = take(b, x, b.constant(places, S32), len(batch))
    if inside.all():
        return found
    sizes = found.array_shape.sizes
    dimensions = tuple(range(len(batch), len(sizes)))
    mask = b.broadcast(b.constant(inside), sizes, dimensions)
    return b.select(mask, found, b.broadcast(padding, sizes, ()))


def _padding(context: Context, node: Node, inputs: list[Value], position: int, like: Value) -> Instruction:
    if len(inputs) > position:
        return context.builder.reshape(inputs[position].instruction, ())
    return context.builder.constant(0, like.element_type)


@converter("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def matrix_of_diagonals(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    diagonal = inputs[0]
    k = inputs[1] if len(inputs) > 1 else None
    ends = context.integers(k, "k") if k is not None else [0]
    several = ends[0] != ends[-1]
    width = diagonal.sizes[-1]
    rows = int(context.scalar(inputs[2], "num_rows")) if len(inputs) > 2 else -1
    columns = int(context.scalar(inputs[3], "num_cols")) if len(inputs) > 3 else -1
    least_rows, least_columns = width - min(ends[-1], 0), width + max(ends[0], 0)
    if rows == -1 and columns == -1:
        rows = columns = max(least_rows, least_columns)
    rows = least_rows if rows == -1 else rows
    columns = least_columns if columns == -1 else columns
    band = _band(context, node, rows, columns, k)
    batch = diagonal.sizes[: diagonal.rank - 1 - several]
    b = context.builder
    flat = b.reshape(diagonal.instruction, (*batch, band.count * width))
    return _taken(b, flat, *band.places_in_band(), _padding(context, node, inputs, 4, diagonal))


@converter("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def diagonals_of_matrix(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x = inputs[0]
    *batch, rows, columns = x.sizes
    band = _band(context, node, rows, columns, inputs[1] if len(inputs) > 1 else None)
    b = context.builder
    flat = b.reshape(x.instruction, (*batch, rows * columns))
    found = _taken(b, flat, *band.places_in_matrix(), _padding(context, node, inputs, 2, x))
    return b.reshape(found, (*batch, band.width)) if band.count == 1 else found


@converter("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def set_diagonals(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, diagonal = inputs[:2]
    *batch, rows, columns = x.sizes
    band = _band(context, node, rows, columns, inputs[2] if len(inputs) > 2 else None)
    b = context.builder
    if not math.prod(x.sizes):
        return x.instruction
    places, inside = band.places_in_band()
    flat = b.reshape(diagonal.instruction, (*batch, band.count * band.width))
    new = take(b, flat, b.constant(places, S32), len(batch))
    mask = b.broadcast(b.constant(inside), x.sizes, (len(batch), len(batch) + 1))
    return b.select(mask, new, x.instruction)


@converter("Diag")
def tensor_diagonal(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """A tensor of twice the rank with x on its diagonal, zeros elsewhere."""
    (x,) = inputs
    b, count = context.builder, math.prod(x.sizes)
    row, column = (b.iota(Shape(S32, (count, count)), d) for d in range(2))
    spread = b.broadcast(b.reshape(x.instruction, (count,)), (count, count), (0,))
    matrix = b.select(b.compare(row, column, "EQ"), spread, b.like(0, spread))
    return b.reshape(matrix, (*x.sizes, *x.sizes))


@converter("DiagPart")
def diagonal_of_tensor(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (x,) = inputs
    sizes = x.sizes[: x.rank // 2]
    b, count = context.builder, math.prod(sizes)
    flat = b.reshape(x.instruction, (count * count,))
    places = np.arange(count, dtype=np.int32) * (count + 1)
    return b.reshape(_taken(b, flat, places, np.ones(count, bool), b.constant(0, x.element_type)), sizes)
