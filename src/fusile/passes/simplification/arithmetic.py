"""Arithmetic identities. Before/after: ``x * 1 => x``, ``-(-x) => x``, ``x / 4 => x * 0.25``, ``x ** 2 => x * x``."""

from __future__ import annotations

import numpy as np

from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset.elementwise import (
    Abs,
    Add,
    Complex,
    Divide,
    Imag,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Power,
    Real,
    Remainder,
    Sqrt,
    Subtract,
)
from fusile.passes.simplification.values import (
    applied,
    captured,
    filled,
    full,
    has_sign,
    is_computed,
    is_float,
    is_half,
    is_highest,
    is_lowest,
    is_minus_one,
    is_negative_zero,
    is_one,
    is_positive_zero,
    is_power_of_two,
    is_two,
    is_zero,
)
from fusile.rewrite.constants import constant_array, is_constant
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Replacement, Rule, exact, fast, integers, moves

x, y = anything("x"), anything("y")
computed = anything("x", is_computed)
c, d = anything("c", is_constant), anything("d", is_constant)
zero, positive_zero, negative_zero = (
    anything("", is_zero),
    anything("", is_positive_zero),
    anything("", is_negative_zero),
)
one, minus_one, two, half = (
    anything("", is_one),
    anything("", is_minus_one),
    anything("", is_two),
    anything("", is_half),
)
lowest, highest = anything("", is_lowest), anything("", is_highest)
power_of_two = anything("c", is_power_of_two)

ROUNDS = "x is the correctly rounded result; NaN stays NaN"
SIGN = "only the sign changes, nothing rounds"
SAME_BITS = "IEEE defines x - y as x + (-y)"


def _times_reciprocal(m: Match) -> Instruction:
    """x times the reciprocal of a constant divisor, which stays as small as the divisor was."""
    source = m.c.operands[0] if m.c.operands else m.c
    value = constant_array(source)
    assert value is not None
    wide = np.complex128 if value.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        reciprocal = m.constant(1 / value.astype(wide), source.array_shape.element_type)
    if m.c.operands:
        reciprocal = m.add(m.c.op, reciprocal)
    return m.add(Multiply(), m.x, reciprocal)


def _divide_by_constant(m: Match) -> Instruction | str:
    kind = m.c.array_shape.element_type
    return _times_reciprocal(m) if kind.is_float or kind.is_complex else "an integer has no reciprocal"


def _combined(op: Op) -> Replacement:
    """(x op c) op d => x op (c op d); folding computes the constant."""
    return lambda m: m.add(op, m.x, m.add(op, m.c, m.d))


ADDITION = (
    Rule("add-negative-zero", of(Add, x, negative_zero), captured(), exact("x + -0.0 is x, for both zeros too")),
    Rule("add-zero", of(Add, x, positive_zero), captured(), fast("-0.0 + 0.0 is 0.0, not -0.0")),
    Rule("add-negated", of(Add, x, of(Negate, y)), applied(Subtract(), "x", "y"), exact(SAME_BITS)),
    Rule("add-constants", of(Add, of(Add, computed, c), d), _combined(Add()), integers("floats round twice")),
    Rule("subtract-zero", of(Subtract, x, positive_zero), captured(), exact("x - 0.0 is x, for both zeros too")),
    Rule("subtract-itself", of(Subtract, x, x), filled(0), integers("x - x is NaN for NaN and infinite x")),
    Rule("subtract-negated", of(Subtract, x, of(Negate, y)), applied(Add(), "x", "y"), exact(SAME_BITS)),
    Rule(
        "negative-zero-minus", of(Subtract, negative_zero, x), applied(Negate(), "x"), exact("-0.0 - x is -x, at 0 too")
    ),
    Rule(
        "zero-minus", of(Subtract, positive_zero, x), applied(Negate(), "x"), fast("0.0 - 0.0 is 0.0, -(0.0) is -0.0")
    ),
    Rule("double-negate", of(Negate, of(Negate, x)), captured(), moves("the sign changes twice")),
    Rule(
        "negate-subtract",
        of(Negate, of(Subtract, x, y)),
        applied(Subtract(), "y", "x"),
        fast("-(x - x) is -0.0, x - x is 0.0"),
    ),
    Rule("abs-abs", of(Abs, of(Abs, name="x")), captured(), exact("a magnitude is its own magnitude")),
    Rule("abs-negate", of(Abs, of(Negate, anything("x", has_sign))), applied(Abs(), "x"), moves("the sign is dropped")),
)

