"""Random numbers from a key and a counter: the same bits as TensorFlow's own CPU kernels give.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). Block i of four
words comes from the counter plus i; how many words make an element is each distribution's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusile.base.element_type import BF16, F16, F32, F64, S32, S64, U16, U32, U64, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.other import RngBitGenerator
from fusile.hlo.opset.random_bits import PHILOX as RNG_PHILOX
from fusile.tf.context import Context, shape_of
from fusile.tf.convert.normal import box_muller
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
PHILOX, AUTOMATIC = 1, 3
"""TensorFlow's numbers for generators."""
SEED_KEY = 0x02461E29_3EC8F720
"""With which seeds are scrambled into keys and counters."""
TRUNCATED_AT = 2.0
RESERVED = 256
"""Blocks that each group of four truncated normals, or each element of a Generator, may use."""
Words = Sequence[Instruction]


# -- the generator -----------------------------------------------------------------------------------------------------


def philox(b: Builder, key: Words, counter: Words) -> list[Instruction]:
    """Four u32 words for each counter of four; arrays of one shape."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for turn in range(ROUNDS):
        if turn:
            k0, k1 = (b.add(k, b.like(step, k)) for k, step in zip((k0, k1), KEY_STEPS, strict=True))
        high0, low0 = _wide_product(b, c0, MULTIPLIERS[0])
        high1, low1 = _wide_product(b, c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = b.xor(b.xor(high1, c1), k0), low1, b.xor(b.xor(high0, c3), k1), low0
    return [c0, c1, c2, c3]


def _wide_product(b: Builder, x: Instruction, factor: int) -> tuple[Instruction, Instruction]:
    wide = b.convert(x, U64)
    product = b.multiply(wide, b.like(factor, wide))
    return b.convert(b.shift_right_logical(product, b.like(32, wide)), U32), b.convert(product, U32)


def _halves(b: Builder, x: Instruction) -> list[Instruction]:
    """The low and the high word of u64."""
    return [b.convert(x, U32), b.convert(b.shift_right_logical(x, b.like(32, x)), U32)]


def _joined(b: Builder, low: Instruction, high: Instruction) -> Instruction:
    wide = b.convert(high, U64)
    return b.or_(b.convert(low, U64), b.shift_left(wide, b.like(32, wide)))


class Stream:
    """The blocks from a key and a 128-bit counter, given as scalars of u64."""

    def __init__(self, b: Builder, key: Instruction, low: Instruction, high: Instruction) -> None:
        self.b, self.key, self.low, self.high = b, key, low, high

    def blocks(self, numbers: Instruction) -> list[Instruction]:
        """The words of the blocks with these numbers (u64)."""
        b, sizes = self.b, numbers.array_shape.sizes
        key, low, high = (b.broadcast(x, sizes, ()) for x in (self.key, self.low, self.high))
        moved = b.add(low, numbers)
        carry = b.convert(b.compare(moved, low, "LT"), U64)
        return philox(b, _halves(b, key), [*_halves(b, moved), *_halves(b, b.add(high, carry))])

    def words(self, count: int, of: ElementType = U32) -> Instruction:
        """The first `count` elements of u32, or of u64 made of a low and a high word."""
        b = self.b
        state = b.concatenate([b.reshape(x, (1,)) for x in (self.key, self.low, self.high)], 0)
        return b.element(b.emit(RngBitGenerator(RNG_PHILOX, Shape(of, (count,))), state), 1)


def scrambled(context: Context, seed: Value) -> tuple[Instruction, Instruction]:
    """The key and the counter's high half (its low half is 0), u64 scalars, that a seed of two numbers stands for."""
    b = context.builder
    if seed.sizes != (2,):
        raise context.unsupported(f"a seed of shape {seed.sizes}", "give a seed of two integers")
    whole = b.convert(b.convert(seed.instruction, S64) if seed.element_type is S32 else seed.instruction, U64)
    key = b.constant(SEED_KEY, U64)
    mixed = Stream(b, key, *(b.reshape(b.slice(whole, (n,), (n + 1,)), ()) for n in range(2))).words(2, U64)
    low, high = (b.reshape(b.slice(mixed, (n,), (n + 1,)), ()) for n in range(2))
    return low, high


# -- distributions -----------------------------------------------------------------------------------------------------


def unit(b: Builder, of: ElementType, bits: Instruction) -> Instruction:
    """Uniform in [0, 1) from u32 (f64: from u64): random bits as the mantissa of a number in [1, 2), less 1."""
    if of is F64:
        # The kernel takes the first word as the high one.
        bits = b.or_(b.shift_left(bits, b.like(32, bits)), b.shift_right_logical(bits, b.like(32, bits)))
    mantissa, bias = {F64: (52, 1023), F32: (23, 127), F16: (10, 15), BF16: (7, 127)}[of]
    bits = b.or_(b.and_(bits, b.like((1 << mantissa) - 1, bits)), b.like(bias << mantissa, bits))
    return _less_one(b, b.convert(bits, U16) if of.bits == 16 else bits, of)


