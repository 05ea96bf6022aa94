"""Drawing classes by their logits, and shuffling, from the same numbers as TensorFlow's CPU kernels take."""

from __future__ import annotations

import math

import numpy as np

from fusile.base.element_type import F64, S32, U32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context, shape_of
from fusile.tf.convert.indexing import take
from fusile.tf.convert.random import RESERVED, Stream, seeded, stream_of, uniform
from fusile.tf.convert.reduction import scan
from fusile.tf.convert.sorting import bound
from fusile.tf.convert.stateful_random import draw_own
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


@converter("Multinomial", generator=True)
def classes_of_own(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (rows, _), count = inputs[0].sizes, int(context.scalar(inputs[1], "num_samples"))
    numbers = rows * (-(-count // 4) * 4) * 2  # Each f64 takes two words.
    return _classes(context, node, inputs, draw_own(context, node, RESERVED * numbers))


@converter("StatelessMultinomial")
def classes_of_seed(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _classes(context, node, inputs, seeded(context, inputs[2]))


def _classes(context: Context, node: Node, inputs: list[Value], stream: Stream) -> Instruction:
    """For each row of logits [rows, classes] so many classes, each with the probability that a softmax gives it.

    A uniform number times the sum of all weights is looked up in their running sums. A logit that isn't finite has no
    weight. Rows take their numbers one after the other, as TensorFlow's kernel does that runs on one thread.
    """
    logits, (rows, classes) = inputs[0], inputs[0].sizes
    count, of, b = int(context.scalar(inputs[1], "num_samples")), node.output_type(), context.builder
    if count < 0 or not classes:
        raise context.unsupported(f"{count} samples of {classes} classes", "give logits of one class or more")
    if not rows * count:
        return b.full(0, shape_of(of, (rows, count)))
    x = b.convert(logits.instruction, F64)
    finite = b.is_finite(x)
    most = b.reduce_with("maximum", b.select(finite, x, b.like(np.finfo(np.float64).min, x)), (1,))
    weight = b.exponential(b.subtract(x, b.broadcast(most, x.array_shape.sizes, (0,))))
    sums = scan(b, b.select(finite, weight, b.like(0, x)), 1, 0.0, lambda b, p, q: b.add(p, q))
    total = b.broadcast(b.reshape(b.slice(sums, (0, classes - 1), (rows, classes)), (rows,)), (rows, count), (0,))
    drawn = b.reshape(uniform(context, stream, F64, rows * count), (rows, count))
    return bound(b, sums, b.multiply(drawn, total), of, "LE")


@converter("RandomShuffle", generator=True)
def shuffle_by_own(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (x,) = inputs
    if not x.rank or x.sizes[0] <= 1:
        return x.instruction
    return _shuffled(context.builder, x, draw_own(context, node, -(-(x.sizes[0] - 1) // 4)))


@converter("StatelessShuffle")
def shuffle_by_key(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x = inputs[0]
    if not x.rank or x.sizes[0] <= 1:
        return x.instruction
    return _shuffled(context.builder, x, stream_of(context, *inputs[1:4]))


def _shuffled(b: Builder, x: Value, stream: Stream) -> Instruction:
    """The rows of x in a random order: each place but the last trades rows with one that isn't before it (Fisher and
    Yates), chosen by the remainder of a random word."""
    count = x.sizes[0]
    words = stream.words(count - 1)
    places = b.iota(Shape(U32, (count - 1,)), 0)
    left = b.subtract(b.like(count, places), places)
    chosen = b.convert(b.add(places, b.remainder(words, left)), S32)
    order = _traded(b, b.iota(Shape(S32, (count,)), 0), chosen)
    if not math.prod(x.sizes):
        return x.instruction
    return take(b, x.instruction, order, 0)


def _traded(b: Builder, start: Instruction, chosen: Instruction) -> Instruction:
    """The vector after places 0, 1, ... have traded elements with the chosen ones, in turn."""
    counter = Shape(S32)
    shapes = [counter, start.array_shape, chosen.array_shape]
    condition = Builder("more_to_trade")
    i, *_ = (condition.parameter(s) for s in shapes)
    condition.build(condition.compare(i, condition.like(chosen.array_shape.sizes[0], i), "LT"))
    body = Builder("trade")
    i, order, other = (body.parameter(s) for s in shapes)
    j = body.reshape(body.dynamic_slice(other, [i], [1]), ())
    here, there = (body.dynamic_slice(order, [n], [1]) for n in (i, j))
    order = body.dynamic_update_slice(body.dynamic_update_slice(order, there, [i]), here, [j])
    body.build(body.tuple([body.add(i, body.like(1, i)), order, other]))
    return b.while_loop(condition.computation, body.computation, [b.constant(0, S32), start, chosen])[1]
