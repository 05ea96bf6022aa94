"""Transcendental functions of complex f64 numbers, as pairs of real expressions.

After W. Kahan, "Branch cuts for complex elementary functions" (1987): the signs of zeros choose the side of a cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fusile.base.element_type import PRED
from fusile.hlo.opset import elementwise as ew
from fusile.loops.ir import Apply, Expr, compare, select
from fusile.loops.lowering.complex_arithmetic import Real, divide, magnitude, multiply
from fusile.loops.lowering.elemental import Pair

ONE_SIDE = 2.0**500
"""Past this the square of a part may overflow."""


def _is(direction: str, x: Expr, y: float | Expr, r: Real) -> Expr:
    return compare(direction, x, r.c(y) if isinstance(y, float) else y)


def _all(*predicates: Expr) -> Expr:
    value = predicates[0]
    for p in predicates[1:]:
        value = Apply("and", (value, p), PRED)
    return value


def _any(*predicates: Expr) -> Expr:
    value = predicates[0]
    for p in predicates[1:]:
        value = Apply("or", (value, p), PRED)
    return value


def _sum(r: Real, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """a + b and what its rounding lost (Knuth)."""
    total = r.add(a, b)
    part = r.subtract(total, a)
    return total, r.add(r.subtract(a, r.subtract(total, part)), r.subtract(b, part))


def _square(r: Real, x: Expr) -> tuple[Expr, Expr]:
    square = r.multiply(x, x)
    return square, r.fma(x, x, r.negate(square))


def _times_i(r: Real, a: Pair) -> Pair:
    return Pair(r.negate(a.imag), a.real)


def _over_i(r: Real, a: Pair) -> Pair:
    return Pair(a.imag, r.negate(a.real))


# -- exponentials


def exponential(r: Real, a: Pair) -> Pair:
    """e**x in two equal factors, so that it overflows only with the result."""
    half = r.exponential(r.multiply(0.5, a.real))
    large = _all(_is("gt", r.abs(a.real), 700.0, r), _is("lt", r.abs(a.real), math.inf, r))
    size = r.exponential(a.real)

    def times(x: Expr) -> Expr:
        return select(large, r.multiply(r.multiply(half, x), half), r.multiply(size, x))

    return Pair(times(r.cosine(a.imag)), select(_is("eq", a.imag, 0.0, r), a.imag, times(r.sine(a.imag))))


def exponential_minus_one(r: Real, a: Pair) -> Pair:
    """e**x cos y - 1 = expm1(x) cos y - 2 sin(y/2)**2."""
    half = r.sine(r.multiply(a.imag, 0.5))
    real = r.fma(r.exponential_minus_one(a.real), r.cosine(a.imag), r.negate(r.multiply(2.0, r.multiply(half, half))))
    imag = select(_is("eq", a.imag, 0.0, r), a.imag, r.multiply(r.exponential(a.real), r.sine(a.imag)))
    return Pair(select(_is("eq", a.imag, 0.0, r), r.exponential_minus_one(a.real), real), imag)


def logistic(r: Real, a: Pair) -> Pair:
    """1 / (1 + e**-z), or e**z / (1 + e**z) left of 0: nothing overflows."""
    left = _is("lt", a.real, 0.0, r)
    e = exponential(r, Pair(r.negate(r.abs(a.real)), select(left, a.imag, r.negate(a.imag))))
    below = Pair(r.add(1.0, e.real), e.imag)
    return divide(r, Pair(select(left, e.real, r.c(1.0)), select(left, e.imag, r.c(0.0))), below)


# -- logarithms and powers


def _log_magnitude(r: Real, x: Expr, y: Expr) -> Expr:
    """log(sqrt(x**2 + y**2)): near 1 log1p(x**2 + y**2 - 1) / 2, squares in two parts; else by the larger part."""
    big, small = r.maximum(r.abs(x), r.abs(y)), r.minimum(r.abs(x), r.abs(y))
    (high, high_rest), (low, low_rest) = _square(r, big), _square(r, small)
    total, lost = _sum(r, high, r.c(-1.0))
    total, more = _sum(r, total, low)
    near = _half_log_plus_one(r, total, r.add(r.add(lost, more), r.add(high_rest, low_rest)))
    edge = _any(_is("eq", big, 0.0, r), _is("eq", big, math.inf, r))
    ratio = select(edge, r.c(0.0), r.divide(small, big))
    far = r.add(r.log(big), r.multiply(0.5, r.log_plus_one(r.multiply(ratio, ratio))))
    return select(_all(_is("gt", big, 0.6, r), _is("lt", big, 1.5, r)), near, far)


def _half_log_plus_one(r: Real, x: Expr, rest: Expr) -> Expr:
    """log(1 + x + rest) / 2."""
    total, lost = _sum(r, x, rest)
    return r.multiply(0.5, r.add(r.log_plus_one(total), r.divide(lost, r.add(1.0, total))))


def log(r: Real, a: Pair) -> Pair:
    return Pair(_log_magnitude(r, a.real, a.imag), r.atan2(a.imag, a.real))


def log_plus_one(r: Real, a: Pair) -> Pair:
    """log|1 + z| = log1p(2 x + x**2 + y**2) / 2, its terms summed in two parts, where that sum is moderate."""
    (xx, xx_rest), (yy, yy_rest) = _square(r, a.real), _square(r, a.imag)
    total, lost = _sum(r, r.multiply(2.0, a.real), xx)
    total, more = _sum(r, total, yy)
    near = _half_log_plus_one(r, total, r.add(r.add(lost, more), r.add(xx_rest, yy_rest)))
    shifted = r.add(1.0, a.real)
    moderate = _all(_is("gt", total, -0.5, r), _is("lt", total, 3.0, r))
    real = select(moderate, near, _log_magnitude(r, shifted, a.imag))
    return Pair(real, r.atan2(a.imag, shifted))


def power(r: Real, a: Pair, b: Pair) -> Pair:
    """e**(b log a). 0**b is 1 for b = 0, else 0."""
    zero = _all(_is("eq", a.real, 0.0, r), _is("eq", a.imag, 0.0, r))
    none = _all(_is("eq", b.real, 0.0, r), _is("eq", b.imag, 0.0, r))
    value = exponential(r, multiply(r, b, log(r, a)))
    one = Pair(select(none, r.c(1.0), r.c(0.0)), r.c(0.0))
    known = _any(zero, none)
    return Pair(select(known, one.real, value.real), select(known, one.imag, value.imag))


def sqrt(r: Real, a: Pair) -> Pair:
    """The root of the right half plane. Huge and tiny numbers are scaled by a power of 4 first."""
    big = r.maximum(r.abs(a.real), r.abs(a.imag))
    huge, tiny = _is("gt", big, 2.0**1000, r), _is("lt", big, 2.0**-960, r)
    scale = select(huge, r.c(2.0**-8), select(tiny, r.c(2.0**100), r.c(1.0)))
    back = select(huge, r.c(2.0**4), select(tiny, r.c(2.0**-50), r.c(1.0)))
    x, y = r.multiply(a.real, scale), r.multiply(a.imag, scale)
    t = r.sqrt(r.multiply(0.5, r.add(magnitude(r, Pair(x, y)), r.abs(x))))
    other: Expr = select(_is("eq", t, 0.0, r), r.c(0.0), r.divide(r.abs(y), r.multiply(2.0, t)))
    t, other = r.multiply(t, back), r.multiply(other, back)
    negative = _is("lt", a.real, 0.0, r)
    real, imag = select(negative, other, t), select(negative, t, other)
    endless: Expr = r.c(math.inf)
    endless_y = _is("eq", r.abs(a.imag), math.inf, r)
    right, left = _is("eq", a.real, math.inf, r), _is("eq", a.real, -math.inf, r)
    nothing = r.multiply(0.0, a.imag)
    real = select(right, endless, select(left, r.abs(nothing), real))
    imag = select(right, nothing, select(left, endless, imag))
    return Pair(select(endless_y, endless, real), r.copysign(select(endless_y, endless, imag), a.imag))


def rsqrt(r: Real, a: Pair) -> Pair:
    """1 / sqrt(z); infinity and NaN at 0, as XLA."""
    root = sqrt(r, a)
    value = divide(r, Pair(r.c(1.0), r.c(0.0)), root)
    endless = _any(_is("eq", r.abs(root.real), math.inf, r), _is("eq", r.abs(root.imag), math.inf, r))
    zero = _all(_is("eq", root.real, 0.0, r), _is("eq", root.imag, 0.0, r))
    real = select(endless, r.c(0.0), select(zero, r.c(math.inf), value.real))
    return Pair(real, select(endless, r.copysign(r.c(0.0), r.negate(root.imag)), value.imag))


# -- circular and hyperbolic functions


def _hyperbolic(r: Real, even: Expr, odd: Expr, angle: Expr) -> tuple[Expr, Expr]:
    """even * cos(angle), odd * sin(angle), where an angle of 0 gives 0 even if `odd` is infinite."""
    return r.multiply(even, r.cosine(angle)), select(_is("eq", angle, 0.0, r), angle, r.multiply(odd, r.sine(angle)))


def sinh(r: Real, a: Pair) -> Pair:
    real, imag = _hyperbolic(r, r.sinh(a.real), r.cosh(a.real), a.imag)
    return Pair(select(_is("eq", a.real, 0.0, r), a.real, real), imag)


def cosh(r: Real, a: Pair) -> Pair:
    """The imaginary part's zeros have the sign of x y."""
    real, imag = _hyperbolic(r, r.cosh(a.real), r.sinh(a.real), a.imag)
    flat = _any(_is("eq", a.real, 0.0, r), _is("eq", a.imag, 0.0, r))
    sign = r.multiply(r.copysign(r.c(1.0), a.real), r.copysign(r.c(1.0), a.imag))
    return Pair(real, select(flat, r.copysign(r.c(0.0), sign), imag))


