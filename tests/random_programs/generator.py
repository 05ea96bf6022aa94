"""The generator: grows a module instruction by instruction from a source of random numbers.

The source is a `random.Random` with a seed, for long sweeps, or hypothesis's, which then shrinks what it finds.

Values are *exact*, when every engine must compute the same bits, or *rough*: functions such as `exponential` and sums
of floats, whose order is free. A rough value never decides anything (comparisons, rounding, indices), never is a
divisor, and is kept small before it is multiplied, so that what it may differ by stays known (`meaning.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from fusile.base import element_type as e
from fusile.base.element_type import ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Instruction, Module

Family = Callable[["Generator"], Instruction | None]
FAMILIES: list[tuple[int, Family]] = []
"""What makes an instruction from values there are, or gives up; with how often it is tried."""

FLOATS = (e.F32, e.F32, e.F32, e.F64, e.F16, e.BF16)
INTEGERS = (e.S32, e.S32, e.S8, e.S16, e.S64, e.U8, e.U16, e.U32, e.U64)
KINDS = (*FLOATS, *FLOATS, *INTEGERS, e.PRED, e.PRED, e.C64, e.C128)
SMALL_SIZES, LARGE_SIZES = (0, 1, 1, 2, 3, 4, 5), (1, 2, 7, 16, 33, 65)
MOST_ELEMENTS = 3000
MOST_ROUGH = 2
EDGES = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan, 3.25, 1e-40, 3e38, -7.5, 100.0)


def family(weight: int) -> Callable[[Family], Family]:
    """Enters a function in FAMILIES."""

    def enter(function: Family) -> Family:
        FAMILIES.append((weight, function))
        return function

    return enter


@family(1)
def nothing(g: Generator) -> Instruction | None:
    """First, so that shrinking puts it in the place of what a failure does not need."""
    return None


class Generator:
    """Grows a module of about `length` instructions."""

    def __init__(self, source: random.Random, length: int = 14, name: str = "random") -> None:
        self.source = source
        self.sizes_there_are = LARGE_SIZES if self.chance(0.15) else SMALL_SIZES
        self.b = Builder(name)
        self.values: list[Instruction] = []
        self.level: dict[Instruction, int] = {}
        """How many rough steps led to a value."""
        self.exact_only = False
        self.depth = 0
        for _ in range(self.integer(1, 3)):
            self.values.append(self.b.parameter(Shape(self.pick(KINDS), self.sizes())))
        self.note()
        for _ in range(length):
            self.grow()
        results = [v for v in self.values if not v.users] or self.values[-1:]
        self.module: Module = self.b.module(self.b.tuple(results))
        self.note()

    # -- choices

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included; hypothesis shrinks toward the low end."""
        return self.source.randint(low, high)

    def chance(self, probability: float) -> bool:
        return self.integer(0, 99) >= 100 - round(100 * probability)

    def pick(self, of: Sequence[Any]) -> Any:
        return of[self.integer(0, len(of) - 1)]

    def some(self, of: Sequence[Any], probability: float = 0.5) -> list[Any]:
        return [x for x in of if self.chance(probability)]

    def shuffled(self, of: Sequence[Any]) -> list[Any]:
        left, found = list(of), []
        while left:
            found.append(left.pop(self.integer(0, len(left) - 1)))
        return found

    def sizes(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.integer(0, 3) if rank is None else rank
        return tuple(self.pick(self.sizes_there_are) for _ in range(rank))

    # -- values

    def value(self, accept: Callable[[Shape], bool] = lambda s: True, rough: bool = True) -> Instruction | None:
        """A value whose shape is accepted; an exact one unless `rough`."""
        fitting = [v for v in self.values if accept(v.array_shape) and (rough or not self.rough(v))]
        return self.pick(fitting) if fitting else None

    def of(self, shape: Shape, rough: bool = True) -> Instruction:
        """A value of this shape: one there is, a constant, an iota."""
        there = self.value(lambda s: s == shape, rough)
        if there is not None and self.chance(0.6):
            return there
        what = self.integer(0, 2)
        if what == 0 and shape.rank and not shape.element_type.is_predicate and not shape.element_type.is_complex:
            return self.b.iota(shape, self.integer(0, shape.rank - 1))
        if what == 1:
            return self.b.full(self.edge(shape.element_type), shape)
        return self.constant(shape)

    def edge(self, kind: ElementType) -> Any:
        """An element worth testing."""
        if kind.is_predicate:
            return self.chance(0.5)
        if kind.is_integer:
            low, high = bounds(kind)
            return self.pick([v for v in (0, 1, 2, -1, 3, 7, low, high) if low <= v <= high])
        return self.pick(EDGES)

    def constant(self, shape: Shape, low: float | None = None, high: float = 0.0) -> Instruction:
        """A constant of edge values and ordinary ones, or of ordinary ones between the bounds."""
        return self.b.constant(array_of(shape, np.random.default_rng(self.integer(0, 999)), low, high))

    def small(self, x: Instruction, limit: float = 8.0, low: float | None = None) -> Instruction:
        """A float's elements between bounds. NaN stays."""
        t = x.array_shape.element_type
        if not t.is_float:
            return x
        low = -limit if low is None else low
        return self.b.clamp(self.b.constant(low, t), x, self.b.constant(limit, t))

    def numbers(self, x: Instruction) -> Instruction:
        """A float without NaN, whose sign and payload are nobody's promise."""
        if not x.array_shape.element_type.is_float:
            return x
        return self.b.select(self.b.compare(x, x, "EQ"), x, self.b.like(1, x))

    # -- growing

    def grow(self) -> None:
        weights = [weight for weight, _ in FAMILIES]
        at = self.integer(0, sum(weights) - 1)
        for weight, function in FAMILIES:
            if at < weight:
                made = function(self)
                break
            at -= weight
        self.note()
        if made is not None and made.array_shape.elements <= MOST_ELEMENTS and self.rough(made) <= MOST_ROUGH:
            self.values.append(made)

    def rough(self, i: Instruction) -> int:
        """How many rough steps led to a value."""
        if i not in self.level:
            self.note()
        return self.level[i]

    def note(self) -> None:
        """Finds out how rough the instructions made since are."""
        from random_programs.meaning import roughness

        for i in self.b.computation.instructions:
            if i not in self.level:
                self.level[i] = roughness(i, self.level)

    @contextmanager
    def inside(
        self, name: str, shapes: Sequence[Shape], levels: Sequence[int], exact: bool
    ) -> Iterator[list[Instruction]]:
        """Works on another computation with parameters of these shapes; what is made in it stays there."""
        before = self.b, self.values, self.exact_only
        self.b, self.depth = Builder(name), self.depth + 1
        parameters = [self.b.parameter(s) for s in shapes]
        self.level.update(zip(parameters, levels, strict=True))
        self.values, self.exact_only = list(parameters), exact or self.exact_only
        yield parameters
        self.note()
        (self.b, self.values, self.exact_only), self.depth = before, self.depth - 1

    def finish(self, results: Sequence[Instruction]) -> Computation:
        """The computation that is worked on, which gives a tuple."""
        return self.b.build(self.b.tuple(results))


def bounds(kind: ElementType) -> tuple[int, int]:
    """The least and the largest integer of a type."""
    return (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)


def array_of(shape: Shape, random: np.random.Generator, low: float | None = None, high: float = 0.0) -> np.ndarray:
    """Elements of a shape: ordinary ones and edge values, or ordinary ones between bounds."""
    kind, sizes = shape.element_type, shape.sizes
    if kind.is_predicate:
        return random.random(sizes) < 0.5
    if kind.is_integer:
        least, most = bounds(kind)
        values = random.integers(max(least, -9), min(most, 10), sizes, endpoint=True)
        if low is not None:
            return np.clip(values, max(least, int(low)), min(most, int(high))).astype(kind.dtype)
        ends = random.choice(np.array([least, least + 1, 0, 1, most - 1, most], object), sizes)
        return np.where(random.random(sizes) < 0.3, ends, values).astype(kind.dtype)
    plain = np.asarray(random.normal(size=sizes) * 2)
    if low is None:
        plain = np.where(random.random(sizes) < 0.3, random.choice(np.array(EDGES), sizes), plain)
    else:
        plain = np.clip(plain, low, high)
    with np.errstate(all="ignore"):
        if kind.is_complex:
            return (plain + 1j * random.normal(size=sizes)).astype(kind.dtype)
        return np.asarray(plain).astype(kind.dtype)
