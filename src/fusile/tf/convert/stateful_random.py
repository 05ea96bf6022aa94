"""Random ops that keep a state: those of a `tf.random.Generator`, and those with a generator of their own, whose state
`tf/generators.py` keeps. Either state is s64[3]: the counter's low and high half, and the key."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusile.base.element_type import S64, U64
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.convert.random import (
    PHILOX,
    RESERVED,
    Distribution,
    Stream,
    normal,
    shaped,
    shaped_full_integers,
    shaped_integers_between,
    truncated_normal,
    uniform,
)
from fusile.tf.generators import generator_of
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Resource, Value


def draw(context: Context, resource: Resource, blocks: int) -> Stream:
    """The stream from the state that `resource` holds, which goes on after so many blocks of it."""
    b = context.builder
    state = context.read(resource).instruction
    context.assign(resource, _after(b, state, b.constant(blocks, U64)))
    low, high, key = (_word(b, state, n) for n in range(3))
    return Stream(b, key, low, high)


def draw_own(context: Context, node: Node, blocks: int) -> Stream:
    """The stream of the op's own generator, which goes on after so many blocks."""
    return draw(context, generator_of(node.operation), blocks)


def _word(b: Builder, state: Instruction, n: int) -> Instruction:
    return b.bitcast_convert(b.reshape(b.slice(state, (n,), (n + 1,)), ()), U64)


def _after(b: Builder, state: Instruction, blocks: Instruction) -> Instruction:
    low, high = (_word(b, state, n) for n in range(2))
    moved = b.add(low, blocks)
    carry = b.convert(b.compare(moved, low, "LT"), U64)
    new = [b.reshape(b.bitcast_convert(x, S64), (1,)) for x in (moved, b.add(high, carry))]
    return b.concatenate([*new, b.slice(state, (2,), (state.array_shape.sizes[0],))], 0)


# -- tf.random.Generator -----------------------------------------------------------------------------------------------


def _check_algorithm(context: Context, number: Value) -> None:
    if int(context.scalar(number, "the algorithm")) != PHILOX:
        raise context.unsupported("a random generator other than Philox", 'make it with alg="philox"')


@converter("RngReadAndSkip", effect=True)
def read_and_skip(context: Context, node: Node, inputs: list[Resource | Value]) -> Instruction:
    """The state s64[3] of a `tf.random.Generator` (counter, key) before so many elements were taken from it."""
    resource, number, amount = inputs
    assert isinstance(resource, Resource) and isinstance(number, Value) and isinstance(amount, Value)
    _check_algorithm(context, number)
    b = context.builder
    state = context.read(resource).instruction
    steps = b.convert(amount.instruction, U64)
    context.assign(resource, _after(b, state, b.multiply(steps, b.like(RESERVED, steps))))
    return b.slice(state, (0,), (3,))


@converter("RngSkip", effect=True)
def skip(context: Context, node: Node, inputs: list[Resource | Value]) -> Sequence[Instruction]:
    read_and_skip(context, node, inputs)
    return []


def _of_generator(op_type: str, distribution: Distribution) -> None:
    @converter(op_type, effect=True)
    def convert(context: Context, node: Node, inputs: list[Resource | Value]) -> Instruction:
        stream, sizes = _taken(context, inputs)
        of = node.output_type()
        return shaped(context, sizes, lambda count: distribution(context, stream, of, count), of)


def _taken(context: Context, inputs: Sequence[Resource | Value]) -> tuple[Stream, Value]:
    """The stream for an array from a Generator's (resource, algorithm, shape, ...), and the shape."""
    resource, number, sizes = inputs[:3]
    assert isinstance(resource, Resource) and isinstance(number, Value) and isinstance(sizes, Value)
    _check_algorithm(context, number)
    return draw(context, resource, RESERVED * math.prod(context.integers(sizes, "the shape"))), sizes


for _type, _distribution in {
    "StatefulUniform": uniform,
    "StatefulStandardNormalV2": normal,
    "StatefulTruncatedNormal": truncated_normal,
}.items():
    _of_generator(_type, _distribution)


@converter("StatefulUniformInt", effect=True)
def generator_integers(context: Context, node: Node, inputs: list[Resource | Value]) -> Instruction:
    stream, sizes = _taken(context, inputs)
    return shaped_integers_between(context, node, sizes, stream, [v for v in inputs[3:] if isinstance(v, Value)])


@converter("StatefulUniformFullInt", effect=True)
def generator_full_integers(context: Context, node: Node, inputs: list[Resource | Value]) -> Instruction:
    stream, sizes = _taken(context, inputs)
    return shaped_full_integers(context, node, sizes, stream)


# -- ops with a generator of their own ---------------------------------------------------------------------------------


def _of_own(op_type: str, distribution: Distribution) -> None:
    @converter(op_type, generator=True)
    def convert(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        of = node.output_type()
        stream = _own_for(context, node, inputs[0])
        return shaped(context, inputs[0], lambda count: distribution(context, stream, of, count), of)


def _own_for(context: Context, node: Node, sizes: Value) -> Stream:
    return draw_own(context, node, RESERVED * math.prod(context.integers(sizes, "the shape")))


for _type, _distribution in {
    "RandomUniform": uniform,
    "RandomStandardNormal": normal,
    "TruncatedNormal": truncated_normal,
}.items():
    _of_own(_type, _distribution)


@converter("RandomUniformInt", generator=True)
def own_integers(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return shaped_integers_between(context, node, inputs[0], _own_for(context, node, inputs[0]), inputs[1:])


@converter("NonDeterministicInts", generator=True)
def chance_integers(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Integers that no seed determines: from a generator made by chance."""
    return shaped_full_integers(context, node, inputs[0], _own_for(context, node, inputs[0]))
