"""Transcendental functions, written once against an interface of native scalar ops.

`expand(writer, op, arguments, element_type)` writes a function with `writer.apply` and `writer.constant`: the code
generator's writer emits instructions, on whole vectors; tests give one that computes with NumPy. No tables and no
branches, so everything vectorizes, and the same bits come out on every machine with fused multiply-add.

The functions met most (exponential, log, tanh, logistic, erf, sine, cosine of f32) stay in f32; the rest of f32 is computed
in f64 and rounded. Coefficients are interpolations at Chebyshev nodes, computed with 60 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fusile.base.element_type import F32, F64, PRED, S32, S64, ElementType
from fusile.base.errors import CompileError

Val = Any
"""Whatever the writer computes with."""


class Writer(Protocol):
    """What the expansions are written against."""

    def apply(self, op: str, arguments: list[Val], result: ElementType) -> Val: ...

    def constant(self, number: float | int | bool, element_type: ElementType) -> Val: ...


class Ops:
    """Arithmetic in one float type, in short names."""

    def __init__(self, writer: Writer, element_type: ElementType) -> None:
        self.writer, self.type = writer, element_type
        self.integer = S32 if element_type is F32 else S64

    def c(self, number: float) -> Val:
        return self.writer.constant(number, self.type)

    def i(self, number: int) -> Val:
        return self.writer.constant(number, self.integer)

    def _float(self, op: str, *xs: Val) -> Val:
        return self.writer.apply(op, list(xs), self.type)

    def _integer(self, op: str, *xs: Val) -> Val:
        return self.writer.apply(op, list(xs), self.integer)

    def add(self, a: Val, b: Val) -> Val:
        return self._float("add", a, b)

    def sub(self, a: Val, b: Val) -> Val:
        return self._float("subtract", a, b)

    def mul(self, a: Val, b: Val) -> Val:
        return self._float("multiply", a, b)

    def div(self, a: Val, b: Val) -> Val:
        return self._float("divide", a, b)

    def fma(self, a: Val, b: Val, c: Val) -> Val:
        return self._float("fma", a, b, c)

    def neg(self, a: Val) -> Val:
        return self._float("negate", a)

    def abs(self, a: Val) -> Val:
        return self._float("abs", a)

    def sqrt(self, a: Val) -> Val:
        return self._float("sqrt", a)

    def round(self, a: Val) -> Val:
        return self._float("round_nearest_even", a)

    def min(self, a: Val, b: Val) -> Val:
        return self._float("minimum", a, b)

    def max(self, a: Val, b: Val) -> Val:
        return self._float("maximum", a, b)

    def test(self, direction: str, a: Val, b: Val) -> Val:
        return self.writer.apply(direction, [a, b], PRED)

    def both(self, a: Val, b: Val) -> Val:
        return self.writer.apply("and", [a, b], PRED)

    def either(self, a: Val, b: Val) -> Val:
        return self.writer.apply("or", [a, b], PRED)

    def pick(self, p: Val, a: Val, b: Val) -> Val:
        return self._float("select", p, a, b)

    def bits(self, a: Val) -> Val:
        return self.writer.apply("bitcast", [a], self.integer)

    def from_bits(self, a: Val) -> Val:
        return self.writer.apply("bitcast", [a], self.type)

    def to_integer(self, a: Val) -> Val:
        return self.writer.apply("convert", [a], self.integer)

    def to_float(self, a: Val) -> Val:
        return self.writer.apply("convert", [a], self.type)

    def iadd(self, a: Val, b: Val) -> Val:
        return self._integer("add", a, b)

    def isub(self, a: Val, b: Val) -> Val:
        return self._integer("subtract", a, b)

    def iand(self, a: Val, b: Val) -> Val:
        return self._integer("and", a, b)

    def shift_left(self, a: Val, bits: int) -> Val:
        return self._integer("shift_left", a, self.i(bits))

    def shift_right(self, a: Val, bits: int) -> Val:
        return self._integer("shift_right_arithmetic", a, self.i(bits))

    def poly(self, x: Val, coefficients: Sequence[float]) -> Val:
        """Horner's scheme; coefficients from the lowest."""
        value = self.c(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            value = self.fma(value, x, self.c(coefficient))
        return value

    def signed_like(self, magnitude: Val, sign: Val) -> Val:
        """`magnitude` (at least 0) with the sign of `sign`."""
        return self._float("copysign", magnitude, sign)

    def is_nan(self, x: Val) -> Val:
        return self.test("ne", x, x)

    @property
    def fraction_bits(self) -> int:
        return 23 if self.type is F32 else 52

    @property
    def bias(self) -> int:
        return 127 if self.type is F32 else 1023


EXP_32 = (0.5, 0.166665770255979882, 0.041666554662050534, 0.0083631730745137109, 0.00139261761199355789)
EXP_64 = (0.5, 0.16666666666666671, 0.0416666666666666698, 0.00833333333332614088, 0.00138888888888837524, 0.00019841269874800492,
          0.0000248015873255333638, 2.75572554257464343e-6, 2.75572736613486362e-7, 2.51052063739570111e-8, 2.09146793765839351e-9)  # fmt: skip
LOG_32 = (0.333333311800300481, -0.24999996957950882, 0.200007157488921017, -0.166678023195012541, 0.142490576456974804,
          -0.124256873314511061, 0.116854199234867393, -0.114797338466376356, 0.0697161147145117783)  # fmt: skip
LOG_64 = (0.666666666666666665, 0.400000000000008775, 0.285714285708032947, 0.222222223917857996, 0.181817956324521624,
          0.15386240120567022, 0.132687619513300205, 0.130867431391190717)  # fmt: skip
TANH_32 = (-0.333333331493745071, 0.133333001461889147, -0.0539584616274522014, 0.0217625029073592639, -0.00832318705827877452,
           0.00226950168416235399)  # fmt: skip
TANH_64 = (-0.333333333333333333, 0.133333333333333326, -0.0539682539682528093, 0.0218694885360807442, -0.00886323552740131713,
           0.00359212798614486317, -0.00145583372647722302, 0.000590021545650909688, -0.000239092256079377845,
           0.0000967517521832643838, -0.0000387620273201335204, 0.0000147746327455153268, -4.71751842550832095e-6,
           8.95606454815865575e-7)  # fmt: skip
ERF_32 = (1.12837916584835095, -0.37612626666720331, 0.112835947151602177, -0.0268542120106264124, 0.00518908742343397399,
          -0.000801686428716586953, 0.0000787587506268548834)  # fmt: skip
ERFC_LOG_32 = (0.000433129184860476117, -1.13075122586431853, -0.630804569540366187, -0.111218926411843213, 0.0272124594974306264,
               -0.00511536718853116709, 0.000700442214114050198, -0.0000649494378761415546, 3.59571094162837262e-6,
               -8.81347590629784772e-8)  # fmt: skip
ERF_64 = (1.12837916709551257, -0.376126389031837524, 0.112837916709551202, -0.0268661706451298408, 0.00522397762542329831,
          -0.00085483270219348296, 0.000120553329028887354, -0.0000149256475675193321, 1.64620454414684189e-6, -1.63646421581676153e-7,
          1.4792401209404813e-8, -1.21645600572834501e-9, 8.70904512905310669e-11, -4.23094582429533782e-12)  # fmt: skip
ERFC_64 = (0.564189569360604898, 1.02695231576238141e-6, -0.282129707733349221, 0.000742185003313193115, 0.412072104659454711,
           0.123199541776625581, -2.11907175631969529, 7.23674174138348457, -35.8796136148604257, 174.590733699499941,
           -636.550083368583492, 1754.8845179062779, -3802.36018378021157, 6652.90141391893313, -9547.42713848986253,
           11319.5551629391916, -11099.1021095897495, 8962.34202444163025, -5903.50995227617276, 3122.83163783678251,
           -1294.94492371400043, 405.463159760957557, -90.1300135411956884, 12.6748105921364416, -0.847603849699803293)  # fmt: skip
ERFC_FAR_64 = (0.564189583547756206, -0.282094791773717012, 0.423142187537942176, -1.05785542075906941, 3.70248292809744505,
               -16.6595797905943181, 91.4777669937893177, -585.275832721124036, 4009.00548815446075, -24297.6502419137382,
               87314.8230479779713)  # fmt: skip
SIN_32 = (-0.166666666636240228, 0.00833333178567172974, -0.000198400391130122136, 2.72438119752581066e-6)
COS_32 = (0.0416666666641282058, -0.00138888875977067464, 0.0000248005606306063435, -2.72958563395460023e-7)
SIN_64 = (-0.166666666666666667, 0.00833333333333333126, -0.000198412698412645685, 2.75573192189567317e-6, -2.50521061009266732e-8,
          1.60585109795353505e-10, -7.58549250782123976e-13)  # fmt: skip
COS_64 = (0.0416666666666666667, -0.00138888888888888877, 0.0000248015873015843704, -2.75573192211901992e-7, 2.08767557179572941e-9,
          -1.14704494124097097e-11, 4.74520215570235903e-14)  # fmt: skip
ATAN_64 = (-0.333333333333333333, 0.199999999999999906, -0.14285714285711227, 0.111111111107210525, -0.0909090906500884342,
           0.0769230666608845287, -0.0666664047661281187, 0.058819028860808922, -0.0525782587643681232, 0.0471802454590135043,
           -0.0409892521204691833, 0.0305086382107129161, -0.013790276896186757)  # fmt: skip


def exponential(o: Ops, x: Val) -> Val:
    """e**x: x = n log 2 + r, a polynomial of r, and 2**n in two factors so that denormal results round once."""
    narrow = o.type is F32
    low, high = (-104.5, 89.0) if narrow else (-746.0, 710.0)
    y = o.max(o.min(x, o.c(high)), o.c(low))
    n = o.round(o.mul(y, o.c(1 / math.log(2))))
    if narrow:
        r = o.fma(n, o.c(-0.693145751953125), y)
        r = o.fma(n, o.c(-1.428606765330187e-06), r)
    else:
        r = o.fma(n, o.c(-0.6931471805599453), y)
        r = o.fma(n, o.c(-2.3190468138462996e-17), r)
    tail = o.mul(o.mul(r, r), o.poly(r, EXP_32 if narrow else EXP_64))
    value = o.add(o.c(1.0), o.add(r, tail))
    whole = o.to_integer(o.pick(o.is_nan(n), o.c(0.0), n))
    half = o.shift_right(whole, 1)
    return o.mul(o.mul(value, _power_of_two(o, half)), _power_of_two(o, o.isub(whole, half)))


def _power_of_two(o: Ops, n: Val) -> Val:
    return o.from_bits(o.shift_left(o.iadd(n, o.i(o.bias)), o.fraction_bits))


def _mantissa_and_exponent(o: Ops, x: Val) -> tuple[Val, Val]:
    """x = m 2**e with m in [sqrt(1/2), sqrt(2)), denormals included; e as a float."""
    tiny = o.test("lt", x, o.c(2.0**-126 if o.type is F32 else 2.0**-1022))
    scale = 25 if o.type is F32 else 54
    scaled = o.pick(tiny, o.mul(x, o.c(2.0**scale)), x)
    bits = o.bits(scaled)
    offset = 0x3F3504F3 if o.type is F32 else 0x3FE6A09E667F3BCD
    shifted = o.isub(bits, o.i(offset))
    exponent = o.to_float(o.shift_right(shifted, o.fraction_bits))
    mask = (1 << o.fraction_bits) - 1
    mantissa = o.from_bits(o.iadd(o.iand(shifted, o.i(mask)), o.i(offset)))
    return mantissa, o.add(exponent, o.pick(tiny, o.c(-float(scale)), o.c(0.0)))


def log(o: Ops, x: Val) -> Val:
    """Natural logarithm: -inf at 0, NaN below."""
    m, e = _mantissa_and_exponent(o, x)
    f = o.sub(m, o.c(1.0))
    if o.type is F32:
        square = o.mul(f, f)
        tail = o.mul(o.mul(square, f), o.poly(f, LOG_32))
        tail = o.fma(e, o.c(1.428606765330187e-06), tail)
        value = o.fma(e, o.c(0.693145751953125), o.add(f, o.fma(square, o.c(-0.5), tail)))
    else:
        s = o.div(f, o.add(o.c(2.0), f))
        z = o.mul(s, s)
        half = o.mul(o.mul(f, f), o.c(0.5))
        tail = o.mul(s, o.add(half, o.mul(z, o.poly(z, LOG_64))))
        tail = o.fma(e, o.c(1.9082149292705877e-10), tail)
        value = o.fma(e, o.c(0.6931471803691238), o.sub(f, o.sub(half, tail)))
    value = o.pick(o.test("eq", x, o.c(math.inf)), o.c(math.inf), value)
    value = o.pick(o.test("eq", x, o.c(0.0)), o.c(-math.inf), value)
    value = o.pick(o.test("lt", x, o.c(0.0)), o.c(math.nan), value)
    return o.pick(o.is_nan(x), x, value)


def tanh(o: Ops, x: Val) -> Val:
    """An odd polynomial near 0, 1 - 2 / (e**2x + 1) beyond."""
    a = o.abs(x)
    z = o.mul(x, x)
    near = o.fma(o.mul(z, x), o.poly(z, TANH_32 if o.type is F32 else TANH_64), x)
    e = exponential(o, o.mul(o.min(a, o.c(20.0)), o.c(2.0)))
    far = o.sub(o.c(1.0), o.div(o.c(2.0), o.add(e, o.c(1.0))))
    return o.pick(o.test("lt", a, o.c(0.625)), near, o.pick(o.is_nan(x), x, o.signed_like(far, x)))


def logistic(o: Ops, x: Val) -> Val:
    return o.div(o.c(1.0), o.add(o.c(1.0), exponential(o, o.neg(x))))


def erf(o: Ops, x: Val) -> Val:
    """x P(x**2) up to 1; beyond, 1 - erfc."""
    a = o.abs(x)
    z = o.mul(x, x)
    near = o.mul(x, o.poly(z, ERF_32 if o.type is F32 else ERF_64))
    if o.type is F32:
        far = o.sub(o.c(1.0), exponential(o, o.poly(o.min(a, o.c(4.1)), ERFC_LOG_32)))
    else:
        far = o.sub(o.c(1.0), _erfc_far(o, o.min(a, o.c(6.5))))
    return o.pick(o.test("lt", a, o.c(1.0)), near, o.pick(o.is_nan(x), x, o.signed_like(far, x)))


def _erfc_far(o: Ops, a: Val) -> Val:
    """erfc of a >= 1 as e**(-a**2) P(1/a) / a; a**2 in two parts, since e magnifies its rounding error."""
    t = o.div(o.c(1.0), a)
    near, far = o.poly(t, ERFC_64), o.poly(o.mul(t, t), ERFC_FAR_64)
    scaled = o.mul(o.pick(o.test("lt", a, o.c(6.0)), near, far), t)
    square = o.mul(a, a)
    rest = o.fma(a, a, o.neg(square))
    return o.mul(o.mul(exponential(o, o.neg(square)), o.sub(o.c(1.0), rest)), scaled)


def erfc(o: Ops, x: Val) -> Val:
    a = o.abs(x)
    far = _erfc_far(o, o.max(o.min(a, o.c(30.0)), o.c(1.0)))
    far = o.pick(o.test("lt", x, o.c(0.0)), o.sub(o.c(2.0), far), far)
    return o.pick(o.test("lt", a, o.c(1.0)), o.sub(o.c(1.0), erf(o, x)), o.pick(o.is_nan(x), x, far))


def _reduced_angle(o: Ops, x: Val) -> tuple[Val, Val]:
    """x = n pi/2 + r in f64: r within pi/4 and n as an s64. Exact to the last bit for |x| up to about 1e15."""
    n = o.round(o.mul(x, o.c(2 / math.pi)))
    r = o.fma(n, o.c(-1.5707963267948966), x)
    r = o.fma(n, o.c(-6.123233995736766e-17), r)
    r = o.fma(n, o.c(1.4973849048591698e-33), r)
    return r, o.to_integer(n)


def _sine_of_quadrant(o: Ops, x: Val, shift: int) -> Val:
    """sin(x + shift pi/2)."""
    wide = o if o.type is F64 else Ops(o.writer, F64)
    r, n = _reduced_angle(wide, x if o.type is F64 else wide.to_float(x))
    quadrant = wide.iadd(n, wide.i(shift))
    odd = wide.test("ne", wide.iand(quadrant, wide.i(1)), wide.i(0))
    minus = wide.test("ne", wide.iand(quadrant, wide.i(2)), wide.i(0))
    z = wide.mul(r, r)
    sine = wide.fma(wide.mul(z, r), wide.poly(z, SIN_64 if o.type is F64 else SIN_32), r)
    cosine = wide.fma(wide.mul(z, z), wide.poly(z, COS_64 if o.type is F64 else COS_32), wide.fma(z, wide.c(-0.5), wide.c(1.0)))
    value = wide.pick(odd, cosine, sine)
    value = wide.pick(minus, wide.neg(value), value)
    value = wide.pick(wide.test("eq", wide.abs(x if o.type is F64 else wide.to_float(x)), wide.c(math.inf)), wide.c(math.nan), value)
    if shift == 0:
        exact = x if o.type is F64 else wide.to_float(x)
        value = wide.pick(wide.test("lt", wide.abs(exact), wide.c(1e-8)), exact, value)
    return value if o.type is F64 else o.to_float(value)


def sine(o: Ops, x: Val) -> Val:
    return _sine_of_quadrant(o, x, 0)


def cosine(o: Ops, x: Val) -> Val:
    return _sine_of_quadrant(o, x, 1)


def tan(o: Ops, x: Val) -> Val:
    return o.div(sine(o, x), cosine(o, x))


def log_plus_one(o: Ops, x: Val) -> Val:
    """log(1 + x), with the rounding error of 1 + x put back."""
    u = o.add(o.c(1.0), x)
    lost = o.sub(x, o.sub(u, o.c(1.0)))
    value = o.add(log(o, u), o.div(lost, u))
    value = o.pick(o.test("lt", o.abs(x), o.c(1e-16)), x, value)
    special = o.either(o.test("eq", u, o.c(math.inf)), o.test("le", u, o.c(0.0)))
    return o.pick(special, log(o, u), value)


def exponential_minus_one(o: Ops, x: Val) -> Val:
    """2 sinh(x/2) e**(x/2) near 0 (by its series there), e**x - 1 beyond."""
    series = (1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800, 1 / 479001600, 1 / 6227020800, 1 / 87178291200)
    near = o.mul(x, o.poly(x, series))
    return o.pick(o.test("lt", o.abs(x), o.c(0.35)), near, o.sub(exponential(o, x), o.c(1.0)))


def sinh(o: Ops, x: Val) -> Val:
    a = o.abs(x)
    e = exponential_minus_one(o, o.mul(a, o.c(0.5)))
    half = o.add(e, o.c(1.0))
    m = exponential_minus_one(o, a)
    small = o.mul(o.c(0.5), o.add(m, o.div(m, o.add(m, o.c(1.0)))))
    large = o.mul(o.mul(half, o.c(0.5)), half)
    return o.pick(o.is_nan(x), x, o.signed_like(o.pick(o.test("lt", a, o.c(20.0)), small, large), x))


def cosh(o: Ops, x: Val) -> Val:
    half = exponential(o, o.mul(o.abs(x), o.c(0.5)))
    whole = o.mul(half, half)
    large = o.mul(o.mul(half, o.c(0.5)), half)
    small = o.mul(o.c(0.5), o.add(whole, o.div(o.c(1.0), whole)))
    return o.pick(o.test("lt", o.abs(x), o.c(20.0)), small, large)


def asinh(o: Ops, x: Val) -> Val:
    a = o.abs(x)
    square = o.mul(a, a)
    small = log_plus_one(o, o.add(a, o.div(square, o.add(o.c(1.0), o.sqrt(o.add(square, o.c(1.0)))))))
    large = o.add(log(o, a), o.c(math.log(2)))
    return o.pick(o.is_nan(x), x, o.signed_like(o.pick(o.test("lt", a, o.c(1e8)), small, large), x))


def acosh(o: Ops, x: Val) -> Val:
    t = o.sub(x, o.c(1.0))
    small = log_plus_one(o, o.add(t, o.sqrt(o.mul(t, o.add(t, o.c(2.0))))))
    large = o.add(log(o, x), o.c(math.log(2)))
    value = o.pick(o.test("lt", x, o.c(1e8)), small, large)
    return o.pick(o.test("lt", x, o.c(1.0)), o.c(math.nan), value)


def atanh(o: Ops, x: Val) -> Val:
    a = o.abs(x)
    value = o.mul(o.c(0.5), log_plus_one(o, o.div(o.mul(o.c(2.0), a), o.sub(o.c(1.0), a))))
    value = o.pick(o.test("gt", a, o.c(1.0)), o.c(math.nan), value)
    return o.pick(o.is_nan(x), x, o.pick(o.test("lt", a, o.c(1e-9)), x, o.signed_like(o.abs(value), x)))


def atan(o: Ops, x: Val) -> Val:
    """Arguments past 1 by pi/2 - atan(1/x), past tan(pi/8) by pi/4 + atan((x-1)/(x+1))."""
    a = o.abs(x)
    inverted = o.test("gt", a, o.c(1.0))
    b = o.pick(inverted, o.div(o.c(1.0), a), a)
    turned = o.test("gt", b, o.c(math.tan(math.pi / 8)))
    t = o.pick(turned, o.div(o.sub(b, o.c(1.0)), o.add(b, o.c(1.0))), b)
    z = o.mul(t, t)
    value = o.fma(o.mul(z, t), o.poly(z, ATAN_64), t)
    value = o.pick(turned, o.add(o.c(math.pi / 4), o.add(value, o.c(3.061616997868383e-17))), value)
    value = o.pick(inverted, o.add(o.sub(o.c(math.pi / 2), value), o.c(6.123233995736766e-17)), value)
    return o.pick(o.is_nan(x), x, o.signed_like(value, x))


def atan2(o: Ops, y: Val, x: Val) -> Val:
    ax, ay = o.abs(x), o.abs(y)
    swap = o.test("gt", ay, ax)
    top, bottom = o.pick(swap, ax, ay), o.pick(swap, ay, ax)
    infinite = o.both(o.test("eq", ax, o.c(math.inf)), o.test("eq", ay, o.c(math.inf)))
    ratio = o.pick(o.test("eq", bottom, o.c(0.0)), o.c(0.0), o.div(top, bottom))
    ratio = o.pick(infinite, o.c(1.0), ratio)
    angle = atan(o, ratio)
    angle = o.pick(swap, o.sub(o.c(math.pi / 2), angle), angle)
    negative = o.test("lt", o.bits(x), o.i(0))
    angle = o.pick(negative, o.sub(o.c(math.pi), angle), angle)
    return o.pick(o.either(o.is_nan(x), o.is_nan(y)), o.c(math.nan), o.signed_like(angle, y))


def asin(o: Ops, x: Val) -> Val:
    return atan2(o, x, o.sqrt(o.mul(o.sub(o.c(1.0), x), o.add(o.c(1.0), x))))


def acos(o: Ops, x: Val) -> Val:
    return atan2(o, o.sqrt(o.mul(o.sub(o.c(1.0), x), o.add(o.c(1.0), x))), x)


def cbrt(o: Ops, x: Val) -> Val:
    """2**(log2(x)/3), then two steps of Newton's iteration."""
    a = o.abs(x)
    y = exponential(o, o.mul(log(o, a), o.c(1 / 3)))
    for _ in range(2):
        y = o.sub(y, o.div(o.sub(o.mul(o.mul(y, y), y), a), o.mul(o.c(3.0), o.mul(y, y))))
    special = o.either(o.test("eq", a, o.c(0.0)), o.either(o.test("eq", a, o.c(math.inf)), o.is_nan(x)))
    return o.pick(special, x, o.signed_like(o.abs(y), x))


def rsqrt(o: Ops, x: Val) -> Val:
    return o.div(o.c(1.0), o.sqrt(x))


def power(o: Ops, x: Val, y: Val) -> Val:
    """IEEE 754 pow: e**(y log|x|) with log in two parts, and the standard's special cases."""
    a = o.abs(x)
    high, low = _log_in_two_parts(o, a)
    product = o.mul(y, high)
    rest = o.fma(y, high, o.neg(product))
    rest = o.fma(y, low, rest)
    finite = o.test("lt", o.abs(product), o.c(1e300))
    rest = o.pick(finite, rest, o.c(0.0))
    value = exponential(o, product)
    corrected = o.fma(value, rest, value)
    value = o.pick(o.test("lt", value, o.c(math.inf)), corrected, value)
    whole = o.test("eq", o.round(y), y)
    half = o.mul(y, o.c(0.5))
    odd = o.both(whole, o.test("ne", o.round(half), half))
    odd = o.both(odd, o.test("lt", o.abs(y), o.c(2.0**53)))
    negative = o.test("lt", o.bits(x), o.i(0))
    zero, infinite = o.test("eq", a, o.c(0.0)), o.test("eq", a, o.c(math.inf))
    up = o.test("gt", y, o.c(0.0))
    value = o.pick(zero, o.pick(up, o.c(0.0), o.c(math.inf)), value)
    value = o.pick(infinite, o.pick(up, o.c(math.inf), o.c(0.0)), value)
    bad = o.both(o.both(negative, o.either(zero, infinite)), o.test("ne", y, y))
    signed = o.pick(o.both(negative, odd), o.neg(value), value)
    ordinary = o.both(negative, o.both(o.test("ne", a, o.c(0.0)), o.test("ne", a, o.c(math.inf))))
    value = o.pick(o.both(ordinary, o.either(bad, o.test("ne", o.round(y), y))), o.c(math.nan), signed)
    huge = o.test("eq", o.abs(y), o.c(math.inf))
    larger = o.test("gt", a, o.c(1.0))
    limit = o.pick(o.test("eq", a, o.c(1.0)), o.c(1.0), o.pick(o.writer.apply("eq", [larger, up], PRED), o.c(math.inf), o.c(0.0)))
    value = o.pick(huge, limit, value)
    value = o.pick(o.either(o.is_nan(x), o.is_nan(y)), o.c(math.nan), value)
    return o.pick(o.either(o.test("eq", x, o.c(1.0)), o.test("eq", y, o.c(0.0))), o.c(1.0), value)


def _log_in_two_parts(o: Ops, a: Val) -> tuple[Val, Val]:
    """log(a) as high + low, to some 70 bits: log a = e log 2 + log m with s = (m-1)/(m+1) in two parts."""
    m, e = _mantissa_and_exponent(o, a)
    f, g = o.sub(m, o.c(1.0)), o.add(m, o.c(1.0))
    s = o.div(f, g)
    lost_g = o.sub(f, o.sub(g, o.c(2.0)))
    s_low = o.div(o.sub(o.fma(o.neg(s), g, f), o.mul(s, lost_g)), g)
    z = o.mul(s, s)
    tail = o.mul(o.mul(s, z), o.poly(z, LOG_64))
    high1 = o.mul(e, o.c(0.6931471803691238))
    high2 = o.mul(s, o.c(2.0))
    total = o.add(high1, high2)
    lost = o.pick(o.test("eq", e, o.c(0.0)), o.c(0.0), o.sub(high2, o.sub(total, high1)))
    low = o.add(o.add(lost, o.mul(s_low, o.c(2.0))), o.fma(e, o.c(1.9082149292705877e-10), tail))
    high = o.add(total, low)
    return high, o.sub(low, o.sub(high, total))


def erf_inv(o: Ops, x: Val) -> Val:
    """Winitzki's first guess, then three steps of Halley's iteration on erf or, past 1/2, on erfc."""
    a = o.abs(x)
    w = o.neg(log_plus_one(o, o.neg(o.mul(a, a))))
    c = o.sub(o.c(2 / (math.pi * 0.147)), o.mul(w, o.c(0.5)))
    y = o.sqrt(o.sub(o.sqrt(o.fma(c, c, o.div(w, o.c(0.147)))), c))
    for _ in range(3):
        near = o.sub(erf(o, y), a)
        far = o.sub(o.sub(o.c(1.0), a), erfc(o, y))
        error = o.pick(o.test("lt", a, o.c(0.5)), near, far)
        step = o.div(error, o.mul(o.c(2 / math.sqrt(math.pi)), exponential(o, o.neg(o.mul(y, y)))))
        y = o.sub(y, o.div(step, o.add(o.c(1.0), o.mul(y, step))))
    y = o.pick(o.test("lt", a, o.c(1e-9)), o.mul(a, o.c(math.sqrt(math.pi) / 2)), y)
    y = o.pick(o.test("eq", a, o.c(1.0)), o.c(math.inf), y)
    y = o.pick(o.test("gt", a, o.c(1.0)), o.c(math.nan), y)
    return o.pick(o.is_nan(x), x, o.signed_like(o.abs(y), x))


LANCZOS = (0.99999999999980993227684700473478, 676.520368121885098567009190444019, -1259.13921672240287047156078755283, 771.3234287776530788486528258894,
           -176.61502916214059906584551354, 12.507343278686904814458936853, -0.13857109526572011689554707, 9.984369578019570859563e-6, 1.50563273514931155834e-7)  # fmt: skip


def _sin_pi(o: Ops, x: Val) -> Val:
    """sin(pi x), exact at whole numbers."""
    rest = o.sub(x, o.mul(o.c(2.0), o.round(o.mul(x, o.c(0.5)))))
    return sine(o, o.mul(rest, o.c(math.pi)))


def lgamma(o: Ops, x: Val) -> Val:
    """Lanczos' approximation for x >= 1/2, reflected below."""
    reflect = o.test("lt", x, o.c(0.5))
    z = o.sub(o.pick(reflect, o.sub(o.c(1.0), x), x), o.c(1.0))
    total = o.c(LANCZOS[0])
    for i, coefficient in enumerate(LANCZOS[1:]):
        total = o.add(total, o.div(o.c(coefficient), o.add(z, o.c(float(i + 1)))))
    t = o.add(z, o.c(7.5))
    value = o.add(o.sub(o.mul(o.add(z, o.c(0.5)), log(o, t)), t), o.add(log(o, total), o.c(0.5 * math.log(2 * math.pi))))
    mirrored = o.sub(o.sub(o.c(math.log(math.pi)), log(o, o.abs(_sin_pi(o, x)))), value)
    value = o.pick(reflect, mirrored, value)
    return o.pick(o.test("eq", o.abs(x), o.c(math.inf)), o.c(math.inf), value)


def digamma(o: Ops, x: Val) -> Val:
    """The asymptotic series after ten steps up, reflected below 1/2."""
    reflect = o.test("lt", x, o.c(0.5))
    y = o.pick(reflect, o.sub(o.c(1.0), x), x)
    total = o.c(0.0)
    for _ in range(10):
        total = o.sub(total, o.div(o.c(1.0), y))
        y = o.add(y, o.c(1.0))
    s = o.div(o.c(1.0), o.mul(y, y))
    series = o.mul(s, o.poly(s, (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)))
    value = o.add(total, o.sub(o.sub(log(o, y), o.div(o.c(0.5), y)), series))
    fraction = o.sub(x, o.round(x))
    angle = o.mul(o.c(math.pi), fraction)
    cotangent = o.div(cosine(o, angle), sine(o, angle))
    value = o.pick(reflect, o.sub(value, o.mul(o.c(math.pi), cotangent)), value)
    whole = o.both(o.test("le", x, o.c(0.0)), o.test("eq", o.round(x), x))
    value = o.pick(whole, o.pick(o.test("eq", x, o.c(0.0)), o.signed_like(o.c(math.inf), o.neg(x)), o.c(math.nan)), value)
    return o.pick(o.test("eq", x, o.c(math.inf)), x, value)


def _bessel(order: int) -> Callable[[Ops, Val], Val]:
    def apply(o: Ops, x: Val) -> Val:
        """e**-|x| I(x): the power series up to 20, the asymptotic one beyond."""
        a = o.abs(x)
        near_x = o.min(a, o.c(20.0))
        q = o.mul(o.mul(near_x, near_x), o.c(0.25))
        series = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(48)]
        near = o.mul(o.poly(q, series), exponential(o, o.neg(near_x)))
        if order == 1:
            near = o.mul(near, o.mul(near_x, o.c(0.5)))
        mu, terms = 4.0 * order * order, [1.0]
        for k in range(1, 14):
            terms.append(terms[-1] * -(mu - (2 * k - 1) ** 2) / (k * 8))
        t = o.div(o.c(1.0), o.max(a, o.c(20.0)))
        far = o.mul(o.poly(t, terms), o.sqrt(o.mul(t, o.c(1 / (2 * math.pi)))))
        value = o.pick(o.test("le", a, o.c(20.0)), near, far)
        value = o.pick(o.is_nan(x), x, value)
        return o.signed_like(value, x) if order == 1 else value

    return apply


