"""One register tile of a product: accumulators of some rows and vectors of columns, over the whole depth.

Where the operands' elements come from is the caller's business: a kernel's arguments, rows or panels in scratch memory,
the result of another product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusile.base.element_type import F32, S64, ElementType
from fusile.hlo.ir import Instruction
from fusile.loops.ir import (
    Alloc,
    Apply,
    Body,
    Buffer,
    Const,
    Expr,
    For,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Space,
    Stmt,
    Store,
    Var,
    const,
    rewrite,
    sub_expressions,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental

Vectors = Sequence[tuple[int, int]]
"""The vectors of a tile: (offset of the first column, live lanes), a vector each."""
Left = Callable[[int, Expr, Sequence[Expr], Block], Expr]
"""An element of the left-hand side: (row of the tile, flat column, depth coordinates, block)."""
Right = Callable[[Expr, Sequence[Expr], Block], Expr]
"""An element of the right-hand side: (flat column, depth coordinates, block)."""
PIPELINED_FROM = 8
"""Turns of the depth loop from which the code generator may overlap them."""
PREFETCHED_STEPS = 48
"""Steps of the depth loop, of some 10 ns, that a line is asked for in advance."""
PREFETCHED_BYTES = 256 << 10
"""Smaller operands are in a near cache anyway."""


def accumulator_type(hero: Instruction) -> ElementType:
    """Narrow floats accumulate in f32, everything else in the result's own type."""
    result = hero.array_shape.element_type
    return F32 if result.is_float and result.bits < 32 else result


