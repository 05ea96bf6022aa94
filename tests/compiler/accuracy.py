"""Measures how far functions are from the exact ones, in units in the last place (ULP), over samples of each type.

An error of half a unit is a correctly rounded result. Below the normal range the unit is the least denormal; past the
largest number a result of infinity is right where rounding to nearest gives it. Domain errors, poles, infinities, NaN
and the signs of zeros must be exactly as the references in f64 have them, else the error is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import scipy.special
from mpmath import mpf

import fusile
from fusile.base.element_type import BF16, F16, F32, F64, ElementType
from fusile.base.settings import Settings
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder

Array = np.ndarray[Any, Any]
PRECISION = {"bf16": (8, -133, 128), "f16": (11, -24, 16), "f32": (24, -149, 128), "f64": (53, -1074, 1024)}
"""Significant bits, the exponent of the least denormal, and one above the greatest exponent."""


@dataclass(frozen=True)
class Function:
    """One function: near it in f64 (with every edge right), exactly in mpmath (where finite), and where it is hard."""

    near: Callable[..., Array]
    exact: Callable[..., Any]
    hard: tuple[float, ...] = ()
    """Points near which samples are dense: zeros, poles, ends of the domain, where an implementation changes method."""
    cancels_below_zero: bool = False
    """Whether terms cancel at negative x: in f64 the unit there is at least that of 1 and of the function at -x."""


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


def _bessel(order: int) -> Callable[[Any], Any]:
    def exact(x: mpf) -> mpf:
        a = abs(x)
        value = _bessel_far(order, a) if a > 300 else mpmath.besseli(order, a) * mpmath.exp(-a)
        return -value if order and x < 0 else value

    return exact


def _bessel_far(order: int, a: mpf) -> mpf:
    """The asymptotic expansion, whose terms fall below 2**-200 for a > 300 before they grow."""
    term = total = mpf(1)
    for k in range(1, 200):
        term *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k * a)
        if abs(term) < mpf(2) ** -200:
            break
        total += term
    return total / mpmath.sqrt(2 * mpmath.pi * a)


def _erf_inv(x: mpf) -> mpf:
    """Newton's iteration in 50 digits from SciPy's guess."""
    a = float(abs(x))
    rest = 1 - abs(x)
    y = mpf(float(scipy.special.erfinv(a)) if a < 0.9 else float(scipy.special.erfcinv(float(rest))))
    for _ in range(4):
        off = (rest - mpmath.erfc(y)) if a > 0.5 else mpmath.erf(y) - abs(x)
        y -= off * mpmath.exp(y * y) * mpmath.sqrt(mpmath.pi) / 2
    return mpmath.sign(x) * y


def _lgamma(x: mpf) -> mpf:
    if x > 0:
        return mpmath.loggamma(x) if x < mpf(10) ** 30 else x * (mpmath.log(x) - 1) - mpmath.log(x) / 2
    return mpmath.log(mpmath.pi / abs(x * mpmath.sinpi(x))) - _lgamma(-x)


def _digamma(x: mpf) -> mpf:
    if x > 0:
        return mpmath.digamma(x)
    return mpmath.digamma(1 - x) - mpmath.pi * mpmath.cospi(x) / mpmath.sinpi(x)


HALF_TURNS = tuple(k * math.pi / 2 for k in (1, 2, 3, 4, 7, 8, 100, 1001))
FUNCTIONS: dict[str, Function] = {
    "exponential": Function(np.exp, mpmath.exp, (88.72, -87.3, -103.9, 709.78, -708.4, -745.1, 11.09, -17.3)),
    "exponential-minus-one": Function(np.expm1, mpmath.expm1, (0.3, -0.3, 88.72, 709.78, -17.0, -37.0)),
    "log": Function(np.log, mpmath.log, (1.0, math.sqrt(0.5), math.sqrt(2))),
    "log-plus-one": Function(np.log1p, mpmath.log1p, (-1.0, 1.0, -0.5)),
    "logistic": Function(_logistic, lambda x: 1 / (1 + mpmath.exp(-x)), (-87.3, -103.9, -708.4, -745.1, 17.0, 37.0)),
    "tanh": Function(np.tanh, mpmath.tanh, (0.6, 9.0, 19.0)),
    "sine": Function(np.sin, mpmath.sin, (*HALF_TURNS, 2.0**15, 2.0**45)),
    "cosine": Function(np.cos, mpmath.cos, (*HALF_TURNS, 2.0**15, 2.0**45)),
    "tan": Function(np.tan, mpmath.tan, (*HALF_TURNS, math.pi / 4, 2.0**15, 2.0**45)),
    "asin": Function(np.arcsin, mpmath.asin, (1.0, -1.0, 0.5)),
    "acos": Function(np.arccos, mpmath.acos, (1.0, -1.0, 0.5, 0.0)),
    "atan": Function(np.arctan, mpmath.atan, (1.0, math.tan(math.pi / 8), 1 / math.tan(math.pi / 8))),
    "sinh": Function(np.sinh, mpmath.sinh, (9.0, 20.0, 89.4, 710.4)),
    "cosh": Function(np.cosh, mpmath.cosh, (9.0, 20.0, 89.4, 710.4)),
    "asinh": Function(np.arcsinh, mpmath.asinh, (1.0, 1e8)),
    "acosh": Function(np.arccosh, mpmath.acosh, (1.0, 2.0, 1e8)),
    "atanh": Function(np.arctanh, mpmath.atanh, (1.0, -1.0, 0.5)),
    "sqrt": Function(np.sqrt, mpmath.sqrt),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), lambda x: 1 / mpmath.sqrt(x), (1.0,)),
    "cbrt": Function(np.cbrt, lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), (1.0, 8.0, 27.0, -1.0)),
    "erf": Function(scipy.special.erf, mpmath.erf, (1.15, 1.0, 0.5, 3.95, 5.9)),
    "erfc": Function(
        scipy.special.erfc, lambda x: mpmath.erfc(max(min(x, 1e4), -1e4)), (0.5, 1.0, 4.0, 10.05, 9.2, 26.5, 27.2, -5.8)
    ),
    "erf-inv": Function(lambda x: np.copysign(scipy.special.erfinv(x), x), _erf_inv, (1.0, -1.0, 0.5, 0.84)),
    "lgamma": Function(
        lambda x: np.where(
            np.isinf(x), np.inf, np.where(np.abs(x) < 1e-99, -np.log(np.abs(x)), scipy.special.gammaln(x))
        ),
        _lgamma,
        (1.0, 2.0, 0.5, 2.5, 8.0, -1.0, -2.4570247382208, -2.7476826467274, -3.1435808883499, -3.9552942848585),
        cancels_below_zero=True,
    ),
    "digamma": Function(
        lambda x: np.where(x == -np.inf, np.nan, scipy.special.digamma(x)),
        _digamma,
        (1.4616321449683622, -0.504083008264455, -1.573498473162390, -2.6107208684441, 1.0, 2.0, 0.5, -1.0, 10.0),
        cancels_below_zero=True,
    ),
    "bessel-i0e": Function(scipy.special.i0e, _bessel(0), (8.0, 20.0, 30.0)),
    "bessel-i1e": Function(lambda x: np.copysign(scipy.special.i1e(x), x), _bessel(1), (8.0, 20.0, 30.0)),
    "power": Function(np.power, mpmath.power, (1.0, 2.0, 0.5)),
    "atan2": Function(np.arctan2, mpmath.atan2, (1.0,)),
}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, math.inf, -math.inf, math.nan, 100.0, -100.0)


def computed(opcode: str, kind: ElementType, arrays: list[Array], target: str = "cpu") -> Array:
    """The op's values by a whole compilation (or the interpreter)."""
    b = Builder(opcode.replace("-", "_"))
    parameters = [b.parameter(Shape(kind, a.shape)) for a in arrays]
    module = b.module(getattr(b, opcode.replace("-", "_"))(*parameters))
    return np.asarray(fusile.compile(module, target, Settings(cache=False, threads=1)).call_flat(arrays)[0])


