"""Fake quantization: floats moved to the nearest of the few that integers of so many bits can stand for."""

from __future__ import annotations

from fusile.base.element_type import F32
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.convert.reduction import total
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


def _nudged(
    b: Builder, low: Instruction, high: Instruction, node: Node
) -> tuple[Instruction, Instruction, Instruction]:
    """The limits moved so that zero is a step exactly, and the size of a step."""
    first, last = float(node.attribute("narrow_range")), float((1 << node.attribute("num_bits")) - 1)
    step = b.divide(b.subtract(high, low), b.like(last - first, low))
    zero = b.subtract(b.like(first, low), b.divide(low, step))
    rounded = b.floor(b.add(zero, b.like(0.5, zero)))
    zero = b.clamp(b.like(first, low), rounded, b.like(last, low))
    return (
        b.multiply(b.subtract(b.like(first, low), zero), step),
        b.multiply(b.subtract(b.like(last, low), zero), step),
        step,
    )


def _limits(context: Context, node: Node, like: Instruction, given: list[Value]) -> list[Instruction]:
    """The nudged limits and the step, broadcast to x: scalars, or one a channel."""
    b, sizes = context.builder, like.array_shape.sizes
    if given:
        low, high = (v.instruction for v in given)
    else:
        low, high = (b.constant(node.attribute(n), F32) for n in ("min", "max"))
    dimensions = (len(sizes) - 1,) if low.array_shape.rank else ()
    return [b.broadcast(v, sizes, dimensions) for v in _nudged(b, low, high, node)]


@converter("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quantized(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    low, high, step = _limits(context, node, x, inputs[1:])
    inverse = b.divide(b.like(1, step), step)
    offset = b.subtract(b.clamp(low, x, high), low)
    number = b.floor(b.add(b.multiply(offset, inverse), b.like(0.5, x)))
    return b.add(b.multiply(number, step), low)


def _inside(b: Builder, x: Instruction, low: Instruction, high: Instruction) -> Instruction:
    return b.and_(b.compare(x, low, "GE"), b.compare(x, high, "LE"))


@converter("FakeQuantWithMinMaxArgsGradient")
def fake_quantized_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b = context.builder
    gradient, x = (v.instruction for v in inputs)
    low, high, _ = _limits(context, node, x, [])
    return b.select(_inside(b, x, low, high), gradient, b.like(0, gradient))


@converter("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient")
def fake_quantized_gradients(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """Of x, and of the two limits: what lies beyond a limit moves with it."""
    b = context.builder
    gradient, x = (v.instruction for v in inputs[:2])
    low, high, _ = _limits(context, node, x, inputs[2:])
    per_channel = inputs[2].rank > 0
    axes = list(range(inputs[1].rank - per_channel))
    zero = b.like(0, gradient)
    below = b.select(b.compare(x, low, "LT"), gradient, zero)
    above = b.select(b.compare(x, high, "GT"), gradient, zero)
    kept = b.select(_inside(b, x, low, high), gradient, zero)
    return [kept, total(b, "add", below, axes), total(b, "add", above, axes)]
