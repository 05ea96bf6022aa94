"""The logarithm of the gamma function and its derivative."""

from __future__ import annotations

import math

from fusile.loops.math.logarithm import log, log_in_two_parts
from fusile.loops.math.number import Number, picked_polynomial, plus_in_two_parts
from fusile.loops.math.trigonometric import cotangent_of_turns, sine_of_turns, two_sum

# log(gamma(1 + d)) / d for -1/4 <= d <= 3/8
LGAMMA_ABOUT_ONE = (
    -0.577215664901532861, 0.822467033424113218, -0.400685634386531457, 0.270580808427784651, -0.207385551028660933,
    0.169557176997362183, -0.144049896771167266, 0.125509669533733872, -0.11133426566340795, 0.100099456595366817,
    -0.0909540272868674401, 0.0833538942282137508, -0.0769322371288454335, 0.071431062058623721,
    -0.0666724377325675878, 0.0625407369756151009, -0.0588239042629945733, 0.0550776504600549197,
    -0.0519526211829285193, 0.052656034576199469, -0.055513926590292412, 0.0455383612190662026,
    -0.0183341993446095483,
)  # fmt: skip
# log(gamma(2 + d)) / d for -5/8 <= d <= 1/2
LGAMMA_ABOUT_TWO = (
    0.422784335098467139, 0.322467033424113218, -0.0673523010531980967, 0.0205808084277845811,
    -0.00738555102867377112, 0.00289051033073877916, -0.00119275391171532626, 0.000509669524846058269,
    -0.000223154758094462535, 9.94575106714342633e-5, -4.49262431383421799e-5, 2.05072385451200033e-5,
    -9.43941561105386275e-6, 4.37467203235278558e-6, -2.03975492180084715e-6, 9.56049362808013118e-7,
    -4.46638785169795714e-7, 2.09607487763413427e-7, -1.08383239764200004e-7, 5.08730194296721289e-8,
    -8.7071850421702472e-9, 1.07036611768640771e-8, -1.65337247157696247e-8,
)  # fmt: skip
# digamma(root + d) / d for 1 <= root + d <= 2
DIGAMMA_ABOUT_ROOT = (
    0.967672245447621171, -0.442763168983592125, 0.258499760955650901, -0.163942705442399347, 0.107824050691279536,
    -0.0721995612572817639, 0.0488042881632391361, -0.0331611264308347591, 0.0225976482482485441,
    -0.0154247672057981046, 0.0105387917889198432, -0.00720451095747191815, 0.00492676941838822723,
    -0.00337007090719229029, 0.00230534832715847759, -0.00157493554808310834, 0.00107661282305767743,
    -0.000747499595599248953, 0.00051804908333401014, -0.00031936966712071081, 0.000190756403431606883,
    -0.000194764901259873258, 0.000194265487685227677, -8.15397897330941803e-5,
)  # fmt: skip
DIGAMMA_ROOT = (1.4616321449683622, 9.549995429965697e-17)
"""The one positive zero of digamma, in two parts."""
DIGAMMA_SLOPE_REST = -3.387874303038943e-17
MINUS_EULER, ONE_MINUS_EULER = (
    (-0.5772156649015329, 4.942915152430645e-18),
    (0.42278433509846713, 4.942915152430645e-18),
)
"""The slopes of lgamma at 1 and 2, in two parts."""
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Bernoulli numbers B(2k) / 2k of the asymptotic series."""
HALF_LOG_TWO_PI = (0.9189385332046728, -3.8782941580672414e-17)
LOG_PI = (1.1447298858494002, 1.0265951162707826e-17)


def _is_pole(x: Number) -> Number:
    return (x <= 0.0) & x.round().equals(x)


def lgamma(x: Number) -> Number:
    """log(|gamma(x)|); of negative numbers log(pi / |x sin(pi x)|) - lgamma(-x). Infinite at the poles.

    Near its zeros between negative whole numbers the terms cancel: the error there is small beside 1, not beside the
    result.
    """
    size = abs(x)
    value, near = _lgamma_positive(size)
    sine, below = abs(sine_of_turns(size)), size < 0.75
    high, low = log_in_two_parts(below.pick(sine, size * sine))
    mirrored, lost = two_sum(high, below.pick(near, value))
    mirrored, more = two_sum(-mirrored, high.constant(LOG_PI[0]))
    mirrored = mirrored + (more - lost - low + LOG_PI[1])
    value = (x < 0.0).pick((size < 1e-30).pick(-log(size), mirrored), value)
    value = _is_pole(x).pick(value.constant(math.inf), value)
    return size.equals(math.inf).pick(size, value)


def _lgamma_positive(x: Number) -> tuple[Number, Number]:
    """lgamma of x, and of x + 1 if x is below 3/4. Polynomials from 3/4 to 5/2; below, one step up; up to 8, steps
    down to there; Stirling's series beyond.

    One logarithm serves: of x below 3/4, of the product of the steps down, or of Stirling's series.
    """
    below, far = x < 0.75, x >= 8.0
    y, product, rest = below.pick(x + 1.0, x), x.constant(1.0), x.constant(0.0)
    for _ in range(6):
        step = (y > 2.5) & ~far
        y = step.pick(y - 1.0, y)
        next_product = product * y
        next_rest = rest.fma(y, product.fma(y, -next_product))
        product, rest = step.pick(next_product, product), step.pick(next_rest, rest)
    high, low = log_in_two_parts(below.pick(x, far.pick(x, product)))
    low = low + rest / product
    one = y < 1.375
    d = below.pick(one.pick(x, x - 1.0), y - one.pick(y.constant(1.0), 2.0))
    tail = picked_polynomial(one, d, LGAMMA_ABOUT_ONE[1:], LGAMMA_ABOUT_TWO[1:])
    slope = [one.pick(d.constant(a), b) for a, b in zip(MINUS_EULER, ONE_MINUS_EULER, strict=True)]
    value, rest = plus_in_two_parts((d, tail), *slope)
    near = d.fma(value, d.fma(rest, 0.0))
    stepped = below.pick((near - low) - high, near + low + high)
    return far.pick(_stirling(x, high, low), (below | (x > 2.5)).pick(stepped, near)), near


def _stirling(x: Number, high: Number, low: Number) -> Number:
    """(x - 1/2) (log(x) - 1) + log(2 pi) / 2 - 1/2 + ..., log(x) given in two parts."""
    inverse = 1.0 / x
    tail = inverse * (inverse * inverse).polynomial(STIRLING)
    factor, less = x - 0.5, high - 1.0
    lost = ((high - less) - 1.0) + low
    product = factor * less
    error = factor.fma(less, -product)
    small = factor.fma(lost, (error + tail) + (HALF_LOG_TWO_PI[0] - 0.5))
    return (product < math.inf).pick(product + small, product)


def digamma(x: Number) -> Number:
    """The derivative of lgamma; of negative numbers digamma(-x) - 1 / x + pi cot(-pi x). NaN at the negative poles."""
    size = abs(x)
    value = _digamma_positive(size)
    turned, turned_rest = cotangent_of_turns(size)
    mirrored, lost = two_sum(value, turned)
    mirrored = mirrored + (1.0 / size + (lost + turned_rest))
    value = (x < 0.0).pick((size < 1e-17).pick(1.0 / size, mirrored), value)
    at_pole = x.equals(0.0).pick(value.constant(math.inf).copysign(-x), value.constant(math.nan))
    value = _is_pole(x).pick(at_pole, value)
    return x.equals(-math.inf).pick(value.constant(math.nan), x.equals(math.inf).pick(x, value))


def _digamma_positive(x: Number) -> Number:
    """A polynomial from 1 to 2, whose zero is digamma's; below, a step up; the asymptotic series, with steps up to
    10."""
    below = x < 1.0
    y = below.pick(x + 1.0, x)
    lost = below.pick(x - (y - 1.0), 0.0)
    d, rest = two_sum(y - DIGAMMA_ROOT[0], lost - DIGAMMA_ROOT[1])
    slope, slope_rest = plus_in_two_parts(
        (d, d.polynomial(DIGAMMA_ABOUT_ROOT[1:])), d.constant(DIGAMMA_ABOUT_ROOT[0]), d.constant(DIGAMMA_SLOPE_REST)
    )
    near = d.fma(slope, d.fma(slope_rest, rest * slope))
    inverse = 1.0 / x
    stepped = (near - (-inverse).fma(x, 1.0) * inverse) - inverse
    near = below.pick((inverse < math.inf).pick(stepped, -inverse), near)
    return (x < 2.0).pick(near, _digamma_stepped(x))


def _digamma_stepped(x: Number) -> Number:
    """digamma(x) = digamma(y) - 1/x - 1/(x + 1) - ... with y >= 10. All that rounding loses is summed and put back."""
    zero = x.constant(0.0)
    y, lost, total, rest = x, zero, zero, zero
    for _ in range(8):
        step, inverse = y < 10.0, 1.0 / y
        more, next_y = total + inverse, y + 1.0
        left = ((-inverse).fma(y, 1.0) - lost * inverse) * inverse
        rest = step.pick(rest + ((inverse - (more - total)) + left), rest)
        total = step.pick(more, total)
        lost = step.pick(lost + (y - (next_y - 1.0)), lost)
        y = step.pick(next_y, y)
    inverse = 1.0 / y
    s = inverse * inverse
    high, low = log_in_two_parts(y)
    return (high - total) + ((low - rest + lost * inverse) - (0.5 * inverse + s * s.polynomial(DIGAMMA)))
