"""The scalar ops that `Apply` names: one record each, with its arity and its meaning in NumPy.

Elementwise HLO ops are scalar ops by their opcode with `_` for `-` (`shift_left`, `count_leading_zeros`,
`round_nearest_even`), with HLO's meaning. Besides them there are:

- `eq ne lt le gt ge`: predicates of two values of one type. Floats compare as IEEE says (only `ne` holds for a NaN).
- `select(predicate, on_true, on_false)`, `clamp(low, x, high)`.
- `convert(x)` to the Apply's element type as StableHLO converts (float to integer saturates, NaN gives 0).
- `bitcast(x)`: the same bits, of an element type of the same width.
- `fma(a, b, c)` = a * b + c, rounded once; `trunc(x)`; `copysign(magnitude, sign)`.
- `floor_divide(a, b)`, `modulo(a, b)`: of integers, rounding down; `b` is positive. For index arithmetic.
- `reduce_precision(x, exponent_bits, mantissa_bits)`: the last two are integer `Const`s.
- `total_order_key(x)`: the float's bits as a signed integer of its width that orders as IEEE totalOrder does.

Integer ops wrap; division follows StableHLO (x / 0 = -1 or all ones, x % 0 = x, MIN / -1 = MIN, MIN % -1 = 0);
shifts by the width or more give 0, or the sign for `shift_right_arithmetic`. `maximum` and `minimum` of floats give
NaN when either is, and -0 < +0. `real`, `imag` and `complex` do not exist here: a complex number is two reals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.base.errors import CompileError
from fusile.hlo.ir import OPS as HLO_OPS
from fusile.hlo.opset import numerics
from fusile.hlo.opset.elementwise import DIRECTIONS, Elementwise

Array = np.ndarray[Any, Any]
Meaning = Callable[[ElementType, list[Array]], Any]


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One scalar op. `meaning(result element type, arguments)` computes it on NumPy arrays of equal shape."""

    name: str
    arity: int
    meaning: Meaning
    is_commutative: bool = False
    is_predicate: bool = False
    """Whether the result is a predicate whatever the arguments' type."""

    def __call__(self, result: ElementType, *arguments: Any) -> Array:
        """The value on NumPy arrays, in `result`'s dtype. Raises CompileError when the arity is wrong."""
        if len(arguments) != self.arity:
            raise CompileError(f"scalar op {self.name} takes {self.arity} arguments, not {len(arguments)}")
        with np.errstate(all="ignore"):
            value = self.meaning(result, [np.asarray(a) for a in arguments])
        return np.asarray(value).astype(result.dtype, copy=False)


def _from_hlo(cls: type[Any]) -> ScalarOp:
    op = cls()
    name = cls.opcode.replace("-", "_")
    predicate = name == "is_finite"
    return ScalarOp(name, op.arity, lambda result, xs: op.evaluate(None, xs, None), op.commutative, predicate)


def _comparison(name: str) -> ScalarOp:
    function = DIRECTIONS[name.upper()]
    return ScalarOp(name, 2, lambda result, xs: function(*xs), name in ("eq", "ne"), is_predicate=True)


def _bitcast(result: ElementType, xs: list[Array]) -> Array:
    return np.atleast_1d(xs[0]).view(result.dtype).reshape(xs[0].shape)


def _clamp(low: Array, x: Array, high: Array) -> Array:
    maximum, minimum = numerics.widened(numerics.maximum), numerics.widened(numerics.minimum)
    return minimum(maximum(low, x), high)


def _fma(result: ElementType, xs: list[Array]) -> Array:
    if result.is_integer:
        return numerics.widened(lambda a, b, c: a * b + c)(*xs)
    one = np.vectorize(lambda a, b, c: _exact_fma(float(a), float(b), float(c), result), otypes=[np.float64])
    return np.asarray(one(*xs)) if xs[0].size else xs[0]


def _exact_fma(a: float, b: float, c: float, result: ElementType) -> float:
    """One rounding, by rational arithmetic."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        finite_product = math.isfinite(a) and math.isfinite(b)
        return c if finite_product else float(np.float64(a) * np.float64(b) + np.float64(c))
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        return a * b + c if a == 0 or b == 0 else 0.0
    return _rounded(total, result)


def _rounded(value: Fraction, result: ElementType) -> float:
    """The nearest float of the type, ties to even, with denormals and overflow."""
    precision, lowest, highest = _FORMATS.get(result.name, (24, -149, 128))
    exponent = math.floor(math.log2(abs(value.numerator)) - math.log2(value.denominator)) - precision
    exponent = max(exponent, lowest)
    scaled = round(abs(value) / Fraction(2) ** exponent)
    while scaled > 1 << precision:
        exponent += 1
        scaled = round(abs(value) / Fraction(2) ** exponent)
    too_large = scaled.bit_length() + exponent > highest
    return math.copysign(math.inf if too_large else math.ldexp(scaled, exponent), 1 if value > 0 else -1)


_FORMATS = {"bf16": (8, -133, 128), "f16": (11, -24, 16), "f32": (24, -149, 128), "f64": (53, -1074, 1024)}
"""Significant bits, exponent of the least denormal, and one above the greatest exponent."""


def _table() -> dict[str, ScalarOp]:
    elementwise = [cls for cls in HLO_OPS.values() if issubclass(cls, Elementwise)]
    wide = numerics.widened
    ops = [
        *(_from_hlo(cls) for cls in elementwise if cls.opcode not in ("real", "imag", "complex")),
        *(_comparison(name.lower()) for name in DIRECTIONS),
        ScalarOp("select", 3, lambda result, xs: np.where(*xs)),
        ScalarOp("clamp", 3, lambda result, xs: _clamp(*xs)),
        ScalarOp("convert", 1, lambda result, xs: numerics.convert(xs[0], result)),
        ScalarOp("bitcast", 1, _bitcast),
        ScalarOp("fma", 3, _fma),
        ScalarOp("trunc", 1, lambda result, xs: wide(np.trunc)(*xs)),
        ScalarOp("copysign", 2, lambda result, xs: wide(np.copysign)(*xs)),
        ScalarOp("floor_divide", 2, lambda result, xs: np.floor_divide(*xs)),
        ScalarOp("modulo", 2, lambda result, xs: np.mod(*xs)),
        ScalarOp("reduce_precision", 3, _reduce_precision),
        ScalarOp("total_order_key", 1, lambda result, xs: numerics.total_order_key(xs[0])),
    ]
    return {op.name: op for op in ops}


def _reduce_precision(result: ElementType, xs: list[Array]) -> Array:
    return numerics.reduce_precision(xs[0], int(xs[1].flat[0]), int(xs[2].flat[0]))


OPS: dict[str, ScalarOp] = _table()
"""Every scalar op by name."""


def scalar_op(name: str) -> ScalarOp:
    """The op of that name. Raises CompileError when there is none."""
    found = OPS.get(name)
    if found is None:
        raise CompileError(f"there is no scalar op {name!r}; the scalar ops are: {', '.join(OPS)}")
    return found
