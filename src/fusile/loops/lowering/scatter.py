"""Scatter in place: windows are combined one after the other, in order; what sticks out of the operand is dropped.

Elements of one window never meet, so vectors run along its last dimension. Windows may meet, so they are serial, except
where tasks can't touch each other's elements: along batching dimensions, or in slices of a window dimension that no
index moves. The gradient of an embedding, f32[1000,768] with 64 indices::

    parallel slice in 12:
      serial u in 64:
        let at = convert(p1[u])
        if at >= 0 and at < 1000:
          serial j in 8: vector lane in 8: r0[at * 768 + slice * 64 + j * 8 + lane] += p2[...]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from fusile.base.element_type import S64
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import Scatter
from fusile.hlo.opset.structure import Parameter
from fusile.loops.ir import (
    Alloc,
    Apply,
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
    compare,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental, Pair
from fusile.loops.lowering.index_ops import Guarded
from fusile.loops.lowering.inline_loops import nest
from fusile.loops.lowering.scalar_bodies import scalar_results
from fusile.loops.lowering.vector_loops import VectorLoops, lanes_for
from fusile.loops.machine import Machine

SLICE = 64
"""Elements of a window row that one task writes, at least."""
MOST_SLICES = 16


def lower_scatter(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `scatter` fusion. The results' buffers hold the operands already."""
    e = Elemental(fusion, machine)
    scatter = next(i for i in e.computation.instructions if isinstance(i.op, Scatter))
    writer = _Writer(e, scatter)
    if not writer.updates[0].array_shape.elements or not scatter.operands[0].array_shape.elements:
        return e.kernel(name)
    return e.kernel(name, *writer.copies(), writer.phase())


@dataclass
class _Starts:
    """Where a window begins: a dimension's start, where an index moves it. `inside` tests those of one element."""

    moved: dict[int, Expr] = field(default_factory=dict)
    inside: Guarded = field(default_factory=Guarded)


