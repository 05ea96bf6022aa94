"""Arithmetic that expansions are written in: numbers with operators, over whatever a writer computes with.

The code generator's writer emits instructions on whole vectors; tests give one that computes with NumPy. Nothing
branches on values but `in_rare_lanes` and `repeat`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fusile.base.element_type import F32, PRED, S16, S32, S64, ElementType

Val = Any
"""Whatever the writer computes with."""


class Writer(Protocol):
    """What expansions need of the code generator."""

    def apply(self, op: str, arguments: list[Val], result: ElementType) -> Val:
        """A scalar op that is native for the arguments' type."""

    def constant(self, number: float | int | bool, element_type: ElementType) -> Val: ...

    def in_rare_lanes(
        self, predicate: Val, slow: Callable[[Val], Val], argument: Val, fast: Val, element_type: ElementType
    ) -> Val:
        """`slow(argument)` in lanes where the predicate holds, `fast` in the others. Lanes go one by one."""

    def repeat(
        self,
        values: list[Val],
        types: list[ElementType],
        more: Callable[[list[Val]], Val],
        turn: Callable[[list[Val]], list[Val]],
    ) -> list[Val]:
        """`while any(more(values)): values = turn(values)`; `turn` must leave finished lanes as they are."""

    def lookup(self, table: Sequence[int], index: Val, element_type: ElementType) -> Val:
        """`table[index]` of a constant table of integers."""


class Number:
    """A value of one element type with Python's operators; Python numbers stand for constants of its type."""

    __slots__ = ("type", "value", "writer")

    def __init__(self, writer: Writer, value: Val, element_type: ElementType) -> None:
        self.writer, self.value, self.type = writer, value, element_type

    # -- making numbers
    def constant(self, number: float | int | bool) -> Number:
        """A constant of this number's type."""
        return Number(self.writer, self.writer.constant(number, self.type), self.type)

    def lift(self, other: Number | float | int) -> Number:
        return other if isinstance(other, Number) else self.constant(other)

    def apply(self, op: str, *others: Number | float | int, result: ElementType | None = None) -> Number:
        """A native op of this number and others of its type."""
        values = [self.value, *(self.lift(other).value for other in others)]
        kind = result or self.type
        return Number(self.writer, self.writer.apply(op, values, kind), kind)

    # -- arithmetic
    def __add__(self, other: Number | float | int) -> Number:
        return self.apply("add", other)

    def __radd__(self, other: float | int) -> Number:
        return self.constant(other).apply("add", self)

    def __sub__(self, other: Number | float | int) -> Number:
        return self.apply("subtract", other)

    def __rsub__(self, other: float | int) -> Number:
        return self.constant(other).apply("subtract", self)

    def __mul__(self, other: Number | float | int) -> Number:
        return self.apply("multiply", other)

    def __rmul__(self, other: float | int) -> Number:
        return self.constant(other).apply("multiply", self)

    def __truediv__(self, other: Number | float | int) -> Number:
        return self.apply("divide", other)

    def __rtruediv__(self, other: float | int) -> Number:
        return self.constant(other).apply("divide", self)

    def __neg__(self) -> Number:
        return self.apply("negate")

    def __abs__(self) -> Number:
        return self.apply("abs")

    def fma(self, factor: Number | float, addend: Number | float) -> Number:
        """self * factor + addend, rounded once."""
        return self.apply("fma", factor, addend)

    def sqrt(self) -> Number:
        return self.apply("sqrt")

    def round(self) -> Number:
        return self.apply("round_nearest_even")

    def copysign(self, sign: Number) -> Number:
        return self.apply("copysign", sign)

    def at_most(self, limit: float) -> Number:
        """The smaller of this and a constant; a NaN stays."""
        return (self > limit).pick(self.constant(limit), self)

    def at_least(self, limit: float) -> Number:
        """The larger of this and a constant; a NaN stays."""
        return (self < limit).pick(self.constant(limit), self)

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """Horner's scheme; coefficients from the lowest."""
        value = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = value.fma(self, coefficient)
        return value

    # -- predicates
    def _test(self, direction: str, other: Number | float | int) -> Number:
        return self.apply(direction, other, result=PRED)

    def __lt__(self, other: Number | float | int) -> Number:
        return self._test("lt", other)

    def __le__(self, other: Number | float | int) -> Number:
        return self._test("le", other)

    def __gt__(self, other: Number | float | int) -> Number:
        return self._test("gt", other)

    def __ge__(self, other: Number | float | int) -> Number:
        return self._test("ge", other)

    def equals(self, other: Number | float | int) -> Number:
        return self._test("eq", other)

    def differs(self, other: Number | float | int) -> Number:
        return self._test("ne", other)

    def is_nan(self) -> Number:
        return self.differs(self)

    def is_negative(self) -> Number:
        """The sign bit of a float, -0 and NaN included."""
        return self.bits() < 0

    def pick(self, on_true: Number | float | int, on_false: Number | float | int) -> Number:
        """Of a predicate: one of two numbers of a type (at least one a Number)."""
        known = on_true if isinstance(on_true, Number) else on_false
        assert isinstance(known, Number)
        values = [self.value, known.lift(on_true).value, known.lift(on_false).value]
        return Number(self.writer, self.writer.apply("select", values, known.type), known.type)

    # -- bits
    def __and__(self, other: Number | int) -> Number:
        return self.apply("and", other)

    def __or__(self, other: Number | int) -> Number:
        return self.apply("or", other)

    def __xor__(self, other: Number | int) -> Number:
        return self.apply("xor", other)

    def __invert__(self) -> Number:
        return self.apply("not")

    def __lshift__(self, other: Number | int) -> Number:
        return self.apply("shift_left", other)

    def __rshift__(self, other: Number | int) -> Number:
        """Keeps the sign of signed integers."""
        return self.apply("shift_right_arithmetic" if self.type.is_signed else "shift_right_logical", other)

    def bits(self) -> Number:
        """A float's bits as a signed integer of its width."""
        return self.bitcast(integer_of(self.type))

    def bitcast(self, element_type: ElementType) -> Number:
        return self.apply("bitcast", result=element_type)

    def convert(self, element_type: ElementType) -> Number:
        return self if element_type is self.type else self.apply("convert", result=element_type)

    # -- control
    def in_rare_lanes(self, slow: Callable[[Number], Number], argument: Number, fast: Number) -> Number:
        """Of a predicate that seldom holds: `slow(argument)` where it does, else `fast`."""
        writer, kind = self.writer, argument.type

        def one(value: Val) -> Val:
            return slow(Number(writer, value, kind)).value

        value = writer.in_rare_lanes(self.value, one, argument.value, fast.value, fast.type)
        return Number(writer, value, fast.type)

    def lookup(self, table: Sequence[int]) -> Number:
        """Of an index: that entry of a constant table."""
        return Number(self.writer, self.writer.lookup(table, self.value, self.type), self.type)


