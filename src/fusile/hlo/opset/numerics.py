"""Arithmetic on NumPy arrays as StableHLO means it, where NumPy's own differs.

Floats narrower than 32 bits are computed in f32 and rounded once; transcendental functions of f32 are computed in f64
and rounded once. Integers wrap; x / 0 is -1 (all ones), x % 0 is x, shifts by the width or more give 0 or the sign.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType, element_type

Array = np.ndarray[Any, Any]


def widened(function: Callable[..., Any]) -> Callable[..., Array]:
    """`function` with narrow floats taken through f32."""

    def apply(*xs: Array) -> Array:
        dtype = xs[0].dtype
        kind = element_type(dtype)
        with np.errstate(all="ignore"):
            if kind.is_float and kind.bits < 32:
                return np.asarray(function(*[x.astype(np.float32) for x in xs])).astype(dtype)
            if kind.is_integer and kind.bits < 8:
                return wrap(np.asarray(function(*[x.astype(np.int32) for x in xs])), kind)
            return np.asarray(function(*xs)).astype(dtype, copy=False)

    return apply


def doubled(function: Callable[..., Any]) -> Callable[..., Array]:
    """`function` with f32 and narrower taken through f64; complex through complex128."""

    def apply(*xs: Array) -> Array:
        dtype = xs[0].dtype
        wide = np.complex128 if element_type(dtype).is_complex else np.float64
        with np.errstate(all="ignore"):
            return np.asarray(function(*[x.astype(wide) for x in xs])).astype(dtype)

    return apply


def scalarwise(function: Callable[..., float]) -> Callable[..., Array]:
    """A Python function of floats, on arrays of them."""
    vector = np.vectorize(function, otypes=[np.float64])
    return lambda *xs: vector(*xs) if xs[0].size else xs[0].astype(np.float64)


def wrap(x: Array, kind: ElementType) -> Array:
    """Integers modulo 2**bits, as `kind`."""
    low = x.astype(np.int64) & ((1 << kind.bits) - 1)
    if kind.is_signed:
        low = low - ((low >> (kind.bits - 1)) << kind.bits)
    return low.astype(kind.dtype)


def divide(a: Array, b: Array) -> Array:
    if element_type(a.dtype).is_integer:
        one = b.dtype.type(1)
        return np.where(b == 0, np.zeros_like(a) - a.dtype.type(1), truncated_quotient(a, np.where(b == 0, one, b)))
    return a / b


def truncated_quotient(a: Array, b: Array) -> Array:
    quotient = a // b
    inexact = (a - quotient * b != 0) & ((a < 0) != (b < 0))
    result: Array = quotient + inexact.astype(a.dtype)
    return result


def remainder(a: Array, b: Array) -> Array:
    if not element_type(a.dtype).is_integer:
        return np.fmod(a, b)
    minus_one = (np.zeros_like(b) - b.dtype.type(1) == b) & (b < 0)
    safe = np.where((b == 0) | minus_one, b.dtype.type(1), b)
    rest = a - truncated_quotient(a, safe) * safe
    return np.where(b == 0, a, np.where(minus_one, a.dtype.type(0), rest))


def atan2(y: Array, x: Array) -> Array:
    """Of complex numbers `-i log((x + i y) / sqrt(x**2 + y**2))`, whose value at real ones is the angle."""
    if not np.iscomplexobj(y):
        return np.asarray(np.arctan2(y, x))
    return np.asarray(-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)))


def power(a: Array, b: Array) -> Array:
    if not element_type(a.dtype).is_integer:
        return np.power(a, b)
    result, base, exponent = np.ones_like(a), a.copy(), np.where(b < 0, 0, b).astype(np.uint64)
    while exponent.any():
        result = np.where(exponent & np.uint64(1), result * base, result)
        base, exponent = base * base, exponent >> np.uint64(1)
    if element_type(a.dtype).is_unsigned:
        return result
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, result)


def maximum(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        return np.where(_lexicographic_less(a, b), b, a)
    return (
        np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), np.maximum(a, b))
        if a.dtype.kind == "f"
        else np.maximum(a, b)
    )


def minimum(a: Array, b: Array) -> Array:
    if a.dtype.kind == "c":
        return np.where(_lexicographic_less(a, b), a, b)
    return (
        np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), np.minimum(a, b))
        if a.dtype.kind == "f"
        else np.minimum(a, b)
    )


def _lexicographic_less(a: Array, b: Array) -> Array:
    less: Array = (a.real < b.real) | ((a.real == b.real) & (a.imag < b.imag))
    return less


def shift(kind: str, a: Array, b: Array) -> Array:
    """`kind`: left, arithmetic or logical."""
    t = element_type(a.dtype)
    value, amount = a.astype(np.int64), b.astype(np.int64)
    if t.bits == 64 and not t.is_signed:
        value = a.view(np.int64)
        amount = np.where(b > 64, 64, b).astype(np.int64)
    large = (amount < 0) | (amount >= t.bits)
    safe = np.where(large, 0, amount)
    if kind == "left":
        result = np.where(large, 0, value << safe)
    elif kind == "arithmetic":
        signed = _sign_extended(value, t.bits)
        result = np.where(large, signed >> 63, signed >> safe)
    else:
        unsigned = value.view(np.uint64) & np.uint64((1 << t.bits) - 1)
        result = np.where(large, np.uint64(0), unsigned >> safe.astype(np.uint64)).view(np.int64)
    return result.view(np.uint64).astype(a.dtype) if t.bits == 64 else wrap(result, t)


def _sign_extended(value: Array, bits: int) -> Array:
    return value if bits == 64 else (value << (64 - bits)) >> (64 - bits)


def sign(x: Array) -> Array:
    if x.dtype.kind == "c":
        return np.where(x == 0, x, x / np.abs(x))
    if element_type(x.dtype).is_float:
        return np.where(np.isnan(x) | (x == 0), x, np.sign(x))
    return np.sign(x)


def round_away(x: Array) -> Array:
    whole = np.trunc(x)
    step = np.where(np.abs(x - whole) >= 0.5, np.copysign(x.dtype.type(1), x), x.dtype.type(0))
    rounded: Array = np.copysign(whole + step, x)
    return rounded


def count_bits(x: Array, leading_zeros: bool) -> Array:
    t = element_type(x.dtype)
    mask = (1 << t.bits) - 1

    def count(v: int) -> int:
        return t.bits - (v & mask).bit_length() if leading_zeros else (v & mask).bit_count()

    return np.array([count(int(v)) for v in x.reshape(-1).tolist()], np.int64).reshape(x.shape).astype(x.dtype)


def convert(x: Array, target: ElementType) -> Array:
    """StableHLO `convert`: float to integer truncates and saturates with NaN to 0, integers wrap, complex drops the
    imaginary part."""
    source = element_type(x.dtype)
    with np.errstate(all="ignore"):
        if target is source:
            return x
        if source.is_complex and not target.is_complex:
            x, source = x.real, source.real
        if target.is_predicate:
            return np.asarray(x != 0)
        if target.is_integer and source.is_float:
            return _saturated(x, target)
        if target.is_integer:
            return wrap(x.astype(np.int64), target) if target.bits < 64 else x.astype(target.dtype)
        if target.is_complex and source.is_float and source.bits < 32:
            x = x.astype(np.float32)
        if target.is_float and target.bits < 32 and not source.is_float:
            return x.astype(np.float32).astype(target.dtype)
        return x.astype(target.dtype)


def _saturated(x: Array, target: ElementType) -> Array:
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = (1 << (target.bits - int(target.is_signed))) - 1
    wide = np.trunc(x.astype(np.float64))
    inside = (wide > low) & (wide < float(high))
    container = np.int64 if target.is_signed else np.uint64
    whole = np.where(inside, wide, 0).astype(container)
    whole = np.where(wide >= float(high), container(high), np.where(wide <= low, container(low), whole))
    whole = np.where(np.isnan(wide), container(0), whole)
    return whole.astype(target.dtype)


def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """Rounds to a float with these many bits (StableHLO `reduce_precision`): ties to even, overflow to infinity, no
    denormals."""
    wide = x.astype(np.float64)
    _, exponent = np.frexp(wide)
    # Smaller steps than f64 has round nothing.
    step = np.ldexp(1.0, np.maximum(exponent - 1 - mantissa_bits, -1074))
    finite = np.isfinite(wide) & (wide != 0)
    rounded = np.where(finite, np.rint(wide / step) * step, wide)
    if exponent_bits < 11:
        rounded = np.where(np.abs(rounded) >= 2.0 ** (1 << (exponent_bits - 1)), np.copysign(np.inf, wide), rounded)
    tiny = finite & (np.abs(rounded) < 2.0 ** (2 - (1 << (exponent_bits - 1))))
    return np.where(tiny, np.copysign(0.0, wide), rounded).astype(x.dtype)


def total_order_key(x: Array) -> Array:
    """Signed integers that order as IEEE totalOrder orders the floats."""
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)


def next_after(a: Array, b: Array) -> Array:
    # NumPy's f16 gives a for equal ones, the C library b: between 0.0 and -0.0 it matters.
    return np.where(a == b, b, np.nextafter(a, b))


def cbrt(x: Array) -> Array:
    return np.cbrt(x)


def _guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    def apply(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return math.nan

    return apply


def lgamma_scalar(x: float) -> float:
    if math.isnan(x):
        return x
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    if abs(x) < 1e-100:
        return -math.log(abs(x))
    if x in (1, 2):
        return 0.0
    if 0 < x < 20:
        return _lgamma_in_decimals(x)
    if x < 0:
        sine = abs(math.sin(math.pi * math.remainder(x, 1.0)))
        return math.fsum((math.log(math.pi), -math.log(-x * sine), -lgamma_scalar(-x)))
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


STEPS = 60
"""So many steps up from x, the ten terms of the asymptotic series give lgamma and digamma to some 37 digits."""
_BERNOULLI = [
    Fraction(*pair) for pair in (
        (1, 12), (-1, 120), (1, 252), (-1, 240), (1, 132), (-691, 32760), (1, 12), (-3617, 8160), (43867, 14364),
        (-174611, 6600),
    )
]  # fmt: skip
"""B(2k) / 2k from k = 1."""
_PI = decimal.Decimal("3.141592653589793238462643383279502884197169399375106")
_HALF_LOG_TWO_PI = decimal.Decimal("0.9189385332046727417803297364056176398613974736377834")


def _lgamma_in_decimals(x: float) -> float:
    """Stirling's series after steps up, in 45 digits, since terms cancel."""
    with decimal.localcontext(prec=45):
        up, product = decimal.Decimal(x), decimal.Decimal(1)
        for _ in range(STEPS):
            product *= up
            up += 1
        s, power, series = 1 / (up * up), 1 / up, decimal.Decimal(0)
        for k, b in enumerate(_BERNOULLI):
            series += power * b.numerator / (b.denominator * (2 * k + 1))
            power *= s
        half = decimal.Decimal("0.5")
        return float((up - half) * up.ln() - up + _HALF_LOG_TWO_PI + series - product.ln())


