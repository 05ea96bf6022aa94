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
    r, _, n = _reduced_exactly(wide)
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


def _reduced_exactly(x: Number) -> tuple[Number, Number, Number]:
    """x = n pi/2 + r + rest: Payne and Hanek's reduction of a large f64: 192 bits of 2 / pi from where its product
    with x matters modulo 4.

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
    whole = signed | below
    first = whole.convert(F64)
    turned = abs(x) * 0.0 + first * 2.0**-64
    lost = (whole - first.convert(S64)).convert(F64) * 2.0**-64 + (low << 2).convert(F64) * 2.0**-128
    r = turned * HALF_PI_64[0]
    rest = turned.fma(HALF_PI_64[0], -r) + turned.fma(HALF_PI_64[1], lost * HALF_PI_64[0])
    r, rest = two_sum(r, rest)
    negative = x < 0.0
    quadrant = quadrant.bitcast(S64)
    return negative.pick(-r, r), negative.pick(-rest, rest), negative.pick(-quadrant, quadrant)


def _wide_product(a: Number, b: Number) -> tuple[Number, Number]:
    """The 128-bit product of two u64, its high and low halves."""
    mask = (1 << 32) - 1
    a1, a0, b1, b0 = a >> 32, a & mask, b >> 32, b & mask
    low, middle = a0 * b0, a1 * b0
    other = a0 * b1 + (low >> 32) + (middle & mask)
    return a1 * b1 + (middle >> 32) + (other >> 32), a * b


def tan(x: Number) -> Number:
    """The quotient of sine and cosine, each in two parts; large arguments (and infinities) take the slow way."""
    fast = _tan_of_reduced(*_reduced_in_two_parts(x))
    large = ~(abs(x) <= LARGEST_64)
    return large.in_rare_lanes(_tan_of_large, x, x.equals(0.0).pick(x, fast))


def _tan_of_large(x: Number) -> Number:
    return (abs(x) < math.inf).pick(_tan_of_reduced(*_reduced_exactly(x)), x * 0.0)


def _tan_of_reduced(r: Number, rest: Number, quadrant: Number) -> Number:
    """tan(r + rest + quadrant pi/2)."""
    sine, sine_rest, cosine, cosine_rest = _sine_and_cosine(r, rest)
    turned = (quadrant & 1).differs(0)
    top, top_rest = turned.pick(cosine, sine), turned.pick(cosine_rest, sine_rest)
    bottom, bottom_rest = turned.pick(-sine, cosine), turned.pick(-sine_rest, cosine_rest)
    value, lost = _quotient(top, top_rest, bottom, bottom_rest)
    return value + lost


def _quotient(top: Number, top_rest: Number, bottom: Number, bottom_rest: Number) -> tuple[Number, Number]:
    """(top + top_rest) / (bottom + bottom_rest) in two parts."""
    value = top / bottom
    left = (-value).fma(bottom, top) + (top_rest - value * bottom_rest)
    return value, (abs(value) < math.inf).pick(left / bottom, 0.0)


def _sine_and_cosine(r: Number, rest: Number) -> tuple[Number, Number, Number, Number]:
    """sin(r + rest) and cos(r + rest), each in two parts, for f64 within pi/4."""
    z = r * r
    half = z * 0.5
    whole = 1.0 - half
    tail = (z * r).fma(z.polynomial(SIN_64), rest * whole)
    sine = r + tail
    lost = ((1.0 - whole) - half) - r.fma(r, -z) * 0.5 - r * rest
    cosine_tail = (z * z).fma(z.polynomial(COS_64), lost)
    cosine = whole + cosine_tail
    return sine, tail - (sine - r), cosine, cosine_tail - (cosine - whole)


def _reduced_in_two_parts(x: Number) -> tuple[Number, Number, Number]:
    """x = n pi/2 + r + rest, of f64 up to LARGEST_64; last an integer whose low bits are n's."""
    magic = 1.5 * 2.0**52
    shifted = x.fma(2 / math.pi, magic)
    n = shifted - magic
    first, second = n * HALF_PI_64[0], n * HALF_PI_64[1]
    r, lost = two_sum(x - first, -n.fma(HALF_PI_64[0], -first))
    r, more = two_sum(r, -second)
    lost = (lost + more) - (n.fma(HALF_PI_64[1], -second) + n * HALF_PI_64[2])
    r, lost = two_sum(r, lost)
    return r, lost, shifted.bits()


