"""Products and convolutions with their gradients, as HLO dot and convolution with the right dimension numbers: no
transposes."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import S32
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution
from fusile.hlo.opset.window import ConvolutionDimensions, Window
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

# -- products ----------------------------------------------------------------------------------------------------------


@converter("MatMul")
def matmul(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    a, b = inputs
    lhs = 0 if node.attribute("transpose_a") else 1
    rhs = 1 if node.attribute("transpose_b") else 0
    return context.builder.dot(a.instruction, b.instruction, lhs_contracting=[lhs], rhs_contracting=[rhs])


@converter("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Leading dimensions broadcast as NumPy's do; adjoints are conjugated."""
    b = context.builder
    x, y = (v.instruction for v in inputs)
    outer = np.broadcast_shapes(inputs[0].sizes[:-2], inputs[1].sizes[:-2])
    x, y = (b.broadcast_to(v, (*outer, *v.array_shape.sizes[-2:])) for v in (x, y))
    adjoint = [node.attribute("adj_x"), node.attribute("adj_y")]
    x, y = (conjugate(context, v) if a else v for v, a in zip((x, y), adjoint, strict=True))
    rank, batch = len(outer) + 2, tuple(range(len(outer)))
    lhs = rank - 2 if adjoint[0] else rank - 1
    rhs = rank - 1 if adjoint[1] else rank - 2
    of = node.output_type()
    return b.dot(x, y, batch, batch, [lhs], [rhs], None if of is x.array_shape.element_type else of)


def conjugate(context: Context, x: Instruction) -> Instruction:
    if not x.array_shape.element_type.is_complex:
        return x
    b = context.builder
    return b.complex(b.real(x), b.negate(b.imag(x)))


