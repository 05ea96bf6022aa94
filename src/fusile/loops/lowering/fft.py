"""Discrete Fourier transforms of any length: mixed-radix Stockham, a phase an axis.

With n = r * m * s, one stage of radix r turns a line x into y, for k < m, t < s, q < r, and w = exp(-2 pi i / n)::

    y[t + s*(k + q*m)] = sum over p < r of  x[t + s*(r*k + p)] * w ** (s*p*(k + q*m))

Stages run from s = n / r down to s = 1; nothing is reordered. Powers of w come from a table that the first phase makes
in f64. A prime factor r costs r multiply-adds an element, so lengths with a large one take time n * r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fusile.base.element_type import C64, C128, F64, S64, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.other import Fft
from fusile.loops.ir import (
    Alloc,
    Apply,
    Buffer,
    Const,
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
from fusile.loops.lowering.complex_numbers import Field
from fusile.loops.lowering.elemental import Elemental, Pair
from fusile.loops.lowering.vector_loops import VectorLoops
from fusile.loops.machine import Machine

SCRATCH_BYTES = 128 << 10
"""A line's buffers up to this size are scratch; longer ones are shared."""
LARGEST_WRITTEN_OUT = 16
"""Radices up to this one are written out, larger ones are loops."""
TASK_ELEMENTS = 4096
TABLE_CHUNK = 1024

Read = Callable[[Expr, Block], Any]
Write = Callable[[Expr, Any, Block], None]


