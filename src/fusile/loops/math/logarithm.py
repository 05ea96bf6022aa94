"""Logarithms and the inverse hyperbolic functions."""

from __future__ import annotations

import math

from fusile.base.element_type import F32
from fusile.loops.math.number import Number, fraction_bits

# log(1 + f) = f - f**2 / 2 + f**3 P(f) for sqrt(1/2) <= 1 + f < sqrt(2)
LOG_32 = (
    0.333333311800300481, -0.24999996957950882, 0.200007157488921017, -0.166678023195012541, 0.142490576456974804,
    -0.124256873314511061, 0.116854199234867393, -0.114797338466376356, 0.0697161147145117783,
)  # fmt: skip
# log(m) = 2 s + s**3 P(s**2) with s = (m - 1) / (m + 1)
LOG_64 = (
    0.666666666666666665, 0.400000000000008775, 0.285714285708032947, 0.222222223917857996, 0.181817956324521624,
    0.15386240120567022, 0.132687619513300205, 0.130867431391190717,
)  # fmt: skip
TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""log 2 in two parts, the first short enough that its products with exponents are exact."""


def mantissa_and_exponent(x: Number) -> tuple[Number, Number]:
    """x = m 2**e with m in [sqrt(1/2), sqrt(2)), denormals included; e as a float."""
    narrow, bits = x.type is F32, fraction_bits(x.type)
    tiny = x < (2.0**-126 if narrow else 2.0**-1022)
    steps = 25 if narrow else 54
    scaled = tiny.pick(x * 2.0**steps, x)
    offset = 0x3F3504F3 if narrow else 0x3FE6A09E667F3BCD
    shifted = scaled.bits() - offset
    mantissa = ((shifted & ((1 << bits) - 1)) + offset).bitcast(x.type)
    exponent = _whole(shifted, x)
    return mantissa, exponent + tiny.pick(x.constant(-float(steps)), 0.0)


def _whole(shifted: Number, like: Number) -> Number:
    """The signed exponent field of shifted bits as a float, without 64-bit arithmetic shifts or conversions in f64."""
    bits = fraction_bits(like.type)
    if like.type is F32:
        return (shifted >> bits).convert(like.type)
    biased = (shifted + (2048 << bits)).apply("shift_right_logical", bits)
    magic = 2.0**52
    return (biased | like.constant(magic).bits()).bitcast(like.type) - (magic + 2048.0)


def _special(x: Number, value: Number) -> Number:
    """The edges of log: -inf at 0, NaN below, infinity and NaN stay."""
    value = (x < math.inf).pick(value, x)
    return (x > 0.0).pick(value, x.equals(0.0).pick(x.constant(-math.inf), x.is_nan().pick(x, x.constant(math.nan))))


def log(x: Number) -> Number:
    """Natural logarithm: -inf at 0, NaN below."""
    m, e = mantissa_and_exponent(x)
    f = m - 1.0
    if x.type is F32:
        square = f * f
        tail = e.fma(1.428606765330187e-06, square * f * f.polynomial(LOG_32))
        return _special(x, e.fma(0.693145751953125, f + square.fma(-0.5, tail)))
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    tail = e.fma(LN2_LOW, s * (half + z * z.polynomial(LOG_64)))
    return _special(x, e.fma(LN2_HIGH, f - (half - tail)))


def log_in_two_parts(a: Number) -> tuple[Number, Number]:
    """log(a) of a positive f64 as high + low, to some 70 bits: e log 2 + log m with s = (m-1)/(m+1) in two parts."""
    m, e = mantissa_and_exponent(a)
    f, g = m - 1.0, m + 1.0
    s = f / g
    lost_g = f - (g - 2.0)
    s_low = ((-s).fma(g, f) - s * lost_g) / g
    z = s * s
    cube = s * z
    cube_low = s.fma(z, -cube) + s * s.fma(s, -z) + z * s_low * 3.0
    third = cube * TWO_THIRDS[0]
    third_low = cube.fma(TWO_THIRDS[0], -third) + cube.fma(TWO_THIRDS[1], cube_low * TWO_THIRDS[0])
    tail = cube * z * z.polynomial(LOG_64[1:])
    first, second = e * LN2_HIGH, s * 2.0
    total = first + second
    lost = e.equals(0.0).pick(a.constant(0.0), second - (total - first))
    with_third = total + third
    lost = lost + (third - (with_third - total))
    low = lost + (s_low * 2.0 + third_low + e.fma(LN2_LOW, tail))
    total = with_third
    high = total + low
    return high, low - (high - total)


def log_plus_one(x: Number, rest: Number | None = None) -> Number:
    """log(1 + x + rest), with the rounding error of 1 + x put back; the rest is tiny beside x."""
    u = x + 1.0
    lost = x - (u - 1.0)
    value = log(u) + (lost if rest is None else lost + rest) / u
    value = (abs(x) < 2.0**-54).pick(x, value)
    ordinary = (u > 0.0) & (u < math.inf)
    return ordinary.pick(
        value, x.is_nan().pick(x, u.equals(0.0).pick(x.constant(-math.inf), (u > 0.0).pick(u, math.nan)))
    )


def asinh(x: Number) -> Number:
    """log(1 + |x| + x**2 / (1 + sqrt(1 + x**2)))."""
    size = abs(x)
    square = size * size
    more = square / ((square + 1.0).sqrt() + 1.0)
    total = size + more
    small = log_plus_one(total, more - (total - size))
    large = log(size) + math.log(2)
    return x.is_nan().pick(x, (size < 1e8).pick(small, large).copysign(x))


def acosh(x: Number) -> Number:
    """log(1 + t + sqrt(t**2 + 2 t)) with t = x - 1; what the root and the sum lose is put back."""
    t = x - 1.0
    twice = t * 2.0
    square = t.fma(t, twice)
    root = square.sqrt()
    lost = ((-root).fma(root, square) + t.fma(t, twice - square)) / (root * 2.0)
    total = root + t
    small = log_plus_one(total, (t - (total - root)) + lost)
    large = log(x) + math.log(2)
    value = x.equals(1.0).pick(x.constant(0.0), (x < 1e8).pick(small, large))
    return (x < 1.0).pick(x.constant(math.nan), value)


def atanh(x: Number) -> Number:
    size = abs(x)
    value = log_plus_one(size * 2.0 / (1.0 - size)) * 0.5
    value = (size < 2.0**-28).pick(size, value)
    value = (size > 1.0).pick(x.constant(math.nan), value)
    return x.is_nan().pick(x, abs(value).copysign(x))
