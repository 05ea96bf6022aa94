"""The scalar ops that `Apply` names: one record each, with its arity, how it is emitted, and its meaning in NumPy.

Names are HLO opcodes with `_` for `-` (`shift_left`, `count_leading_zeros`, `round_nearest_even`), and besides them:

- `eq ne lt le gt ge`: predicates of two values of one type. Floats compare as IEEE says (only `ne` holds for a NaN).
- `select(predicate, on_true, on_false)`, `clamp(low, x, high)`.
- `convert(x)` to the Apply's element type as StableHLO converts (float to integer saturates, NaN gives 0).
- `bitcast(x)`: the same bits, of an element type of the same width.
- `fma(a, b, c)` = a * b + c, rounded once.
- `floor_divide(a, b)`, `modulo(a, b)`: of integers, rounding down; `b` is positive. For index arithmetic.
- `reduce_precision(x, exponent_bits, mantissa_bits)`: the last two are integer `Const`s.
- `total_order_key(x)`: the float's bits as a signed integer of its width that orders as IEEE totalOrder does.

Integer ops wrap; division follows StableHLO (x / 0 = -1 or all ones, x % 0 = x, MIN / -1 = MIN, MIN % -1 = 0); shifts by
the width or more give 0, or the sign for `shift_right_arithmetic`. `maximum` and `minimum` of floats give NaN when either
is, and -0 < +0. `real`, `imag` and `complex` do not exist here: lowering writes complex numbers as two reals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType, element_type
from fusile.base.errors import CompileError

Array = np.ndarray[Any, Any]
Meaning = Callable[[ElementType, list[Array]], Array]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One scalar op. `meaning(result element type, arguments)` computes it on NumPy arrays of equal shape.

    `is_math`: not native anywhere, `loops.math.expand` writes it with native ops. The facts below let transforms reason.
    """

    name: str
    arity: int
    meaning: Meaning
    is_math: bool = False
    is_commutative: bool = False
    is_predicate: bool = False
    """Whether the result is a predicate whatever the arguments' type."""

    def __call__(self, result: ElementType, *arguments: Array) -> Array:
        """The value on NumPy arrays, in `result`'s dtype. Raises CompileError when the arity is wrong."""
        if len(arguments) != self.arity:
            raise CompileError(f"scalar op {self.name} takes {self.arity} arguments, not {len(arguments)}")
        with np.errstate(all="ignore"):
            value = self.meaning(result, [np.asarray(a) for a in arguments])
        return np.asarray(value).astype(result.dtype, copy=False)


def _wide(x: Array) -> Array:
    """Floats narrower than 32 bits as f32: exact, and one rounding at the end gives the right bits for + - * / sqrt."""
    return x.astype(np.float32) if element_type(x.dtype).is_float and x.dtype.itemsize < 4 else x


def _plain(function: Callable[..., Array]) -> Meaning:
    """Narrow floats through f32, integers of fewer than 8 bits through s32/u32, wrapped back by `_wrap`."""
    return lambda result, xs: _wrap(result, function(*[_integer(_wide(x)) for x in xs]))


def _integer(x: Array) -> Array:
    kind = element_type(x.dtype)
    return x.astype(np.int32 if kind.is_signed else np.uint32) if kind.is_integer and kind.bits < 8 else x


def _wrap(result: ElementType, x: Array) -> Array:
    if not result.is_integer or result.bits >= 8:
        return x
    low = np.asarray(x).astype(np.int64) & ((1 << result.bits) - 1)
    return low - ((low >> (result.bits - 1)) << result.bits) if result.is_signed else low


def _double(function: Callable[..., Any]) -> Meaning:
    """Computed in f64, then rounded to the result's type."""
    return lambda result, xs: np.asarray(function(*[x.astype(np.float64) for x in xs]))


def _scalarwise(function: Callable[..., float]) -> Callable[..., Array]:
    return np.vectorize(function, otypes=[np.float64])


def _divide(a: Array, b: Array) -> Array:
    if not element_type(a.dtype).is_integer:
        return a / b
    return np.where(
        b == 0, a.dtype.type(0) - a.dtype.type(1), _truncated_quotient(a, np.where(b == 0, b.dtype.type(1), b))
    )


def _truncated_quotient(a: Array, b: Array) -> Array:
    quotient = a // b
    return quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    if not element_type(a.dtype).is_integer:
        return np.fmod(a, b)
    safe = np.where((b == 0) | (b == a.dtype.type(0) - a.dtype.type(1)), b.dtype.type(1), b)
    is_minus_one = np.asarray(b < 0) & (b == a.dtype.type(0) - a.dtype.type(1))
    return np.where(b == 0, a, np.where(is_minus_one, a.dtype.type(0), a - _truncated_quotient(a, safe) * safe))