def remainder(o: Ops, a: Val, b: Val) -> Val:
    """fmod, exact when the quotient is below 2**53; larger quotients take further rounds."""
    size, by = o.abs(a), o.abs(b)
    rest = size
    for _ in range(4 if o.type is F64 else 2):
        quotient = o._float("trunc", o.div(rest, by))
        step = o.fma(o.neg(quotient), by, rest)
        step = o.pick(o.test("lt", step, o.c(0.0)), o.add(step, by), step)
        rest = o.pick(o.test("ge", step, by), o.sub(step, by), step)
    rest = o.pick(o.test("eq", by, o.c(math.inf)), size, rest)
    bad = o.either(o.test("eq", size, o.c(math.inf)), o.test("eq", by, o.c(0.0)))
    rest = o.pick(o.either(bad, o.is_nan(b)), o.c(math.nan), rest)
    return o.pick(o.is_nan(a), a, o.signed_like(rest, a))


IN_OWN_TYPE: dict[str, Callable[..., Val]] = {
    "exponential": exponential, "log": log, "tanh": tanh, "logistic": logistic, "erf": erf, "sine": sine, "cosine": cosine, "rsqrt": rsqrt,
}  # fmt: skip
"""Written in the argument's own type, f32 or f64."""
IN_DOUBLE: dict[str, Callable[..., Val]] = {
    "exponential_minus_one": exponential_minus_one, "log_plus_one": log_plus_one, "tan": tan, "power": power, "cbrt": cbrt, "atan2": atan2,
    "asin": asin, "acos": acos, "atan": atan, "sinh": sinh, "cosh": cosh, "asinh": asinh, "acosh": acosh, "atanh": atanh, "erfc": erfc,
    "erf_inv": erf_inv, "lgamma": lgamma, "digamma": digamma, "bessel_i0e": _bessel(0), "bessel_i1e": _bessel(1), "remainder": remainder,
}  # fmt: skip
"""Computed in f64 whatever the argument's type."""


