"""Exponentials and what is made of them: e**x, e**x - 1, the logistic function and the hyperbolic functions."""

from __future__ import annotations

import math

from fusile.base.element_type import F32
from fusile.loops.math.number import Number, power_of_two

# (e**r - 1 - r) / r**2 for |r| <= log(2) / 2
EXP_32 = (
    0.500000001345772715, 0.166666666816142557, 0.0416664650060400488, 0.00833331093444886847, 0.00139336410319867012,
    0.000198909808697503256,
)  # fmt: skip
EXP_64 = (
    0.5, 0.16666666666666671, 0.0416666666666666698, 0.00833333333332614088, 0.00138888888888837524,
    0.00019841269874800492, 0.0000248015873255333638, 2.75572554257464343e-6, 2.75572736613486362e-7,
    2.51052063739570111e-8, 2.09146793765839351e-9,
)  # fmt: skip
# tanh(x) = x + x**3 P(x**2) for |x| <= 0.63
TANH_32 = (
    -0.333333331493745071, 0.133333001461889147, -0.0539584616274522014, 0.0217625029073592639,
    -0.00832318705827877452, 0.00226950168416235399,
)  # fmt: skip
TANH_64 = (
    -0.333333333333333333, 0.133333333333333326, -0.0539682539682528093, 0.0218694885360807442,
    -0.00886323552740131713, 0.00359212798614486317, -0.00145583372647722302, 0.000590021545650909688,
    -0.000239092256079377845, 0.0000967517521832643838, -0.0000387620273201335204, 0.0000147746327455153268,
    -4.71751842550832095e-6, 8.95606454815865575e-7,
)  # fmt: skip
# sinh(x) = x + x**3 P(x**2) for |x| <= 1
SINH_64 = (
    0.166666666666666667, 0.00833333333333333333, 0.000198412698412698413, 2.75573192239858238e-6,
    2.50521083854760713e-8, 1.60590438269005106e-10, 7.64716541459348069e-13, 2.81129096467701025e-15,
    8.30917194186703149e-18,
)  # fmt: skip


def reduced(x: Number, rest: Number | None = None) -> tuple[Number, Number, Number]:
    """x (+ rest) = n log 2 + r with |r| <= log(2) / 2: r, n, and n as an integer. |x| is at most some thousands.

    Adding 1.5 * 2**23 (2**52) rounds to a whole number, and leaves it in the low bits.
    """
    narrow = x.type is F32
    magic = 1.5 * 2.0 ** (23 if narrow else 52)
    shifted = x.fma(1 / math.log(2), magic)
    n = shifted - magic
    high, low = (0.693145751953125, 1.428606765330187e-06) if narrow else (0.6931471805599453, 2.3190468138462996e-17)
    r = n.fma(-low, n.fma(-high, x)) if rest is None else n.fma(-high, x) + n.fma(-low, rest)
    return r, n, shifted.bits() - shifted.constant(magic).bits()


def exponential_minus_one_of_reduced(r: Number) -> Number:
    """e**r - 1 for |r| <= log(2) / 2."""
    return r + r * r * r.polynomial(EXP_32 if r.type is F32 else EXP_64)


def _exponential_of_reduced(r: Number) -> Number:
    return r.polynomial((1.0, 1.0, *(EXP_32 if r.type is F32 else EXP_64)))


def exponential_of_moderate(x: Number) -> Number:
    """e**x where the result is a normal number."""
    r, _, n = reduced(x)
    value = _exponential_of_reduced(r)
    return (value.bits() + (n << (23 if x.type is F32 else 52))).bitcast(x.type)


def exponential(x: Number) -> Number:
    """e**x. The power of two comes in two factors, so that denormal results round once and large ones overflow."""
    low, high = (-104.5, 89.0) if x.type is F32 else (-746.0, 710.0)
    r, n, whole = reduced(x.at_most(high).at_least(low))
    one, two = _two_factors(n, whole)
    return _exponential_of_reduced(r) * one * two


def exponential_times(x: Number, rest: Number, factor: Number, factor_rest: Number) -> Number:
    """(factor + factor_rest) * e**(x + rest) with few roundings, for tiny rests and factors not far from 1."""
    limit = 150.0 if x.type is F32 else 1080.0
    r, n, whole = reduced(x.at_least(-limit).at_most(limit), rest)
    one, two = _two_factors(n, whole)
    return (factor + factor.fma(exponential_minus_one_of_reduced(r), factor_rest)) * one * two


def _two_factors(n: Number, whole: Number) -> tuple[Number, Number]:
    """2**n as the product of two powers of two within the normal range; `whole` is n as an integer."""
    magic = n.constant(1.5 * 2.0 ** (23 if n.type is F32 else 52))
    half = n.fma(0.5, magic).bits() - magic.bits()
    return power_of_two(half, n.type), power_of_two(whole - half, n.type)


def exponential_minus_one(x: Number) -> Number:
    """e**x - 1 = 2**n (e**r - 1) + (2**n - 1), whose parts don't cancel."""
    high = 89.0 if x.type is F32 else 710.0
    low = -18.0 if x.type is F32 else -40.0
    r, n, whole = reduced(x.at_most(high).at_least(low))
    part = exponential_minus_one_of_reduced(r)
    one, two = _two_factors(n, whole)
    scale = one * two
    moderate = scale.fma(part, scale - 1.0)
    large = (part + 1.0) * one * two
    value = (x < high - 2.0).pick(moderate, (x > 0.0).pick(large, moderate))
    return x.equals(0.0).pick(x, x.is_nan().pick(x, value))


def logistic(x: Number) -> Number:
    """1 / (1 + e**-x) as e**-|x| or 1 over 1 + e**-|x|: nothing overflows. The sum's rounding error is put back."""
    e = exponential(-abs(x))
    total = e + 1.0
    lost = e - (total - 1.0)
    negative = x < 0.0
    value = negative.pick(e, 1.0) / total
    inverse = negative.pick(1.0 - value, value)
    return value.fma(-lost * inverse, value)


def tanh(x: Number) -> Number:
    """An odd polynomial near 0; beyond, with q = e**(-2|x|), 1 - 2 q / (1 + q)."""
    narrow = x.type is F32
    size = abs(x)
    q = exponential_of_moderate((size * -2.0).at_least(-20.0 if narrow else -44.0))
    far = 1.0 - q * 2.0 / (q + 1.0)
    z = x * x
    near = (z * size).fma(z.polynomial(TANH_32 if narrow else TANH_64), size)
    return x.is_nan().pick(x, (size < 0.6).pick(near, far).copysign(x))


def sinh(x: Number) -> Number:
    size = abs(x)
    z = size * size
    near = (size * z).fma(z.polynomial(SINH_64), size)
    m = exponential_minus_one(size)
    value = (size < 20.0).pick((m + m / (m + 1.0)) * 0.5, _half_exponential(size))
    return x.is_nan().pick(x, (size < 1.0).pick(near, value).copysign(x))


def cosh(x: Number) -> Number:
    size = abs(x)
    e = exponential(size)
    small = (e + 1.0 / e) * 0.5
    return (size < 20.0).pick(small, _half_exponential(size))


def _half_exponential(x: Number) -> Number:
    """e**x / 2, infinite only where that overflows."""
    return exponential_times(x, x.constant(0.0), x.constant(0.5), x.constant(0.0))