def _power(a: Array, b: Array) -> Array:
    if not element_type(a.dtype).is_integer:
        return np.power(a, b)
    result, base, exponent = np.ones_like(a), a.copy(), np.where(b < 0, 0, b).astype(np.uint64)
    while exponent.any():
        result = np.where(exponent & np.uint64(1), result * base, result)
        base, exponent = base * base, exponent >> np.uint64(1)
    negative = (
        np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0)) if element_type(a.dtype).is_signed else 0
    )
    return np.where(b < 0, np.asarray(negative).astype(a.dtype), result)


def _extreme(function: Callable[..., Array], sign: int) -> Callable[..., Array]:
    """maximum (sign 1) or minimum (-1), NaN when either is, with -0 < +0."""

    def apply(a: Array, b: Array) -> Array:
        if not element_type(a.dtype).is_float:
            return function(a, b)
        zeros = (a == 0) & (b == 0)
        prefer_b = np.signbit(a) if sign > 0 else np.signbit(b)
        return np.where(zeros, np.where(prefer_b, b, a), function(a, b))

    return apply


def _shift(kind: str) -> Callable[..., Array]:
    def apply(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        unsigned, amount = np.dtype(f"u{a.dtype.itemsize}"), b.astype(np.int64) if b.dtype.itemsize < 8 else b
        large = (amount < 0) | (amount >= bits)
        safe = np.where(large, 0, amount).astype(unsigned)
        if kind == "arithmetic":
            signed = a.astype(np.dtype(f"i{a.dtype.itemsize}"))
            return (signed >> np.where(large, bits - 1, safe).astype(signed.dtype)).astype(a.dtype)
        moved = a.astype(unsigned) << safe if kind == "left" else a.astype(unsigned) >> safe
        return np.where(large, 0, moved).astype(unsigned).astype(a.dtype)

    return apply


def _narrow_shift(kind: str) -> Meaning:
    """Shifts of 2 and 4 bit integers go by their own width."""

    def apply(result: ElementType, xs: list[Array]) -> Array:
        if result.bits >= 8:
            return _shift(kind)(*xs)
        a, b = xs[0].astype(np.int32), xs[1].astype(np.int32)
        mask = (1 << result.bits) - 1
        b = np.where(b < 0, result.bits, b)
        if kind == "right":
            a = a & mask
        return _wrap(result, _shift("arithmetic" if kind == "arithmetic" else kind)(a, np.minimum(b, 31)))

    return apply


def _count(leading_zeros: bool) -> Meaning:
    def apply(result: ElementType, xs: list[Array]) -> Array:
        mask = (1 << result.bits) - 1
        count = (
            (lambda v: result.bits - (int(v) & mask).bit_length())
            if leading_zeros
            else (lambda v: (int(v) & mask).bit_count())
        )
        return np.vectorize(count, otypes=[np.int64])(xs[0])

    return apply


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x) | (x == 0), x, np.sign(x)) if element_type(x.dtype).is_float else np.sign(x)


def _round_afz(x: Array) -> Array:
    whole = np.trunc(x)
    return np.copysign(whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(x.dtype.type(1), x), x.dtype.type(0)), x)


def _convert(result: ElementType, xs: list[Array]) -> Array:
    (x,) = xs
    source = element_type(x.dtype)
    if result.is_predicate:
        return x != 0
    if source.is_float and result.is_integer:
        return _saturate(x.astype(np.float64), result)
    if source.is_integer and result.is_integer:
        return _wrap(result, x.astype(np.int64 if source.is_signed else np.uint64)).astype(result.dtype)
    if source.is_integer and result.is_float and result.bits < 32:
        return x.astype(np.float64 if source.bits <= 32 else np.float32).astype(result.dtype)
    return x.astype(result.dtype)


def _saturate(x: Array, result: ElementType) -> Array:
    low = -(1 << (result.bits - 1)) if result.is_signed else 0
    high = (1 << (result.bits - int(result.is_signed))) - 1
    clipped = [0 if math.isnan(v) else low if v <= low else high if v >= high else int(v) for v in np.ravel(x).tolist()]
    wide = np.array(clipped, dtype=np.int64 if result.is_signed else np.uint64)
    return wide.astype(result.dtype).reshape(x.shape)


def _bitcast(result: ElementType, xs: list[Array]) -> Array:
    return xs[0].view(result.dtype) if xs[0].ndim else xs[0].reshape(1).view(result.dtype)[0]