# -- samples


def every(kind: ElementType) -> Array:
    """Every value of a type of 16 bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(kind.dtype)


def _finfo(kind: ElementType) -> tuple[float, float, float]:
    precision, least, above = PRECISION[kind.name]
    return 2.0**least, 2.0 ** (least + precision - 1), 2.0 ** (above - 1) * (2 - 2.0 ** (1 - precision))


def sample(opcode: str, kind: ElementType, count: int, seed: int = 0) -> list[Array]:
    """About `count` arguments: all exponents, moderate ones, ones close to the function's hard points, and edges."""
    random = np.random.default_rng(seed)
    if opcode == "power":
        return _powers(kind, count, random)
    if opcode == "atan2":
        pairs = [_spread(kind, count, random) for _ in range(2)]
        with np.errstate(all="ignore"):
            alike = pairs[0][: count // 2].astype(np.float64) * random.normal(0, 1, count // 2)
            pairs[1][: count // 2] = alike.astype(kind.dtype)
        return [np.concatenate([p, e]) for p, e in zip(pairs, _edge_pairs(kind), strict=True)]
    hard = np.array(FUNCTIONS[opcode].hard or (1.0,))
    where = random.choice(hard, count // 4)
    distance = 2.0 ** random.uniform(-PRECISION[kind.name][0], 0, where.size) * random.choice([-1, 1], where.size)
    with np.errstate(all="ignore"):
        close = (where * (1 + distance)).astype(kind.dtype)
    return [np.concatenate([_spread(kind, count * 3 // 4, random), close, _edges(kind), hard.astype(kind.dtype)])]


def _spread(kind: ElementType, count: int, random: np.random.Generator) -> Array:
    bits = np.dtype(f"u{kind.bytes}")
    any_bits = random.integers(0, 1 << kind.bits, count // 2, dtype=np.uint64).astype(bits).view(kind.dtype)
    scale = random.choice([0.1, 1, 10, 100], count - count // 2)
    return np.concatenate([any_bits, (random.normal(0, 1, scale.size) * scale).astype(kind.dtype)])


def _edges(kind: ElementType) -> Array:
    least, normal, largest = _finfo(kind)
    more = (least, -least, normal, -normal, normal - least, largest, -largest, 1e3, 1e-3)
    whole = [float(i) for i in range(-40, 41)]
    values = np.array((*SPECIAL, *more, *whole, *(i + 0.5 for i in whole))).astype(kind.dtype)
    return values


def _edge_pairs(kind: ElementType) -> tuple[Array, Array]:
    least, normal, largest = _finfo(kind)
    values = np.array((*SPECIAL, least, -least, normal, largest, -largest)).astype(kind.dtype)
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def _powers(kind: ElementType, count: int, random: np.random.Generator) -> list[Array]:
    """Bases of all exponents with powers that mostly stay in range; bases near 1 with large powers; whole powers."""
    third = count // 3
    bases = _spread(kind, third, random)
    with np.errstate(all="ignore"):
        size = np.abs(np.log2(np.maximum(np.abs(bases.astype(np.float64)), 1e-300)))
        powers = random.uniform(-1.1, 1.1, third) * PRECISION[kind.name][2] / np.where(size > 0, size, 1)
        near_one = 1 + random.normal(0, 1, third) * 2.0 ** -random.uniform(2, PRECISION[kind.name][0], third)
        large = random.uniform(-1.1, 1.1, third) * PRECISION[kind.name][2] / np.maximum(np.abs(np.log2(near_one)), 1e-9)
        whole = random.integers(-20, 20, third).astype(np.float64)
        any_base = random.normal(0, 3, third)
        x = np.concatenate([np.abs(bases.astype(np.float64)), near_one, any_base]).astype(kind.dtype)
        y = np.concatenate([powers, large, whole]).astype(kind.dtype)
    return [np.concatenate([p, e]) for p, e in zip((x, y), _edge_pairs(kind), strict=True)]


# -- errors


@dataclass(frozen=True)
class Error:
    """The largest error of a sample, and where."""

    units: float
    at: tuple[float, ...] = ()
    got: float = math.nan
    wanted: float = math.nan
    count: int = 0


def _units_near(got: Array, wanted: Array, kind: ElementType) -> Array:
    """Errors of f32 and narrower against f64 references."""
    precision, least, above = PRECISION[kind.name]
    with np.errstate(all="ignore"):
        value = got.astype(np.float64)
        _, exponent = np.frexp(np.where(np.isfinite(wanted), wanted, 1.0))
        unit = np.ldexp(1.0, np.clip(exponent - precision, least, above - precision))
        largest = math.inf if kind is F64 else 2.0**above
        error = np.abs(np.clip(value, -largest, largest) - wanted) / unit
        overflow = (np.abs(wanted) >= largest - unit / 2) & (value == np.copysign(np.inf, wanted))
    special = ~np.isfinite(wanted) | (wanted == 0)
    same = (value == wanted) & (np.signbit(value) == np.signbit(wanted)) | (np.isnan(value) & np.isnan(wanted))
    error = np.where(overflow | same, 0, np.where(special | np.isnan(value), np.inf, error))
    sign = np.signbit(value) == np.signbit(wanted)
    return np.where(sign | np.isnan(wanted) | (error == 0), error, np.where(value == 0, np.inf, error))


def units_exact(got: float, exact: mpf, kind: ElementType, least_size: float = 0.0) -> float:
    """The error of one result against a number in high precision, in units of it or of `least_size` if that is
    larger."""
    precision, least, above = PRECISION[kind.name]
    if math.isnan(got):
        return math.inf
    if exact == 0:
        return 0.0 if got == 0 else math.inf
    exponent = max(mpmath.frexp(exact)[1], math.frexp(least_size)[1] if least_size else -99999)
    unit = mpmath.ldexp(1, min(max(exponent - precision, least), above - precision))
    largest = mpmath.ldexp(1, above)
    if math.isinf(got):
        if (got > 0) == (exact > 0) and abs(exact) >= largest - unit / 2:
            return 0.0
        return float(abs((largest if got > 0 else -largest) - exact) / unit)
    return float(abs(mpf(got) - exact) / unit)


def measure(opcode: str, kind: ElementType, arrays: list[Array], target: str = "cpu", most: int | None = None) -> Error:
    """The largest error of an op. With mpmath everywhere, or (f32 and narrower) at the `most` worst by f64 references
    and as many others."""
    function = FUNCTIONS[opcode]
    got = computed(opcode, kind, arrays, target)
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64) for a in arrays]
        wanted = function.near(*wide)
    finite = np.isfinite(wanted) & (wanted != 0)
    if kind is F64:  # where f64 overflows or is 0 for being small, mpmath can tell by how much
        finite |= (np.isinf(wanted) | (wanted == 0)) & ~_is_exact(opcode, wide)
    for x in wide:
        finite &= np.isfinite(x)
    if opcode == "atan2":
        finite &= wide[0] != 0
    near = _units_near(got, wanted, kind)
    edge = np.where(finite, 0, near)
    worst = int(np.argmax(edge))
    if edge[worst] > 0.5:
        return Error(math.inf, tuple(x[worst] for x in wide), float(got[worst]), float(wanted[worst]), got.size)
    places = np.flatnonzero(finite)
    if most is not None and places.size > 2 * most:
        order = places[np.argsort(-near[places])]
        others = np.random.default_rng(0).choice(order[most:], most, replace=False)
        places = np.concatenate([order[:most], others])
    return _worst(function, kind, wide, got, places)


def _is_exact(opcode: str, wide: list[Array]) -> Array:
    """Where a result of infinity or 0 is no rounded one."""
    if opcode in ("exponential", "exponential-minus-one", "sinh", "cosh", "logistic", "erfc"):
        return wide[0] == 0
    if opcode in ("power", "atan2"):
        return (wide[0] == 0) | (wide[1] == 0)
    return np.ones(wide[0].shape, bool)


def _worst(function: Function, kind: ElementType, wide: list[Array], got: Array, places: Array) -> Error:
    worst = Error(0.0, count=int(places.size))
    with mpmath.workprec(200):
        for at, *xs in zip(places.tolist(), *(x[places].tolist() for x in wide), strict=True):
            value = function.exact(*map(mpf, xs))
            result = float(got[at])
            cancels = function.cancels_below_zero and kind is F64 and xs[0] < 0
            units = units_exact(
                result, value, kind, max(1.0, float(abs(function.exact(-mpf(xs[0]))))) if cancels else 0.0
            )
            if units > worst.units:
                worst = Error(units, tuple(xs), result, float(value), int(places.size))
    return worst


TYPES = (BF16, F16, F32, F64)