def _less_one(b: Builder, bits: Instruction, of: ElementType) -> Instruction:
    x = b.bitcast_convert(bits, of)
    return b.subtract(x, b.like(1, x))


def uniform(context: Context, stream: Stream, of: ElementType, count: int) -> Instruction:
    return unit(context.builder, of, stream.words(count, U64 if of is F64 else U32))


def normal(context: Context, stream: Stream, of: ElementType, count: int) -> Instruction:
    b, pairs = context.builder, -(-count // 2)
    wide = F64 if of is F64 else F32
    numbers = b.reshape(unit(b, wide, stream.words(2 * pairs, U64 if of is F64 else U32)), (pairs, 2))
    made = box_muller(b, *(b.reshape(b.slice(numbers, (0, n), (pairs, n + 1)), (pairs,)) for n in range(2)))
    return b.convert(_interleaved(b, made, count), of)


def _normals_of_block(b: Builder, of: ElementType, words: Words) -> list[Instruction]:
    """The normal numbers that a block's four words make, in order: four of f32, two of f64."""
    if of is F64:
        words = [_joined(b, *words[:2]), _joined(b, *words[2:])]
    numbers = [unit(b, of, w) for w in words]
    return [n for pair in range(0, len(numbers), 2) for n in box_muller(b, *numbers[pair : pair + 2])]


def truncated_normal(context: Context, stream: Stream, of: ElementType, count: int) -> Instruction:
    """Normal numbers within two deviations: each group of elements takes further blocks until it has enough of them."""
    b = context.builder
    size, kind = (2, F64) if of is F64 else (4, F32)
    groups = -(-count // size)
    shapes = [Shape(U64), Shape(S64, (groups,)), *[Shape(kind, (groups,))] * size]
    shared = [stream.key, stream.low, stream.high]

    def inside(name: str) -> tuple[Builder, list[Instruction]]:
        inner = Builder(name)
        return inner, [inner.parameter(s) for s in (*shapes, *(x.array_shape for x in shared))]

    condition, state = inside("more_are_needed")
    enough = condition.compare(state[1], condition.like(size, state[1]), "LT")
    condition.build(condition.reduce_with("or", enough, (0,)))
    body, state = inside("take_a_block")
    turn, taken, *kept = state[: 2 + size]
    skip = RESERVED * size // 4
    numbers = body.iota(Shape(U64, (groups,)), 0)
    numbers = body.add(body.multiply(numbers, body.like(skip, numbers)), body.broadcast(turn, (groups,), ()))
    for made in _normals_of_block(body, kind, Stream(body, *state[2 + size :]).blocks(numbers)):
        fits = body.compare(body.abs(made), body.like(TRUNCATED_AT, made), "LT")
        for n in range(size):
            here = body.and_(fits, body.compare(taken, body.like(n, taken), "EQ"))
            kept[n] = body.select(here, made, kept[n])
        taken = body.add(taken, body.convert(fits, S64))
    body.build(body.tuple([body.add(turn, body.like(1, turn)), taken, *kept, *state[2 + size :]]))
    start = [b.constant(0, U64), b.full(0, shapes[1]), *(b.full(0, s) for s in shapes[2:])]
    result = b.while_loop(condition.computation, body.computation, [*start, *shared])
    return b.convert(_interleaved(b, result[2 : 2 + size], count), of)


def _interleaved(b: Builder, parts: Sequence[Instruction], count: int) -> Instruction:
    groups = parts[0].array_shape.sizes[0]
    flat = b.reshape(b.concatenate([b.reshape(p, (groups, 1)) for p in parts], 1), (groups * len(parts),))
    return b.slice(flat, (0,), (count,))


def integers(b: Builder, stream: Stream, of: ElementType, count: int) -> Instruction:
    """Integers of all values, unsigned, of 32 or 64 bits."""
    return stream.words(count, U32 if of.bits == 32 else U64)


def integers_between(
    b: Builder, stream: Stream, of: ElementType, count: int, low: Instruction, high: Instruction
) -> Instruction:
    """Integers from `low` up to `high`, left out, by the remainder, as TensorFlow has it."""
    unsigned = U32 if of.bits == 32 else U64
    bits = integers(b, stream, of, count)
    low, high = (b.bitcast_convert(x, unsigned) if of.is_signed else x for x in (low, high))
    span = b.broadcast(b.subtract(high, low), (count,), ())
    moved = b.add(b.broadcast(low, (count,), ()), b.remainder(bits, span))
    return b.bitcast_convert(moved, of) if of.is_signed else moved


# -- ops ---------------------------------------------------------------------------------------------------------------

Distribution = Callable[[Context, Stream, ElementType, int], Instruction]
FLOATS: dict[str, Distribution] = {
    "Uniform": uniform,
    "Normal": normal,
    "TruncatedNormal": truncated_normal,
}


@converter("StatelessRandomGetKeyCounter")
def key_and_counter(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    key, high = scrambled(context, inputs[0])
    b = context.builder
    counter = b.concatenate([b.constant([0], U64), b.reshape(high, (1,))], 0)
    return [b.reshape(key, (1,)), counter]


@converter("StatelessRandomGetKeyCounterAlg")
def key_counter_and_algorithm(context: Context, node: Node, inputs: list[Value]) -> list[Instruction | Value]:
    return [*key_and_counter(context, node, inputs), context.known(PHILOX, S32)]


@converter("StatelessRandomGetAlg")
def algorithm(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(PHILOX, S32)


def stream_of(context: Context, key: Value, counter: Value, number: Value) -> Stream:
    """The stream of a key u64[1], a counter u64[1] or u64[2], and an algorithm."""
    if int(context.scalar(number, "the algorithm")) not in (PHILOX, AUTOMATIC):
        raise context.unsupported("a random generator other than Philox", 'use alg="philox" or "auto_select"')
    b = context.builder

    def word(x: Value, n: int) -> Instruction:
        return b.reshape(b.slice(x.instruction, (n,), (n + 1,)), ())

    high = word(counter, 1) if counter.sizes[0] > 1 else b.constant(0, U64)
    return Stream(b, word(key, 0), word(counter, 0), high)


def seeded(context: Context, seed: Value) -> Stream:
    key, high = scrambled(context, seed)
    return Stream(context.builder, key, context.builder.constant(0, U64), high)


def shaped(context: Context, sizes: Value, make: Callable[[int], Instruction], of: ElementType) -> Instruction:
    wanted = context.integers(sizes, "the shape")
    count = math.prod(wanted)
    b = context.builder
    return b.reshape(make(count), wanted) if count else b.full(0, shape_of(of, wanted))


def _float_op(kind: str, distribution: Distribution) -> None:
    @converter(f"StatelessRandom{kind}V2" if kind != "TruncatedNormal" else "StatelessTruncatedNormalV2")
    def with_key(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        of = node.output_type()
        stream = stream_of(context, *inputs[1:4])
        return shaped(context, inputs[0], lambda count: distribution(context, stream, of, count), of)

    @converter(f"StatelessRandom{kind}" if kind != "TruncatedNormal" else "StatelessTruncatedNormal")
    def with_seed(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        of = node.output_type()
        stream = seeded(context, inputs[1])
        return shaped(context, inputs[0], lambda count: distribution(context, stream, of, count), of)


for _kind, _distribution in FLOATS.items():
    _float_op(_kind, _distribution)


@converter("StatelessRandomUniformIntV2")
def uniform_integers(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return shaped_integers_between(context, node, inputs[0], stream_of(context, *inputs[1:4]), inputs[4:])


@converter("StatelessRandomUniformInt")
def uniform_integers_of_seed(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return shaped_integers_between(context, node, inputs[0], seeded(context, inputs[1]), inputs[2:])


def shaped_integers_between(
    context: Context, node: Node, sizes: Value, stream: Stream, bounds: Sequence[Value]
) -> Instruction:
    of, (low, high) = node.output_type(), bounds
    if low.known is not None and high.known is not None and low.known >= high.known:
        raise context.unsupported(f"no integers between {low.known} and {high.known}", "give minval < maxval")
    make = lambda count: integers_between(  # noqa: E731
        context.builder, stream, of, count, low.instruction, high.instruction
    )
    return shaped(context, sizes, make, of)


@converter("StatelessRandomUniformFullIntV2")
def full_integers(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return shaped_full_integers(context, node, inputs[0], stream_of(context, *inputs[1:4]))


@converter("StatelessRandomUniformFullInt")
def full_integers_of_seed(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return shaped_full_integers(context, node, inputs[0], seeded(context, inputs[1]))


def shaped_full_integers(context: Context, node: Node, sizes: Value, stream: Stream) -> Instruction:
    of, b = node.output_type(), context.builder

    def make(count: int) -> Instruction:
        bits = integers(b, stream, of, count)
        return b.bitcast_convert(bits, of) if of.is_signed else bits

    return shaped(context, sizes, make, of)