def _fma(result: ElementType, xs: list[Array]) -> Array:
    a, b, c = xs
    if result.bits < 32:
        return np.asarray(a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64))
    exact = np.vectorize(_exact_fma(result), otypes=[result.dtype])
    return np.asarray(exact(a, b, c))


def _exact_fma(result: ElementType) -> Callable[[Any, Any, Any], Any]:
    """One rounding, by rational arithmetic."""
    from fractions import Fraction

    def apply(a: Any, b: Any, c: Any) -> Any:
        product = np.float64(a) * np.float64(b)
        if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
            return result.dtype.type(product + np.float64(c))
        total = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if total == 0:
            return result.dtype.type(product + np.float64(c)) if product == 0 else result.dtype.type(0)
        return _round_fraction(total, result)

    return apply


def _round_fraction(value: Any, result: ElementType) -> Any:
    """`value` (a nonzero Fraction) to f32 or f64, ties to even, with denormals and overflow."""
    precision, lowest = (24, -149) if result.bits == 32 else (53, -1074)
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - precision
    exponent = max(exponent, lowest)
    scaled = round(magnitude / type(value)(2) ** exponent)
    while scaled > 1 << precision:
        exponent += 1
        scaled = round(magnitude / type(value)(2) ** exponent)
    try:
        rounded = math.ldexp(scaled, exponent)
    except OverflowError:
        rounded = math.inf
    return result.dtype.type(math.copysign(rounded, value))


def _reduce_precision(result: ElementType, xs: list[Array]) -> Array:
    exponent_bits, mantissa_bits = int(xs[1].flat[0]), int(xs[2].flat[0])
    x = xs[0].astype(np.float64)
    largest = 2.0 ** (1 << (exponent_bits - 1)) if exponent_bits < 11 else math.inf
    lowest = 2 - (1 << (exponent_bits - 1))
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, exponent - 1 - mantissa_bits)
    rounded = np.where(np.isfinite(x) & (x != 0), np.rint(x / step) * step, x)
    rounded = np.where(np.abs(rounded) >= largest, np.copysign(np.inf, x), rounded)
    flushed = np.where(np.abs(rounded) < 2.0**lowest, np.copysign(0.0, x), rounded)
    return flushed


def _total_order_key(result: ElementType, xs: list[Array]) -> Array:
    size = xs[0].dtype.itemsize
    bits = _bitcast(element_type(np.dtype(f"i{size}")), xs)
    return np.where(bits < 0, np.bitwise_xor(bits, np.iinfo(bits.dtype).max), bits)


def _is_finite(x: Array) -> Array:
    return np.isfinite(x)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return _extreme(np.minimum, -1)(_extreme(np.maximum, 1)(low, x), high)


def _not(x: Array) -> Array:
    return ~x