@converter("Einsum")
def einsum(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """One or two operands; repeated labels take the diagonal, labels of one operand that the result lacks are
    summed."""
    left, result = node.attribute("equation").replace(" ", "").split("->")
    labels = left.split(",")
    if len(labels) > 2:
        raise context.unsupported("einsum of more than two operands reaches the graph only in parts", "use tf.einsum")
    labels, result = _without_ellipsis(labels, result, [v.rank for v in inputs])
    operands = [
        _summed(context, *_diagonal(context, v.instruction, text), labels, result, n)
        for n, (v, text) in enumerate(zip(inputs, labels, strict=True))
    ]
    if len(operands) == 1:
        return _permuted(context, *operands[0], result)
    (x, a), (y, c) = operands
    batch = [d for d in a if d in c and d in result]
    contracted = [d for d in a if d in c and d not in result]
    x, y = _stretched(context, x, a, y, c)
    product = context.builder.dot(
        x,
        y,
        [a.index(d) for d in batch],
        [c.index(d) for d in batch],
        [a.index(d) for d in contracted],
        [c.index(d) for d in contracted],
    )
    order = "".join(
        [
            *batch,
            *(d for d in a if d not in batch and d not in contracted),
            *(d for d in c if d not in batch and d not in contracted),
        ]
    )
    return _permuted(context, product, order, result)


def _without_ellipsis(labels: list[str], result: str, ranks: list[int]) -> tuple[list[str], str]:
    free = [c for c in string.ascii_letters if c not in "".join(labels) + result]
    counts = [
        rank - len(text.replace("...", "")) if "..." in text else 0 for text, rank in zip(labels, ranks, strict=True)
    ]
    most = max(counts)
    names = free[:most]
    labels = [text.replace("...", "".join(names[most - n :])) for text, n in zip(labels, counts, strict=True)]
    return labels, result.replace("...", "".join(names))


def _diagonal(context: Context, x: Instruction, text: str) -> tuple[Instruction, str]:
    b = context.builder
    for label in dict.fromkeys(text):
        while text.count(label) > 1:
            i, j = text.index(label), text.rindex(label)
            order = [d for d in range(len(text)) if d not in (i, j)] + [i, j]
            x = b.transpose(x, order)
            rows = b.iota(x.array_shape.with_element_type(S32), len(text) - 2)
            columns = b.iota(x.array_shape.with_element_type(S32), len(text) - 1)
            kept = b.select(b.compare(rows, columns, "EQ"), x, b.like(0, x))
            x = b.reduce_with("add", kept, [len(text) - 1])
            text = "".join(text[d] for d in order[:-1])
    return x, text


def _summed(
    context: Context, x: Instruction, text: str, labels: list[str], result: str, number: int
) -> tuple[Instruction, str]:
    others = "".join(t for n, t in enumerate(labels) if n != number)
    lost = [d for d, label in enumerate(text) if label not in result and label not in others]
    if not lost:
        return x, text
    return context.builder.reduce_with("add", x, lost), "".join(c for d, c in enumerate(text) if d not in lost)


def _stretched(context: Context, x: Instruction, a: str, y: Instruction, c: str) -> tuple[Instruction, Instruction]:
    """Shared labels of size 1 in one operand broadcast to the other's."""
    sizes = {}
    for text, v in ((a, x), (c, y)):
        for label, size in zip(text, v.array_shape.sizes, strict=True):
            sizes[label] = max(size, sizes.get(label, 1)) if size != 0 else 0
    b = context.builder
    return b.broadcast_to(x, [sizes[d] for d in a]), b.broadcast_to(y, [sizes[d] for d in c])


def _permuted(context: Context, x: Instruction, order: str, result: str) -> Instruction:
    return context.builder.transpose(x, [order.index(d) for d in result])


# -- convolutions ------------------------------------------------------------------------------------------------------


class Geometry:
    """A TensorFlow convolution or pooling: where its dimensions lie, strides, dilations and padding."""

    def __init__(self, context: Context, node: Node, input_sizes: Sequence[int], window: Sequence[int]) -> None:
        self.layout = node.attribute("data_format") or "NHWC"
        rank = len(input_sizes)
        self.spatial = tuple(range(1, rank - 1)) if self.layout[-1] == "C" else tuple(range(2, rank))
        self.feature = rank - 1 if self.layout[-1] == "C" else 1
        self.window = tuple(window)
        self.strides = tuple(node.attribute("strides")[d] for d in self.spatial)
        dilations = _optional(node, "dilations") or [1] * rank
        self.dilations = tuple(dilations[d] for d in self.spatial)
        self.sizes = tuple(input_sizes[d] for d in self.spatial)
        self.padding = self._padding(context, node)

    def _padding(self, context: Context, node: Node) -> list[tuple[int, int]]:
        kind = node.attribute("padding")
        if kind == "EXPLICIT":
            amounts = _optional(node, "explicit_paddings")
            return [(amounts[2 * d], amounts[2 * d + 1]) for d in self.spatial]
        if kind == "VALID":
            return [(0, 0)] * len(self.spatial)
        result = []
        for size, window, stride, dilation in zip(self.sizes, self.window, self.strides, self.dilations, strict=True):
            extent = (window - 1) * dilation + 1
            total = max(0, (-(-size // stride) - 1) * stride + extent - size)
            result.append((total // 2, total - total // 2))
        return result

    def output_sizes(self) -> tuple[int, ...]:
        """The spatial sizes of the result."""
        return tuple(
            (size + low + high - (window - 1) * dilation - 1) // stride + 1
            for size, (low, high), window, dilation, stride in zip(
                self.sizes, self.padding, self.window, self.dilations, self.strides, strict=True
            )
        )

    def dimensions(self) -> ConvolutionDimensions:
        """Kernels are spatial, input features, output features."""
        n = len(self.spatial)
        return ConvolutionDimensions(
            0, self.feature, self.spatial, n, n + 1, tuple(range(n)), 0, self.feature, self.spatial
        )


def _optional(node: Node, name: str) -> Any:
    try:
        return node.attribute(name)
    except ValueError:
        return None


def _convolution(context: Context, x: Instruction, kernel: Instruction, geometry: Geometry, groups: int) -> Instruction:
    low, high = zip(*geometry.padding, strict=True)
    window = Window(geometry.window, geometry.strides, low, high, (), geometry.dilations)
    return context.builder.emit(Convolution(window, geometry.dimensions(), groups), x, kernel)


@converter("Conv2D", "Conv3D")
def convolution(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, kernel = inputs
    geometry = Geometry(context, node, x.sizes, kernel.sizes[:-2])
    return _convolution(
        context, x.instruction, kernel.instruction, geometry, x.sizes[geometry.feature] // kernel.sizes[-2]
    )


def _input_gradient(
    context: Context, gradient: Instruction, kernel: Instruction, geometry: Geometry, groups: int
) -> Instruction:
    """The gradient dilated by the strides, convolved with the turned kernel, whose features have changed roles."""
    n = len(geometry.spatial)
    extents = [(w - 1) * d for w, d in zip(geometry.window, geometry.dilations, strict=True)]
    out = geometry.output_sizes()
    low = tuple(e - p[0] for e, p in zip(extents, geometry.padding, strict=True))
    high = tuple(
        size + extent - lo - ((o - 1) * s + 1)
        for size, extent, lo, o, s in zip(geometry.sizes, extents, low, out, geometry.strides, strict=True)
    )
    if groups > 1:
        kernel = _grouped_transpose(context, kernel, groups)
        numbers = ConvolutionDimensions(
            0, geometry.feature, geometry.spatial, n, n + 1, tuple(range(n)), 0, geometry.feature, geometry.spatial
        )
    else:
        numbers = ConvolutionDimensions(
            0, geometry.feature, geometry.spatial, n + 1, n, tuple(range(n)), 0, geometry.feature, geometry.spatial
        )
    window = Window(geometry.window, (1,) * n, low, high, geometry.strides, geometry.dilations, (True,) * n)
    return context.builder.emit(Convolution(window, numbers, groups), gradient, kernel)


def _grouped_transpose(context: Context, kernel: Instruction, groups: int) -> Instruction:
    """[.., I/G, O] to [.., O/G, I]: the features of each group change places."""
    b, sizes = context.builder, kernel.array_shape.sizes
    n = len(sizes) - 2
    inner, outer = sizes[-2], sizes[-1] // groups
    split = b.reshape(kernel, (*sizes[:-2], inner, groups, outer))
    turned = b.transpose(split, (*range(n), n + 2, n + 1, n))
    return b.reshape(turned, (*sizes[:-2], outer, groups * inner))


def _filter_gradient(
    context: Context, x: Instruction, gradient: Instruction, geometry: Geometry, groups: int
) -> Instruction:
    """A convolution of the input with the gradient as its kernel: the batch is what is summed over."""
    n = len(geometry.spatial)
    out = geometry.output_sizes()
    low = tuple(p[0] for p in geometry.padding)
    high = tuple(
        (w - 1) * d + (o - 1) * s + 1 - size - lo
        for w, d, o, s, size, lo in zip(
            geometry.window, geometry.dilations, out, geometry.strides, geometry.sizes, low, strict=True
        )
    )
    numbers = ConvolutionDimensions(
        geometry.feature, 0, geometry.spatial, 0, geometry.feature, geometry.spatial, n, n + 1, tuple(range(n))
    )
    window = Window(out, geometry.dilations, low, high, (), geometry.strides)
    return context.builder.emit(Convolution(window, numbers, 1, groups), x, gradient)


@converter("Conv2DBackpropInput", "Conv3DBackpropInputV2")
def convolution_input_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    sizes = context.integers(inputs[0], "the input's sizes")
    kernel, gradient = inputs[1], inputs[2]
    geometry = Geometry(context, node, sizes, kernel.sizes[:-2])
    return _input_gradient(
        context, gradient.instruction, kernel.instruction, geometry, sizes[geometry.feature] // kernel.sizes[-2]
    )


@converter("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
def convolution_filter_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, gradient = inputs[0], inputs[2]
    sizes = context.integers(inputs[1], "the filter's sizes")
    geometry = Geometry(context, node, x.sizes, sizes[:-2])
    return _filter_gradient(
        context, x.instruction, gradient.instruction, geometry, x.sizes[geometry.feature] // sizes[-2]
    )


def _depthwise_kernel(context: Context, kernel: Instruction) -> Instruction:
    """[h, w, channels, multiplier] as [h, w, 1, channels * multiplier]."""
    h, w, channels, multiplier = kernel.array_shape.sizes
    return context.builder.reshape(kernel, (h, w, 1, channels * multiplier))


@converter("DepthwiseConv2dNative")
def depthwise(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, kernel = inputs
    geometry = Geometry(context, node, x.sizes, kernel.sizes[:2])
    return _convolution(
        context, x.instruction, _depthwise_kernel(context, kernel.instruction), geometry, x.sizes[geometry.feature]
    )


@converter("DepthwiseConv2dNativeBackpropInput")
def depthwise_input_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    sizes = context.integers(inputs[0], "the input's sizes")
    geometry = Geometry(context, node, sizes, inputs[1].sizes[:2])
    kernel = _depthwise_kernel(context, inputs[1].instruction)
    return _input_gradient(context, inputs[2].instruction, kernel, geometry, sizes[geometry.feature])


@converter("DepthwiseConv2dNativeBackpropFilter")
def depthwise_filter_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, gradient = inputs[0], inputs[2]
    sizes = context.integers(inputs[1], "the filter's sizes")
    geometry = Geometry(context, node, x.sizes, sizes[:2])
    result = _filter_gradient(context, x.instruction, gradient.instruction, geometry, x.sizes[geometry.feature])
    return context.builder.reshape(result, sizes)
