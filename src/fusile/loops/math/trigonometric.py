"""Sine, cosine and tangent, right for every argument, and their inverses."""

from __future__ import annotations

import math

from fusile.base.element_type import F32, F64, S64, U64
from fusile.loops.math.number import Number

# sin(r) = r + r**3 S(r**2), cos(r) = 1 - r**2 / 2 + r**4 C(r**2) for |r| <= 1.02 pi/4
SIN_32 = (-0.166666666636240228, 0.00833333178567172974, -0.000198400391130122136, 2.72438119752581066e-6)
COS_32 = (0.0416666666641282058, -0.00138888875977067464, 0.0000248005606306063435, -2.72958563395460023e-7)
SIN_64 = (
    -0.166666666666666667, 0.00833333333333333126, -0.000198412698412645685, 2.75573192189567317e-6,
    -2.50521061009266732e-8, 1.60585109795353505e-10, -7.58549250782123976e-13,
)  # fmt: skip
COS_64 = (
    0.0416666666666666667, -0.00138888888888888877, 0.0000248015873015843704, -2.75573192211901992e-7,
    2.08767557179572941e-9, -1.14704494124097097e-11, 4.74520215570235903e-14,
)  # fmt: skip
# atan(t) = t + t**3 P(t**2) for |t| <= tan(pi/8)
ATAN_64 = (
    -0.333333333333333333, 0.199999999999999906, -0.14285714285711227, 0.111111111107210525, -0.0909090906500884342,
    0.0769230666608845287, -0.0666664047661281187, 0.058819028860808922, -0.0525782587643681232, 0.0471802454590135043,
    -0.0409892521204691833, 0.0305086382107129161, -0.013790276896186757,
)  # fmt: skip
HALF_PI_32 = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058373e-15)
HALF_PI_64 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
"""pi / 2 in three parts."""
LARGEST_32, LARGEST_64 = 2.0**15, 2.0**45
"""Up to here three parts of pi / 2 are enough."""


def sine(x: Number) -> Number:
    return _circular(x, 0)


def cosine(x: Number) -> Number:
    return _circular(x, 1)


def _circular(x: Number, quarter_turns: int) -> Number:
    """sin(x + quarter_turns * pi / 2); large arguments (and infinities) take the slow way."""
    large = ~(abs(x) <= (LARGEST_32 if x.type is F32 else LARGEST_64))
    r, n = _reduced(x)
    fast = _of_quadrant(r, n + quarter_turns)
    if quarter_turns == 0:
        fast = x.equals(0.0).pick(x, fast)

    return large.in_rare_lanes(lambda one: _circular_of_large(one, quarter_turns), x, fast)


def _circular_of_large(x: Number, quarter_turns: int) -> Number:
    """sin(x + quarter_turns * pi / 2) of an argument past LARGEST_32: NaN for infinities."""
    wide = x.convert(F64)
    r, n = _reduced_exactly(wide)
    return (
        (abs(wide) < math.inf)
        .pick(_of_quadrant(r, n + quarter_turns), x.constant(0).convert(F64) * wide)
        .convert(x.type)
    )


def _reduced(x: Number) -> tuple[Number, Number]:
    """x = n pi/2 + r: r within pi/4, and an integer whose low bits are n's."""
    magic = 1.5 * 2.0 ** (23 if x.type is F32 else 52)
    shifted = x.fma(2 / math.pi, magic)
    n = shifted - magic
    r = x
    for part in HALF_PI_32 if x.type is F32 else HALF_PI_64:
        r = n.fma(-part, r)
    return r, shifted.bits()


def _of_quadrant(r: Number, quadrant: Number) -> Number:
    """sin(r + quadrant pi/2)."""
    narrow = r.type is F32
    z = r * r
    sine = (z * r).fma(z.polynomial(SIN_32 if narrow else SIN_64), r)
    half = z * 0.5
    whole = 1.0 - half
    lost = (1.0 - whole) - half
    cosine = whole + (z * z).fma(z.polynomial(COS_32 if narrow else COS_64), lost)
    value = (quadrant & 1).differs(0).pick(cosine, sine)
    return (value.bits() ^ ((quadrant & 2) << (30 if narrow else 62))).bitcast(r.type)