def _erf_inv(x: float) -> float:
    """Newton steps on erf from a normal quantile; good to f64's last few bits."""
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    if abs(x) < 1e-8:
        return x * math.sqrt(math.pi) / 2
    y = NormalDist().inv_cdf((1 - abs(x)) / 2) / -math.sqrt(2)
    for _ in range(2):
        error = math.erfc(y) - (1 - abs(x)) if y > 0.5 else abs(x) - math.erf(y)
        y += error * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return math.copysign(y, x)


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Reflection below 0, recurrence up to 10, then the asymptotic series."""
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return x if x > 0 else math.nan if x else math.copysign(math.inf, -x)
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * (x - math.floor(x)))
    total = 0.0
    while x < 10:
        total -= 1 / x
        x += 1
    inverse = 1 / (x * x)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse * (1 / 132)))))
    return total + math.log(x) - 0.5 / x - series


def _bessel_scaled(order: int) -> Callable[[float], float]:
    """exp(-|x|) I_order(x): the power series up to 30, then the asymptotic one."""

    def apply(x: float) -> float:
        a = abs(x)
        if a <= 30:
            term, total, k = (a / 2) ** order, 0.0, 0
            while term > total * 1e-18:
                total, k = total + term, k + 1
                term *= (a / 2) ** 2 / (k * (k + order))
            value = total * math.exp(-a)
        else:
            term, total = 1.0, 0.0
            for k in range(1, 30):
                total += term
                term *= -(4 * order * order - (2 * k - 1) ** 2) / (k * 8 * a)
            value = total / math.sqrt(2 * math.pi * a) if a < math.inf else a - a if math.isnan(a) else 0.0
        return math.copysign(value, x) if order else value

    return apply


def _table() -> dict[str, ScalarOp]:
    ops = [
        *(ScalarOp(n, 2, _plain(f), is_commutative=c) for n, f, c in _ARITHMETIC),
        *(ScalarOp(n, 1, _plain(f)) for n, f in _UNARY),
        *(ScalarOp(n, 2, _plain(f), is_predicate=True, is_commutative=n in ("eq", "ne")) for n, f in _COMPARISONS),
        *(ScalarOp(f"shift_{n}", 2, _narrow_shift(k)) for n, k in _SHIFTS),
        *(ScalarOp(n, 1, _double(f), is_math=True) for n, f in _UNARY_MATH),
        *(ScalarOp(n, 2, _double(f), is_math=True) for n, f in _BINARY_MATH),
        ScalarOp(
            "power", 2, lambda r, xs: _power(*(x.astype(np.float64) if r.is_float else x for x in xs)), is_math=True
        ),
        ScalarOp("remainder", 2, _plain(_remainder)),
        ScalarOp("next_after", 2, lambda r, xs: np.nextafter(*xs)),
        ScalarOp("is_finite", 1, _plain(_is_finite), is_predicate=True),
        ScalarOp("popcnt", 1, _count(leading_zeros=False)),
        ScalarOp("count_leading_zeros", 1, _count(leading_zeros=True)),
        ScalarOp("select", 3, lambda r, xs: np.where(*xs)),
        ScalarOp("clamp", 3, lambda r, xs: _clamp(*xs)),
        ScalarOp("fma", 3, _fma),
        ScalarOp("convert", 1, _convert),
        ScalarOp("bitcast", 1, _bitcast),
        ScalarOp("reduce_precision", 3, _reduce_precision),
        ScalarOp("total_order_key", 1, _total_order_key),
    ]
    return {op.name: op for op in ops}


_ARITHMETIC: list[tuple[str, Callable[..., Array], bool]] = [
    ("add", np.add, True),
    ("subtract", np.subtract, False),
    ("multiply", np.multiply, True),
    ("divide", _divide, False),
    ("maximum", _extreme(np.maximum, 1), True),
    ("minimum", _extreme(np.minimum, -1), True),
    ("and", np.bitwise_and, True),
    ("or", np.bitwise_or, True),
    ("xor", np.bitwise_xor, True),
    ("floor_divide", np.floor_divide, False),
    ("modulo", np.mod, False),
]
_UNARY: list[tuple[str, Callable[..., Array]]] = [
    ("abs", np.abs),
    ("negate", np.negative),
    ("sign", _sign),
    ("floor", np.floor),
    ("ceil", np.ceil),
    ("round_nearest_even", np.rint),
    ("round_nearest_afz", _round_afz),
    ("sqrt", np.sqrt),
    ("rsqrt", lambda x: x.dtype.type(1) / np.sqrt(x)),
    ("not", _not),
]
_COMPARISONS: list[tuple[str, Callable[..., Array]]] = [
    ("eq", np.equal),
    ("ne", np.not_equal),
    ("lt", np.less),
    ("le", np.less_equal),
    ("gt", np.greater),
    ("ge", np.greater_equal),
]
_SHIFTS = [("left", "left"), ("right_arithmetic", "arithmetic"), ("right_logical", "right")]
_UNARY_MATH: list[tuple[str, Callable[..., Any]]] = [
    ("exponential", np.exp),
    ("exponential_minus_one", np.expm1),
    ("log", np.log),
    ("log_plus_one", np.log1p),
    ("logistic", lambda x: 1 / (1 + np.exp(-x))),
    ("tanh", np.tanh),
    ("sine", np.sin),
    ("cosine", np.cos),
    ("tan", np.tan),
    ("cbrt", np.cbrt),
    ("asin", np.arcsin),
    ("acos", np.arccos),
    ("atan", np.arctan),
    ("sinh", np.sinh),
    ("cosh", np.cosh),
    ("asinh", np.arcsinh),
    ("acosh", np.arccosh),
    ("atanh", np.arctanh),
    ("erf", _scalarwise(math.erf)),
    ("erfc", _scalarwise(math.erfc)),
    ("erf_inv", _scalarwise(_erf_inv)),
    ("lgamma", _scalarwise(_lgamma)),
    ("digamma", _scalarwise(_digamma)),
    ("bessel_i0e", _scalarwise(_bessel_scaled(0))),
    ("bessel_i1e", _scalarwise(_bessel_scaled(1))),
]
_BINARY_MATH: list[tuple[str, Callable[..., Any]]] = [("atan2", np.arctan2)]

OPS: dict[str, ScalarOp] = _table()
"""Every scalar op by name."""


def scalar_op(name: str) -> ScalarOp:
    """The op of that name. Raises CompileError when there is none."""
    found = OPS.get(name)
    if found is None:
        raise CompileError(f"there is no scalar op {name!r}; the scalar ops are: {', '.join(OPS)}")
    return found
