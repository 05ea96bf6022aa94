"""Arithmetic on complex numbers as pairs of real expressions."""

from __future__ import annotations

from collections.abc import Callable

from fusile.base.element_type import ElementType
from fusile.loops.ir import Apply, Const, Expr, compare, select
from fusile.loops.lowering.elemental import Pair


class Real:
    """Real arithmetic in short names."""

    def __init__(self, element_type: ElementType) -> None:
        self.type = element_type

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        return lambda *xs: Apply(op, tuple(self.c(x) if isinstance(x, float) else x for x in xs), self.type)

    def c(self, number: float) -> Const:
        return Const(number, self.type)


def multiply(r: Real, a: Pair, b: Pair) -> Pair:
    real = r.subtract(r.multiply(a.real, b.real), r.multiply(a.imag, b.imag))
    return Pair(real, r.add(r.multiply(a.real, b.imag), r.multiply(a.imag, b.real)))


def divide(r: Real, a: Pair, b: Pair) -> Pair:
    """Smith's method: divides by the larger part first, so that squares do not overflow."""
    swap = compare("lt", r.abs(b.real), r.abs(b.imag))
    big, small = select(swap, b.imag, b.real), select(swap, b.real, b.imag)
    ratio = r.divide(small, big)
    scale = r.add(big, r.multiply(small, ratio))
    x, y = select(swap, a.imag, a.real), select(swap, a.real, a.imag)
    real = r.divide(r.add(x, r.multiply(y, ratio)), scale)
    plain = r.divide(r.subtract(y, r.multiply(x, ratio)), scale)
    return Pair(real, select(swap, r.negate(plain), plain))


def magnitude(r: Real, a: Pair) -> Expr:
    """The larger part times sqrt(1 + ratio**2)."""
    x, y = r.abs(a.real), r.abs(a.imag)
    big, small = r.maximum(x, y), r.minimum(x, y)
    ratio = r.divide(small, big)
    value = r.multiply(big, r.sqrt(r.add(1.0, r.multiply(ratio, ratio))))
    value = select(compare("eq", big, r.c(0.0)), big, value)
    return select(compare("eq", big, r.c(float("inf"))), big, value)
