"""Neural-network ops: activations, pooling, normalization, softmax, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fusile.base.element_type import F32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, neutral, scalar_computation
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.reduction import ReduceWindow, SelectAndScatter
from fusile.hlo.opset.window import Window
from fusile.tf.context import Context
from fusile.tf.convert.contraction import Geometry
from fusile.tf.convert.math import accumulator
from fusile.tf.convert.reduction import total
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


# -- bias and activations ----------------------------------------------------------------------------------------------


def _feature(node: Node, rank: int) -> int:
    return 1 if (node.attribute("data_format") or "NHWC").startswith("NC") else rank - 1


@converter("BiasAdd", "BiasAddV1")
def bias_add(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, bias = inputs
    feature = x.rank - 1 if node.type == "BiasAddV1" else _feature(node, x.rank)
    b = context.builder
    return b.add(x.instruction, b.broadcast(bias.instruction, x.sizes, [feature]))


@converter("BiasAddGrad")
def bias_add_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (gradient,) = inputs
    feature = _feature(node, gradient.rank)
    return total(context.builder, "add", gradient.instruction, [d for d in range(gradient.rank) if d != feature])


def _where_positive(b: Builder, test: Instruction, positive: Instruction, otherwise: Instruction) -> Instruction:
    return b.select(b.compare(test, b.like(0, test), "GT"), positive, otherwise)


@converter("Relu")
def relu(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    return b.maximum(x, b.like(0, x))


@converter("Relu6")
def relu6(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    return b.minimum(b.maximum(x, b.like(0, x)), b.like(6, x))


@converter("ReluGrad")
def relu_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    return _where_positive(b, x, gradient, b.like(0, gradient))


@converter("Relu6Grad")
def relu6_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    inside = b.and_(b.compare(x, b.like(0, x), "GT"), b.compare(x, b.like(6, x), "LT"))
    return b.select(inside, gradient, b.like(0, gradient))


@converter("LeakyRelu")
def leaky_relu(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    return _where_positive(b, x, x, b.multiply(x, b.like(node.attribute("alpha"), x)))


@converter("LeakyReluGrad")
def leaky_relu_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    return _where_positive(b, x, gradient, b.multiply(gradient, b.like(node.attribute("alpha"), gradient)))


@converter("Elu")
def elu(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    return b.select(b.compare(x, b.like(0, x), "LT"), b.exponential_minus_one(x), x)


@converter("EluGrad")
def elu_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, y = (v.instruction for v in inputs)
    negative = b.multiply(b.add(y, b.like(1, y)), gradient)
    return b.select(b.compare(y, b.like(0, y), "LT"), negative, gradient)


@converter("Selu")
def selu(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    negative = b.multiply(b.exponential_minus_one(x), b.like(SELU_SCALE * SELU_ALPHA, x))
    return b.select(b.compare(x, b.like(0, x), "LT"), negative, b.multiply(x, b.like(SELU_SCALE, x)))


@converter("SeluGrad")
def selu_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, y = (v.instruction for v in inputs)
    negative = b.multiply(gradient, b.add(y, b.like(SELU_SCALE * SELU_ALPHA, y)))
    return b.select(b.compare(y, b.like(0, y), "LT"), negative, b.multiply(gradient, b.like(SELU_SCALE, y)))


@converter("Softplus")
def softplus(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """max(x, 0) + log1p(exp(-|x|)): no overflow, and exact for large x."""
    b, x = context.builder, inputs[0].instruction
    return b.add(b.maximum(x, b.like(0, x)), b.log_plus_one(b.exponential(b.negate(b.abs(x)))))


@converter("SoftplusGrad")
def softplus_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    return b.multiply(gradient, b.logistic(x))


@converter("Softsign")
def softsign(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    return b.divide(x, b.add(b.like(1, x), b.abs(x)))


@converter("SoftsignGrad")
def softsign_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    below = b.add(b.like(1, x), b.abs(x))
    return b.divide(gradient, b.multiply(below, below))


@converter("L2Loss")
def l2_loss(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    added = total(b, "add", b.multiply(x, x), list(range(inputs[0].rank)))
    return b.multiply(added, b.like(0.5, added))


# -- softmax and losses ------------------------------------------------------------------------------------------------


def shifted(b: Builder, x: Instruction) -> tuple[Instruction, Instruction, Instruction]:
    """x minus its row's maximum, e to that, and the row's sum of these, each of x's shape but the last."""
    rank = x.array_shape.rank
    rows = list(range(rank - 1))
    low = b.subtract(x, b.broadcast(b.reduce_with("maximum", x, [rank - 1]), x.array_shape.sizes, rows))
    power = b.exponential(low)
    return low, power, b.reduce_with("add", power, [rank - 1])