def sine(r: Real, a: Pair) -> Pair:
    return _over_i(r, sinh(r, _times_i(r, a)))


def cosine(r: Real, a: Pair) -> Pair:
    return cosh(r, _times_i(r, a))


def tanh(r: Real, a: Pair) -> Pair:
    """With t = tan y and s = sinh x: (rho s beta + i t) / (1 + beta s**2), beta = 1 + t**2, rho = sqrt(1 + s**2)."""
    x = r.maximum(r.minimum(a.real, 22.0), -22.0)
    t, s = r.tan(a.imag), r.sinh(x)
    beta, square = r.fma(t, t, r.c(1.0)), r.multiply(s, s)
    below = r.fma(beta, square, r.c(1.0))
    real = r.divide(r.multiply(r.multiply(beta, s), r.sqrt(r.add(1.0, square))), below)
    e = r.exponential(r.negate(r.abs(a.real)))
    twice = r.multiply(4.0, r.multiply(r.sine(a.imag), r.cosine(a.imag)))
    large = _is("gt", r.abs(a.real), 22.0, r)
    imag = select(large, r.multiply(r.multiply(twice, e), e), r.divide(t, below))
    imag = select(_is("eq", a.imag, 0.0, r), a.imag, imag)
    endless = _is("eq", r.abs(a.real), math.inf, r)
    imag = select(endless, r.copysign(r.c(0.0), a.imag), imag)
    limit = r.copysign(r.c(1.0), a.real)
    real = select(endless, limit, select(large, r.add(limit, r.multiply(0.0, t)), real))
    return Pair(select(_is("eq", a.real, 0.0, r), a.real, real), imag)


