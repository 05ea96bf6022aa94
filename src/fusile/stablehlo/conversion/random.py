"""Random numbers. `rng` has no state of its own: each one in a program draws from a stream of its own, from the start,
so that a program's results are the same each time, in the interpreter and in code."""

from __future__ import annotations

import math

import numpy as np

from fusile.base.element_type import F64, PRED, U64
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.conversion.dynamic import known_integers


@converts("stablehlo.rng_bit_generator")
def _rng_bit_generator(context: Context) -> list[Instruction]:
    algorithm = "RNG_" + context.word("rng_algorithm")
    result = context.add("rng-bit-generator", context.operands, algorithm=algorithm, result=context.result_shape(1))
    return context.parts(result, 2)


@converts("stablehlo.rng")
def _rng(context: Context) -> Instruction:
    """UNIFORM: between the first operand and the second, which is left out; NORMAL: of that mean and deviation."""
    low, high = context.operands[:2]
    kind = low.array_shape.element_type
    distribution = context.word("rng_distribution")
    sizes = known_integers(context, context.operands[2])
    b = context.builder
    bits = _bits(context, Shape(U64, sizes))
    if distribution == "NORMAL" and kind.is_float:
        return b.convert(_normal(b, bits, low, high), kind)
    if distribution != "UNIFORM" or kind.is_complex:
        raise ValueError(f"there are no {distribution} numbers of {kind}")
    low, high = (b.broadcast_to(x, sizes) for x in (low, high))
    if kind.is_float:
        return _uniform(b, bits, low, high)
    if kind.is_predicate:
        return b.select(b.convert(b.and_(bits, b.like(1, bits)), PRED), high, low)
    span = b.convert(b.subtract(b.convert(high, U64), b.convert(low, U64)), U64)
    return b.add(low, b.convert(b.remainder(bits, span), kind))


def _bits(context: Context, shape: Shape) -> Instruction:
    """64 random bits an element."""
    context.program.random_streams += 1
    state = context.constant(np.array([context.program.random_streams, 0], np.uint64))
    result = context.add("rng-bit-generator", [state], algorithm="RNG_PHILOX", result=shape)
    return context.add("get-tuple-element", [result], index=1)


def _uniform(b: Builder, bits: Instruction, low: Instruction, high: Instruction) -> Instruction:
    """Rounding may reach the upper bound, which isn't part of the range."""
    kind = low.array_shape.element_type
    unit = b.convert(b.shift_right_logical(bits, b.like(11, bits)), F64)
    unit = b.multiply(unit, b.like(2.0**-53, unit))
    wide_low, wide_high = b.convert(low, F64), b.convert(high, F64)
    x = b.convert(b.add(wide_low, b.multiply(unit, b.subtract(wide_high, wide_low))), kind)
    return b.select(b.compare(x, high, "GE"), low, x)


def _normal(b: Builder, bits: Instruction, mean: Instruction, deviation: Instruction) -> Instruction:
    """sqrt(2) erf_inv(u), of u between -1 and 1, neither reached."""
    sizes = bits.array_shape.sizes
    u = b.convert(b.shift_right_logical(bits, b.like(12, bits)), F64)
    u = b.subtract(b.multiply(b.add(u, b.like(0.5, u)), b.like(2.0**-51, u)), b.like(1, u))
    x = b.multiply(b.like(math.sqrt(2), u), b.erf_inv(u))
    mean, deviation = (b.broadcast_to(b.convert(v, F64), sizes) for v in (mean, deviation))
    return b.add(mean, b.multiply(deviation, x))
