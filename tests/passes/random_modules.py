"""Random modules for the passes: every operand may be a parameter, a constant or computed; shapes include 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusile.base.element_type import F32, PRED, S32, U8, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, neutral, scalar_computation
from fusile.hlo.ir import Computation, Instruction, Module

SIZES = (0, 1, 1, 2, 3, 4)
VALUES: dict[ElementType, tuple[Any, ...]] = {
    F32: (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan, 3.25),
    S32: (0, 1, -1, 2, 7, -(2**31), 2**31 - 1),
    U8: (0, 1, 255, 8),
    PRED: (True, False),
}
FLOAT_UNARY = ("negate", "abs", "floor", "sign", "sqrt", "round_nearest_even")
FLOAT_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
INTEGER_BINARY = (*FLOAT_BINARY, "remainder", "and", "or_", "xor", "shift_left", "power")


class RandomModule:
    """Grows one computation, instruction by instruction."""

    def __init__(self, seed: int, length: int = 25) -> None:
        self.random = np.random.default_rng(seed)
        self.b = Builder(f"random_{seed}")
        self.values: list[Instruction] = []
        for _ in range(3):
            self.values.append(self.b.parameter(Shape(self.kind(), self.sizes())))
        for _ in range(length):
            self.grow()

    def module(self) -> Module:
        results = [v for v in self.values if not v.users]
        return self.b.module(self.b.tuple(results or self.values[-1:]))

    def pick(self, of: tuple[Any, ...] | list[Any]) -> Any:
        return of[int(self.random.integers(len(of)))]

    def kind(self) -> ElementType:
        return self.pick((F32, F32, F32, S32, U8, PRED))

    def sizes(self) -> tuple[int, ...]:
        return tuple(self.pick(SIZES) for _ in range(self.random.integers(0, 4)))

    def value(self, accept: Callable[[Instruction], bool] = lambda i: True) -> Instruction | None:
        fitting = [v for v in self.values if accept(v)]
        return self.pick(fitting) if fitting else None

    def like(self, x: Instruction) -> Instruction:
        """Another operand for `x`: of its shape, computed or constant."""
        shape = x.array_shape
        other = self.value(lambda v: v.shape == shape)
        if other is not None and self.random.random() < 0.6:
            return other
        if self.random.random() < 0.5:
            return self.b.like(self.pick(VALUES[shape.element_type]), x)
        return self.constant(shape)

    def constant(self, shape: Shape) -> Instruction:
        array = np.empty(shape.sizes, shape.element_type.dtype)
        for at in np.ndindex(*shape.sizes):
            array[at] = self.pick(VALUES[shape.element_type])
        return self.b.constant(array)

    def grow(self) -> None:
        common, rare = (
            (self.elementwise, self.elementwise, self.elementwise, self.shape, self.shape),
            (self.dot, self.loop),
        )
        result = self.pick((*common, self.logic, self.slice, self.reduce, *rare))()
        if result is not None and result.array_shape.elements < 4000:
            self.values.append(result)

    def elementwise(self) -> Instruction | None:
        x = self.value(lambda v: v.array_shape.element_type is not PRED)
        if x is None:
            return None
        if x.array_shape.element_type is F32 and self.random.random() < 0.3:
            return getattr(self.b, self.pick(FLOAT_UNARY))(x)
        name = self.pick(FLOAT_BINARY if x.array_shape.element_type is F32 else INTEGER_BINARY)
        operands = (x, self.like(x)) if self.random.random() < 0.7 else (self.like(x), x)
        return getattr(self.b, name)(*operands)

    def logic(self) -> Instruction | None:
        x = self.value()
        assert x is not None
        what = self.random.integers(4)
        if what == 0:
            return self.b.compare(x, self.like(x), self.pick(("EQ", "NE", "LT", "LE", "GT", "GE")))
        if what == 1:
            return self.b.convert(x, self.pick((F32, S32, U8, PRED)))
        p = self.value(lambda v: v.array_shape.element_type is PRED)
        if p is None or what == 2:
            return self.b.not_(p) if p is not None else None
        y = self.value(lambda v: v.array_shape.dimensions == p.array_shape.dimensions)
        return self.b.select(p, y, self.like(y)) if y is not None else None

    def shape(self) -> Instruction | None:
        x = self.value()
        assert x is not None
        sizes, what = x.array_shape.sizes, self.random.integers(3)
        if what == 0:
            return self.b.transpose(x, tuple(self.random.permutation(len(sizes)).tolist()))
        if what == 1:
            return self.b.reshape(x, self.other_sizes(sizes))
        rank = len(sizes) + int(self.random.integers(0, 3))
        places = sorted(self.random.choice(rank, len(sizes), replace=False).tolist()) if rank else []
        target = [self.pick(SIZES) for _ in range(rank)]
        for place, size in zip(places, sizes, strict=True):
            target[place] = size
        return self.b.broadcast(x, target, places)

    def other_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        kind = self.random.integers(4)
        if kind == 0:
            return (int(np.prod(sizes, dtype=int)),)
        if kind == 1 and len(sizes) >= 2:
            return (sizes[0] * sizes[1], *sizes[2:])
        if kind == 2 and any(s in (2, 4) for s in sizes):
            at = [s in (2, 4) for s in sizes].index(True)
            return (*sizes[:at], 2, sizes[at] // 2, *sizes[at + 1 :])
        at = int(self.random.integers(len(sizes) + 1))
        return (*sizes[:at], 1, *sizes[at:])

    def slice(self) -> Instruction | None:
        x = self.value(lambda v: v.array_shape.rank > 0)
        if x is None:
            return None
        sizes, what = x.array_shape.sizes, self.random.integers(5)
        rank = len(sizes)
        if what == 0:
            starts = [int(self.random.integers(0, s + 1)) for s in sizes]
            limits = [int(self.random.integers(a, s + 1)) for a, s in zip(starts, sizes, strict=True)]
            return self.b.slice(x, starts, limits, [self.pick((1, 1, 2)) for _ in sizes])
        if what == 1:
            low, high = ([int(self.random.integers(-1, 3)) for _ in sizes] for _ in range(2))
            interior = [self.pick((0, 0, 1)) for _ in sizes]
            if any(a + max(0, (s - 1)) * i + s + b < 0 for a, b, i, s in zip(low, high, interior, sizes, strict=True)):
                return None
            value = self.b.constant(self.pick(VALUES[x.array_shape.element_type]), x.array_shape.element_type)
            return self.b.pad(x, value, low, high, interior)
        if what == 2:
            return self.b.concatenate(
                [x, self.like(x), x][: int(self.random.integers(1, 4))], int(self.random.integers(rank))
            )
        if what == 3:
            return self.b.reverse(x, [d for d in range(rank) if self.random.random() < 0.5])
        starts_at = [self.b.constant(self.random.integers(-2, 6), S32) for _ in sizes]
        part = [int(self.random.integers(0, s + 1)) for s in sizes]
        return self.b.dynamic_slice(x, starts_at, part)

    def reduce(self) -> Instruction | None:
        x = self.value(lambda v: v.array_shape.element_type in (F32, S32))
        if x is None:
            return None
        kind = x.array_shape.element_type
        opcode = self.pick(("maximum", "minimum") if kind is F32 else ("add", "maximum", "minimum"))
        dimensions = [d for d in range(x.array_shape.rank) if self.random.random() < 0.5]
        start = self.pick((neutral(opcode, kind), self.pick(VALUES[kind])))
        return self.b.reduce([x], [self.b.constant(start, kind)], dimensions, scalar_computation(opcode, kind))

    def dot(self) -> Instruction | None:
        """Integers, whose sums are exact in any order."""
        x = self.value(lambda v: v.array_shape.element_type is S32 and v.array_shape.rank > 0)
        if x is None:
            return None
        sizes = x.array_shape.sizes
        d = int(self.random.integers(len(sizes)))
        y = self.value(lambda v: v.array_shape.element_type is S32 and sizes[d] in v.array_shape.sizes)
        if y is None:
            return None
        return self.b.dot(x, y, lhs_contracting=(d,), rhs_contracting=(y.array_shape.sizes.index(sizes[d]),))

    def loop(self) -> Instruction | None:
        """A counted loop over three values; some are passed on unchanged, some are not used."""
        x = self.value(lambda v: v.array_shape.element_type is F32)
        if x is None:
            return None
        state = [self.b.constant(self.pick((0, 3)), S32), x, self.like(x), self.like(x)]
        condition, body = self.loop_condition(state), self.loop_body(state)
        return self.b.while_loop(condition, body, state)[self.pick((1, 1, 2, 3))]

    def loop_condition(self, state: list[Instruction]) -> Computation:
        b = Builder("condition")
        parameters = [b.parameter(s.shape) for s in state]
        return b.build(b.compare(parameters[0], b.constant(self.pick((3, 4, 5)), S32), self.pick(("LT", "NE", "LE"))))

    def loop_body(self, state: list[Instruction]) -> Computation:
        b = Builder("body")
        i, x, y, z = (b.parameter(s.shape) for s in state)
        new = b.add(i, b.constant(1, S32))
        reversed_y = b.reverse(y, range(y.array_shape.rank))
        next_x = self.pick((b.add(x, y), b.maximum(x, b.negate(reversed_y)), b.multiply(x, z)))
        return b.build(b.tuple([new, next_x, self.pick((y, x, b.negate(y))), self.pick((z, y))]))