def tan(r: Real, a: Pair) -> Pair:
    return _over_i(r, tanh(r, _times_i(r, a)))


# -- their inverses


def _roots(r: Real, a: Pair) -> tuple[Pair, Pair]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    return sqrt(r, Pair(r.subtract(1.0, a.real), r.negate(a.imag))), sqrt(r, Pair(r.add(1.0, a.real), a.imag))


def _far(r: Real, a: Pair) -> tuple[Expr, Expr]:
    """Whether a square would overflow, and then log(2 |z|)."""
    big = r.maximum(r.abs(a.real), r.abs(a.imag))
    return _is("gt", big, ONE_SIDE, r), r.add(_log_magnitude(r, a.real, a.imag), math.log(2))


def asin(r: Real, a: Pair) -> Pair:
    minus, plus = _roots(r, a)
    across = r.subtract(r.multiply(minus.real, plus.real), r.multiply(minus.imag, plus.imag))
    along = r.subtract(r.multiply(minus.real, plus.imag), r.multiply(minus.imag, plus.real))
    far, size = _far(r, a)
    real = r.atan2(a.real, select(far, r.abs(a.imag), across))
    return Pair(real, r.copysign(select(far, size, r.asinh(along)), a.imag))


def acos(r: Real, a: Pair) -> Pair:
    minus, plus = _roots(r, a)
    along = r.subtract(r.multiply(plus.real, minus.imag), r.multiply(plus.imag, minus.real))
    far, size = _far(r, a)
    near = r.multiply(2.0, r.atan2(minus.real, plus.real))
    real = select(far, r.atan2(r.abs(a.imag), a.real), near)
    return Pair(real, r.copysign(select(far, size, r.asinh(along)), r.negate(a.imag)))