MULTIPLICATION = (
    Rule("multiply-one", of(Multiply, x, one), captured(), exact(ROUNDS)),
    Rule("multiply-minus-one", of(Multiply, x, minus_one), applied(Negate(), "x"), exact(SIGN)),
    Rule("multiply-zero", of(Multiply, x, zero), filled(0), fast("0 * x is NaN for infinite x, -0.0 for negative x")),
    Rule("multiply-negated", of(Multiply, of(Negate, x), of(Negate, y)), applied(Multiply(), "x", "y"), exact(SIGN)),
    Rule(
        "multiply-negated-constant",
        of(Multiply, of(Negate, computed), c),
        lambda m: m.add(Multiply(), m.x, m.add(Negate(), m.c)),
        exact(SIGN),
    ),
    Rule(
        "multiply-constants",
        of(Multiply, of(Multiply, computed, c), d),
        _combined(Multiply()),
        fast("floats round twice"),
    ),
    Rule("divide-one", of(Divide, x, one), captured(), exact(ROUNDS)),
    Rule("divide-minus-one", of(Divide, x, minus_one), applied(Negate(), "x"), exact(SIGN)),
    Rule(
        "divide-power-of-two", of(Divide, x, power_of_two), _times_reciprocal, exact("both are x * 2**k rounded once")
    ),
    Rule("divide-constant", of(Divide, x, c), _divide_by_constant, fast("the reciprocal is rounded")),
    Rule("remainder-one", of(Remainder, x, one), filled(0), integers("x % 1.0 is the fraction")),
    Rule("power-zero", of(Power, x, zero), filled(1), exact("IEEE: 1 for every x, NaN too")),
    Rule("power-one", of(Power, x, one), captured(), exact(ROUNDS)),
    Rule("power-two", of(Power, x, two), applied(Multiply(), "x", "x"), exact("x * x is x**2 correctly rounded")),
    Rule(
        "power-minus-one",
        of(Power, anything("x", is_float), minus_one),
        lambda m: m.add(Divide(), full(m, 1), m.x),
        exact("1 / x is x**-1 correctly rounded, of zeros and infinities too"),
    ),
    Rule(
        "power-half",
        of(Power, anything("x", is_float), half),
        applied(Sqrt(), "x"),
        fast("pow(-inf, 0.5) is inf, not NaN"),
    ),
)

EXTREMA = (
    Rule("maximum-itself", of(Maximum, x, x), captured(), moves("either operand is the result, NaN too")),
    Rule("minimum-itself", of(Minimum, x, x), captured(), moves("either operand is the result, NaN too")),
    Rule("maximum-lowest", of(Maximum, x, lowest), captured(), exact("NaN stays NaN, -inf is below all")),
    Rule("minimum-highest", of(Minimum, x, highest), captured(), exact("NaN stays NaN, inf is above all")),
    Rule("maximum-highest", of(Maximum, x, anything("y", is_highest)), captured("y"), integers("max(NaN, inf) is NaN")),
    Rule("minimum-lowest", of(Minimum, x, anything("y", is_lowest)), captured("y"), integers("min(NaN, -inf) is NaN")),
    Rule(
        "maximum-constants",
        of(Maximum, of(Maximum, computed, c), d),
        _combined(Maximum()),
        exact("nothing rounds, NaN stays"),
    ),
    Rule(
        "minimum-constants",
        of(Minimum, of(Minimum, computed, c), d),
        _combined(Minimum()),
        exact("nothing rounds, NaN stays"),
    ),
)

PARTS = (
    Rule("real-of-complex", of(Real, of(Complex, x, y)), captured("x"), moves()),
    Rule("imag-of-complex", of(Imag, of(Complex, x, y)), captured("y"), moves()),
    Rule("complex-of-parts", of(Complex, of(Real, x), of(Imag, x)), captured(), moves()),
)

RULES = ADDITION + MULTIPLICATION + EXTREMA + PARTS
