"""Ops that move elements: shapes, slices, padding, gathers, scatters."""

from __future__ import annotations

import math

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.builder import scalar_computation
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import Gather, Scatter
from random_programs.generator import Generator, family

INDEX_KINDS = (e.S32, e.S32, e.S64, e.U8, e.U32, e.S16)


@family(8)
def reshape(g: Generator) -> Instruction | None:
    x = g.value()
    if x is None:
        return None
    sizes = list(x.array_shape.sizes)
    what = g.integer(0, 4)
    if what == 0:
        return g.b.transpose(x, g.shuffled(range(len(sizes))))
    if what == 1:
        return g.b.reshape(x, (math.prod(sizes),))
    if what == 2 and len(sizes) >= 2:
        at = g.integer(0, len(sizes) - 2)
        return g.b.reshape(x, (*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :]))
    even = [d for d, s in enumerate(sizes) if s % 2 == 0 and s]
    if what == 3 and even:
        at = g.pick(even)
        return g.b.reshape(x, (*sizes[:at], 2, sizes[at] // 2, *sizes[at + 1 :]))
    at = g.integer(0, len(sizes))
    return g.b.reshape(x, (*sizes[:at], 1, *sizes[at:]))


@family(6)
def broadcast(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank <= 3)
    if x is None:
        return None
    sizes = x.array_shape.sizes
    rank = len(sizes) + g.integer(0, 2)
    places = sorted(g.shuffled(range(rank))[: len(sizes)])
    target = list(g.sizes(rank))
    for place, size in zip(places, sizes, strict=True):
        target[place] = size
    return g.b.broadcast(x, target, places)


@family(7)
def slices(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0)
    if x is None:
        return None
    sizes = x.array_shape.sizes
    what = g.integer(0, 4)
    if what == 0:
        starts = [g.integer(0, s) for s in sizes]
        limits = [g.integer(a, s) for a, s in zip(starts, sizes, strict=True)]
        return g.b.slice(x, starts, limits, [g.pick((1, 1, 2, 3)) for _ in sizes])
    if what == 1:
        return pad(g, x)
    if what == 2:
        d = g.integer(0, len(sizes) - 1)
        other = (*sizes[:d], g.pick(g.sizes_there_are), *sizes[d + 1 :])
        parts = [x, g.of(x.array_shape.with_dimensions(other)), x]
        return g.b.concatenate(g.shuffled(parts)[: g.integer(2, 3)], d)
    if what == 3:
        return g.b.reverse(x, g.some(range(len(sizes))))
    part = [g.integer(0, s) for s in sizes]
    if g.chance(0.5):
        return g.b.dynamic_slice(x, starts_of(g, len(sizes)), part)
    update = g.of(x.array_shape.with_dimensions(part))
    return g.b.dynamic_update_slice(x, update, starts_of(g, len(sizes)))


def pad(g: Generator, x: Instruction) -> Instruction | None:
    sizes = x.array_shape.sizes
    low, high = ([g.integer(-1, 2) for _ in sizes] for _ in range(2))
    interior = [g.pick((0, 0, 1, 2)) for _ in sizes]
    for a, s, i, b in zip(low, sizes, interior, high, strict=True):
        if a + s + max(0, s - 1) * i + b < 0:
            return None
    return g.b.pad(x, g.b.constant(g.edge(x.array_shape.element_type), x.array_shape.element_type), low, high, interior)


def starts_of(g: Generator, rank: int) -> list[Instruction]:
    kind = g.pick(INDEX_KINDS)
    there = g.value(lambda s: s == Shape(kind), rough=False)
    low = 0 if kind.is_unsigned else -2
    return [
        there if there is not None and g.chance(0.5) else g.b.constant(g.integer(low, 6), kind) for _ in range(rank)
    ]


def indices_of(g: Generator, sizes: tuple[int, ...]) -> Instruction:
    kind = g.pick(INDEX_KINDS)
    there = g.value(lambda s: s == Shape(kind, sizes), rough=False)
    if there is not None and g.chance(0.5):
        return there
    return g.constant(Shape(kind, sizes), 0 if kind.is_unsigned else -2, 6)


class Windows:
    """The dimensions of a gather or scatter of `x`: batching ones, those that the indices name, those of size 1 that
    are left out."""

    def __init__(self, g: Generator, sizes: tuple[int, ...]) -> None:
        dimensions = g.shuffled(range(len(sizes)))
        batching = dimensions[: g.integer(0, 1)] if g.chance(0.3) else []
        rest = dimensions[len(batching) :]
        self.map = rest[: g.integer(0 if not rest else 1, len(rest))]
        self.batching = sorted(batching)
        self.window = [
            1 if d in batching else g.integer(0, s) if g.chance(0.3) else min(1, s) for d, s in enumerate(sizes)
        ]
        self.window = [min(w, s) for w, s in zip(self.window, sizes, strict=True)]
        self.dropped = sorted(d for d in rest if self.window[d] == 1 and g.chance(0.7))
        self.kept = [d for d in range(len(sizes)) if d not in self.dropped and d not in self.batching]
        batch = [sizes[d] for d in self.batching] + list(g.sizes(g.integer(0, 2)))
        self.batch = batch
        self.index_batching = list(range(len(self.batching)))
        self.at = g.integer(len(self.batching), len(batch))
        count = len(self.map)
        self.indices = (
            tuple(batch)
            if count == 1 and self.at == len(batch) and g.chance(0.5)
            else ((*batch[: self.at], count, *batch[self.at :]))
        )
        rank = len(batch) + len(self.kept)
        self.offsets = sorted(g.shuffled(range(rank))[: len(self.kept)])

    def result(self) -> tuple[int, ...]:
        """The sizes of a gather's result and of a scatter's updates."""
        inner, outer = iter(self.window[d] for d in self.kept), iter(self.batch)
        rank = len(self.batch) + len(self.kept)
        return tuple(next(inner) if d in self.offsets else next(outer) for d in range(rank))


@family(4)
def gather(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0)
    if x is None:
        return None
    w = Windows(g, x.array_shape.sizes)
    op = Gather(
        tuple(w.offsets), tuple(w.dropped), tuple(w.batching), tuple(w.index_batching), tuple(w.map), w.at,
        tuple(w.window),
    )  # fmt: skip
    return g.b.emit(op, x, indices_of(g, w.indices))


@family(4)
def scatter(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0 and not s.element_type.is_complex)
    if x is None:
        return None
    kind = x.array_shape.element_type
    names = ("and", "or", "maximum") if kind.is_predicate else ("maximum", "minimum", "add")
    name = g.pick(names)
    if kind.is_float and name == "add":
        if g.exact_only or g.rough(x) > 1:
            return None
        x = g.small(x)
    w = Windows(g, x.array_shape.sizes)
    op = Scatter(
        tuple(w.offsets), tuple(w.dropped), tuple(w.batching), tuple(w.index_batching), tuple(w.map), w.at,
        scalar_computation(name, kind),
    )  # fmt: skip
    updates = g.of(Shape(kind, w.result()), rough=False)
    return g.b.emit(op, x, indices_of(g, w.indices), g.small(updates) if kind.is_float and name == "add" else updates)


@family(1)
def same(g: Generator) -> Instruction | None:
    from fusile.hlo.opset.structure import Copy, OptimizationBarrier

    x = g.value()
    return None if x is None else g.b.emit(g.pick((Copy, OptimizationBarrier))(), x)
