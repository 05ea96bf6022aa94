"""Normal numbers from uniform ones by the Box-Muller transform, with the bits that TensorFlow's CPU kernels give.

TensorFlow's float kernels call the C library's `logf` and `sincosf`. Those of glibc (since 2.28) evaluate short
polynomials in double precision and round once; about one result in a hundred is not the nearest float. So equal bits
take the same polynomials: their coefficients and table are those of Arm's Optimized Routines (MIT or Apache-2.0 WITH
LLVM-exception), which glibc contains; the code is our own.
"""

from __future__ import annotations

import math

import numpy as np

from fusile.base.element_type import F32, F64, S32
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.convert.indexing import take

LEAST_UNIFORM = 1e-7
"""A uniform number below this counts as this: its logarithm is finite."""

LOG_TABLE_BITS = 4
LOG_START = 0x3F330000
"""The bits of 0.6992: numbers become m * 2**k with m from here to twice that, in 16 intervals."""
LOG_RECIPROCALS = [float.fromhex(t) for t in (
    "0x1.661ec79f8f3bep+0", "0x1.571ed4aaf883dp+0", "0x1.49539f0f010bp+0", "0x1.3c995b0b80385p+0",
    "0x1.30d190c8864a5p+0", "0x1.25e227b0b8eap+0", "0x1.1bb4a4a1a343fp+0", "0x1.12358f08ae5bap+0",
    "0x1.0953f419900a7p+0", "0x1p+0", "0x1.e608cfd9a47acp-1", "0x1.ca4b31f026aap-1",
    "0x1.b2036576afce6p-1", "0x1.9c2d163a1aa2dp-1", "0x1.886e6037841edp-1", "0x1.767dcf5534862p-1",
)]  # fmt: skip
"""1 / c for a c near the middle of each interval."""
LOG_COEFFICIENTS = tuple(map(float.fromhex, ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2")))
SINE_COEFFICIENTS = tuple(
    map(float.fromhex, ("-0x1.555545995a603p-3", "0x1.1107605230bc4p-7", "-0x1.994eb3774cf24p-13"))
)
COSINE_COEFFICIENTS = tuple(
    map(
        float.fromhex,
        ("-0x1.ffffffd0c621cp-2", "0x1.55553e1068f19p-5", "-0x1.6c087e89a359dp-10", "0x1.99343027bf8c3p-16"),
    )
)


def box_muller(b: Builder, first: Instruction, second: Instruction) -> tuple[Instruction, Instruction]:
    """Two normal numbers from two uniform ones, f32 or f64. Those of f32 have TensorFlow's bits, those of f64 may
    differ in the last places."""
    first = b.maximum(first, b.like(LEAST_UNIFORM, first))
    if first.array_shape.element_type is F64:
        angle = b.multiply(second, b.like(2 * math.pi, second))
        logarithm, sine, cosine = b.log(first), b.sine(angle), b.cosine(angle)
    else:
        wide = b.convert(second, F64)  # The kernel's constant is a double.
        angle = b.convert(b.multiply(wide, b.like(2 * math.pi, wide)), F32)
        logarithm, (sine, cosine) = log_of_float(b, first), sine_and_cosine_of_float(b, angle)
    radius = b.sqrt(b.multiply(b.like(-2, first), logarithm))
    return b.multiply(sine, radius), b.multiply(cosine, radius)


def log_of_float(b: Builder, x: Instruction) -> Instruction:
    """glibc's `logf` of normal positive numbers."""
    bits = b.bitcast_convert(x, S32)
    above = b.subtract(bits, b.like(LOG_START, bits))
    exponent = b.shift_right_arithmetic(above, b.like(23, above))
    interval = b.shift_right_logical(above, b.like(23 - LOG_TABLE_BITS, above))
    interval = b.and_(interval, b.like((1 << LOG_TABLE_BITS) - 1, interval))
    mantissa = b.subtract(bits, b.shift_left(exponent, b.like(23, exponent)))
    m = b.convert(b.bitcast_convert(mantissa, F32), F64)
    reciprocals = np.array(LOG_RECIPROCALS)
    reciprocal, start = (take(b, b.constant(t), interval, 0) for t in (reciprocals, -np.log(reciprocals)))
    r = b.subtract(b.multiply(m, reciprocal), b.like(1, m))
    whole = b.add(start, b.multiply(b.convert(exponent, F64), b.like(math.log(2), m)))
    a = [b.like(c, m) for c in LOG_COEFFICIENTS]
    square = b.multiply(r, r)
    tail = b.add(b.multiply(a[0], square), b.add(b.multiply(a[1], r), a[2]))
    return b.convert(b.add(b.multiply(tail, square), b.add(whole, r)), F32)


def sine_and_cosine_of_float(b: Builder, x: Instruction) -> tuple[Instruction, Instruction]:
    """glibc's `sincosf` of numbers from 0 to 120."""
    wide = b.convert(x, F64)
    turns = b.round_nearest_afz(b.multiply(wide, b.like(2 / math.pi, wide)))
    r = b.subtract(wide, b.multiply(turns, b.like(math.pi / 2, wide)))
    quarter = b.convert(turns, S32)
    square = b.multiply(r, r)
    fourth, cube = b.multiply(square, square), b.multiply(square, r)
    s, c = ([b.like(k, r) for k in table] for table in (SINE_COEFFICIENTS, COSINE_COEFFICIENTS))
    sine = b.add(r, b.multiply(cube, s[0]))
    sine = b.add(sine, b.multiply(b.multiply(cube, square), b.add(s[1], b.multiply(square, s[2]))))
    cosine = b.add(b.add(b.like(1, r), b.multiply(square, c[0])), b.multiply(fourth, c[1]))
    cosine = b.add(cosine, b.multiply(b.multiply(fourth, square), b.add(c[2], b.multiply(square, c[3]))))
    sine, cosine = b.convert(sine, F32), b.convert(cosine, F32)
    odd = _has_bit(b, quarter, 1)
    return (
        _negated(b, _has_bit(b, quarter, 2), b.select(odd, cosine, sine)),
        _negated(b, _has_bit(b, b.add(quarter, b.like(1, quarter)), 2), b.select(odd, sine, cosine)),
    )


def _has_bit(b: Builder, x: Instruction, bit: int) -> Instruction:
    return b.compare(b.and_(x, b.like(bit, x)), b.like(0, x), "NE")


def _negated(b: Builder, where: Instruction, x: Instruction) -> Instruction:
    return b.select(where, b.negate(x), x)
