"""Elementwise arithmetic, comparisons, logic, casts and complex numbers, as TensorFlow's CPU kernels do them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusile.base.element_type import F32, S32, S64, U64, ElementType
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import TensorList, Value

Unary = Callable[[Builder, Instruction], Instruction]
Binary = Callable[[Builder, Instruction, Instruction], Instruction]

PLAIN_UNARY = {
    "Abs": "abs", "ComplexAbs": "abs", "Neg": "negate", "Floor": "floor", "Ceil": "ceil", "Exp": "exponential",
    "Expm1": "exponential_minus_one", "Log": "log", "Log1p": "log_plus_one", "Sigmoid": "logistic", "Tanh": "tanh",
    "Sin": "sine", "Cos": "cosine", "Tan": "tan", "Sqrt": "sqrt", "Rsqrt": "rsqrt", "Erf": "erf", "Erfc": "erfc",
    "Erfinv": "erf_inv", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Lgamma": "lgamma", "Digamma": "digamma",
    "IsFinite": "is_finite", "BesselI0e": "bessel_i0e", "BesselI1e": "bessel_i1e", "LogicalNot": "not_",
    "Invert": "not_", "Rint": "round_nearest_even",
}  # fmt: skip
"""TensorFlow's op -> the builder's method, where they mean the same."""

PLAIN_BINARY = {
    "Add": "add", "AddV2": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "RealDiv": "divide",
    "TruncateMod": "remainder", "Mod": "remainder", "Maximum": "maximum", "Minimum": "minimum",
    "Pow": "power", "Atan2": "atan2", "LogicalAnd": "and_", "LogicalOr": "or_", "BitwiseAnd": "and_",
    "BitwiseOr": "or_", "BitwiseXor": "xor", "NextAfter": "next_after", "Complex": "complex",
}  # fmt: skip

COMPARISONS = {"Equal": "EQ", "NotEqual": "NE", "Less": "LT", "LessEqual": "LE", "Greater": "GT", "GreaterEqual": "GE"}


def _enter_plain() -> None:
    def unary(method: str) -> None:
        converter(*names)(lambda context, node, inputs: getattr(context.builder, method)(inputs[0].instruction))

    def binary(method: str) -> None:
        converter(*names)(lambda context, node, inputs: getattr(context.builder, method)(*context.broadcast(*inputs)))

    def comparison(direction: str) -> None:
        converter(*names)(lambda context, node, inputs: compare(context, node, inputs, direction))

    for table, enter in ((PLAIN_UNARY, unary), (PLAIN_BINARY, binary), (COMPARISONS, comparison)):
        for name, meaning in table.items():
            names = (name,)
            enter(meaning)


def compare(context: Context, node: Node, inputs: list[Value], direction: str) -> Instruction:
    x, y = context.broadcast(*inputs)
    return context.builder.compare(x, y, direction)


_enter_plain()


def unary(*op_types: str) -> Callable[[Unary], Unary]:
    """Enters `function(builder, x)` as a converter."""

    def enter(function: Unary) -> Unary:
        converter(*op_types)(lambda context, node, inputs: function(context.builder, inputs[0].instruction))
        return function

    return enter


def binary(*op_types: str) -> Callable[[Binary], Binary]:
    """Enters `function(builder, x, y)` as a converter whose operands broadcast."""

    def enter(function: Binary) -> Binary:
        converter(*op_types)(lambda context, node, inputs: function(context.builder, *context.broadcast(*inputs)))
        return function

    return enter


# -- one operand


@unary("Sign")
def sign(b: Builder, x: Instruction) -> Instruction:
    if not x.array_shape.element_type.is_complex:
        return b.sign(x)
    zero = b.like(0, x)
    return b.select(b.compare(x, zero, "EQ"), zero, b.divide(x, b.complex(b.abs(x), b.like(0, b.real(x)))))


@unary("Round")
def round_half_even(b: Builder, x: Instruction) -> Instruction:
    return b.round_nearest_even(x) if x.array_shape.element_type.is_float else x


@unary("Square")
def square(b: Builder, x: Instruction) -> Instruction:
    return b.multiply(x, x)


@unary("Reciprocal", "Inv")
def reciprocal(b: Builder, x: Instruction) -> Instruction:
    return b.divide(b.like(1, x), x)


@unary("IsNan")
def is_nan(b: Builder, x: Instruction) -> Instruction:
    return b.compare(x, x, "NE")


@unary("IsInf")
def is_infinite(b: Builder, x: Instruction) -> Instruction:
    return b.compare(b.abs(x), b.like(math.inf, x), "EQ")


@unary("Ndtri")
def normal_quantile(b: Builder, x: Instruction) -> Instruction:
    """The inverse of the normal distribution's function: sqrt(2) * erfinv(2x - 1)."""
    centered = b.subtract(b.multiply(b.like(2, x), x), b.like(1, x))
    return b.multiply(b.like(math.sqrt(2), x), b.erf_inv(centered))


