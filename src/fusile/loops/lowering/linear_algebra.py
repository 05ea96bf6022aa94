"""Cholesky factors and triangular solves, right-looking: all inner loops run along memory.

Each matrix of a batch is a task (a solve's columns or rows are cut in more). Everything is computed in place, in the
result's buffer and in the element type's own precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusile.base.element_type import PRED
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.other import Cholesky, TriangularSolve
from fusile.loops.ir import (
    Alloc,
    Apply,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Space,
    Store,
    Var,
    compare,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.complex_numbers import Field
from fusile.loops.lowering.elemental import Elemental, Pair, chosen
from fusile.loops.lowering.vector_loops import VectorLoops, lanes_for
from fusile.loops.machine import Machine

SOLVE_COLUMNS = 64
"""Columns of a solve's right-hand side that one task works on."""


class _Matrices:
    """What both kernels share: the one instruction's matrices, in its last two dimensions, and loops over them."""

    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        self.elemental = Elemental(fusion, machine)
        self.math = self.elemental.math
        ((self.root, self.buffer),) = self.elemental.results
        shape = self.root.array_shape
        *self.outer, self.rows, self.columns = shape.sizes
        self.count = math.prod(self.outer)
        self.field = Field(shape.element_type, machine.has_fma)
        self.loops = VectorLoops(self.elemental, lanes_for([self.root], machine))

    def fresh(self, name: str, extent: int) -> Var:
        return self.math.bound(self.elemental.names.var(name), extent)

    def operand(self, number: int, matrix: Expr, row: Expr, column: Expr, block: Block) -> Any:
        at = (*self.math.unflatten(matrix, self.outer), row, column)
        return self.elemental.value(self.root.operands[number], at, block)

    def load(self, matrix: Expr, row: Expr, column: Expr) -> Any:
        return self.elemental.read(self.buffer, self._flat(matrix, row, column), self.field.is_complex)

    def store(self, matrix: Expr, row: Expr, column: Expr, value: Any, block: Block) -> None:
        self.elemental.write(self.buffer, self._flat(matrix, row, column), named(value, block), block)

    def subtract(self, matrix: Expr, row: Expr, column: Expr, a: Any, b: Any, block: Block) -> None:
        """Takes a * b from the result's element."""
        old = named(self.load(matrix, row, column), block)
        self.store(matrix, row, column, self.field.add_product(old, self.field.negate(a), b), block)

    def _flat(self, matrix: Expr, row: Expr, column: Expr) -> Expr:
        return self.math.flatten((matrix, row, column), (self.count, self.rows, self.columns))

    def serial(self, block: Block, count: Expr | int, most: int, body: Callable[[Block, Expr], None]) -> None:
        index = self.fresh("i", most)
        inner = block.child()
        body(inner, index)
        block.loop(index, count, inner)

    def task(self, count: int, body: Callable[[Block, Expr], None]) -> For:
        index = self.fresh("task", count)
        block = self.elemental.block()
        body(block, index)
        return For(index, const(count), block.body(), LoopKind.PARALLEL)


def named(value: Any, block: Block) -> Any:
    """The value, computed here."""
    return Pair(block.let(value.real), block.let(value.imag)) if isinstance(value, Pair) else block.let(value)


