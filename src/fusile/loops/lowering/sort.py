"""Sorts: a bottom-up merge sort of each row, stable, with the comparator inlined and any number of operands.

A row that fits in scratch is sorted there in one phase, rows in parallel. A longer one is cut in chunks of a power of
two:
the first phase sorts the chunks, each later phase merges neighbouring runs of twice the length, pairs in parallel::

    kernel k(p0: f32[100000]) -> (r0: f32[100000])
      alloc runs: f32[200000] shared                    # two halves: what a phase reads, and what it writes
      parallel chunk in 25:  load, merge runs of 1, 2, 4 ... 2048 in scratch, store
      parallel pair in 13:   merge two runs of 4096
      ...

What merges decide depends on the comparator and the order of the elements alone, never on chunks or threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusile.base.element_type import PRED, S64
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import Sort
from fusile.loops.ir import (
    Alloc,
    Apply,
    Buffer,
    Expr,
    For,
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
from fusile.loops.lowering.elemental import Elemental, Pair, chosen
from fusile.loops.lowering.scalar_bodies import scalar_results
from fusile.loops.machine import Machine

CHUNK = 4096
"""Longest run that is sorted in scratch; a power of two."""
SCRATCH_BYTES = 128 << 10
TASK_ELEMENTS = 2048


@dataclass(frozen=True)
class Column:
    """Where one operand's elements lie: two runs of `length` elements, one after the other in a flat buffer."""

    buffer: Buffer
    is_complex: bool