def is_math(op: str, element_type: ElementType) -> bool:
    """Whether an op on this type is written by `expand` rather than native."""
    return element_type.is_float and (op in IN_OWN_TYPE or op in IN_DOUBLE)


def is_transcendental(op: str) -> bool:
    """Whether an op costs many instructions, so that recomputing it doesn't pay."""
    return (op in IN_OWN_TYPE or op in IN_DOUBLE) and op != "rsqrt"


def expand(writer: Writer, op: str, arguments: Sequence[Val], element_type: ElementType) -> Val:
    """Writes `op` of arguments of a float type. Raises CompileError for an unknown op."""
    if element_type.bits < 32:
        wide = [writer.apply("convert", [a], F32) for a in arguments]
        return writer.apply("convert", [expand(writer, op, wide, F32)], element_type)
    if op in IN_OWN_TYPE:
        return IN_OWN_TYPE[op](Ops(writer, element_type), *arguments)
    if op not in IN_DOUBLE:
        raise CompileError(f"no expansion for {op}")
    if element_type is F64:
        return IN_DOUBLE[op](Ops(writer, F64), *arguments)
    wide = [writer.apply("convert", [a], F64) for a in arguments]
    return writer.apply("convert", [IN_DOUBLE[op](Ops(writer, F64), *wide)], element_type)