def lower_fft(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of an Fft."""
    writer = _Writer(fusion, machine)
    phases = writer.phases() if writer.root.array_shape.elements else []
    return writer.elemental.kernel(name, *phases)


def radices(length: int) -> list[int]:
    """The factors of a length in the order of the stages: fours, then primes."""
    found, rest, factor = [], length, 2
    while rest % 4 == 0:
        found.append(4)
        rest //= 4
    while rest > 1:
        if factor * factor > rest:
            factor = rest
        if rest % factor == 0:
            found.append(factor)
            rest //= factor
        else:
            factor += 1
    return found


class _Writer:
    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        self.elemental = Elemental(fusion, machine)
        self.math, self.names, self.machine = self.elemental.math, self.elemental.names, machine
        ((self.root, self.buffer),) = self.elemental.results
        assert isinstance(self.root.op, Fft)
        self.kind, self.length = self.root.op.kind, self.root.op.length
        self.operand = self.root.operands[0]
        self.inverse = self.kind in ("IFFT", "IRFFT")
        self.real = self.root.array_shape.element_type.real
        self.check_lengths()

    def check_lengths(self) -> None:
        """The operand must have the lengths that the transform is given."""
        expected = list(self.length)
        if self.kind == "IRFFT":
            expected[-1] = expected[-1] // 2 + 1
        given = self.operand.array_shape.sizes[-len(expected) :]
        if given != tuple(expected):
            message = (
                f"{self.kind.lower()} of lengths {list(self.length)} of an operand with the dimensions {list(given)}"
            )
            raise UnsupportedOpError(message, source=self.root.source, hint="pad or slice the operand to the lengths")

    def phases(self) -> list[Stmt]:
        """The table of each length, then the axes: the last one first, but last where it becomes real."""
        rank, axes = self.root.array_shape.rank, len(self.length)
        order = list(range(rank - axes, rank))
        if self.kind != "IRFFT":
            order.reverse()
        tables = {n: _Table(self, n) for n in dict.fromkeys(self.length)}
        phases: list[Stmt] = [s for n in tables for s in tables[n].phases()]
        between = self._between() if self.kind == "IRFFT" and axes > 1 else None
        if between is not None:
            phases.append(Alloc(between[1]))
        for number, axis in enumerate(order):
            first, last = number == 0, number == len(order) - 1
            source = None if first else between or (self.root.array_shape.sizes, self.buffer)
            target = (self.root.array_shape.sizes, self.buffer) if last or between is None else between
            phases += _Axis(self, axis, tables[self.length[axis - rank]], source, target).phases()
        return phases

    def _between(self) -> tuple[tuple[int, ...], Buffer]:
        """A copy of the operand to work in, where the result is too small for it."""
        shape = self.operand.array_shape
        return shape.sizes, Buffer("between", self.real, (2 * shape.elements,), Space.SHARED)


class _Table:
    """exp(-2 pi i j / n), or its conjugate for inverse transforms, for j < n."""

    def __init__(self, writer: _Writer, length: int) -> None:
        self.writer, self.length = writer, length
        self.cosines, self.sines = (
            Buffer(f"{n}{length}", writer.real, (length,), Space.SHARED) for n in ("cosines", "sines")
        )

    def phases(self) -> list[Stmt]:
        e, math_, n = self.writer.elemental, self.writer.math, self.length
        task = math_.bound(e.names.var("task"), -(-n // TABLE_CHUNK))
        block = e.block()
        lanes = self.writer.machine.lanes(F64)

        def one(b: Block, j: Expr, slot: int, lane: Expr) -> None:
            step = 2 * math.pi / n * (1 if self.writer.inverse else -1)
            angle = Apply("multiply", (Apply("convert", (j,), F64), Const(step, F64)), F64)
            for buffer, op in ((self.cosines, "cosine"), (self.sines, "sine")):
                value: Expr = Apply(op, (angle,), F64)
                b.emit(
                    Store(
                        buffer, (j,), value if self.writer.real is F64 else Apply("convert", (value,), self.writer.real)
                    )
                )

        count = min(n, TABLE_CHUNK)
        VectorLoops(e, lanes).run(block, count, math_.scale(task, TABLE_CHUNK), one, unroll=1, total=n)
        loop = For(task, const(-(-n // TABLE_CHUNK)), block.body(), LoopKind.PARALLEL)
        return [Alloc(self.cosines), Alloc(self.sines), loop]

    def power(self, j: Expr) -> Pair:
        """w ** j for 0 <= j < n."""
        return Pair(Load(self.cosines, (j,)), Load(self.sines, (j,)))


class _Axis:
    """Transforms of all lines along one axis. `source`, `target`: (sizes, buffer); no source is the operand."""

    def __init__(self, writer: _Writer, axis: int, table: _Table, source: tuple[tuple[int, ...], Buffer] | None,
                 target: tuple[tuple[int, ...], Buffer]) -> None:  # fmt: skip
        self.writer, self.axis, self.table, self.source, self.target = writer, axis, table, source, target
        self.math, self.names = writer.math, writer.names
        self.length = table.length
        sizes = target[0]
        self.outer = (*sizes[:axis], *sizes[axis + 1 :])
        self.lines = math.prod(self.outer)
        self.is_last_axis = axis == len(sizes) - 1
        self.field = Field(writer.real, writer.machine.has_fma)
        self.complex = Field(complex_type(writer.real), writer.machine.has_fma)
        self.lanes = writer.machine.lanes(writer.real)
        self.in_scratch = 2 * self.length * writer.real.bytes <= SCRATCH_BYTES

    def phases(self) -> list[Stmt]:
        group = max(1, TASK_ELEMENTS // self.length)
        tasks = -(-self.lines // group)
        task = self.math.bound(self.names.var("task"), tasks)
        index = self.math.bound(self.names.var("line"), group)
        room = 2 * self.length * (1 if self.in_scratch else self.lines)
        space = Space.SCRATCH if self.in_scratch else Space.SHARED
        planes = [Buffer(self.names.var(n).name, self.writer.real, (room,), space) for n in ("real", "imag")]
        block, inner = self.writer.elemental.block(), self.writer.elemental.block()
        line = inner.let(self.math.add(self.math.scale(task, group), index), "l")
        if isinstance(line, Var):
            self.math.bound(line, self.lines)
        allocations: list[Stmt] = [Alloc(p) for p in planes]
        if self.in_scratch:
            inner.statements += allocations
        self._line(inner, line, planes)
        left = self.math.subtract(const(self.lines), self.math.scale(task, group))
        block.loop(index, const(group) if self.lines % group == 0 else self.math.minimum(const(group), left), inner)
        loop = For(task, const(tasks), block.body(), LoopKind.PARALLEL)
        return [loop] if self.in_scratch else [*allocations, loop]

    # -- one line -----------------------------------------------------------------------------------------------------

    def _line(self, block: Block, line: Expr, planes: Sequence[Buffer]) -> None:
        n = self.length
        base: Expr = const(0) if self.in_scratch else block.let(self.math.scale(line, 2 * n), "base")

        def half(number: int) -> tuple[Read, Write]:
            def place(at: Expr) -> tuple[Expr]:
                return (self.math.add(self.math.add(base, const(number * n)), at),)

            def read(at: Expr, b: Block) -> Pair:
                real, imag = (Load(p, place(at)) for p in planes)
                return Pair(real, imag)

            def write(at: Expr, value: Pair, b: Block) -> None:
                for plane, part in zip(planes, (value.real, value.imag), strict=True):
                    b.emit(Store(plane, place(at), part))

            return read, write

        halves = half(0), half(1)
        self._vectors(block, n, lambda b, at: halves[0][1](at, self._load(line, at, b), b))
        done, number = 1, 0
        for radix in radices(n):
            done *= radix
            read, write = halves[number][0], halves[1 - number][1]
            stage = _Stage(self, radix, n // done, done // radix)
            stage.write(block, read, write)
            number = 1 - number
        sizes = self.target[0]
        self._vectors(block, sizes[self.axis], lambda b, at: self._store(line, at, halves[number][0](at, b), b))

    def _vectors(self, block: Block, count: int, body: Callable[[Block, Expr], None]) -> None:
        VectorLoops(self.writer.elemental, self.lanes).run(
            block, count, const(0), lambda b, at, slot, lane: body(b, at), unroll=1
        )

    def _load(self, line: Expr, at: Expr, block: Block) -> Pair:
        """Element `at` of the input line, as a complex number. Half a spectrum is filled up by symmetry."""
        if self.writer.kind == "IRFFT" and self.is_last_axis:
            return self._load_symmetric(line, at, block)
        return self._input(line, at, block)

    def _input(self, line: Expr, at: Expr, block: Block) -> Pair:
        outer = self.math.unflatten(line, self.outer)
        index = (*outer[: self.axis], at, *outer[self.axis :])
        if self.source is None:
            value = self.writer.elemental.value(self.writer.operand, index, block)
        else:
            sizes, buffer = self.source
            value = self.writer.elemental.read(buffer, self.math.flatten(index, sizes), True)
        return value if isinstance(value, Pair) else Pair(value, self.field.number(0.0))

    def _load_symmetric(self, line: Expr, at: Expr, block: Block) -> Pair:
        """x[n - k] is the conjugate of x[k]; what is its own mirror image is real, whatever its imaginary part says."""
        n = self.length
        mirrored = self.math.subtract(const(n), at)
        upper = block.let(compare("gt", at, const(n // 2)), "upper")
        place = block.let(Apply("select", (upper, mirrored, at), S64), "at")
        value = self._input(line, place, block)
        imag: Expr = Apply("select", (upper, self.field.negate(value.imag), value.imag), self.writer.real)
        own: Expr = Apply(
            "or", (compare("eq", at, const(0)), compare("eq", self.math.scale(at, 2), const(n))), upper.element_type
        )
        return Pair(value.real, Apply("select", (own, self.field.number(0.0), imag), self.writer.real))

    def _store(self, line: Expr, at: Expr, value: Pair, block: Block) -> None:
        sizes, buffer = self.target
        outer = self.math.unflatten(line, self.outer)
        flat = self.math.flatten((*outer[: self.axis], at, *outer[self.axis :]), sizes)
        parts = [value.real, value.imag]
        if self.writer.inverse:
            parts = [self.field.multiply(p, self.field.number(1 / self.length)) for p in parts]
        result = parts[0] if self.writer.kind == "IRFFT" and self.is_last_axis else Pair(*parts)
        self.writer.elemental.write(buffer, flat, result, block)


class _Stage:
    """One stage of radix `radix`, with `s` and `m` as the module's head has them."""

    def __init__(self, axis: _Axis, radix: int, s: int, m: int) -> None:
        self.axis, self.radix, self.s, self.m = axis, radix, s, m
        self.math, self.complex = axis.math, axis.complex

    def write(self, block: Block, read: Read, write: Write) -> None:
        k = self.math.bound(self.axis.names.var("k"), self.m)
        if self.radix > LARGEST_WRITTEN_OUT:
            self._large(block, k, read, write)
        elif self.s > 1:
            inner = block.child()
            lanes = min(self.axis.lanes, 1 << (self.s.bit_length() - 1))
            self._loops(inner, lanes, self.s, lambda b, t: self._small(b, k, t, read, write))
            block.loop(k, self.m, inner)
        else:
            self._loops(block, self.axis.lanes, self.m, lambda b, at: self._small(b, at, const(0), read, write))

    def _loops(self, block: Block, lanes: int, count: int, body: Callable[[Block, Expr], None]) -> None:
        VectorLoops(self.axis.writer.elemental, lanes).run(
            block, count, const(0), lambda b, at, slot, lane: body(b, at), unroll=1
        )

    def _input(self, k: Expr, t: Expr, p: Expr) -> Expr:
        return self.math.add(t, self.math.scale(self.math.add(self.math.scale(k, self.radix), p), self.s))

    def _output(self, k: Expr, t: Expr, q: Expr) -> Expr:
        return self.math.add(t, self.math.scale(self.math.add(k, self.math.scale(q, self.m)), self.s))

    def _small(self, block: Block, k: Expr, t: Expr, read: Read, write: Write) -> None:
        """All outputs of one (k, t)."""
        values = []
        for p in range(self.radix):
            value = read(self._input(k, t, const(p)), block)
            if p and self.m > 1:
                power = self.axis.table.power(self.math.scale(k, p * self.s))
                value = self.complex.multiply(_named(value, block), _named(power, block))
            values.append(_named(value, block))
        for q, result in enumerate(self._butterfly(values, block)):
            write(self._output(k, t, const(q)), result, block)

    def _butterfly(self, a: Sequence[Pair], block: Block) -> list[Pair]:
        """The transform of `radix` values."""
        if self.radix == 4:
            even, odd = self._two(a[0], a[2], block), self._two(a[1], a[3], block)
            first = self._two(even[0], odd[0], block)
            second = self._two(even[1], self._turned(odd[1], 1), block)
            return [first[0], second[0], first[1], second[1]]
        if self.radix == 2:
            return self._two(a[0], a[1], block)
        return [self._sum(a, q) for q in range(self.radix)]

    def _two(self, a: Pair, b: Pair, block: Block) -> list[Pair]:
        return [_named(self.complex.add(a, b), block), _named(self.complex.subtract(a, b), block)]

    def _turned(self, a: Pair, j: int) -> Pair:
        """a * exp(-2 pi i j / radix), conjugated for inverse transforms."""
        inverse = self.axis.writer.inverse
        quarters, rest = divmod(4 * (j % self.radix), self.radix)
        if rest == 0:
            negate = self.axis.field.negate
            turned = [
                a,
                Pair(a.imag, negate(a.real)),
                Pair(negate(a.real), negate(a.imag)),
                Pair(negate(a.imag), a.real),
            ]
            return turned[-quarters % 4 if inverse else quarters]
        angle = 2 * math.pi * (j % self.radix) / self.radix * (1 if inverse else -1)
        number: Pair = self.complex.number(math.cos(angle), math.sin(angle))
        product: Pair = self.complex.multiply(a, number)
        return product

    def _sum(self, a: Sequence[Pair], q: int) -> Pair:
        total = a[0]
        for p in range(1, self.radix):
            total = self.complex.add(total, self._turned(a[p], p * q))
        return total

    def _large(self, block: Block, k: Var, read: Read, write: Write) -> None:
        """A loop over the inputs for each output; vectors run along t, or along the outputs where t is short."""
        q = self.math.bound(self.axis.names.var("q"), self.radix)
        t = self.math.bound(self.axis.names.var("t"), self.s)
        inner = block.child()
        if self.s >= self.axis.lanes:
            self._loops(inner, self.axis.lanes, self.s, lambda b, at: self._output_sum(b, k, at, q, read, write))
            outer = block.child()
            outer.loop(q, self.radix, inner)
        else:
            self._loops(inner, self.axis.lanes, self.radix, lambda b, at: self._output_sum(b, k, t, at, read, write))
            outer = block.child()
            outer.loop(t, self.s, inner)
        block.loop(k, self.m, outer)

    def _output_sum(self, block: Block, k: Expr, t: Expr, q: Expr, read: Read, write: Write) -> None:
        e, real = self.axis.writer.elemental, self.axis.writer.real
        cells = [Buffer(e.names.var("sum").name, real, (1,), Space.REGISTER) for _ in range(2)]
        for cell in cells:
            block.statements += [Alloc(cell), Store(cell, (const(0),), Const(0.0, real))]
        p = self.math.bound(e.names.var("p"), self.radix)
        inner = block.child()
        place = self.math.scale(self.math.add(k, self.math.scale(q, self.m)), self.s)
        power = Apply("modulo", (Apply("multiply", (p, place), S64), const(self.axis.length)), S64)
        value = _named(read(self._input(k, t, p), inner), inner)
        twiddle = _named(self.axis.table.power(inner.let(power, "power")), inner)
        old = Pair(*(Load(c, (const(0),)) for c in cells))
        new = _named(self.complex.add_product(old, value, twiddle), inner)
        inner.statements += [Store(c, (const(0),), x) for c, x in zip(cells, (new.real, new.imag), strict=True)]
        block.loop(p, self.radix, inner)
        write(self._output(k, t, q), Pair(*(Load(c, (const(0),)) for c in cells)), block)


def _named(value: Any, block: Block) -> Pair:
    return Pair(block.let(value.real), block.let(value.imag))


def complex_type(real: ElementType) -> ElementType:
    """The complex type whose parts are of this type."""
    return C128 if real is F64 else C64
