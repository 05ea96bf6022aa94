"""Functions no processor has as instructions, written once with native scalar ops.

`expand(writer, op, arguments, element_type)` writes a function with the writer's `apply` and `constant`; the code
generator's writer emits instructions, on whole vectors. No tables in the usual path and no branches but for rare lanes,
so everything vectorizes, and the same bits come out on every machine with fused multiply-add.

The functions met most (exponential, log, tanh, logistic, erf, sine, cosine) of f32 stay in f32; the rest of f32 is
computed in f64 and rounded. Errors are at most 2 ULP in f32. Coefficients are interpolations at Chebyshev nodes,
computed with 60 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusile.base.element_type import F32, F64, ElementType
from fusile.base.errors import CompileError
from fusile.loops.math import bessel, bits, error_function, exponential, gamma, logarithm, power, trigonometric
from fusile.loops.math.number import Number, Val, Writer

Function = Callable[..., Number]

OWN_TYPE: dict[str, Function] = {
    "exponential": exponential.exponential,
    "logistic": exponential.logistic,
    "tanh": exponential.tanh,
    "log": logarithm.log,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
    "sine": trigonometric.sine,
    "cosine": trigonometric.cosine,
    "rsqrt": power.rsqrt,
    "remainder": power.remainder,
    "next_after": bits.next_after,
    "clamp": bits.clamp,
}
"""Written in the argument's own type, f32 or f64."""
DOUBLE: dict[str, Function] = {
    "exponential_minus_one": exponential.exponential_minus_one,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log_plus_one": logarithm.log_plus_one,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "tan": trigonometric.tan,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "power": power.power,
    "cbrt": power.cbrt,
    "erf_inv": error_function.erf_inv,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "bessel_i0e": bessel.bessel_i0e,
    "bessel_i1e": bessel.bessel_i1e,
}
"""Computed in f64 whatever the argument's type."""
INTEGER: dict[str, Function] = {"power": power.integer_power, "clamp": bits.clamp}
CHEAP = ("rsqrt", "clamp", "next_after")


def is_math(op: str, element_type: ElementType) -> bool:
    """Whether an op on this type is written by `expand` rather than native."""
    return op in INTEGER if not element_type.is_float else op in OWN_TYPE or op in DOUBLE


def is_transcendental(op: str) -> bool:
    """Whether an op costs many instructions, so that recomputing it doesn't pay."""
    return (op in OWN_TYPE or op in DOUBLE) and op not in CHEAP


def expand(writer: Writer, op: str, arguments: Sequence[Val], element_type: ElementType) -> Val:
    """Writes `op` of arguments of one type. Raises CompileError for an op that has no expansion."""
    if not is_math(op, element_type):
        raise CompileError(f"no expansion of {op} for {element_type}")
    if not element_type.is_float:
        return INTEGER[op](*(Number(writer, a, element_type) for a in arguments)).value
    kind = element_type if element_type.bits >= 32 else F32
    function = OWN_TYPE.get(op) or DOUBLE[op]
    inside = kind if op in OWN_TYPE else F64
    numbers = [Number(writer, a, element_type).convert(kind).convert(inside) for a in arguments]
    return function(*numbers).convert(kind).convert(element_type).value