def lower_cholesky(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a Cholesky. A matrix that isn't positive definite gives NaN in all its elements."""
    writer = _CholeskyWriter(fusion, machine)
    phases = [writer.task(writer.count, writer.factor)] if writer.root.array_shape.elements else []
    return writer.elemental.kernel(name, *phases)


class _CholeskyWriter(_Matrices):
    """After step j, row (upper) or column (lower) j is final, its product taken off the rest of the triangle."""

    def factor(self, block: Block, matrix: Expr) -> None:
        size, t = self.rows, self.buffer.element_type
        assert isinstance(self.root.op, Cholesky)
        lower = self.root.op.lower
        self.serial(block, size, size, lambda b, i: self._copy(b, matrix, i, lower))
        pivots = Buffer(self.elemental.names.var("positive").name, PRED, (1,), Space.REGISTER)
        line = Buffer(
            self.elemental.names.var("line").name, t, (2 * size if self.field.is_complex else size,), Space.SCRATCH
        )
        block.statements += [Alloc(pivots), Store(pivots, (const(0),), Const(True, PRED)), Alloc(line)]
        self.serial(block, size, size, lambda b, j: self._step(b, matrix, j, lower, pivots, line))
        nan = self.field.number(math.nan, math.nan)
        bad = block.child()

        def fill(b: Block, row: Expr) -> None:
            self.loops.run(b, size, const(0), lambda x, c, slot, lane: self.store(matrix, row, c, nan, x), unroll=1)

        self.serial(bad, size, size, fill)
        block.emit(If(Load(pivots, (const(0),)), (), bad.body()))

    def _copy(self, block: Block, matrix: Expr, row: Expr, lower: bool) -> None:
        """A row of the operand's triangle, and zeros."""

        def one(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            inside = compare("le" if lower else "ge", column, row)
            value = self.operand(0, matrix, row, column, b)
            self.store(matrix, row, column, chosen(inside, value, self.field.number(0.0), b), b)

        self.loops.run(block, self.columns, const(0), one, unroll=1)

    def _step(self, block: Block, matrix: Expr, j: Expr, lower: bool, pivots: Buffer, line: Buffer) -> None:
        field, first = self.field, self.math.add(j, const(1))
        pivot = self.load(matrix, j, j)
        real = block.let(pivot.real if isinstance(pivot, Pair) else pivot, "pivot")
        positive = compare("gt", real, Const(0.0, real.element_type))
        block.emit(Store(pivots, (const(0),), Apply("and", (Load(pivots, (const(0),)), positive), PRED)))
        root = block.let(Apply("sqrt", (real,), real.element_type), "root")
        self.store(matrix, j, j, field.number(root), block)
        rest = block.let(self.math.subtract(const(self.rows - 1), j), "rest")

        def scale(b: Block, step: Expr) -> None:
            i = b.let(self.math.add(first, step), "row")
            place = (i, j) if lower else (j, i)
            value = named(field.divide(self.load(matrix, *place), field.number(root)), b)
            self.store(matrix, *place, value, b)
            self.elemental.write(line, i, field.conjugate(value) if lower else value, b)

        def update(b: Block, step: Expr) -> None:
            i = b.let(self.math.add(first, step), "row")
            factor = named(field.conjugate(self.elemental.read(line, i, field.is_complex)), b)
            start, count = (
                (first, self.math.add(step, const(1))) if lower else (i, self.math.subtract(const(self.rows), i))
            )

            def one(inner: Block, column: Expr, slot: int, lane: Expr) -> None:
                self.subtract(matrix, i, column, factor, self.elemental.read(line, column, field.is_complex), inner)

            self.loops.run_counted(b, start, count, self.rows, one)

        self.serial(block, rest, self.rows, scale)
        self.serial(block, rest, self.rows, update)


def lower_triangular_solve(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a TriangularSolve. The other triangle is never read; zeros divide as IEEE says."""
    writer = _SolveWriter(fusion, machine)
    phases = [writer.phase()] if writer.root.array_shape.elements else []
    return writer.elemental.kernel(name, *phases)


class _SolveWriter(_Matrices):
    """Step k divides line k of the unknowns by the diagonal and takes its products off the lines that wait for it."""

    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        super().__init__(fusion, machine)
        assert isinstance(self.root.op, TriangularSolve)
        self.op = self.root.op
        effective_lower = self.op.lower != (self.op.transpose != "NO_TRANSPOSE")
        self.forward = effective_lower == self.op.left_side
        self.size = self.root.operands[0].array_shape.sizes[-1]

    def phase(self) -> For:
        if not self.op.left_side:
            return self.task(self.count * self.rows, self._solve_row)
        pieces = -(-self.columns // SOLVE_COLUMNS)
        return self.task(
            self.count * pieces,
            lambda b, task: self._solve_columns(b, *self.math.unflatten(task, (self.count, pieces))),
        )

    def coefficient(self, matrix: Expr, row: Expr, column: Expr, block: Block) -> Any:
        """An element of op(a)."""
        if self.op.transpose == "NO_TRANSPOSE":
            return self.operand(0, matrix, row, column, block)
        value = self.operand(0, matrix, column, row, block)
        return self.field.conjugate(value) if self.op.transpose == "ADJOINT" else value

    def _copy(self, block: Block, matrix: Expr, row: Expr, start: Expr, count: int) -> None:
        def one(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            self.store(matrix, row, column, self.operand(1, matrix, row, column, b), b)

        self.loops.run(block, count, start, one, unroll=1, total=self.columns)

    def _steps(self, block: Block, body: Callable[[Block, Expr, Expr, Expr], None]) -> None:
        """Runs `body(block, k, first, rest)` for the lines in order; `rest` lines from `first` on wait for line k."""

        def one(b: Block, step: Expr) -> None:
            last = const(self.size - 1)
            k = step if self.forward else b.let(self.math.subtract(last, step), "k")
            rest = self.math.subtract(last, k) if self.forward else k
            body(b, k, self.math.add(k, const(1)) if self.forward else const(0), rest)

        self.serial(block, self.size, self.size, one)

    def _solve_columns(self, block: Block, matrix: Expr, piece: Expr) -> None:
        """op(a) x = b for some columns: vectors run along the columns."""
        start, count = self.math.scale(piece, SOLVE_COLUMNS), min(SOLVE_COLUMNS, self.columns)
        self.serial(block, self.rows, self.rows, lambda b, i: self._copy(b, matrix, i, start, count))

        def step(b: Block, k: Expr, first: Expr, rest: Expr) -> None:
            if not self.op.unit_diagonal:
                pivot = named(self.coefficient(matrix, k, k, b), b)
                self._along(
                    b,
                    start,
                    count,
                    lambda c, inner: self.store(matrix, k, c, self.field.divide(self.load(matrix, k, c), pivot), inner),
                )

            def line(inner: Block, number: Expr) -> None:
                i = inner.let(self.math.add(first, number), "row")
                factor = named(self.coefficient(matrix, i, k, inner), inner)
                self._along(
                    inner,
                    start,
                    count,
                    lambda c, last: self.subtract(matrix, i, c, factor, self.load(matrix, k, c), last),
                )

            self.serial(b, rest, self.size, line)

        self._steps(block, step)

    def _along(self, block: Block, start: Expr, count: int, body: Callable[[Expr, Block], None]) -> None:
        self.loops.run(block, count, start, lambda b, column, slot, lane: body(column, b), unroll=1, total=self.columns)

    def _solve_row(self, block: Block, task: Expr) -> None:
        """x op(a) = b for one row: vectors run along the row."""
        matrix, row = self.math.unflatten(task, (self.count, self.rows))
        self._copy(block, matrix, row, const(0), self.columns)

        def step(b: Block, k: Expr, first: Expr, rest: Expr) -> None:
            value = self.load(matrix, row, k)
            if not self.op.unit_diagonal:
                value = self.field.divide(value, named(self.coefficient(matrix, k, k, b), b))
            value = named(value, b)
            self.store(matrix, row, k, value, b)

            def one(inner: Block, column: Expr, slot: int, lane: Expr) -> None:
                self.subtract(matrix, row, column, value, self.coefficient(matrix, k, column, inner), inner)

            self.loops.run_counted(b, first, rest, self.size, one)

        self._steps(block, step)