def lower_sort(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `sort` fusion, whose one working instruction is the Sort."""
    writer = _Writer(Elemental(fusion, machine))
    if not writer.rows * writer.length:
        return writer.elemental.kernel(name)
    return writer.elemental.kernel(name, *writer.phases())


class _Writer:
    def __init__(self, elemental: Elemental) -> None:
        self.elemental, self.math, self.names = elemental, elemental.math, elemental.names
        self.sort = next(i for i in elemental.computation.post_order() if isinstance(i.op, Sort))
        assert isinstance(self.sort.op, Sort)
        self.comparator = self.sort.op.computation
        sizes = self.sort.operands[0].array_shape.sizes
        self.sizes, self.dimension = sizes, self.sort.op.dimension
        self.length = sizes[self.dimension]
        self.rows = math.prod(sizes) // max(1, self.length)
        self.chunk = self._chunk()

    def _chunk(self) -> int:
        """The longest run whose two copies of every operand fit in scratch."""
        each = sum(2 * o.array_shape.element_type.bytes for o in self.sort.operands)
        chunk = CHUNK
        while chunk > 16 and chunk * each > SCRATCH_BYTES:
            chunk //= 2
        return chunk

    def phases(self) -> list[Stmt]:
        if self.length <= self.chunk:
            return [self._sort_rows()]
        shared = self._columns(self.rows * self.length, Space.SHARED)
        phases: list[Stmt] = [Alloc(c.buffer) for c in shared]
        phases.append(self._sort_chunks(shared))
        width, source = self.chunk, 0
        while width < self.length:
            last = 2 * width >= self.length
            phases.append(self._merge_phase(shared, width, source, last))
            width, source = 2 * width, 1 - source
        return phases

    def _columns(self, length: int, space: Space) -> list[Column]:
        columns = []
        for operand in self.sort.operands:
            t = operand.array_shape.element_type
            size = 2 * length * (2 if t.is_complex else 1)
            columns.append(Column(Buffer(self.names.var("runs").name, t.real, (size,), space), t.is_complex))
        return columns

    def _read(self, column: Column, at: Expr) -> Any:
        return self.elemental.read(column.buffer, at, column.is_complex)

    def _write(self, column: Column, block: Block, at: Expr, value: Any) -> None:
        self.elemental.write(column.buffer, at, value, block)

    # -- in scratch ---------------------------------------------------------------------------------------------------

    def _sort_rows(self) -> For:
        """Whole rows, some a task."""
        group = max(1, TASK_ELEMENTS // self.length)
        tasks = -(-self.rows // group)
        task = self.math.bound(self.names.var("task"), tasks)
        index = self.math.bound(self.names.var("row"), group)
        block = self.elemental.block()
        left = self.math.subtract(const(self.rows), self.math.scale(task, group))
        count = const(group) if self.rows % group == 0 else self.math.minimum(const(group), left)
        inner = block.child()
        row = self._bounded(inner, self.math.add(self.math.scale(task, group), index), self.rows, "r")
        self._sort_run(inner, row, const(0), const(self.length), self.length, self._store_result(row))
        block.loop(index, count, inner)
        return For(task, const(tasks), block.body(), LoopKind.PARALLEL)

    def _sort_chunks(self, shared: Sequence[Column]) -> For:
        pieces = -(-self.length // self.chunk)
        task = self.math.bound(self.names.var("task"), self.rows * pieces)
        block = self.elemental.block()
        row, piece = self.math.unflatten(task, (self.rows, pieces))
        first = self.math.scale(piece, self.chunk)
        count = block.let(self.math.minimum(const(self.chunk), self.math.subtract(const(self.length), first)), "count")
        base = block.let(self.math.add(self.math.scale(row, self.length), first), "base")

        def store(b: Block, number: int, at: Expr, value: Any) -> None:
            self._write(shared[number], b, self.math.add(base, at), value)

        self._sort_run(block, row, first, count, self.chunk, store)
        return For(task, const(self.rows * pieces), block.body(), LoopKind.PARALLEL)

    def _sort_run(
        self,
        block: Block,
        row: Expr,
        first: Expr,
        count: Expr,
        room: int,
        store: Callable[[Block, int, Expr, Any], None],
    ) -> None:
        """Elements `first` to `first + count` of a row: loaded to scratch, sorted, stored."""
        columns = self._columns(room, Space.SCRATCH)
        block.statements += [Alloc(c.buffer) for c in columns]
        load = block.child()
        at = self.math.bound(self.names.var("i"), room)
        for column, operand in zip(columns, self.sort.operands, strict=True):
            self._write(
                column, load, at, self.elemental.value(operand, self._place(row, self.math.add(first, at)), load)
            )
        block.loop(at, count, load)
        passes = (room - 1).bit_length()
        if passes:
            self._passes(block, columns, count, room, passes)
        at = self.math.bound(self.names.var("i"), room)
        unload = block.child()
        for number, column in enumerate(columns):
            store(unload, number, at, self._read(column, self.math.add(at, const((passes % 2) * room))))
        block.loop(at, count, unload)

    def _passes(self, block: Block, columns: Sequence[Column], count: Expr, room: int, passes: int) -> None:
        """Merges runs of 1, 2, 4, ...; each pass moves everything to the other half of the scratch."""
        step = self.math.bound(self.names.var("pass"), passes)
        body = block.child()
        width = body.let(Apply("shift_left", (const(1), step), S64), "width")
        half = body.let(self.math.scale(Apply("modulo", (step, const(2)), S64), room), "half")
        twice = body.let(self.math.scale(width, 2), "twice")
        up = self.math.add(count, self.math.subtract(twice, const(1)))
        pairs = Apply("shift_right_arithmetic", (up, self.math.add(step, const(1))), S64)
        pair = self.names.var("pair")
        inner = body.child()
        start = inner.let(Apply("multiply", (pair, twice), S64), "start")
        middle = inner.let(self.math.minimum(self.math.add(start, width), count), "middle")
        end = inner.let(self.math.minimum(self.math.add(start, twice), count), "end")

        def write(b: Block, number: int, at: Expr, value: Any) -> None:
            self._write(columns[number], b, self.math.add(self.math.subtract(const(room), half), at), value)

        self._merge(inner, lambda n, at: self._read(columns[n], self.math.add(half, at)), start, middle, end, write)
        body.loop(pair, pairs, inner)
        block.loop(step, passes, body)

    # -- merging ------------------------------------------------------------------------------------------------------

    def _merge(self, block: Block, read: Callable[[int, Expr], Any], start: Expr, middle: Expr, end: Expr,
               write: Callable[[Block, int, Expr, Any], None]) -> None:  # fmt: skip
        """Merges two neighbouring runs. The right one's head goes first only where the comparator says so: stable."""
        heads = [Buffer(self.names.var(n).name, S64, (1,), Space.REGISTER) for n in ("left", "right")]
        for head, value in zip(heads, (start, middle), strict=True):
            block.emit(Alloc(head))
            block.emit(Store(head, (const(0),), value))
        to = self.names.var("to")
        inner = block.child()
        left, right = (inner.let(Load(h, (const(0),)), "head") for h in heads)
        at_left = inner.let(self.math.minimum(left, self.math.subtract(middle, const(1))), "at")
        at_right = inner.let(self.math.minimum(right, self.math.subtract(end, const(1))), "at")
        numbers = range(len(self.sort.operands))
        a = [_named(inner, read(n, at_left)) for n in numbers]
        b = [_named(inner, read(n, at_right)) for n in numbers]
        (before,) = scalar_results(self.comparator, [x for pair in zip(b, a, strict=True) for x in pair])
        in_right = compare("lt", right, end)
        chosen_right = Apply("and", (in_right, before), PRED)
        take = inner.let(Apply("or", (compare("ge", left, middle), chosen_right), PRED), "take")
        advance = inner.let(Apply("convert", (take,), S64), "advance")
        inner.emit(Store(heads[1], (const(0),), self.math.add(right, advance)))
        inner.emit(Store(heads[0], (const(0),), self.math.add(left, self.math.subtract(const(1), advance))))
        for n in numbers:
            write(inner, n, self.math.add(start, to), chosen(take, b[n], a[n], inner))
        block.loop(to, self.math.subtract(end, start), inner)

    def _merge_phase(self, shared: Sequence[Column], width: int, source: int, last: bool) -> For:
        """Pairs of runs of `width`, from one half of the shared runs to the other, or to the results."""
        pairs = -(-self.length // (2 * width))
        task = self.math.bound(self.names.var("task"), self.rows * pairs)
        block = self.elemental.block()
        row, pair = self.math.unflatten(task, (self.rows, pairs))
        base = block.let(self.math.scale(row, self.length), "base")
        start = block.let(self.math.scale(pair, 2 * width), "start")
        middle = block.let(self.math.minimum(self.math.add(start, const(width)), const(self.length)), "middle")
        end = block.let(self.math.minimum(self.math.add(start, const(2 * width)), const(self.length)), "end")
        half = self.rows * self.length

        def read(number: int, at: Expr) -> Any:
            return self._read(shared[number], self.math.add(self.math.add(base, const(source * half)), at))

        def write(b: Block, number: int, at: Expr, value: Any) -> None:
            self._write(shared[number], b, self.math.add(self.math.add(base, const((1 - source) * half)), at), value)

        self._merge(block, read, start, middle, end, self._store_result(row) if last else write)
        return For(task, const(self.rows * pairs), block.body(), LoopKind.PARALLEL)

    # -- places -------------------------------------------------------------------------------------------------------

    def _place(self, row: Expr, at: Expr) -> tuple[Expr, ...]:
        """The index of element `at` of a row."""
        d = self.dimension
        outer = self.math.unflatten(row, (*self.sizes[:d], *self.sizes[d + 1 :]))
        return (*outer[:d], at, *outer[d:])

    def _store_result(self, row: Expr) -> Callable[[Block, int, Expr, Any], None]:
        results = self.elemental.results

        def store(block: Block, number: int, at: Expr, value: Any) -> None:
            for root, buffer in results:
                if _number_of(root) == number:
                    self.elemental.store(buffer, root, self._place(row, at), value, block)

        return store

    def _bounded(self, block: Block, value: Expr, extent: int, name: str) -> Expr:
        named = block.let(value, name)
        return self.math.bound(named, extent) if isinstance(named, Var) else named


def _number_of(root: Instruction) -> int:
    """Which of the sort's results a root is."""
    return int(getattr(root.op, "index", 0))


def _named(block: Block, value: Any) -> Any:
    return Pair(block.let(value.real), block.let(value.imag)) if isinstance(value, Pair) else block.let(value)
