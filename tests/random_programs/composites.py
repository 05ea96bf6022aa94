"""Batch normalization, Fourier transforms, linear algebra, random bits."""

from __future__ import annotations

import numpy as np

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.other import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTraining,
    Cholesky,
    Fft,
    RngBitGenerator,
    TriangularSolve,
)
from random_programs.generator import Generator, family


@family(2)
def batch_norm(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank >= 2 and s.element_type in (e.F32, e.F64) and s.elements > 0, rough=False)
    if x is None or g.exact_only:
        return None
    kind, d = x.array_shape.element_type, g.integer(0, x.array_shape.rank - 1)
    features = Shape(kind, (x.array_shape.sizes[d],))
    x, what = g.small(x), g.integer(0, 2)
    scale, offset, mean = (g.constant(features, -2, 2) for _ in range(3))
    variance = g.constant(features, 0.5, 2)
    if what == 0:
        return g.b.emit(BatchNormInference(0.5, d), x, scale, offset, mean, variance)
    if what == 1:
        return g.b.element(g.b.emit(BatchNormTraining(0.5, d), x, scale, offset), g.integer(0, 2))
    grad = g.small(g.of(x.array_shape, rough=False))
    return g.b.element(g.b.emit(BatchNormGrad(0.5, d), x, scale, mean, variance, grad), g.integer(0, 2))


@family(1)
def fourier(g: Generator) -> Instruction | None:
    if g.exact_only:
        return None
    kind = g.pick(("FFT", "IFFT", "RFFT", "IRFFT"))
    real = kind == "RFFT"
    x = g.value(
        lambda s: (
            s.rank > 0
            and 0 not in s.sizes
            and (s.element_type in (e.F32, e.F64) if real else s.element_type.is_complex)
        ),
        rough=False,
    )
    if x is None:
        return None
    count = g.integer(1, min(2, x.array_shape.rank))
    length = list(x.array_shape.sizes[-count:])
    if kind == "IRFFT":
        length[-1] = max(1, 2 * (length[-1] - 1))
    # Where a NaN ends up depends on the order of the sums.
    if real:
        return g.b.emit(Fft(kind, tuple(length)), g.small(g.numbers(x)))
    parts = (g.small(g.numbers(part)) for part in (g.b.real(x), g.b.imag(x)))
    return g.b.emit(Fft(kind, tuple(length)), g.b.complex(*parts))


@family(1)
def linear_algebra(g: Generator) -> Instruction | None:
    if g.exact_only:
        return None
    n, kind = g.integer(0, 5), g.pick((e.F32, e.F64))
    random = np.random.default_rng(g.integer(0, 999))
    batch = g.sizes(g.integer(0, 1))
    a = random.uniform(-1, 1, (*batch, n, n))
    if g.chance(0.5):
        matrix = g.b.constant((a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(kind.dtype))
        return g.b.emit(Cholesky(g.chance(0.5)), matrix)
    left = g.chance(0.5)
    other = g.integer(0, 3)
    right = Shape(kind, (*batch, n, other) if left else (*batch, other, n))
    matrix = g.b.constant((a + 2 * n * np.eye(n)).astype(kind.dtype))
    op = TriangularSolve(left, g.chance(0.5), False, g.pick(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")))
    return g.b.emit(op, matrix, g.small(g.of(right, rough=False)))


@family(1)
def random_bits(g: Generator) -> Instruction | None:
    algorithm = g.pick(("RNG_PHILOX", "RNG_THREE_FRY"))
    size = 2 if algorithm == "RNG_THREE_FRY" else g.integer(2, 3)
    result = Shape(g.pick((e.U32, e.U64, e.U8, e.U16, e.S32)), g.sizes())
    state = g.of(Shape(e.U64, (size,)), rough=False)
    return g.b.element(g.b.emit(RngBitGenerator(algorithm, result), state), g.integer(0, 1))