def _digamma_in_decimals(x: float) -> float:
    """The asymptotic series after steps up, in 45 digits, since terms cancel."""
    with decimal.localcontext(prec=45):
        up, total = decimal.Decimal(x), decimal.Decimal(0)
        for _ in range(STEPS):
            total -= 1 / up
            up += 1
        s, series = 1 / (up * up), decimal.Decimal(0)
        for b in reversed(_BERNOULLI):
            series = (series + decimal.Decimal(b.numerator) / b.denominator) * s
        return float(total + up.ln() - 1 / (2 * up) - series)


def digamma_scalar(x: float) -> float:
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == math.inf:
        return x
    if x == 0:
        return -math.copysign(math.inf, x)
    if x < 0 and x == math.floor(x):
        return math.nan
    if -1e-300 < x < 0:
        return -1 / x
    if x < 0:
        return math.fsum((digamma_scalar(-x), -1 / x, -math.pi / math.tan(math.pi * math.remainder(x, 1.0))))
    if x < 12:
        return _digamma_in_decimals(x)
    s = 1 / (x * x)
    series = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * (691 / 32760 - s / 12))))))
    return math.log(x) - 0.5 / x - series


def erf_inv_scalar(x: float) -> float:
    """The inverse of erf: Giles' first guess, then Newton's iteration on erf or erfc."""
    if math.isnan(x) or abs(x) > 1:
        return math.nan
    if abs(x) == 1:
        return math.copysign(math.inf, x)
    if x == 0:
        return x
    a = abs(x)
    w = -math.log1p(-a * a)
    guess = _winitzki(w)
    for _ in range(4):
        error = math.erf(guess) - a if a < 0.5 else (1 - a) - math.erfc(guess)
        slope = 2 / math.sqrt(math.pi) * math.exp(-guess * guess)
        if slope == 0:
            break
        step = error / slope
        guess -= step / (1 + guess * step)
    return math.copysign(guess, x)


