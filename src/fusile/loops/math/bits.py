"""Ops that look into a float's bits: the next number, and rounding to fewer bits."""

from __future__ import annotations

import math

from fusile.loops.math.number import Number, fraction_bits


def next_after(x: Number, toward: Number) -> Number:
    """The next number from x in the direction of the other."""
    bits = x.bits()
    away = (toward > x).apply("eq", x > 0.0)
    stepped = (bits + away.pick(bits.constant(1), -1)).bitcast(x.type)
    least = (bits.constant(1)).bitcast(x.type).copysign(toward)
    moved = x.equals(0.0).pick(least, stepped)
    return x.equals(toward).pick(toward, (x.is_nan() | toward.is_nan()).pick(x + toward, moved))


def reduce_precision(x: Number, exponent_bits: int, mantissa_bits: int) -> Number:
    """x rounded to a float with these many bits: ties to even, overflow to infinity, denormals to zero."""
    drop = fraction_bits(x.type) - mantissa_bits
    value = x
    if drop > 0:
        bits = x.bits()
        odd = (bits.apply("shift_right_logical", drop)) & 1
        value = ((bits + odd + ((1 << (drop - 1)) - 1)) & (-1 << drop)).bitcast(x.type)
    least = 2.0 ** (2 - (1 << (exponent_bits - 1)))
    if exponent_bits < 11:
        overflow = abs(value) >= 2.0 ** min(1023, 1 << (exponent_bits - 1))
        value = overflow.pick(value.constant(math.inf).copysign(x), value)
    value = (abs(value) < least).pick(value.constant(0.0).copysign(x), value)
    return (abs(x) < math.inf).pick(value, x)


def clamp(low: Number, x: Number, high: Number) -> Number:
    return low.apply("maximum", x).apply("minimum", high)
