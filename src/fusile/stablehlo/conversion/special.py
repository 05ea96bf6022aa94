"""CHLO's functions that are formulas over HLO's: zeta, polygamma, the high half of products, the kernel of arc sines.

Numbers are computed as f64 and rounded once, so that f16 to f32 results are right but for that rounding.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fusile.base.element_type import F64, S64, U32, U64, ElementType
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.conversion.elementwise import broadcast_together

_DIRECT_TERMS = 9
_CORRECTIONS = 12
_LARGEST_EXPONENT = 1e4
"""From here on only the first term of zeta counts; the rest's factors must not overflow."""


def _bernoulli_over_factorial(count: int) -> list[float]:
    """B(2j) / (2j)! for j = 1..count, from the recurrence of Bernoulli's numbers."""
    numbers = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        numbers.append(-sum((math.comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0)) / (m + 1))
    return [float(numbers[2 * j] / math.factorial(2 * j)) for j in range(1, count + 1)]


_COEFFICIENTS = _bernoulli_over_factorial(_CORRECTIONS)


@converts("chlo.zeta", "chlo.broadcast_zeta")
def _zeta(context: Context) -> Instruction:
    b = context.builder
    x, q, kind = _as_f64(context, b)
    return b.convert(_hurwitz_zeta(b, x, q), kind)


@converts("chlo.polygamma", "chlo.broadcast_polygamma")
def _polygamma(context: Context) -> Instruction:
    """The n-th derivative of digamma: (-1)**(n + 1) n! zeta(n + 1, x); NaN for n that counts no derivatives."""
    b = context.builder
    n, x, kind = _as_f64(context, b)
    order = b.add(n, b.like(1, n))
    size = b.multiply(b.exponential(b.lgamma(order)), _hurwitz_zeta(b, order, x))
    result = b.select(_is_even(b, n), b.negate(size), size)
    result = b.select(b.compare(n, b.like(0, n), "EQ"), b.digamma(x), result)
    counts = b.and_(b.compare(n, b.like(0, n), "GE"), b.compare(n, b.floor(n), "EQ"))
    return b.convert(b.select(counts, result, b.like(np.nan, n)), kind)


def _as_f64(context: Context, b: Builder) -> tuple[Instruction, Instruction, ElementType]:
    """Both operands in one shape, and the result's element type."""
    first, second = broadcast_together(context, context.operands)
    kind = first.array_shape.element_type
    if not kind.is_float or second.array_shape.element_type is not kind:
        raise ValueError(f"it takes floats of one type, not {first.array_shape} and {second.array_shape}")
    return b.convert(first, F64), b.convert(second, F64), kind


def _is_even(b: Builder, x: Instruction) -> Instruction:
    return b.compare(b.remainder(x, b.like(2, x)), b.like(0, x), "EQ")


def _hurwitz_zeta(b: Builder, x: Instruction, q: Instruction) -> Instruction:
    """The sum of (q + k)**-x over k = 0, 1, ...; f64. It converges for x > 1. For negative q it is defined where x is
    whole; there the terms of negative base are a difference of two sums of positive base."""
    zero, one = b.like(0, q), b.like(1, q)
    below = b.compare(q, zero, "LE")
    steps = b.add(b.floor(b.negate(q)), one)
    inside = b.add(q, steps)
    mirrored = b.subtract(one, inside)
    positive = _zeta_of_positive(b, x, b.select(below, inside, q))
    passed = b.subtract(_zeta_of_positive(b, x, mirrored), _zeta_of_positive(b, x, b.add(mirrored, steps)))
    even = _is_even(b, x)
    result = b.select(below, b.add(positive, b.select(even, passed, b.negate(passed))), positive)
    pole = b.and_(below, b.compare(q, b.floor(q), "EQ"))
    result = b.select(pole, b.select(even, b.like(np.inf, q), b.like(np.nan, q)), result)
    undefined = b.and_(below, b.compare(x, b.floor(x), "NE"))
    undefined = b.or_(undefined, b.compare(x, one, "LT"))
    result = b.select(undefined, b.like(np.nan, q), result)
    return b.select(b.compare(x, one, "EQ"), b.like(np.inf, q), result)