def acosh(r: Real, a: Pair) -> Pair:
    """acos(z) turned by i or -i into the right half plane."""
    angle = acos(r, a)
    return Pair(r.abs(angle.imag), r.copysign(angle.real, a.imag))


def asinh(r: Real, a: Pair) -> Pair:
    return _over_i(r, asin(r, _times_i(r, a)))


def atanh(r: Real, a: Pair) -> Pair:
    """log1p(4 x / ((1 - x)**2 + y**2)) / 4 and atan2(2 y, (1 - x) (1 + x) - y**2) / 2, for x >= 0."""
    x, y = r.abs(a.real), a.imag
    rest = r.subtract(1.0, x)
    square = r.multiply(y, y)
    real = r.multiply(0.25, r.log_plus_one(r.divide(r.multiply(4.0, x), r.fma(rest, rest, square))))
    imag = r.multiply(0.5, r.atan2(r.multiply(2.0, y), r.subtract(r.multiply(rest, r.add(1.0, x)), square)))
    size = magnitude(r, a)
    far = _is("gt", size, ONE_SIDE, r)
    ratio = r.divide(r.divide(x, size), size)
    real = select(far, select(_is("eq", size, math.inf, r), r.c(0.0), ratio), real)
    imag = select(far, r.copysign(r.c(math.pi / 2), y), imag)
    return Pair(r.copysign(real, a.real), imag)


def atan(r: Real, a: Pair) -> Pair:
    return _over_i(r, atanh(r, _times_i(r, a)))


def atan2(r: Real, y: Pair, x: Pair) -> Pair:
    """-i log((x + i y) / sqrt(x**2 + y**2))."""
    turned, xx, yy = _times_i(r, y), multiply(r, x, x), multiply(r, y, y)
    size = sqrt(r, Pair(r.add(xx.real, yy.real), r.add(xx.imag, yy.imag)))
    return _over_i(r, log(r, divide(r, Pair(r.add(x.real, turned.real), r.add(x.imag, turned.imag)), size)))


FUNCTIONS: dict[type, Callable[..., Pair]] = {
    ew.Exponential: exponential,
    ew.ExponentialMinusOne: exponential_minus_one,
    ew.Logistic: logistic,
    ew.Log: log,
    ew.LogPlusOne: log_plus_one,
    ew.Power: power,
    ew.Sqrt: sqrt,
    ew.Rsqrt: rsqrt,
    ew.Sine: sine,
    ew.Cosine: cosine,
    ew.Tan: tan,
    ew.Tanh: tanh,
    ew.Sinh: sinh,
    ew.Cosh: cosh,
    ew.Asin: asin,
    ew.Acos: acos,
    ew.Atan: atan,
    ew.Atan2: atan2,
    ew.Asinh: asinh,
    ew.Acosh: acosh,
    ew.Atanh: atanh,
}
"""Each takes real arithmetic in f64 and its operands."""
