"""Products and convolutions of quantized tensors: exact sums of integer products, scaled once."""

from __future__ import annotations

import math

import numpy as np

from fusile.base.element_type import F32, F64, S32, ElementType
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, Conversion
from fusile.stablehlo.conversion.contractions import convolution_dimensions, dot_dimensions
from fusile.stablehlo.conversion.quantized import (
    centered,
    convert,
    dequantize_op_quantize,
    operand_quantizations,
    quantize,
    quantized_rule,
    result_quantizations,
    with_result_types,
)
from fusile.stablehlo.quantization import Quantization

_ACCUMULATORS = ((F32, 1 << 24), (S32, (1 << 31) - 1), (F64, 1 << 53))
"""Element types that hold every integer up to the number, the fastest first."""

_CONVOLUTIONS = ("stablehlo.convolution", "stablehlo.dynamic_conv")


@quantized_rule("stablehlo.dot_general", "stablehlo.dot", *_CONVOLUTIONS)
def _contraction(context: Context, conversion: Conversion) -> list[Instruction]:
    """With both operands quantized, the products of `i - zero_point` are summed exactly, in any order, and the sum is
    multiplied by both scales: what `dequantize_op_quantize` means, without the rounding of its products and sums.
    With the right operand alone, it is dequantized first (`hybrid_dequantize_then_op`)."""
    lhs, rhs, *_ = operand_quantizations(context)
    (result,) = result_quantizations(context)
    _check(context, lhs, rhs, result)
    accumulator = _accumulator(context, lhs, rhs) if lhs and rhs else None
    if lhs is None or rhs is None or result is None or accumulator is None:
        return dequantize_op_quantize(context, conversion)
    for number, q in enumerate((lhs, rhs)):
        integers = centered(context, context.operands[number], q)
        context.operands[number] = convert(context, integers, accumulator)
    shape = context.result_shape().with_element_type(accumulator)
    (total,) = with_result_types(context, conversion, [shape])
    return [quantize(context, _scaled(context, total, lhs, rhs), result)]


def _check(context: Context, lhs: Quantization | None, rhs: Quantization | None, result: Quantization | None) -> None:
    """The constraints of both ops on their quantized types. Raises ParseError."""
    if rhs is None or (lhs is None) is not (result is None):
        raise context.error("the right operand and, with a quantized left operand, the result must be quantized")
    if rhs.is_per_axis and rhs.dimension != _output_dimension(context, rhs)[0]:
        raise context.error(f"the right operand's quantized dimension {rhs.dimension} is none of the result's")
    if lhs is None or result is None:
        kind = context.operands[0].array_shape.element_type
        if kind is not rhs.expressed:
            raise context.error(f"the left operand is {kind}, the right one expresses {rhs.expressed}")
        return
    if lhs.is_per_axis:
        raise context.error("the left operand is quantized per axis", "it takes one scale for the whole tensor")
    if lhs.storage is not rhs.storage:
        raise context.error(f"the operands are stored as {lhs.storage} and {rhs.storage}, not as one type")
    if len({lhs.expressed, rhs.expressed, result.expressed}) > 1:
        raise context.error(f"its types express {lhs.expressed}, {rhs.expressed} and {result.expressed}, not one type")
    if result.is_per_axis and not rhs.is_per_axis:
        raise context.error("its result is quantized per axis, its right operand is not")
    if result.is_per_axis and result.dimension != _output_dimension(context, rhs)[1]:
        raise context.error(f"the result's quantized dimension {result.dimension} is not the right operand's")


def _output_dimension(context: Context, rhs: Quantization) -> tuple[int | None, int | None]:
    """The quantized dimension of the right operand and where the result has it; None where the result has none."""
    if context.operation.name in _CONVOLUTIONS:
        numbers = convolution_dimensions(context)
        return numbers.kernel_output_feature, numbers.output_feature
    d, dot = rhs.dimension, dot_dimensions(context)
    if d is None or d in dot["rhs_contracting"]:
        return None, None
    if d in dot["rhs_batch"]:
        return d, dot["rhs_batch"].index(d)
    before = sum(1 for i in range(d) if i not in (*dot["rhs_batch"], *dot["rhs_contracting"]))
    return d, context.operands[0].array_shape.rank - len(dot["lhs_contracting"]) + before


def _accumulator(context: Context, lhs: Quantization, rhs: Quantization) -> ElementType | None:
    """The element type in which every partial sum is exact; None where none is sure to be, or scales underflow."""
    shape = context.operands[1].array_shape
    smallest = lhs.scales[0] * min(rhs.scales)
    largest = lhs.scales[0] * max(rhs.scales)
    if not shape.is_static or smallest < np.finfo(np.float32).tiny or largest > np.finfo(np.float32).max:
        return None
    if context.operation.name in _CONVOLUTIONS:
        summed = shape.elements // max(1, shape.sizes[convolution_dimensions(context).kernel_output_feature])
    else:
        summed = math.prod(shape.sizes[d] for d in dot_dimensions(context)["rhs_contracting"])
    bound = summed * lhs.largest_distance() * rhs.largest_distance()
    return next((kind for kind, largest_integer in _ACCUMULATORS if bound <= largest_integer), None)


def _scaled(context: Context, total: Instruction, lhs: Quantization, rhs: Quantization) -> Instruction:
    """The sum times both scales, at least in f32, then in the expressed type."""
    kind = F64 if lhs.expressed is F64 or total.array_shape.element_type is F64 else F32
    products = np.array([lhs.scales[0] * s for s in rhs.scales]).astype(kind.dtype)
    places = []
    if rhs.is_per_axis:
        places = [d for d in _output_dimension(context, rhs)[1:] if d is not None]
    else:
        products = products[0]
    scale = context.broadcast(context.constant(np.asarray(products)), total.array_shape.dimensions, places)
    number = context.add("multiply", [convert(context, total, kind), scale])
    return convert(context, number, lhs.expressed)
