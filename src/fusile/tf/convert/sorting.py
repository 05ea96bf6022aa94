"""Ops about order: the largest elements, search in sorted rows, counts of numbers."""

from __future__ import annotations

import math

import numpy as np

from fusile.base.element_type import F32, F64, S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.other import TopK
from fusile.tf.context import Context, shape_of
from fusile.tf.convert.indexing import combiner, put_rows, take_along
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

SEARCHED_AT_ONCE = 64
"""Rows of integers up to this length are searched by comparing with every element."""


@converter("TopKV2", "TopK")
def top_k(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """The k largest of each row, largest first; of equal ones the first comes first."""
    x = inputs[0]
    k = int(context.scalar(inputs[1], "k")) if len(inputs) > 1 else node.attribute("k")
    if not 0 <= k <= x.sizes[-1]:
        raise context.unsupported(f"the {k} largest of {x.sizes[-1]} elements", "ask for no more than there are")
    b = context.builder
    both = b.emit(TopK(k), x.instruction)
    return [b.element(both, 0), b.convert(b.element(both, 1), node.output_type(1))]


@converter("InTopK", "InTopKV2")
def in_top_k(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Whether fewer than k predictions beat the target's; never in rows with numbers that aren't finite."""
    predictions, targets = inputs[:2]
    b, (rows, classes) = context.builder, predictions.sizes
    k = b.convert(inputs[2].instruction, S32) if len(inputs) > 2 else b.constant(node.attribute("k"), S32)
    target = targets.instruction
    inside = b.and_(
        b.compare(target, b.like(0, target), "GE"), b.compare(target, b.like(classes, target), "LT")
    )  # Gathering clamps what is outside.
    own = take_along(b, predictions.instruction, b.reshape(target, (rows, 1)), 1)
    better = b.compare(predictions.instruction, b.broadcast_to(own, predictions.sizes), "GT")
    count = b.reduce_with("add", b.convert(better, S32), (1,))
    finite = b.reduce_with("and", b.is_finite(predictions.instruction), (1,))
    return b.and_(b.and_(inside, finite), b.compare(count, b.broadcast(k, (rows,), ()), "LT"))


@converter("NthElement")
def nth_element(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, n = inputs[0], int(context.scalar(inputs[1], "n"))
    if not 0 <= n < x.sizes[-1]:
        raise context.unsupported(f"element {n} of rows of {x.sizes[-1]}")
    b, last = context.builder, x.rank - 1
    ordered = b.sort([x.instruction], last, _less(x.element_type, "GT" if node.attribute("reverse") else "LT"))
    starts = [0] * last + [n]
    return b.reshape(b.slice(ordered, starts, [*x.sizes[:last], n + 1]), x.sizes[:last])


def _less(of: ElementType, direction: str) -> Computation:
    b = Builder("before")
    left, right = b.parameter(Shape(of), "left"), b.parameter(Shape(of), "right")
    return b.build(b.compare(left, right, direction))


@converter("LowerBound")
def lower_bound(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """For each value the first place in its sorted row where it could stand."""
    return bound(context.builder, *(v.instruction for v in inputs), node.output_type(), "LT")


@converter("UpperBound")
def upper_bound(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return bound(context.builder, *(v.instruction for v in inputs), node.output_type(), "LE")


def bound(b: Builder, rows: Instruction, values: Instruction, of: ElementType, direction: str) -> Instruction:
    """For values [batch, n] the place in their rows [batch, length] up to which elements compare so with them: LT, or
    LE, which is meant as "not greater", also of NaN."""
    (batch, length), sizes = rows.array_shape.sizes, values.array_shape.sizes
    if not math.prod(sizes) or not batch * length:
        return b.full(0, Shape(of, sizes))

    def before(x: Instruction, value: Instruction) -> Instruction:
        return b.compare(x, value, "LT") if direction == "LT" else b.not_(b.compare(value, x, "LT"))

    if length <= SEARCHED_AT_ONCE and not rows.array_shape.element_type.is_float:
        wide = (*sizes, length)
        found = before(b.broadcast(rows, wide, (0, 2)), b.broadcast(values, wide, (0, 1)))
        return b.reduce_with("add", b.convert(found, of), (2,))
    # Probes where the C++ library's search does, which decides what is found among NaN.
    first, count = b.full(0, Shape(S32, sizes)), b.full(length, Shape(S32, sizes))
    for _ in range(length.bit_length()):
        half = b.shift_right_logical(count, b.like(1, count))
        place = b.add(first, half)
        probed = take_along(b, rows, b.minimum(place, b.like(length - 1, place)), 1)
        goes_on = b.and_(before(probed, values), b.compare(count, b.like(0, count), "GT"))
        first = b.select(goes_on, b.add(place, b.like(1, place)), first)
        count = b.select(goes_on, b.subtract(b.subtract(count, half), b.like(1, count)), half)
    return b.convert(first, of)


@converter("Bucketize")
def bucketize(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """How many of the sorted boundaries are not greater than each number."""
    (x,), boundaries = inputs, node.attribute("boundaries")
    b, of = context.builder, F64 if inputs[0].element_type is F64 else F32
    value = b.convert(x.instruction, of)
    sizes = (*x.sizes, len(boundaries))
    limits = b.broadcast(b.constant(np.array(boundaries, np.float32).astype(of.dtype)), sizes, (x.rank,))
    less = b.compare(b.broadcast(value, sizes, tuple(range(x.rank))), limits, "LT")
    return b.reduce_with("add", b.convert(b.not_(less), S32), (x.rank,))


@converter("HistogramFixedWidth")
def histogram(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """How many numbers fall into each of so many equal parts of a range; those outside count at its ends."""
    x, limits, number = inputs
    b, bins, of = context.builder, int(context.scalar(number, "nbins")), node.output_type()
    if bins < 1:
        raise context.unsupported(f"{bins} bins", "ask for one or more")
    low, high = (b.reshape(b.slice(limits.instruction, (n,), (n + 1,)), ()) for n in range(2))
    step = b.divide(b.convert(b.subtract(high, low), F64), b.constant(float(bins), F64))
    values = b.reshape(x.instruction, (math.prod(x.sizes),))
    start = b.broadcast_to(low, values.array_shape.sizes)
    above = b.convert(b.subtract(b.maximum(values, start), start), F64)
    place = b.divide(above, b.broadcast_to(step, above.array_shape.sizes))
    place = b.convert(b.minimum(place, b.like(float(bins - 1), place)), S32)
    zeros = b.full(0, Shape(of, (bins,)))
    return put_rows(b, zeros, place, b.full(1, Shape(of, place.array_shape.sizes)), combiner("add", of))


@converter("Bincount", "DenseBincount")
def count_numbers(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """How often each number below `size` occurs in x, or in each row of it, or the sum of its weights."""
    x, size, weights = inputs
    b = context.builder
    sizes, bins = x.sizes, int(context.scalar(size, "the number of bins"))
    of = weights.element_type
    binary = node.type == "DenseBincount" and node.attribute("binary_output")
    per_row = node.type == "DenseBincount" and x.rank == 2
    rows = sizes[0] if per_row else 1
    columns = math.prod(sizes) // max(1, rows)
    numbers = b.reshape(x.instruction, (rows, columns))
    weighted = not binary and math.prod(weights.sizes)
    amount = b.reshape(weights.instruction, (rows * columns,)) if weighted else b.full(1, Shape(of, (rows * columns,)))
    # Each row has bins of its own; what is outside of a row's bins is sent past all of them, where it is dropped.
    inside = b.and_(b.compare(numbers, b.like(0, numbers), "GE"), b.compare(numbers, b.like(bins, numbers), "LT"))
    row = b.iota(shape_of(numbers.array_shape.element_type, (rows, columns)), 0)
    place = b.add(b.multiply(row, b.like(bins, row)), numbers)
    place = b.reshape(b.select(inside, place, b.like(rows * bins, place)), (rows * columns,))
    start = b.full(0, Shape(of, (rows * bins,)))
    op = scalar_computation("maximum", of) if binary else combiner("add", of)
    counted = put_rows(b, start, place, amount, op)
    return b.reshape(counted, (rows, bins) if per_row else (bins,))