class ProductTile:
    """Writes tiles of one product, whose sums are of `element_type`. `depth`: sizes of the contracted dimensions."""

    def __init__(self, elemental: Elemental, element_type: ElementType, lanes: int, depth: Sequence[int]) -> None:
        self.elemental, self.math = elemental, elemental.math
        self.type, self.lanes, self.depth = element_type, lanes, depth

    def fresh(self, name: str, element_type: ElementType = S64) -> Var:
        return self.elemental.names.var(name, element_type)

    def named(self, body: list[Stmt], name: str, value: Expr) -> Expr:
        """The value under a name, so that it is computed once."""
        if isinstance(value, Const | Var):
            return value
        var = self.fresh(name)
        self.math.ranges[var.name] = self.math.range_of(value)
        body.append(Let(var, value))
        return var

    def vectors(self, columns: int) -> list[tuple[int, int]]:
        """The vectors of so many columns."""
        return [(v, min(self.lanes, columns - v)) for v in range(0, columns, self.lanes)]

    def vector(self, live: int, body: Callable[[Var], Body], full: bool = False) -> For:
        """A loop over the lanes of a vector, those beyond `live` masked off unless `full`."""
        lane = self.math.bound(self.fresh("lane"), self.lanes)
        masked = live < self.lanes and not full
        return For(lane, const(self.lanes), body(lane), LoopKind.VECTOR, const(live) if masked else None)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def sums(
        self, body: list[Stmt], rows: int, first_column: Expr, vectors: Vectors, left: Left, right: Right
    ) -> Buffer:
        """Appends the loops that sum over the depth; the accumulators, [rows, vectors, lanes]."""
        sums = Buffer(self.fresh("acc").name, self.type, (rows, len(vectors), self.lanes), Space.REGISTER)
        zero = Const(0.0 if self.type.is_float else 0, self.type)
        body.append(Alloc(sums))
        body += self.cells(sums, vectors, lambda cell, column: (Store(sums, cell, zero),), const(0), full=True)
        depth = [self.math.bound(self.fresh("k"), size) for size in self.depth]
        coordinates = [const(0) if size == 1 else k for k, size in zip(depth, self.depth, strict=True)]
        whole = [(v, offset) for v, (offset, live) in enumerate(vectors) if live == self.lanes]
        groups = [(whole, self.lanes)] if whole else []
        groups += [([(v, offset)], live) for v, (offset, live) in enumerate(vectors) if live < self.lanes]

        def step(group: list[tuple[int, int]]) -> Callable[[Var], Body]:
            places = [(v, self.math.add(first_column, const(offset))) for v, offset in group]
            return lambda lane: self._multiply_add(
                sums, lane, [(v, self.math.add(p, lane)) for v, p in places], coordinates, left, right
            )

        inner: Body = tuple(self.vector(live, step(group)) for group, live in groups)
        loops = [(k, size) for k, size in zip(depth, self.depth, strict=True) if size != 1]
        for number, (k, size) in enumerate(reversed(loops)):
            kind = LoopKind.PIPELINED if number == 0 and size >= PIPELINED_FROM else LoopKind.SERIAL
            inner = (For(k, const(size), inner, kind),)
        body += inner
        return sums

    def _multiply_add(
        self,
        sums: Buffer,
        lane: Var,
        places: Sequence[tuple[int, Expr]],
        depth: Sequence[Expr],
        left: Left,
        right: Right,
    ) -> Body:
        """Vectors of the right-hand side times one element (or vector) of each row. All vectors first, then row by
        row: so one broadcast element is live at a time and the accumulators stay in registers."""
        block = self.elemental.block()
        vectors = [(v, p, block.let(self._converted(right(p, depth, block)), "b")) for v, p in places]
        self._prefetch(block, [p for _, p in places], depth, right)
        for i in range(sums.dimensions[0]):
            for vector, place, b in vectors:
                a = self._converted(left(i, place, depth, block))
                cell = (const(i), const(vector), lane)
                block.emit(Store(sums, cell, self._fused(a, b, Load(sums, cell))))
        return block.body()

    def _prefetch(self, block: Block, places: Sequence[Expr], depth: Sequence[Expr], right: Right) -> None:
        """Asks for the right-hand side's lines of some steps later: the processor's own prefetching stops at the end of
        each page, which a panel crosses every few dozen steps."""
        if not depth or self.depth[-1] < PREFETCHED_STEPS:
            return
        for place in places:
            here = right(place, depth, block)
            there = right(place, [*depth[:-1], self.math.add(depth[-1], const(1))], block)
            if not (isinstance(here, Load) and isinstance(there, Load)) or here.buffer.space is not Space.ARGUMENT:
                return
            step = self.math.subtract(there.indices[0], here.indices[0])
            if isinstance(step, Const) and here.buffer.elements * here.element_type.bytes > PREFETCHED_BYTES:
                block.emit(Prefetch(here.buffer, here.indices, int(step.value) * PREFETCHED_STEPS))

    def _converted(self, value: Expr) -> Expr:
        return value if value.element_type is self.type else Apply("convert", (value,), self.type)

    def _fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        if self.type.is_float and self.elemental.machine.has_fma:
            return Apply("fma", (a, b, c), self.type)
        return Apply("add", (Apply("multiply", (a, b), self.type), c), self.type)

    # -- using sums ----------------------------------------------------------------------------------------------------

    def cells(
        self,
        sums: Buffer,
        vectors: Vectors,
        body: Callable[[tuple[Expr, ...], Expr], Body],
        first_column: Expr,
        full: bool = False,
    ) -> list[Stmt]:
        """Statements for every cell of the accumulators: `body(cell, flat column)`, in vectors."""
        return [
            s for i in range(sums.dimensions[0]) for s in self.row_cells(const(i), vectors, body, first_column, full)
        ]

    def row_cells(
        self,
        row: Expr,
        vectors: Vectors,
        body: Callable[[tuple[Expr, ...], Expr], Body],
        first_column: Expr,
        full: bool = False,
    ) -> list[Stmt]:
        """The statements of `cells` for one row."""
        found: list[Stmt] = []
        for v, (offset, live) in enumerate(vectors):
            base = self.math.add(first_column, const(offset))

            def cell(lane: Var, v: int = v, base: Expr = base) -> Body:
                return body((row, const(v), lane), self.math.add(base, lane))

            found.append(self.vector(live, cell, full))
        return found


def prefetches(epilogue: Sequence[Stmt], cached_bytes: int) -> Body:
    """Hints for the lines of large arguments that an epilogue's vector loops read and write: they come while the sums
    are made. Nothing for epilogues that are loops."""
    found: dict[tuple[Buffer, tuple[Expr, ...]], Prefetch] = {}
    for loop in epilogue:
        if not isinstance(loop, For) or loop.kind is not LoopKind.VECTOR:
            return ()
        inside = {s.var.name for s in loop.body if isinstance(s, Let)}
        for s in loop.body:
            loads = [e for e in _expressions(s) if isinstance(e, Load)]
            touched = [(e.buffer, e.indices, False) for e in loads]
            touched += [(s.buffer, s.indices, True)] if isinstance(s, Store) else []
            for buffer, indices, write in touched:
                large = buffer.space is Space.ARGUMENT and buffer.elements * buffer.element_type.bytes > cached_bytes
                if not large or any(
                    isinstance(x, Var) and x.name in inside for i in indices for x in sub_expressions(i)
                ):
                    continue
                first = tuple(_at_zero(i, loop.var) for i in indices)
                found.setdefault((buffer, first), Prefetch(buffer, first, 0, write))
    return tuple(found.values())


def _expressions(s: Stmt) -> Sequence[Expr]:
    return list(sub_expressions(s.value)) if isinstance(s, Let | Store) else ()


def _at_zero(e: Expr, var: Var) -> Expr:
    return rewrite(e, lambda x: const(0) if x == var else None)