def two_sum(a: Number, b: Number) -> tuple[Number, Number]:
    """a + b and what its rounding lost (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def sine_of_turns(x: Number) -> Number:
    """sin(pi x) of a non-negative f64."""
    (sine, _, cosine, _), quadrant = _of_turns(x)
    value = (quadrant & 1).differs(0).pick(cosine, sine)
    return (quadrant & 2).differs(0).pick(-value, value)


def cotangent_of_turns(x: Number) -> tuple[Number, Number]:
    """pi cos(pi x) / sin(pi x) of a non-negative f64, in two parts."""
    (sine, sine_rest, cosine, cosine_rest), quadrant = _of_turns(x)
    turned = (quadrant & 1).differs(0)
    top, top_rest = turned.pick(-sine, cosine), turned.pick(-sine_rest, cosine_rest)
    value, lost = _quotient(top, top_rest, turned.pick(cosine, sine), turned.pick(cosine_rest, sine_rest))
    product = value * math.pi
    return product, value.fma(math.pi, -product) + (value * (2 * HALF_PI_64[1]) + lost * math.pi)


def _of_turns(x: Number) -> tuple[tuple[Number, Number, Number, Number], Number]:
    """Sine and cosine, each in two parts, of what pi x is past `quadrant` times pi/2."""
    twice = (x * 2.0).round()
    r = twice.fma(-0.5, x)
    angle = r * math.pi
    rest = r.fma(math.pi, -angle) + r * (2 * HALF_PI_64[1])
    return _sine_and_cosine(angle, rest), twice.convert(S64)


def atan(x: Number) -> Number:
    size = abs(x)
    angle, rest = _angle(size.at_most(2.0**1000), size.constant(1.0))
    return x.is_nan().pick(x, (angle + rest).copysign(x))


def _angle(height: Number, width: Number) -> tuple[Number, Number]:
    """The angle, in two parts, of a point with f64 coordinates at least 0, not both of them 0 or infinite.

    From pi/8 to 3 pi/8 as pi/4 + atan((height - width) / (height + width)), past that as pi/2 - atan(width / height).
    The quotient is in two parts, and both coordinates are so small that nothing overflows.
    """
    limit = math.tan(math.pi / 8)
    steep, flat = width < height * limit, height < width * limit
    diagonal = ~(steep | flat)
    difference, total = height - width, height + width
    big = (height > width).pick(height, width)
    small = (height > width).pick(width, height)
    top = diagonal.pick(difference, steep.pick(-width, height))
    bottom = diagonal.pick(total, steep.pick(height, width))
    t = top / bottom
    lost_top = (height > width).pick((big - difference) - small, small - (difference + big))
    lost = diagonal.pick(lost_top - t * ((big - total) + small), 0.0)
    rest = ((-t).fma(bottom, top) + lost) / bottom
    z = t * t
    base, base_rest = diagonal.pick(t.constant(math.pi / 4), 0.0), diagonal.pick(t.constant(HALF_PI_64[1] / 2), 0.0)
    base, base_rest = steep.pick(t.constant(math.pi / 2), base), steep.pick(t.constant(HALF_PI_64[1]), base_rest)
    value = base + t
    curved = (z * t).fma(z.polynomial(ATAN_64), rest)
    return flat.pick(t, value), flat.pick(curved, curved + ((t - (value - base)) + base_rest))


def atan2(y: Number, x: Number) -> Number:
    width, height = abs(x), abs(y)
    infinite = width.equals(math.inf) | height.equals(math.inf)
    one = width.constant(1.0)
    width = infinite.pick(width.equals(math.inf).pick(one, 0.0), width)
    height = infinite.pick(height.equals(math.inf).pick(one, 0.0), height)
    width = (width.equals(0.0) & height.equals(0.0)).pick(one, width)
    larger = (width > height).pick(width, height)
    scale = (larger > 2.0**600).pick(
        larger.constant(2.0**-400), (larger < 2.0**-600).pick(larger.constant(2.0**400), 1.0)
    )
    angle, rest = _angle(height * scale, width * scale)
    turned = math.pi - angle
    turned_rest = ((math.pi - turned) - angle) + (2 * HALF_PI_64[1] - rest)
    angle = x.is_negative().pick(turned + turned_rest, angle + rest)
    return (x.is_nan() | y.is_nan()).pick(x + y, angle.copysign(y))


def asin(x: Number) -> Number:
    return atan2(x, ((1.0 - x) * (x + 1.0)).sqrt())


def acos(x: Number) -> Number:
    return atan2(((1.0 - x) * (x + 1.0)).sqrt(), x)