def _two_over_pi_words() -> tuple[int, ...]:
    """The bits of 2 / pi after the binary point in words of 64, a word of zeros first; pi by Machin's formula."""
    bits = 64 * 22

    def inverse_arctangent(n: int) -> int:
        term = (1 << bits + 64) // n
        total, k = term, 1
        while term:
            term //= n * n
            total += (term // (2 * k + 1)) * (-1 if k % 2 else 1)
            k += 1
        return total

    pi = 4 * (4 * inverse_arctangent(5) - inverse_arctangent(239))
    fraction = (2 << 2 * bits + 64) // pi
    return (0, *((fraction >> (bits - 64 * (i + 1))) & ((1 << 64) - 1) for i in range(21)))


TWO_OVER_PI = _two_over_pi_words()


def _reduced_exactly(x: Number) -> tuple[Number, Number]:
    """Payne and Hanek's reduction of a large f64: 192 bits of 2 / pi from where its product with x matters modulo 4.

    x = m 2**e; bits of 2 / pi of weight 2**(2 - e) and more only add multiples of 4 turns of pi / 2.
    """
    bits = abs(x).bitcast(U64)
    m = (bits & ((1 << 52) - 1)) | (1 << 52)
    first = (bits >> 52) - (1075 + 2 - 64)
    index, shift = first >> 6, first & 63
    words = [(index + i).lookup(TWO_OVER_PI) for i in range(4)]
    window = [(words[i] << shift) | ((words[i + 1] >> 1) >> (63 - shift)) for i in range(3)]
    high1, low1 = _wide_product(m, window[1])
    high2, _ = _wide_product(m, window[2])
    low = low1 + high2
    high = m * window[0] + high1 + (low < low1).pick(low.constant(1), 0)
    quadrant = ((high >> 62) + ((high >> 61) & 1)) & 3
    signed = (high << 2).bitcast(S64)
    below = (low >> 62).bitcast(S64)
    fraction = (signed | below).convert(F64) * 2.0**-64 + (low << 2).convert(F64) * 2.0**-128
    turned = abs(x) * 0.0 + fraction
    r = turned * HALF_PI_64[0]
    r = turned.fma(HALF_PI_64[1], r)
    negative = x < 0.0
    quadrant = quadrant.bitcast(S64)
    return negative.pick(-r, r), negative.pick(-quadrant, quadrant)


def _wide_product(a: Number, b: Number) -> tuple[Number, Number]:
    """The 128-bit product of two u64, its high and low halves."""
    mask = (1 << 32) - 1
    a1, a0, b1, b0 = a >> 32, a & mask, b >> 32, b & mask
    low, middle = a0 * b0, a1 * b0
    other = a0 * b1 + (low >> 32) + (middle & mask)
    return a1 * b1 + (middle >> 32) + (other >> 32), a * b


def tan(x: Number) -> Number:
    return sine(x) / cosine(x)


def atan(x: Number) -> Number:
    """Arguments past 1 by pi/2 - atan(1/x), past tan(pi/8) by pi/4 + atan((x-1)/(x+1))."""
    size = abs(x)
    inverted = size > 1.0
    b = inverted.pick(1.0 / size, size)
    turned = b > math.tan(math.pi / 8)
    t = turned.pick((b - 1.0) / (b + 1.0), b)
    z = t * t
    value = (z * t).fma(z.polynomial(ATAN_64), t)
    value = turned.pick((value + HALF_PI_64[1] / 2) + math.pi / 4, value)
    value = inverted.pick((HALF_PI_64[0] - value) + HALF_PI_64[1], value)
    return x.is_nan().pick(x, value.copysign(x))


def atan2(y: Number, x: Number) -> Number:
    width, height = abs(x), abs(y)
    swap = height > width
    top, bottom = swap.pick(width, height), swap.pick(height, width)
    both_infinite = top.equals(math.inf)
    ratio = bottom.equals(0.0).pick(bottom.constant(0.0), top / bottom)
    angle = atan(both_infinite.pick(ratio.constant(1.0), ratio))
    angle = swap.pick((HALF_PI_64[0] - angle) + HALF_PI_64[1], angle)
    angle = x.is_negative().pick((math.pi - angle) + 2 * HALF_PI_64[1], angle)
    return (x.is_nan() | y.is_nan()).pick(x + y, angle.copysign(y))


def asin(x: Number) -> Number:
    return atan2(x, ((1.0 - x) * (x + 1.0)).sqrt())


def acos(x: Number) -> Number:
    return atan2(((1.0 - x) * (x + 1.0)).sqrt(), x)
