"""Products and convolutions."""

from __future__ import annotations

from fusile.base.element_type import ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.window import ConvolutionDimensions, Window
from fusile.hlo.text.window import positions
from fusile.stablehlo.assembly import convolution_labels
from fusile.stablehlo.conversion.context import Context, converts, integers_of
from fusile.stablehlo.syntax import DialectAttribute


def _result_type(context: Context) -> ElementType | None:
    """The result's element type where it is not the left operand's."""
    kind = context.result_shape().element_type
    return None if kind is context.operands[0].array_shape.element_type else kind


def dot_dimensions(context: Context) -> dict[str, tuple[int, ...]]:
    """The batch and contracting dimensions of `dot_general` and `dot`."""
    if context.operation.name == "stablehlo.dot":
        last = context.operands[0].array_shape.rank - 1
        return {"lhs_batch": (), "rhs_batch": (), "lhs_contracting": (last,), "rhs_contracting": (0,)}
    fields = context.fields("dot_dimension_numbers")
    batch = context.attribute(
        "batching_dims", (fields.get("lhs_batching_dimensions", []), fields.get("rhs_batching_dimensions", []))
    )
    contracting = context.attribute(
        "contracting_dims", (fields.get("lhs_contracting_dimensions", []), fields.get("rhs_contracting_dimensions", []))
    )
    return {
        "lhs_batch": integers_of("batching_dims", batch[0]),
        "rhs_batch": integers_of("batching_dims", batch[1]),
        "lhs_contracting": integers_of("contracting_dims", contracting[0]),
        "rhs_contracting": integers_of("contracting_dims", contracting[1]),
    }


@converts("stablehlo.dot_general", "stablehlo.dot")
def _dot(context: Context) -> Instruction:
    return context.add("dot", context.operands, **dot_dimensions(context), element_type=_result_type(context))


def convolution(context: Context, operands: list[Instruction], padding: tuple[int, ...]) -> Instruction:
    numbers = convolution_dimensions(context)
    ones = (1,) * len(numbers.input_spatial)
    size = tuple(operands[1].array_shape.sizes[d] for d in numbers.kernel_spatial)
    window = Window(
        size=size,
        stride=context.integers("window_strides", ones),
        padding_low=padding[::2],
        padding_high=padding[1::2],
        base_dilation=context.integers("lhs_dilation", ones),
        window_dilation=context.integers("rhs_dilation", ones),
        reversal=tuple(map(bool, context.integers("window_reversal", (0,) * len(size)))),
    )
    groups = {name: context.integer(name, 1) for name in ("feature_group_count", "batch_group_count")}
    kind = _result_type(context)
    return context.add("convolution", operands, window=window, dimension_numbers=numbers, **groups, element_type=kind)


@converts("stablehlo.convolution")
def _convolution(context: Context) -> Instruction:
    return convolution(context, context.operands, context.integers("padding", ()))


def convolution_dimensions(context: Context) -> ConvolutionDimensions:
    """What each dimension of a convolution's operands and result is."""
    value = context.attribute("dimension_numbers")
    if not isinstance(value, DialectAttribute):
        raise ValueError("dimension_numbers is missing")
    data, kernel, output = convolution_labels(list(value.words))
    return ConvolutionDimensions(*positions(data, "bf"), *positions(kernel, "io"), *positions(output, "bf"))