def _zeta_of_positive(b: Builder, x: Instruction, q: Instruction) -> Instruction:
    """Ten terms, and Euler and Maclaurin's formula for the rest, left out where it is too small to count: there it
    may not converge."""
    one, exponent = b.like(1, q), b.negate(x)
    at, term = q, b.power(q, exponent)
    total = term
    for _ in range(_DIRECT_TERMS):
        at = b.add(at, one)
        term = b.power(at, exponent)
        total = b.add(total, term)
    integral = b.divide(b.power(at, b.subtract(one, x)), b.subtract(x, one))
    rest = b.subtract(integral, b.multiply(b.like(0.5, q), term))
    square = b.multiply(at, at)
    x = b.minimum(x, b.like(_LARGEST_EXPONENT, x))
    factor = b.multiply(x, b.divide(term, at))
    for j, coefficient in enumerate(_COEFFICIENTS, 1):
        rest = b.add(rest, b.multiply(b.like(coefficient, q), factor))
        rising = b.multiply(b.add(x, b.like(2 * j - 1, q)), b.add(x, b.like(2 * j, q)))
        factor = b.multiply(factor, b.divide(rising, square))
    small = b.compare(term, b.multiply(total, b.like(1e-18, q)), "LT")
    return b.select(small, total, b.add(total, rest))


@converts("chlo.mulhi")
def _mulhi(context: Context) -> Instruction:
    """The high half of the product of two integers, as wide as one of them."""
    x, y = context.operands
    kind = x.array_shape.element_type
    if not kind.is_integer:
        raise ValueError(f"it takes integers, not {x.array_shape}")
    b = context.builder
    if kind.bits == 64:
        return _high_half_of_128(b, x, y, kind)
    wide = S64 if kind.is_signed else U64
    product = b.multiply(b.convert(x, wide), b.convert(y, wide))
    return b.convert(b.shift_right_arithmetic(product, b.like(kind.bits, product)), kind)


def _high_half_of_128(b: Builder, x: Instruction, y: Instruction, kind: ElementType) -> Instruction:
    """Four products of 32-bit halves; a negative number, read as unsigned, is too large by 2**64."""
    u, v = (b.bitcast_convert(z, U64) for z in (x, y))
    half = b.like(32, u)
    (u_low, u_high), (v_low, v_high) = (
        (b.convert(b.convert(z, U32), U64), b.shift_right_logical(z, half)) for z in (u, v)
    )
    first = b.add(b.multiply(u_high, v_low), b.shift_right_logical(b.multiply(u_low, v_low), half))
    second = b.add(b.multiply(u_low, v_high), b.convert(b.convert(first, U32), U64))
    high = b.add(b.multiply(u_high, v_high), b.shift_right_logical(first, half))
    high = b.bitcast_convert(b.add(high, b.shift_right_logical(second, half)), kind)
    if kind.is_signed:
        zero = b.like(0, x)
        for negative, other in ((x, y), (y, x)):
            high = b.subtract(high, b.select(b.compare(negative, zero, "LT"), other, zero))
    return high


@converts("chlo._asin_acos_kernel")
def _asin_acos_kernel(context: Context) -> Instruction:
    """w with asin(z) = atan2(re z, re w) + i sign(im z) im w. With s = asin(z), re w is cos(re s) cosh(im s)."""
    (z,) = context.operands
    kind = z.array_shape.element_type
    b = context.builder
    if not kind.is_complex:
        one = b.like(1, z)
        return b.sqrt(b.multiply(b.subtract(one, z), b.add(one, z)))
    arc = b.asin(z)
    height = b.abs(b.imag(arc))
    return b.complex(b.multiply(b.cosine(b.real(arc)), b.cosh(height)), height)
