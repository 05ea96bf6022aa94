"""The error function, its complement and its inverse."""

from __future__ import annotations

import math

from fusile.base.element_type import F32
from fusile.loops.math.exponential import exponential, exponential_times
from fusile.loops.math.logarithm import log_plus_one
from fusile.loops.math.number import Number

# erf(x) = x P(x**2) for |x| <= 1.15, in f64 for |x| <= 1
ERF_32 = (
    1.1283791589696033, -0.376125789338985497, 0.112830644205828587, -0.0268328339201126157,
    0.00515031868675445961, -0.000769366102233622988, 0.0000686642754654743881,
)  # fmt: skip
ERF_64 = (
    1.12837916709551257, -0.376126389031837524, 0.112837916709551202, -0.0268661706451298408, 0.00522397762542329831,
    -0.00085483270219348296, 0.000120553329028887354, -0.0000149256475675193321, 1.64620454414684189e-6,
    -1.63646421581676153e-7, 1.4792401209404813e-8, -1.21645600572834501e-9, 8.70904512905310669e-11,
    -4.23094582429533782e-12,
)  # fmt: skip
# erfc(x)**(1/8) for 1.15 <= x <= 3.95
ERFC_ROOT_32 = (
    0.999654456563245923, -0.139412356489758874, -0.0730283116762264337, 0.00198455044077860036,
    0.00348439851579876002, 0.00174459116389857518, -0.00102553335346932808, 0.000194665042986954407,
    -0.0000170400273965292461, 5.89208604326914796e-7,
)  # fmt: skip
# erfc(x) e**(x**2) (1 + 2x) as a polynomial of (x - 4) / (x + 4), for 1/2 <= x <= 28
ERFC_64 = (
    1.23299511862555251, -0.139621116840562505, 0.0153796521026200397, 0.0680970542546914667,
    -0.101039066036324981, 0.0937328349984007026, -0.0663303658116501179, 0.037167515536528814,
    -0.0161977340659056252, 0.00503196998743299309, -0.000757773220306935244, -0.000199256748620848446,
    0.000150621314605068993, -0.0000243990295496326625, -0.0000112207934371785002, 5.70935542650826902e-6,
    2.9104843893896588e-7, -8.25004992689817056e-7, 7.86074060567716529e-8, 1.09897776405751939e-7,
    -2.14348838232434995e-8, -1.42327721876073069e-8, 3.54424445068350745e-9, 1.37562631815113654e-9,
    -3.32105079607305096e-10,
)  # fmt: skip
# erfc(x) e**(x**2) (1 + 2x) as a polynomial of (x - 2) / (x + 2), for 0.5 <= x <= 10.3
ERFC_32 = (
    1.27697838111646415, -0.0927638164748655366, -0.166030335235155827, 0.16405076078693509, -0.0542213998300637813,
    -0.00802637615466244521, 0.00873340721318186326, 0.00122426354055228619, -0.00148954496266324708,
    -0.000322197628349104324, 0.000238627554350519287,
)  # fmt: skip
TWO_OVER_ROOT_PI = (1.1283791670955126, 1.533545961316588e-17)


def erf(x: Number) -> Number:
    """x + x Q(x**2) up to 1 or so; beyond, 1 - erfc."""
    size = abs(x)
    near_one = ERF_32 if x.type is F32 else ERF_64
    z = x * x
    near = x.fma(z.polynomial((near_one[0] - 1.0, *near_one[1:])), x)
    if x.type is F32:
        square = _squared(size.at_most(3.95).polynomial(ERFC_ROOT_32))
        far = 1.0 - _squared(_squared(square))
    else:
        far = 1.0 - _erfc_far(size.at_most(6.5))
    return (size < (1.15 if x.type is F32 else 1.0)).pick(near, x.is_nan().pick(x, far.copysign(x)))


def _squared(x: Number) -> Number:
    return x * x


def _erfc_far(a: Number) -> Number:
    """erfc of a >= 1/2 as e**(-a**2) P / (1 + 2a). The rounding errors of a**2, which e magnifies, and of the
    reciprocal go into the exponent's small part."""
    middle, table = (2.0, ERFC_32) if a.type is F32 else (4.0, ERFC_64)
    below = a.fma(2.0, 1.0)
    inverse = 1.0 / below
    lost = a * 2.0 - (below - 1.0)
    t = (a - middle) / (a + middle)
    tail = t.polynomial(table[1:])
    value = tail.fma(t, table[0])
    value_rest = tail.fma(t, table[0] - value)
    scaled, square = value * inverse, a * a
    rest = (-inverse).fma(below, 1.0) - lost * inverse - a.fma(a, -square)
    return exponential_times(-square, rest, scaled, value_rest.fma(inverse, value.fma(inverse, -scaled)))


def erfc(x: Number) -> Number:
    """1 - erf(x) near 0; beyond, e**(-x**2) times a polynomial, and 2 minus that for negative x."""
    size = abs(x)
    narrow = x.type is F32
    far = _erfc_far(size.at_least(0.5).at_most(10.3 if narrow else 28.0))
    far = (x < 0.0).pick(2.0 - far, far)
    table = ERF_32 if narrow else ERF_64
    near = 1.0 - x.fma((x * x).polynomial((table[0] - 1.0, *table[1:])), x)
    return (size < 0.5).pick(near, x.is_nan().pick(x, far))


def erf_inv(x: Number) -> Number:
    """Winitzki's first guess, then three steps of Halley's iteration on erf or, past 1/2, on erfc."""
    size = abs(x)
    w = -log_plus_one(-(size * size))
    c = 2 / (math.pi * 0.147) - w * 0.5
    y = (c.fma(c, w / 0.147).sqrt() - c).sqrt()
    for _ in range(3):
        step = _erf_error(y, size) / (exponential(-(y * y)) * (2 / math.sqrt(math.pi)))
        y = y - step / y.fma(step, 1.0)
    y = (size < 1e-9).pick(size * (math.sqrt(math.pi) / 2), y)
    y = size.equals(1.0).pick(y.constant(math.inf), y)
    y = (size > 1.0).pick(y.constant(math.nan), y)
    return x.is_nan().pick(x, abs(y).copysign(x))


def _erf_error(y: Number, wanted: Number) -> Number:
    """erf(y) - wanted without cancellation: the leading term y 2/sqrt(pi) in two parts, or past 1/2 by erfc."""
    z = y * y
    first = y * TWO_OVER_ROOT_PI[0]
    lost = y.fma(TWO_OVER_ROOT_PI[0], -first) + y * TWO_OVER_ROOT_PI[1]
    near = (first - wanted) + (y * z).fma(z.polynomial(ERF_64[1:]), lost)
    far = _erfc_far(y.at_least(0.5).at_most(6.5))
    return (y < 0.5).pick(near, (1.0 - wanted) - far)