class _Writer:
    def __init__(self, e: Elemental, scatter: Instruction) -> None:
        self.e, self.math, self.scatter = e, e.math, scatter
        assert isinstance(scatter.op, Scatter)
        self.op = scatter.op
        count = len(scatter.operands) // 2
        self.indices, self.updates = scatter.operands[count], scatter.operands[count + 1 :]
        self.shape = scatter.operands[0].array_shape.sizes
        self.sizes = self.updates[0].array_shape.sizes
        dropped = {*self.op.inserted_window_dims, *self.op.input_batching_dims}
        kept = [d for d in range(len(self.shape)) if d not in dropped]
        self.window_of = dict(zip(kept, self.op.update_window_dims, strict=True))
        """The update's dimension for each of the operand's that windows extend in."""
        self.batch = [d for d in range(len(self.sizes)) if d not in self.op.update_window_dims]
        self.loops = [e.math.bound(e.names.var("u"), size) for size in self.sizes]
        self.row = self.op.update_window_dims[-1] if self.op.update_window_dims else None
        """The update's dimension that vectors run along."""
        self.row_size = 1 if self.row is None else self.sizes[self.row]

    def copies(self) -> list[Stmt]:
        """Operands that are indices or updates as well, copied: the results' buffers may be theirs, and change."""
        count = len(self.e.results)
        phases: list[Stmt] = []
        for operand in dict.fromkeys(self.scatter.operands[:count]):
            if operand not in self.scatter.operands[count:]:
                continue
            assert isinstance(operand.op, Parameter)
            source = self.e.parameters[operand.op.number]
            copy = Buffer(self.e.names.var("old").name, source.element_type, source.dimensions, Space.SHARED)
            at = self.math.bound(self.e.names.var("i"), source.elements)
            move = Store(copy, (at,), Load(source, (at,)))
            phases += [Alloc(copy), For(at, const(source.elements), (move,), LoopKind.PARALLEL)]
            self.e.override(operand, partial(self.e.load, copy, operand))
        return phases

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def phase(self) -> Stmt:
        """All windows, in order; in parallel where tasks are sure not to meet."""
        width = self._slice_width()
        if width:
            slices = -(-self.row_size // width)
            task = self.math.bound(self.e.names.var("slice"), slices)
            body = self._windows(self.batch, self.math.scale(task, width), width)
            return For(task, const(slices), body.body(), LoopKind.PARALLEL)
        alone = self._independent_loop()
        body = self._windows([d for d in self.batch if d != alone], const(0), 0)
        if alone is None:
            return For(self.e.names.var("once"), const(1), body.body())
        return For(self.loops[alone], const(self.sizes[alone]), body.body(), LoopKind.PARALLEL)

    def _slice_width(self) -> int:
        """How much of a window row a task writes; 0 where rows aren't cut, as when indices move them sideways."""
        moved = {self.window_of.get(d) for d in self.op.scatter_dims_to_operand_dims}
        if self.row is None or self.row in moved or self.row_size < 2 * SLICE:
            return 0
        pieces = min(MOST_SLICES, self.row_size // SLICE)
        return -(-self.row_size // (pieces * SLICE)) * SLICE

    def _independent_loop(self) -> int | None:
        """An update's dimension that is a batching one of the operand too: the longest."""
        dimensions = self._indices_batch()
        alone = [self.batch[dimensions.index(d)] for d in self.op.scatter_indices_batching_dims]
        return max(alone, key=lambda d: self.sizes[d]) if alone else None

    def _indices_batch(self) -> list[int]:
        return [d for d in range(self.indices.array_shape.rank) if d != self.op.index_vector_dim]

    # -- windows -------------------------------------------------------------------------------------------------------

    def _windows(self, batch: Sequence[int], first: Expr, width: int) -> Block:
        """Loops over windows, and in each over its rows; `width` elements of them from `first` are written (0: all)."""
        block = self.e.block()
        window = block.child()
        starts = self._starts(window)
        rows = window.child()
        inner = rows.child()
        self._write_row(inner, starts, first, width)
        nest(rows, inner, [(self.loops[d], self.sizes[d]) for d in self.op.update_window_dims if d != self.row])
        test = starts.inside.test
        window.statements += rows.statements if test is None else [If(test, rows.body())]
        nest(block, window, [(self.loops[d], self.sizes[d]) for d in batch])
        return block

    def _starts(self, block: Block) -> _Starts:
        """A window's start from the indices, with the tests that are the same for all of its elements."""
        starts = _Starts()
        batch = [self.loops[d] for d in self.batch]
        for number, d in enumerate(self.op.scatter_dims_to_operand_dims):
            at = list[Expr](batch)
            if self.op.index_vector_dim < self.indices.array_shape.rank:
                at.insert(self.op.index_vector_dim, const(number))
            value = self.e.value(self.indices, at, block)
            wide = value if value.element_type is S64 else Apply("convert", (value,), S64)
            starts.moved[d] = block.let(wide, "start")
            if d not in self.window_of:
                _test_inside(starts.inside, starts.moved[d], self.shape[d])
        return starts

    def _write_row(self, block: Block, starts: _Starts, first: Expr, width: int) -> None:
        """One window row, or a piece of it, in vectors."""
        if self.row is None:
            self._combine(block, starts, self.loops)
            return
        row = self.row

        def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            self._combine(b, starts, [*self.loops[:row], column, *self.loops[row + 1 :]])

        loops = VectorLoops(self.e, lanes_for([self.scatter, *self.updates], self.e.machine))
        loops.run(block, width or self.row_size, first, body, unroll=1, total=self.row_size)

    def _combine(self, block: Block, starts: _Starts, at: Sequence[Expr]) -> None:
        """Combines the updates at an index into the results, if that place is inside."""
        place, inside = self._place(starts, at, block)
        inner = block if inside.test is None else block.child()
        flat = inner.let(self.math.flatten(place, self.shape), "cell")
        buffers = [(b, r.array_shape.element_type.is_complex) for r, b in self.e.results]
        old = [self.e.read(buffer, flat, is_complex) for buffer, is_complex in buffers]
        new = scalar_results(self.op.computation, [*old, *(self.e.value(u, at, inner) for u in self.updates)])
        # All are computed before one is stored: each may depend on all old ones.
        named = [Pair(inner.let(v.real), inner.let(v.imag)) if isinstance(v, Pair) else inner.let(v) for v in new]
        for (buffer, _), value in zip(buffers, named, strict=True):
            self.e.write(buffer, flat, value, inner)
        if inside.test is not None:
            block.emit(If(inside.test, inner.body()))

    def _place(self, starts: _Starts, at: Sequence[Expr], block: Block) -> tuple[list[Expr], Guarded]:
        """Where an update's element goes, and the tests that its window's start doesn't decide alone."""
        place: list[Expr] = [const(0)] * len(self.shape)
        inside = Guarded()
        for d, dimension in self.window_of.items():
            place[d] = at[dimension]
        for d, start in starts.moved.items():
            if d not in self.window_of:
                place[d] = start
                continue
            place[d] = block.let(Apply("add", (start, place[d]), S64), "at")
            _test_inside(inside, place[d], self.shape[d])
        batch = [at[d] for d in self.batch]
        dimensions = self._indices_batch()
        for d, source in zip(self.op.input_batching_dims, self.op.scatter_indices_batching_dims, strict=True):
            place[d] = batch[dimensions.index(source)]
        return place, inside


def _test_inside(inside: Guarded, place: Expr, size: int) -> None:
    inside.also(compare("ge", place, const(0)))
    inside.also(compare("lt", place, const(size)))
