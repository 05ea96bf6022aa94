"""Powers and roots, of floats and of integers, and the float remainder."""

from __future__ import annotations

import math

from fusile.base.element_type import F32
from fusile.loops.math.exponential import exponential, exponential_times
from fusile.loops.math.logarithm import log, log_in_two_parts
from fusile.loops.math.number import Number, fraction_bits, power_of_two, repeat


def rsqrt(x: Number) -> Number:
    return 1.0 / x.sqrt()


def cbrt(x: Number) -> Number:
    """2**(log2(x)/3), then two steps of Newton's iteration."""
    size = abs(x)
    tiny = size < 2.0**-900
    huge = size > 2.0**900
    scaled = tiny.pick(size * 2.0**180, huge.pick(size * 2.0**-180, size))
    y = exponential(log(scaled) * (1 / 3))
    for _ in range(2):
        y = y - (y * y * y - scaled) / (y * y * 3.0)
    special = size.equals(0.0) | ~(size < math.inf)
    return special.pick(x, tiny.pick(y * 2.0**-60, huge.pick(y * 2.0**60, y)).copysign(x))


def power(x: Number, y: Number) -> Number:
    """IEEE 754 pow: e**(y log|x|) with log in two parts, and the standard's special cases."""
    size = abs(x)
    value = _positive_power(size, y)
    whole = y.round().equals(y)
    half = y * 0.5
    odd = whole & half.round().differs(half) & (abs(y) < 2.0**53)
    negative, growing = x.is_negative(), y > 0.0
    zero, infinite = size.equals(0.0), size.equals(math.inf)
    value = zero.pick(growing.pick(value.constant(0.0), math.inf), value)
    value = infinite.pick(growing.pick(value.constant(math.inf), 0.0), value)
    signed = (negative & odd).pick(-value, value)
    undefined = negative & ~zero & ~infinite & ~whole
    value = undefined.pick(value.constant(math.nan), signed)
    grows = (size > 1.0).apply("eq", growing)
    limit = size.equals(1.0).pick(value.constant(1.0), grows.pick(value.constant(math.inf), 0.0))
    value = abs(y).equals(math.inf).pick(limit, value)
    value = (x.is_nan() | y.is_nan()).pick(x + y, value)
    return (x.equals(1.0) | y.equals(0.0)).pick(value.constant(1.0), value)


def _positive_power(size: Number, y: Number) -> Number:
    """e**(y log(size)) for finite y and finite positive size."""
    high, low = log_in_two_parts(size)
    product = y * high
    rest = y.fma(low, y.fma(high, -product))
    rest = (abs(product) < 1100.0).pick(rest, 0.0)
    return exponential_times(product, rest, size.constant(1.0), size.constant(0.0))


def remainder(a: Number, b: Number) -> Number:
    """fmod, exactly: multiples of b scaled by a power of two are taken off until less than b is left.

    Each turn's quotient is rounded to nearest and has so few bits that the fused rest is exact; a negative rest is kept
    as its size and a flag, to be taken from b at the end.
    """
    size, by = abs(a), abs(b)
    usable = (size < math.inf) & (by < math.inf) & (by > 0.0)
    rest, flip = _remainder_turn(size, by, a.constant(0.0), usable)

    def more(state: list[Number]) -> Number:
        return (state[0] >= by) & usable

    def turn(state: list[Number]) -> list[Number]:
        new_rest, new_flip = _remainder_turn(state[0], by, state[1], more(state))
        return [new_rest, new_flip]

    rest, flip = repeat([rest, flip], more, turn)
    rest = (flip.differs(0.0) & (rest > 0.0)).pick(by - rest, rest)
    rest = usable.pick(rest, by.equals(math.inf).pick(size, a.constant(math.nan)))
    value = (size < math.inf).pick(rest, a.constant(math.nan))
    return (a.is_nan() | b.is_nan()).pick(a + b, value.copysign(a))


def _remainder_turn(rest: Number, by: Number, flip: Number, wanted: Number) -> tuple[Number, Number]:
    bits = fraction_bits(rest.type)
    least = by.bits() >> bits
    least = (least < 1).pick(least.constant(1), least)
    excess = (rest.bits() >> bits) - least - (20 if rest.type is F32 else 49)
    excess = ((excess > 0) & wanted).pick(excess, 0)
    half = excess >> 1
    step = by * power_of_two(half, by.type) * power_of_two(excess - half, by.type)
    quotient = (rest / step).round()
    new = (-quotient).fma(step, rest)
    wanted = wanted & (rest >= by)
    flipped = (new < 0.0).pick(1.0 - flip, flip)
    return wanted.pick(abs(new), rest), wanted.pick(flipped, flip)


def integer_power(x: Number, y: Number) -> Number:
    """x**y of integers, wrapping; for negative y as StableHLO: 1 and -1 have inverses, the rest give 0."""
    one = x.constant(1)
    negative = y < 0
    exponent = negative.pick(y.constant(0), y) if y.type.is_signed else y

    def more(state: list[Number]) -> Number:
        return state[2].differs(0)

    def turn(state: list[Number]) -> list[Number]:
        result, base, left = state
        taken = (left & 1).differs(0).pick(result * base, result)
        return [taken, base * base, left.apply("shift_right_logical", 1)]

    result = repeat([one, x, exponent], more, turn)[0]
    if not y.type.is_signed:
        return result
    alternating = (y & 1).differs(0).pick(x.constant(-1), one)
    inverse = x.equals(1).pick(one, x.equals(-1).pick(alternating, 0))
    return negative.pick(inverse, result)