def _rows(b: Builder, x: Instruction, like: Instruction) -> Instruction:
    """A value a row, for every element of it."""
    return b.broadcast(x, like.array_shape.sizes, range(like.array_shape.rank - 1))


@converter("Softmax")
def softmax(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    of = x.array_shape.element_type
    wide = b.convert(x, accumulator(of))
    _, power, added = shifted(b, wide)
    return b.convert(b.divide(power, _rows(b, added, power)), of)


@converter("LogSoftmax")
def log_softmax(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    of = x.array_shape.element_type
    low, _, added = shifted(b, b.convert(x, accumulator(of)))
    return b.convert(b.subtract(low, _rows(b, b.log(added), low)), of)


@converter("SoftmaxCrossEntropyWithLogits")
def softmax_cross_entropy(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """(loss a row, its gradient by the logits)."""
    b = context.builder
    logits, labels = context.broadcast(*inputs)
    low, power, added = shifted(b, logits)
    losses = b.multiply(labels, b.subtract(_rows(b, b.log(added), low), low))
    gradient = b.subtract(b.divide(power, _rows(b, added, power)), labels)
    return [b.reduce_with("add", losses, [1]), gradient]


@converter("SparseSoftmaxCrossEntropyWithLogits")
def sparse_softmax_cross_entropy(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """(loss a row, its gradient by the logits); a label out of range gives NaN, as TensorFlow's on an accelerator."""
    b = context.builder
    logits, labels = (v.instruction for v in inputs)
    sizes, kind = logits.array_shape.sizes, labels.array_shape.element_type
    low, power, added = shifted(b, logits)
    wide = b.broadcast(labels, sizes, [0])
    hit = b.compare(b.iota(Shape(kind, sizes), 1), wide, "EQ")
    picked = b.reduce_with("add", b.select(hit, low, b.like(0, low)), [1])
    inside = b.and_(b.compare(labels, b.like(0, labels), "GE"), b.compare(labels, b.like(sizes[1], labels), "LT"))
    loss = b.subtract(b.log(added), picked)
    loss = b.select(inside, loss, b.like(math.nan, loss))
    probability = b.divide(power, _rows(b, added, power))
    gradient = b.subtract(probability, b.select(hit, b.like(1, low), b.like(0, low)))
    gradient = b.select(b.broadcast(inside, sizes, [0]), gradient, b.like(math.nan, gradient))
    return [loss, gradient]


# -- pooling -----------------------------------------------------------------------------------------------------------


def _pool_window(context: Context, node: Node, sizes: Sequence[int]) -> tuple[Window, Geometry]:
    kernel = node.attribute("ksize")
    rank = len(sizes)
    layout = node.attribute("data_format") or "NHWC"
    spatial = range(1, rank - 1) if layout[-1] == "C" else range(2, rank)
    if any(kernel[d] != 1 for d in range(rank) if d not in spatial):
        raise context.unsupported("pooling over the batch or the channels", "transpose, or use reduce_max")
    geometry = Geometry(context, node, sizes, [kernel[d] for d in spatial])
    low, high = [0] * rank, [0] * rank
    for d, (before, after) in zip(geometry.spatial, geometry.padding, strict=True):
        low[d], high[d] = before, after
    return Window(tuple(kernel), tuple(node.attribute("strides")), tuple(low), tuple(high)), geometry


def _windowed(b: Builder, opcode: str, x: Instruction, window: Window) -> Instruction:
    of = x.array_shape.element_type
    initial = b.constant(neutral(opcode, of), of)
    return b.emit(ReduceWindow(window, scalar_computation(opcode, of)), x, initial)


@converter("MaxPool", "MaxPool3D")
def max_pool(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    window, _ = _pool_window(context, node, inputs[0].sizes)
    return _windowed(context.builder, "maximum", inputs[0].instruction, window)


def _counts(b: Builder, window: Window, sizes: Sequence[int], x: Instruction) -> Instruction:
    """How many elements that aren't padding each window holds: known at compile time."""
    counts = np.ones((1,) * len(sizes))
    for d, size in enumerate(sizes):
        positions = window.output_size(d, size)
        starts = np.arange(positions) * window.stride[d] - window.padding_low[d]
        inside = np.minimum(starts + window.size[d], size) - np.maximum(starts, 0)
        counts = counts * inside.reshape([-1 if i == d else 1 for i in range(len(sizes))])
    kept = [d for d in range(len(sizes)) if window.size[d] > 1]
    small = counts[tuple(slice(None) if d in kept else 0 for d in range(len(sizes)))]
    return b.broadcast(b.constant(small, x.array_shape.element_type), x.array_shape.sizes, kept)


@converter("AvgPool", "AvgPool3D")
def average_pool(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, of = context.builder, inputs[0].element_type
    window, _ = _pool_window(context, node, inputs[0].sizes)
    added = _windowed(b, "add", b.convert(inputs[0].instruction, accumulator(of)), window)
    return b.convert(b.divide(added, _counts(b, window, inputs[0].sizes, added)), of)


@converter("AvgPoolGrad", "AvgPool3DGrad")
def average_pool_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Every gradient over its window's count, spread over the window: a windowed sum of the dilated gradient."""
    b = context.builder
    sizes = context.integers(inputs[0], "the input's sizes")
    window, _ = _pool_window(context, node, sizes)
    share = b.divide(inputs[1].instruction, _counts(b, window, sizes, inputs[1].instruction))
    low = tuple(w - 1 - p for w, p in zip(window.size, window.padding_low, strict=True))
    dilated = [(o - 1) * s + 1 for o, s in zip(inputs[1].sizes, window.stride, strict=True)]
    high = tuple(size + w - 1 - lo - d for size, w, lo, d in zip(sizes, window.size, low, dilated, strict=True))
    spread = Window(window.size, (), low, high, window.stride)
    return _windowed(b, "add", share, spread)


def _greater_or_equal(element_type: object) -> Computation:
    b = Builder("select")
    x, y = b.parameter(Shape(element_type), "left"), b.parameter(Shape(element_type), "right")  # type: ignore[arg-type]
    return b.build(b.compare(x, y, "GE"))


@converter("MaxPoolGrad", "MaxPool3DGrad")
def max_pool_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The gradient goes to the first maximum of each window."""
    b = context.builder
    x, gradient = inputs[0], inputs[2]
    window, _ = _pool_window(context, node, x.sizes)
    op = SelectAndScatter(window, _greater_or_equal(x.element_type), scalar_computation("add", x.element_type))
    return b.emit(op, x.instruction, gradient.instruction, b.constant(0, x.element_type))


# -- normalization -----------------------------------------------------------------------------------------------------


def _channels(b: Builder, x: Instruction, sizes: Sequence[int], feature: int) -> Instruction:
    return b.broadcast(x, sizes, [feature])


def _moments(b: Builder, x: Instruction, axes: list[int], count: int) -> tuple[Instruction, Instruction]:
    """Mean and variance a channel, the variance about the mean."""
    mean = b.reduce_with("add", x, axes)
    mean = b.multiply(mean, b.like(1 / count, mean))
    feature = next(d for d in range(x.array_shape.rank) if d not in axes)
    centered = b.subtract(x, _channels(b, mean, x.array_shape.sizes, feature))
    variance = b.reduce_with("add", b.multiply(centered, centered), axes)
    return mean, b.multiply(variance, b.like(1 / count, variance))


@converter("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """y, batch mean, batch variance (Bessel-corrected), and what the gradient wants: the mean and the variance
    itself."""
    b = context.builder
    x, scale, offset, mean, variance = (v.instruction for v in inputs)
    of, sizes = x.array_shape.element_type, x.array_shape.sizes
    feature = _feature(node, len(sizes))
    axes = [d for d in range(len(sizes)) if d != feature]
    count = math.prod(sizes[d] for d in axes)
    wide = b.convert(x, F32) if of.bits < 32 else x
    epsilon = node.attribute("epsilon")
    if node.attribute("is_training"):
        batch_mean, batch_variance = _moments(b, wide, axes, count)
        corrected = b.multiply(batch_variance, b.like(count / max(1, count - 1), batch_variance))
        factor = node.attribute("exponential_avg_factor")
        outputs = [batch_mean, corrected]
        if factor != 1.0:
            outputs = [
                b.add(b.multiply(old, b.like(1 - factor, old)), b.multiply(new, b.like(factor, new)))
                for old, new in ((mean, batch_mean), (variance, corrected))
            ]
        mean, variance = batch_mean, batch_variance
    else:
        outputs = [mean, variance]
    slope = b.multiply(scale, b.rsqrt(b.add(variance, b.like(epsilon, variance))))
    centered = b.subtract(wide, _channels(b, mean, sizes, feature))
    y = b.add(b.multiply(centered, _channels(b, slope, sizes, feature)), _channels(b, offset, sizes, feature))
    results = [b.convert(y, of), *outputs, mean, variance]
    return results if node.type != "FusedBatchNormV3" else [*results, b.constant(np.zeros((0,), np.float32))]


@converter("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3")
def batch_norm_gradient(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """Gradients of x, scale and offset; two unused outputs."""
    b = context.builder
    gradient, x, scale, mean, variance = (v.instruction for v in inputs[:5])
    of, sizes = x.array_shape.element_type, x.array_shape.sizes
    feature = _feature(node, len(sizes))
    axes = [d for d in range(len(sizes)) if d != feature]
    count = math.prod(sizes[d] for d in axes)
    gradient, x = (b.convert(v, F32) if of.bits < 32 else v for v in (gradient, x))
    inverse = b.rsqrt(b.add(variance, b.like(node.attribute("epsilon"), variance)))
    centered = b.subtract(x, _channels(b, mean, sizes, feature))
    normal = b.multiply(centered, _channels(b, inverse, sizes, feature))
    to_offset = b.reduce_with("add", gradient, axes)
    to_scale = b.reduce_with("add", b.multiply(gradient, normal), axes)
    slope = b.multiply(scale, inverse)
    if node.attribute("is_training"):
        share = b.like(1 / count, to_offset)
        level = _channels(b, b.multiply(to_offset, share), sizes, feature)
        tilt = b.multiply(normal, _channels(b, b.multiply(to_scale, share), sizes, feature))
        inner = b.subtract(b.subtract(gradient, level), tilt)
    else:
        inner = gradient
    to_x = b.multiply(_channels(b, slope, sizes, feature), inner)
    nothing = b.constant(np.zeros((0,), np.float32))
    return [b.convert(to_x, of), to_scale, to_offset, nothing, nothing]


def _neighbour_sums(b: Builder, x: Instruction, radius: int) -> Instruction:
    rank = x.array_shape.rank
    size = [1] * (rank - 1) + [2 * radius + 1]
    edge = [0] * (rank - 1) + [radius]
    return _windowed(b, "add", x, Window(tuple(size), (), tuple(edge), tuple(edge)))


@converter("LRN")
def local_response_normalization(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    squares = _neighbour_sums(b, b.multiply(x, x), node.attribute("depth_radius"))
    below = b.add(b.like(node.attribute("bias"), x), b.multiply(squares, b.like(node.attribute("alpha"), x)))
    return b.multiply(x, b.power(below, b.like(-node.attribute("beta"), x)))