def _winitzki(w: float) -> float:
    """Winitzki's approximation of erf_inv(x) from w = -log(1 - x^2), to some 0.2 %."""
    c = 2 / (math.pi * 0.147) - w / 2
    return math.sqrt(math.sqrt(c * c + w / 0.147) - c)


def bessel_scaled(order: int) -> Callable[[float], float]:
    """exp(-|x|) * I_order(x), by the series for small x and the asymptotic expansion for large."""

    def apply(x: float) -> float:
        if math.isnan(x):
            return x
        a = abs(x)
        value = _bessel_series(order, a) if a < 30 else _bessel_asymptotic(order, a)
        return math.copysign(value, x) if order == 1 else value

    return apply


def _bessel_series(order: int, a: float) -> float:
    """In 40 digits: e**a magnifies the rounding of a**2."""
    with decimal.localcontext(prec=40):
        x = decimal.Decimal(a)
        term = decimal.Decimal(1) if order == 0 else x / 2
        total, k, square = term, 1, x * x / 4
        while term > total * decimal.Decimal("1e-20"):
            term *= square / (k * (k + order))
            total, k = total + term, k + 1
        return float(total * (-x).exp())


def _bessel_asymptotic(order: int, a: float) -> float:
    if math.isinf(a):
        return 0.0
    with decimal.localcontext(prec=30):
        x, term, total = decimal.Decimal(a), decimal.Decimal(1), decimal.Decimal(1)
        for k in range(1, 30):
            term *= ((2 * k - 1) ** 2 - 4 * order * order) / (k * 8 * x)
            total += term
            if abs(term) < decimal.Decimal("1e-20"):
                break
        return float(total / (2 * _PI * x).sqrt())
