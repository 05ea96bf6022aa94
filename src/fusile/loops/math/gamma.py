"""The logarithm of the gamma function, its derivative, and the scaled modified Bessel functions."""

from __future__ import annotations

import math

from fusile.loops.math.exponential import exponential
from fusile.loops.math.logarithm import log, log_plus_one
from fusile.loops.math.number import Number
from fusile.loops.math.trigonometric import cosine, sine

LANCZOS = (
    0.99999999999980993227684700473478, 676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354, 12.507343278686904814458936853,
    -0.13857109526572011689554707, 9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Bernoulli numbers B(2k) / 2k of the asymptotic series."""


def _is_pole(x: Number) -> Number:
    return (x <= 0.0) & x.round().equals(x)


def _from_nearest(x: Number) -> Number:
    """x less the nearest whole number, at most 1/2 in size."""
    return x - x.round()


def lgamma(x: Number) -> Number:
    """log(|gamma(x)|), reflected below 1/2; infinite at the poles."""
    reflect = x < 0.5
    y = reflect.pick(1.0 - x, x)
    value = _lgamma_positive(y)
    size = abs(sine(_from_nearest(x) * math.pi))
    mirrored = math.log(math.pi) - log(size) - value
    small = abs(x) < 1e-30
    value = reflect.pick(small.pick(-log(abs(x)), mirrored), value)
    value = _is_pole(x).pick(value.constant(math.inf), value)
    return abs(x).equals(math.inf).pick(abs(x), value)


def _lgamma_positive(y: Number) -> Number:
    """log(gamma(y)) for y >= 1/2: a Taylor series about 2 up to 5/2, then Lanczos, then Stirling."""
    value = (y < 8.0).pick(_lanczos(y), _stirling(y))
    below = y < 1.5
    d = y - below.pick(y.constant(1.0), 2.0)
    series = d * d.polynomial(_ABOUT_TWO)
    return (y < 2.5).pick(below.pick(series - log_plus_one(d), series), value)


def _lanczos(y: Number) -> Number:
    z = y - 1.0
    total = y.constant(LANCZOS[0])
    for i, coefficient in enumerate(LANCZOS[1:]):
        total = total + coefficient / (z + float(i + 1))
    t = z + 7.5
    return ((z + 0.5) * log(t) - t) + (log(total) + 0.5 * math.log(2 * math.pi))


def _stirling(y: Number) -> Number:
    inverse = 1.0 / y
    series = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
    tail = inverse * (inverse * inverse).polynomial(series)
    return (y - 0.5) * (log(y) - 1.0) + (tail + (0.5 * math.log(2 * math.pi) - 0.5))


def _zeta_minus_one(n: int) -> float:
    """The sum of k**-n from k = 2, by Euler and Maclaurin's formula past 200."""
    k, last = [float(i) ** -n for i in range(2, 200)], 200.0
    tail = last ** (1 - n) / (n - 1), last**-n / 2, n * last ** (-n - 1) / 12
    return math.fsum((*k, *tail, -n * (n + 1) * (n + 2) * last ** (-n - 3) / 720))


_ABOUT_TWO = (1 - 0.5772156649015329, *((-1) ** n * _zeta_minus_one(n) / n for n in range(2, 30)))
"""log(gamma(2 + d)) / d for |d| <= 1/2."""


def digamma(x: Number) -> Number:
    """The asymptotic series after ten steps up, reflected below 1/2."""
    reflect = x < 0.5
    y = reflect.pick(1.0 - x, x)
    total = x.constant(0.0)
    for _ in range(10):
        total = total - 1.0 / y
        y = y + 1.0
    s = 1.0 / (y * y)
    value = total + (log(y) - 0.5 / y - s * s.polynomial(DIGAMMA))
    angle = _from_nearest(x) * math.pi
    value = reflect.pick(value - math.pi * (cosine(angle) / sine(angle)), value)
    at_pole = x.equals(0.0).pick(value.constant(math.inf).copysign(-x), value.constant(math.nan))
    return x.equals(math.inf).pick(x, _is_pole(x).pick(at_pole, value))


def bessel_i0e(x: Number) -> Number:
    return _bessel(x, 0)


def bessel_i1e(x: Number) -> Number:
    return _bessel(x, 1)


def _bessel(x: Number, order: int) -> Number:
    """e**-|x| I(x): the power series up to 20, the asymptotic one beyond."""
    size = abs(x)
    near_x = size.at_most(20.0)
    series = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(48)]
    near = (near_x * near_x * 0.25).polynomial(series) * exponential(-near_x)
    if order == 1:
        near = near * (near_x * 0.5)
    terms = [1.0]
    for k in range(1, 30):
        terms.append(terms[-1] * -(4.0 * order * order - (2 * k - 1) ** 2) / (k * 8))
    t = 1.0 / size.at_least(20.0)
    far = t.polynomial(terms) * (t * (1 / (2 * math.pi))).sqrt()
    value = x.is_nan().pick(x, (size <= 20.0).pick(near, far))
    return value.copysign(x) if order == 1 else value
