"""Reductions, argmax and argmin, and running sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusile.base.element_type import S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, neutral
from fusile.hlo.ir import Computation, Instruction
from fusile.tf.context import Context
from fusile.tf.convert.math import accumulator
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

REDUCTIONS = {"Sum": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum", "All": "and", "Any": "or"}


def axes_of(context: Context, value: Value, rank: int, what: str = "the axis") -> list[int]:
    """Compile-time axes, counted from 0. Raises UnsupportedOpError when one is out of range."""
    axes = context.integers(value, what)
    if any(not -rank <= a < rank for a in axes):
        raise context.unsupported(f"{what} {axes} is not one of {rank} dimensions")
    return [a % rank for a in axes]


def _finish(context: Context, node: Node, reduced: Instruction, x: Value, axes: list[int]) -> Instruction:
    if not node.attribute("keep_dims"):
        return reduced
    return context.builder.reshape(reduced, [1 if d in axes else s for d, s in enumerate(x.sizes)])


def total(b: Builder, opcode: str, x: Instruction, axes: list[int]) -> Instruction:
    """Reduces by one op; sums and products of half precision add up in f32."""
    of = x.array_shape.element_type
    wide = accumulator(of) if opcode in ("add", "multiply") else of
    return b.convert(b.reduce_with(opcode, b.convert(x, wide), axes), of)


@converter(*REDUCTIONS)
def reduce(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x = inputs[0]
    axes = axes_of(context, inputs[1], x.rank)
    result = total(context.builder, REDUCTIONS[node.type], x.instruction, axes)
    return _finish(context, node, result, x, axes)


@converter("Mean")
def mean(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    axes = axes_of(context, inputs[1], x.rank)
    wide = accumulator(x.element_type)
    added = b.reduce_with("add", b.convert(x.instruction, wide), axes)
    count = int(np.prod([x.sizes[a] for a in axes], dtype=np.int64))
    if count == 0 and wide.is_integer:
        raise context.unsupported("the mean of no integers")
    return _finish(context, node, b.convert(b.divide(added, b.like(count, added)), x.element_type), x, axes)


@converter("EuclideanNorm")
def euclidean_norm(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    axes = axes_of(context, inputs[1], x.rank)
    wide = b.convert(x.instruction, accumulator(x.element_type))
    added = b.reduce_with("add", b.multiply(wide, wide), axes)
    return _finish(context, node, b.convert(b.sqrt(added), x.element_type), x, axes)


@converter("ArgMax")
def argmax(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _arg(context, node, inputs, "GT")


@converter("ArgMin")
def argmin(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _arg(context, node, inputs, "LT")


def _arg(context: Context, node: Node, inputs: list[Value], better: str) -> Instruction:
    """The first place of the extreme. TensorFlow starts from the worst finite number at place 0 and takes what is
    better, so NaN never wins; a comparison with that number first gives the same."""
    b, x = context.builder, inputs[0]
    (axis,) = axes_of(context, inputs[1], x.rank)
    if x.sizes[axis] == 0:
        raise context.unsupported("the dimension to search is empty")
    array, of = x.instruction, x.element_type
    if of.is_predicate:
        array, of = b.convert(array, S32), S32
    worst = neutral("maximum" if better == "GT" else "minimum", of)
    if of.is_float:
        worst = _largest(of) * (-1 if better == "GT" else 1)
        array = b.select(b.compare(array, b.like(worst, array), better), array, b.like(worst, array))
    places = b.iota(Shape(S32, x.sizes), axis)
    initial = [b.constant(worst, of), b.constant(0, S32)]
    pair = b.reduce([array, places], initial, [axis], _arg_computation(of, better))
    return b.convert(b.element(pair, 1), node.output_type())


def _largest(of: ElementType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(of.dtype).max)  # type: ignore[no-untyped-call]


def _arg_computation(of: ElementType, better: str) -> Computation:
    b = Builder("argmax" if better == "GT" else "argmin")
    x, i, y, j = (b.parameter(Shape(t)) for t in (of, S32, of, S32))
    tie = b.and_(b.compare(x, y, "EQ"), b.compare(i, j, "LT"))
    first = b.or_(b.compare(x, y, better), tie)
    return b.build(b.tuple([b.select(first, x, y), b.select(first, i, j)]))


# -- running sums


@converter("Cumsum")
def cumulative_sum(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _cumulative(context, node, inputs, 0, lambda b, x, y: b.add(x, y))


@converter("Cumprod")
def cumulative_product(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _cumulative(context, node, inputs, 1, lambda b, x, y: b.multiply(x, y))


@converter("CumulativeLogsumexp")
def cumulative_logsumexp(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _cumulative(context, node, inputs, -np.inf, log_add_exp)


def log_add_exp(b: Builder, x: Instruction, y: Instruction) -> Instruction:
    """log(e**x + e**y) without overflow, also for infinities."""
    high, low = b.maximum(x, y), b.minimum(x, y)
    raised = b.add(high, b.log_plus_one(b.exponential(b.subtract(low, high))))
    return b.select(b.compare(high, low, "EQ"), b.add(high, b.like(np.log(2), x)), raised)


def _cumulative(context: Context, node: Node, inputs: list[Value], start: float,
                combine: Callable[[Builder, Instruction, Instruction], Instruction]) -> Instruction:  # fmt: skip
    b, x = context.builder, inputs[0]
    (axis,) = axes_of(context, inputs[1], x.rank)
    of, wide = x.element_type, accumulator(x.element_type)
    array = b.convert(x.instruction, wide)
    if node.attribute("reverse"):
        array = b.reverse(array, [axis])
    if node.attribute("exclusive"):
        array = _shifted(b, array, axis, 1, start)
    array = scan(b, array, axis, start, combine)
    if node.attribute("reverse"):
        array = b.reverse(array, [axis])
    return b.convert(array, of)


def scan(b: Builder, x: Instruction, axis: int, start: float,
         combine: Callable[[Builder, Instruction, Instruction], Instruction]) -> Instruction:  # fmt: skip
    """Running combination along an axis by doubling: after step k each place holds its last 2**k elements."""
    reach = 1
    while reach < x.array_shape.sizes[axis]:
        x = combine(b, _shifted(b, x, axis, reach, start), x)
        reach *= 2
    return x


def _shifted(b: Builder, x: Instruction, axis: int, by: int, fill: float) -> Instruction:
    low = [by if d == axis else 0 for d in range(x.array_shape.rank)]
    return b.pad(x, b.constant(fill, x.array_shape.element_type), low, [-v for v in low])