@unary("Conj")
def conjugate(b: Builder, x: Instruction) -> Instruction:
    return b.complex(b.real(x), b.negate(b.imag(x))) if x.array_shape.element_type.is_complex else x


@unary("Real")
def real(b: Builder, x: Instruction) -> Instruction:
    return b.real(x)


@unary("Imag")
def imaginary(b: Builder, x: Instruction) -> Instruction:
    return b.imag(x)


@unary("Angle")
def angle(b: Builder, x: Instruction) -> Instruction:
    return b.atan2(b.imag(x), b.real(x))


@unary("PopulationCount")
def population_count(b: Builder, x: Instruction) -> Instruction:
    from fusile.base.element_type import U8

    return b.convert(b.popcnt(x), U8)


# -- two operands


@binary("SquaredDifference")
def squared_difference(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    difference = b.subtract(x, y)
    return b.multiply(conjugate(b, difference), difference)


@binary("FloorDiv")
def floor_divide(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    """Rounds toward minus infinity; of floats, floor(x / y)."""
    of = x.array_shape.element_type
    if of.is_float:
        return b.floor(b.divide(x, y))
    quotient = b.divide(x, y)
    if of.is_unsigned:
        return quotient
    rest, zero = b.remainder(x, y), b.like(0, x)
    opposite = b.compare(b.compare(x, zero, "LT"), b.compare(y, zero, "LT"), "NE")
    inexact = b.compare(rest, zero, "NE")
    return b.select(b.and_(opposite, inexact), b.subtract(quotient, b.like(1, x)), quotient)


@binary("TruncateDiv")
def truncate_divide(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    """Rounds toward zero."""
    quotient = b.divide(x, y)
    if not x.array_shape.element_type.is_float:
        return quotient
    return b.select(b.compare(quotient, b.like(0, x), "LT"), b.ceil(quotient), b.floor(quotient))


@binary("FloorMod")
def floor_modulo(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    """The remainder with the divisor's sign."""
    rest = b.remainder(x, y)
    if x.array_shape.element_type.is_unsigned:
        return rest
    zero = b.like(0, x)
    opposite = b.compare(b.compare(rest, zero, "LT"), b.compare(y, zero, "LT"), "NE")
    return b.select(b.and_(b.compare(rest, zero, "NE"), opposite), b.add(rest, y), rest)


@binary("DivNoNan")
def divide_no_nan(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    zero = b.like(0, x)
    return b.select(b.compare(y, zero, "EQ"), zero, b.divide(x, y))


@binary("MulNoNan")
def multiply_no_nan(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    zero = b.like(0, x)
    return b.select(b.compare(y, zero, "EQ"), zero, b.multiply(x, y))


@binary("Xdivy")
def x_divided_by_y(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    zero = b.like(0, x)
    return b.select(b.compare(x, zero, "EQ"), zero, b.divide(x, y))


@binary("Xlogy")
def x_log_y(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    zero = b.like(0, x)
    return b.select(b.compare(x, zero, "EQ"), zero, b.multiply(x, b.log(y)))


@binary("Xlog1py")
def x_log_one_plus_y(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    zero = b.like(0, x)
    return b.select(b.compare(x, zero, "EQ"), zero, b.multiply(x, b.log_plus_one(y)))


@binary("LeftShift")
def left_shift(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    return b.shift_left(x, _shift_amount(b, y))


@binary("RightShift")
def right_shift(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    amount = _shift_amount(b, y)
    signed = x.array_shape.element_type.is_signed
    return b.shift_right_arithmetic(x, amount) if signed else b.shift_right_logical(x, amount)


def _shift_amount(b: Builder, y: Instruction) -> Instruction:
    """TensorFlow limits the amount to 0 .. bits - 1, where HLO shifts everything out."""
    return b.minimum(b.maximum(y, b.like(0, y)), b.like(y.array_shape.element_type.bits - 1, y))


@converter("ApproximateEqual")
def approximate_equal(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    distance = b.abs(b.subtract(*context.broadcast(*inputs)))
    return b.compare(distance, b.like(node.attribute("tolerance"), distance), "LT")


# -- gradients of single ops: y is the op's result, g the gradient that arrives


@binary("TanhGrad")
def tanh_gradient(b: Builder, y: Instruction, g: Instruction) -> Instruction:
    return b.multiply(g, b.subtract(b.like(1, y), b.multiply(y, y)))


@binary("SigmoidGrad")
def sigmoid_gradient(b: Builder, y: Instruction, g: Instruction) -> Instruction:
    return b.multiply(b.multiply(g, y), b.subtract(b.like(1, y), y))


@binary("SqrtGrad")
def sqrt_gradient(b: Builder, y: Instruction, g: Instruction) -> Instruction:
    return b.divide(b.multiply(g, b.like(0.5, y)), y)


@binary("RsqrtGrad")
def rsqrt_gradient(b: Builder, y: Instruction, g: Instruction) -> Instruction:
    return b.multiply(b.multiply(b.like(-0.5, y), g), b.multiply(y, b.multiply(y, y)))


@binary("ReciprocalGrad", "InvGrad")
def reciprocal_gradient(b: Builder, y: Instruction, g: Instruction) -> Instruction:
    return b.multiply(b.negate(g), b.multiply(y, y))


# -- several operands


@converter("AddN", "AccumulateNV2")
def add_all(context: Context, node: Node, inputs: list[Any]) -> Any:
    if isinstance(inputs[0], TensorList):
        from fusile.tf.lists import add_lists

        return add_lists(context, inputs)
    total = inputs[0].instruction
    for value in inputs[1:]:
        total = context.builder.add(total, value.instruction)
    return total


@converter("ClipByValue")
def clip_by_value(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, low, high = context.broadcast(*inputs)
    return context.builder.minimum(context.builder.maximum(x, low), high)


@converter("SelectV2")
def select(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.select(*context.broadcast(*inputs))


@converter("Select")
def select_rows(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The condition has the values' shape, is a scalar, or a vector that picks rows."""
    condition, x, y = inputs
    picked = condition.instruction
    if condition.rank == 1 and x.rank != 1:
        picked = context.builder.broadcast(picked, x.sizes, (0,))
    return context.builder.select(picked, x.instruction, y.instruction)


@converter("Cross")
def cross(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The vector product along the last dimension, of size 3."""
    b, (x, y) = context.builder, (v.instruction for v in inputs)
    sizes = inputs[0].sizes

    def rolled(v: Instruction, by: int) -> Instruction:
        zeros = [0] * (len(sizes) - 1)
        head = b.slice(v, [*zeros, by], [*sizes[:-1], 3])
        return b.concatenate([head, b.slice(v, [*zeros, 0], [*sizes[:-1], by])], len(sizes) - 1)

    left, right = b.multiply(rolled(x, 1), rolled(y, 2)), b.multiply(rolled(x, 2), rolled(y, 1))
    return b.subtract(left, right)


# -- casts


@converter("Cast")
def cast(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return cast_wrapping(context.builder, inputs[0].instruction, node.element_type("DstT"))


def cast_wrapping(b: Builder, x: Instruction, to: ElementType) -> Instruction:
    """TensorFlow's cast: what the processor's conversion gives. A float out of an integer's range becomes the lowest
    s32 or s64, or that value's low bits, where HLO's convert saturates."""
    of = x.array_shape.element_type
    if of.is_complex and not to.is_complex:
        x = b.real(x) if not to.is_predicate else x
        of = x.array_shape.element_type
    if to.is_predicate and not of.is_predicate:
        return b.compare(x, b.like(0, x), "NE")
    if not of.is_float or not to.is_integer:
        return b.convert(x, to)
    if of.bits < 32:
        x = b.convert(x, F32)
    if to is U64:
        small = b.compare(x, b.like(2.0**63, x), "LT")
        return b.select(small, b.convert(_truncate(b, x, S64), U64), b.convert(x, U64))
    wide = S64 if to.bits == 64 or (to.bits == 32 and to.is_unsigned) else S32
    return b.convert(_truncate(b, x, wide), to)


def _truncate(b: Builder, x: Instruction, to: ElementType) -> Instruction:
    """x as s32 or s64; the lowest number when x is NaN or out of range."""
    limit = 2.0 ** (to.bits - 1)
    inside = b.and_(b.compare(x, b.like(-limit, x), "GE"), b.compare(x, b.like(limit, x), "LT"))
    lowest = b.full(-(1 << (to.bits - 1)), x.array_shape.with_element_type(to))
    return b.select(inside, b.convert(x, to), lowest)


@converter("Bitcast")
def bitcast(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.bitcast_convert(inputs[0].instruction, node.element_type("type"))


def as_index(b: Builder, x: Instruction) -> Instruction:
    """Indices as signed integers of at least 32 bits."""
    of = x.array_shape.element_type
    return x if of in (S32, S64) else b.convert(x, S64 if of.bits > 16 and of.is_unsigned else S32)


def accumulator(of: ElementType) -> ElementType:
    """The type in which sums of this type are made: half precision adds up in f32."""
    return F32 if of.is_float and of.bits < 32 else of