def repeat(
    numbers: list[Number], more: Callable[[list[Number]], Number], turn: Callable[[list[Number]], list[Number]]
) -> list[Number]:
    """`while any(more(numbers)): numbers = turn(numbers)`; `turn` leaves finished lanes as they are."""
    writer, types = numbers[0].writer, [n.type for n in numbers]

    def wrap(values: list[Val]) -> list[Number]:
        return [Number(writer, v, t) for v, t in zip(values, types, strict=True)]

    values = writer.repeat(
        [n.value for n in numbers],
        types,
        lambda values: more(wrap(values)).value,
        lambda values: [n.value for n in turn(wrap(values))],
    )
    return wrap(values)


def picked_polynomial(choice: Number, t: Number, on_true: Sequence[float], on_false: Sequence[float]) -> Number:
    """Horner's scheme with one of two polynomials of the same degree."""
    pairs = list(zip(on_true, on_false, strict=True))
    value = choice.pick(t.constant(pairs[-1][0]), pairs[-1][1])
    for one, other in reversed(pairs[:-1]):
        value = value.fma(t, choice.pick(t.constant(one), other))
    return value


def plus_in_two_parts(product: tuple[Number, Number], first: Number, first_rest: Number) -> tuple[Number, Number]:
    """first + first_rest + the product of two numbers, no larger than `first`, in two parts."""
    a, b = product
    value = a.fma(b, first)
    return value, a.fma(b, first - value) + first_rest


def integer_of(element_type: ElementType) -> ElementType:
    """The signed integer of a float's width."""
    return {16: S16, 32: S32, 64: S64}[element_type.bits]


def fraction_bits(element_type: ElementType) -> int:
    return 23 if element_type is F32 else 52


def bias(element_type: ElementType) -> int:
    return 127 if element_type is F32 else 1023


def power_of_two(n: Number, element_type: ElementType) -> Number:
    """2**n of an integer within the normal range."""
    return ((n + bias(element_type)) << fraction_bits(element_type)).bitcast(element_type)
