"""Elementwise ops: each applies one scalar function to the operands' elements, which have one shape.

Sections of the StableHLO specification carry the ops' names; those of CHLO are marked. A new op here is one `unary` or
`binary` line: opcode, class, which families of element types it takes, and its meaning in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import PRED, ElementType, Kind
from fusile.base.errors import ShapeError
from fusile.base.shape import AnyShape, Shape
from fusile.hlo.ir import Instruction, Op, op
from fusile.hlo.opset import numerics as n

INTEGER = frozenset({Kind.SIGNED, Kind.UNSIGNED})
FLOAT = frozenset({Kind.FLOAT})
COMPLEX = frozenset({Kind.COMPLEX})
PREDICATE = frozenset({Kind.PREDICATE})
INEXACT = FLOAT | COMPLEX
NUMBER = INTEGER | INEXACT
BITS = INTEGER | PREDICATE
ANY = NUMBER | PREDICATE


class Elementwise(Op):
    """The base of ops whose operands and result have one shape."""

    elementwise = True
    kinds: frozenset[Kind] = ANY

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        first = same_shape(self.opcode, operands, self.arity)
        if first.element_type.kind not in self.kinds:
            allowed = ", ".join(sorted(k.value for k in self.kinds))
            raise ShapeError(f"{self.opcode} takes {allowed} elements, not {first.element_type}")
        return self.result(first)

    def result(self, operand: Shape) -> Shape:
        return operand


def same_shape(opcode: str, operands: Sequence[AnyShape], arity: int | None) -> Shape:
    """The one array shape of all operands. Raises ShapeError when they differ or are too few or many."""
    if arity is not None and len(operands) != arity:
        raise ShapeError(f"{opcode} takes {arity} operands, not {len(operands)}")
    for shape in operands:
        if not isinstance(shape, Shape) or shape.is_token:
            raise ShapeError(f"{opcode} takes arrays, not {shape}")
    first = operands[0]
    assert isinstance(first, Shape)
    if any(s.dimensions != first.dimensions or s.element_type is not first.element_type for s in operands):  # type: ignore[union-attr]
        raise ShapeError(f"{opcode} takes operands of one shape, not {', '.join(map(repr, operands))}")
    return first


def _make(name: str, opcode: str, arity: int, kinds: frozenset[Kind], meaning: Callable[..., Any], doc: str,
          commutative: bool = False, result: Callable[[Shape], Shape] | None = None) -> type[Elementwise]:  # fmt: skip
    def evaluate(self: Op, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return meaning(*operands)

    body: dict[str, Any] = {
        "__doc__": doc,
        "__module__": __name__,
        "opcode": opcode,
        "arity": arity,
        "kinds": kinds,
        "commutative": commutative,
        "evaluate": evaluate,
        "__annotations__": {},
    }
    if result is not None:
        body["result"] = lambda self, operand: result(operand)
    return op(type(name, (Elementwise,), body))


def unary(
    name: str, opcode: str, kinds: frozenset[Kind], meaning: Callable[..., Any], doc: str, **more: Any
) -> type[Elementwise]:
    return _make(name, opcode, 1, kinds, meaning, doc, **more)


def binary(
    name: str, opcode: str, kinds: frozenset[Kind], meaning: Callable[..., Any], doc: str, **more: Any
) -> type[Elementwise]:
    return _make(name, opcode, 2, kinds, meaning, doc, **more)


def _real(shape: Shape) -> Shape:
    return shape.with_element_type(shape.element_type.real)


def _predicate(shape: Shape) -> Shape:
    return shape.with_element_type(PRED)


def _complex(shape: Shape) -> Shape:
    from fusile.base.element_type import C64, C128, F32, F64

    found = {F32: C64, F64: C128}.get(shape.element_type)
    if found is None:
        raise ShapeError(f"complex takes f32 or f64 parts, not {shape.element_type}")
    return shape.with_element_type(found)


def _absolute(x: n.Array) -> n.Array:
    return np.abs(x) if x.dtype.kind == "c" else n.widened(np.abs)(x)


def _not(x: n.Array) -> n.Array:
    return np.logical_not(x) if x.dtype == np.bool_ else n.widened(np.invert)(x)


def _and(a: n.Array, b: n.Array) -> n.Array:
    return np.logical_and(a, b) if a.dtype == np.bool_ else n.widened(np.bitwise_and)(a, b)


def _or(a: n.Array, b: n.Array) -> n.Array:
    return np.logical_or(a, b) if a.dtype == np.bool_ else n.widened(np.bitwise_or)(a, b)


def _xor(a: n.Array, b: n.Array) -> n.Array:
    return np.logical_xor(a, b) if a.dtype == np.bool_ else n.widened(np.bitwise_xor)(a, b)


def _add(a: n.Array, b: n.Array) -> n.Array:
    return np.logical_or(a, b) if a.dtype == np.bool_ else n.widened(np.add)(a, b)


def _multiply(a: n.Array, b: n.Array) -> n.Array:
    return np.logical_and(a, b) if a.dtype == np.bool_ else n.widened(np.multiply)(a, b)


def _power(a: n.Array, b: n.Array) -> n.Array:
    return n.doubled(np.power)(a, b) if a.dtype.kind not in "iu" else n.widened(n.power)(a, b)


def _logistic(x: n.Array) -> n.Array:
    """With e**-|x|, which does not overflow."""
    left = x.real < 0
    e = np.exp(np.where(left, x, -x))
    return np.asarray(np.where(left, e, 1) / (1 + e))


def _complex_parts(a: n.Array, b: n.Array) -> n.Array:
    result = np.empty(a.shape, np.complex64 if a.dtype == np.float32 else np.complex128)
    result.real, result.imag = a, b
    return result


def _is_finite(x: n.Array) -> n.Array:
    return np.isfinite(x.astype(np.float32) if x.dtype.itemsize < 4 else x)


ARITHMETIC = NUMBER | PREDICATE
Abs = unary("Abs", "abs", NUMBER, _absolute, "Absolute value (`abs`); of a complex number its magnitude.", result=_real)
Negate = unary("Negate", "negate", NUMBER, n.widened(np.negative), "Negation (`negate`); integers wrap.")
Sign = unary("Sign", "sign", NUMBER, n.widened(n.sign), "-1, 0 or 1; NaN and signed zeros stay (`sign`).")
Floor = unary("Floor", "floor", FLOAT, n.widened(np.floor), "The next lower whole number (`floor`).")
Ceil = unary("Ceil", "ceil", FLOAT, n.widened(np.ceil), "The next higher whole number (`ceil`).")
RoundNearestEven = unary(
    "RoundNearestEven",
    "round-nearest-even",
    FLOAT,
    n.widened(np.rint),
    "To the nearest, ties to even (`round_nearest_even`).",
)
RoundNearestAfz = unary(
    "RoundNearestAfz",
    "round-nearest-afz",
    FLOAT,
    n.widened(n.round_away),
    "To the nearest, ties away from zero (`round_nearest_afz`).",
)
Exponential = unary("Exponential", "exponential", INEXACT, n.doubled(np.exp), "e**x (`exponential`).")
ExponentialMinusOne = unary(
    "ExponentialMinusOne", "exponential-minus-one", INEXACT, n.doubled(np.expm1), "e**x - 1 (`exponential_minus_one`)."
)
Log = unary("Log", "log", INEXACT, n.doubled(np.log), "Natural logarithm (`log`).")
LogPlusOne = unary("LogPlusOne", "log-plus-one", INEXACT, n.doubled(np.log1p), "log(1 + x) (`log_plus_one`).")
Logistic = unary("Logistic", "logistic", INEXACT, n.doubled(_logistic), "1 / (1 + e**-x) (`logistic`).")
Tanh = unary("Tanh", "tanh", INEXACT, n.doubled(np.tanh), "Hyperbolic tangent (`tanh`).")
Sine = unary("Sine", "sine", INEXACT, n.doubled(np.sin), "Sine (`sine`).")
Cosine = unary("Cosine", "cosine", INEXACT, n.doubled(np.cos), "Cosine (`cosine`).")
Tan = unary("Tan", "tan", INEXACT, n.doubled(np.tan), "Tangent (`tan`).")
Sqrt = unary("Sqrt", "sqrt", INEXACT, n.doubled(np.sqrt), "Square root (`sqrt`).")
Rsqrt = unary("Rsqrt", "rsqrt", INEXACT, n.doubled(lambda x: 1 / np.sqrt(x)), "1 / sqrt(x) (`rsqrt`).")
Cbrt = unary("Cbrt", "cbrt", FLOAT, n.doubled(n.cbrt), "Cube root (`cbrt`).")
IsFinite = unary(
    "IsFinite", "is-finite", FLOAT, _is_finite, "Neither infinite nor NaN (`is_finite`).", result=_predicate
)
Not = unary("Not", "not", BITS, _not, "Logical or bitwise not (`not`).")
PopulationCount = unary(
    "PopulationCount", "popcnt", INTEGER, lambda x: n.count_bits(x, False), "Number of set bits (`popcnt`)."
)
CountLeadingZeros = unary(
    "CountLeadingZeros",
    "count-leading-zeros",
    INTEGER,
    lambda x: n.count_bits(x, True),
    "Number of leading zero bits (`count_leading_zeros`).",
)
Real = unary(
    "Real",
    "real",
    INEXACT,
    lambda x: np.ascontiguousarray(x.real).reshape(x.shape),
    "The real part (`real`).",
    result=_real,
)
Imag = unary(
    "Imag",
    "imag",
    INEXACT,
    lambda x: np.ascontiguousarray(x.imag).reshape(x.shape) if x.dtype.kind == "c" else np.zeros_like(x),
    "The imaginary part (`imag`).",
    result=_real,
)
Erf = unary("Erf", "erf", FLOAT, n.doubled(n.scalarwise(math.erf)), "The error function (CHLO `erf`).")
Erfc = unary("Erfc", "erfc", FLOAT, n.doubled(n.scalarwise(math.erfc)), "1 - erf(x) (CHLO `erfc`).")
ErfInv = unary(
    "ErfInv", "erf-inv", FLOAT, n.doubled(n.scalarwise(n.erf_inv_scalar)), "The inverse of erf (CHLO `erf_inv`)."
)
Asin = unary("Asin", "asin", INEXACT, n.doubled(np.arcsin), "Arc sine (CHLO `asin`).")
Acos = unary("Acos", "acos", INEXACT, n.doubled(np.arccos), "Arc cosine (CHLO `acos`).")
Atan = unary("Atan", "atan", INEXACT, n.doubled(np.arctan), "Arc tangent (CHLO `atan`).")
Sinh = unary("Sinh", "sinh", INEXACT, n.doubled(np.sinh), "Hyperbolic sine (CHLO `sinh`).")
Cosh = unary("Cosh", "cosh", INEXACT, n.doubled(np.cosh), "Hyperbolic cosine (CHLO `cosh`).")
Asinh = unary("Asinh", "asinh", INEXACT, n.doubled(np.arcsinh), "Inverse hyperbolic sine (CHLO `asinh`).")
Acosh = unary("Acosh", "acosh", INEXACT, n.doubled(np.arccosh), "Inverse hyperbolic cosine (CHLO `acosh`).")
Atanh = unary("Atanh", "atanh", INEXACT, n.doubled(np.arctanh), "Inverse hyperbolic tangent (CHLO `atanh`).")
Lgamma = unary("Lgamma", "lgamma", FLOAT, n.doubled(n.scalarwise(n.lgamma_scalar)), "log(|gamma(x)|) (CHLO `lgamma`).")
Digamma = unary(
    "Digamma", "digamma", FLOAT, n.doubled(n.scalarwise(n.digamma_scalar)), "The derivative of lgamma (CHLO `digamma`)."
)
BesselI0e = unary(
    "BesselI0e",
    "bessel-i0e",
    FLOAT,
    n.doubled(n.scalarwise(n.bessel_scaled(0))),
    "exp(-|x|) I0(x), a modified Bessel function.",
)
BesselI1e = unary(
    "BesselI1e",
    "bessel-i1e",
    FLOAT,
    n.doubled(n.scalarwise(n.bessel_scaled(1))),
    "exp(-|x|) I1(x) (CHLO `bessel_i1e`).",
)

Add = binary("Add", "add", ANY, _add, "Sum; of predicates the logical or (`add`).", commutative=True)
Subtract = binary("Subtract", "subtract", NUMBER, n.widened(np.subtract), "Difference (`subtract`).")
Multiply = binary(
    "Multiply", "multiply", ANY, _multiply, "Product; of predicates the logical and (`multiply`).", commutative=True
)
Divide = binary(
    "Divide", "divide", NUMBER, n.widened(n.divide), "Quotient; of integers rounded toward zero (`divide`)."
)
Remainder = binary(
    "Remainder",
    "remainder",
    INTEGER | FLOAT,
    n.widened(n.remainder),
    "Remainder with the dividend's sign (`remainder`).",
)
Maximum = binary(
    "Maximum", "maximum", ANY, n.widened(n.maximum), "The larger; NaN when either is (`maximum`).", commutative=True
)
Minimum = binary(
    "Minimum", "minimum", ANY, n.widened(n.minimum), "The smaller; NaN when either is (`minimum`).", commutative=True
)
Power = binary("Power", "power", NUMBER, _power, "x**y (`power`).")
Atan2 = binary("Atan2", "atan2", INEXACT, n.doubled(n.atan2), "The angle of the point (y, x): operands y, x (`atan2`).")
And = binary("And", "and", BITS, _and, "Logical or bitwise and (`and`).", commutative=True)
Or = binary("Or", "or", BITS, _or, "Logical or bitwise or (`or`).", commutative=True)
Xor = binary("Xor", "xor", BITS, _xor, "Logical or bitwise exclusive or (`xor`).", commutative=True)
ShiftLeft = binary(
    "ShiftLeft",
    "shift-left",
    INTEGER,
    lambda a, b: n.shift("left", a, b),
    "Left shift, 0 past the width (`shift_left`).",
)
ShiftRightArithmetic = binary(
    "ShiftRightArithmetic",
    "shift-right-arithmetic",
    INTEGER,
    lambda a, b: n.shift("arithmetic", a, b),
    "Right shift that keeps the sign (`shift_right_arithmetic`).",
)
ShiftRightLogical = binary(
    "ShiftRightLogical",
    "shift-right-logical",
    INTEGER,
    lambda a, b: n.shift("logical", a, b),
    "Right shift that fills zeros (`shift_right_logical`).",
)
Complex = binary(
    "Complex", "complex", FLOAT, _complex_parts, "A complex number from its parts (`complex`).", result=_complex
)
NextAfter = binary(
    "NextAfter", "next-after", FLOAT, n.next_after, "The next number after x toward y (CHLO `next_after`)."
)

DIRECTIONS: dict[str, Callable[..., Any]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip


@op
class Compare(Op):
    """Compares elements (`compare`); `total_order` orders floats as IEEE totalOrder does (-NaN < -inf < -0 < +0 < inf
    < NaN)."""

    direction: str
    total_order: bool = False

    opcode = "compare"
    arity = 2
    elementwise = True

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        first = same_shape("compare", operands, 2)
        if self.direction not in DIRECTIONS:
            raise ShapeError(f"compare has no direction {self.direction!r}; it is one of {', '.join(DIRECTIONS)}")
        if first.element_type.is_complex and self.direction not in ("EQ", "NE"):
            raise ShapeError("complex numbers compare only for EQ and NE")
        return first.with_element_type(PRED)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        a, b = operands
        if self.total_order and instruction.operands[0].array_shape.element_type.is_float:
            a, b = n.total_order_key(a), n.total_order_key(b)
        return np.asarray(DIRECTIONS[self.direction](a, b), dtype=bool)


@op
class Select(Op):
    """`on_true` where the predicate holds, else `on_false` (`select`); the predicate may be a scalar."""

    opcode = "select"
    arity = 3
    elementwise = True

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        if len(operands) != 3 or not isinstance(operands[0], Shape) or operands[0].element_type is not PRED:
            raise ShapeError(f"select takes a predicate and two values, not {', '.join(map(repr, operands))}")
        result = same_shape("select", operands[1:], 2)
        if operands[0].dimensions not in ((), result.dimensions):
            raise ShapeError(f"select's predicate {operands[0]} is neither a scalar nor of the values' shape {result}")
        return result

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return np.where(*operands)


@op
class Clamp(Op):
    """max(low, min(x, high)): operands low, x, high (`clamp`); the bounds may be scalars."""

    opcode = "clamp"
    arity = 3
    elementwise = True

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        if len(operands) != 3 or not isinstance(operands[1], Shape):
            raise ShapeError(f"clamp takes low, operand and high, not {', '.join(map(repr, operands))}")
        x = operands[1]
        for bound in (operands[0], operands[2]):
            if (
                not isinstance(bound, Shape)
                or bound.element_type is not x.element_type
                or bound.dimensions not in ((), x.dimensions)
            ):
                raise ShapeError(f"clamp's bound {bound} is neither a scalar nor of the operand's shape {x}")
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        low, x, high = (np.broadcast_to(o, operands[1].shape) for o in operands)
        return n.widened(n.minimum)(n.widened(n.maximum)(low, x), high)


@op
class Convert(Op):
    """The nearest value of another element type (`convert`): float to integer truncates and saturates, NaN gives 0;
    integers wrap."""

    element_type: ElementType

    opcode = "convert"
    arity = 1
    elementwise = True

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        return same_shape("convert", operands, 1).with_element_type(self.element_type)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return n.convert(operands[0], self.element_type)


@op
class BitcastConvert(Op):
    """The same bits as another element type (`bitcast_convert`); a change of width adds or takes a minor dimension."""

    element_type: ElementType

    opcode = "bitcast-convert"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = same_shape("bitcast-convert", operands, 1)
        old, new = x.element_type.bits, self.element_type.bits
        if old == new:
            return x.with_element_type(self.element_type)
        if old > new and old % new == 0:
            return Shape(self.element_type, (*x.dimensions, old // new))
        if new % old == 0 and x.rank and x.dimensions[-1] == new // old:
            return Shape(self.element_type, x.dimensions[:-1])
        raise ShapeError(
            f"bitcast-convert of {x} to {self.element_type}: "
            f"{new // old if old < new else old / new} elements do not fit"
        )

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        x = np.ascontiguousarray(operands[0])
        bits = x.reshape(-1).view(self.element_type.dtype)
        same = instruction.operands[0].array_shape.element_type.bits == self.element_type.bits
        # Of one width it is elementwise: in computations of scalars it is evaluated for many elements at once.
        return bits.reshape(np.shape(operands[0]) if same else instruction.array_shape.sizes)


@op
class ReducePrecision(Op):
    """Rounds to a float of fewer bits and back (`reduce_precision`)."""

    exponent_bits: int
    mantissa_bits: int

    opcode = "reduce-precision"
    arity = 1
    elementwise = True

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        x = same_shape("reduce-precision", operands, 1)
        if not x.element_type.is_float or self.exponent_bits < 1 or self.mantissa_bits < 0:
            raise ShapeError(
                f"reduce-precision to {self.exponent_bits} exponent and {self.mantissa_bits} mantissa bits of {x}"
            )
        return x

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        with np.errstate(all="ignore"):
            return n.reduce_precision(operands[0], self.exponent_bits, self.mantissa_bits)
