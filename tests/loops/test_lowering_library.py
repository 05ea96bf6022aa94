"""Fourier transforms, Cholesky factors and triangular solves in the loop IR give what the HLO interpreter gives."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import C64, C128, F32, F64, U64, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Module, Op
from fusile.hlo.opset.other import Cholesky, Fft, RngBitGenerator, TriangularSolve
from fusile.loops.lowering import fft
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check, run_fused


def one_op(op: Op, *shapes: Shape) -> Module:
    b = Builder(op.opcode)
    return b.module(b.emit(op, *(b.parameter(s) for s in shapes)))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 12, 19, 33, 64, 76])
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
def test_fft_of_any_length(kind: str, length: int) -> None:
    sizes = (2, length // 2 + 1 if kind == "IRFFT" else length)
    check(one_op(Fft(kind, (length,)), Shape(F32 if kind == "RFFT" else C64, sizes)), machine=SSE2)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize("lengths", [(3, 4), (2, 5, 6), (4, 1)])
def test_fft_of_several_axes(kind: str, lengths: tuple[int, ...]) -> None:
    last = lengths[-1] // 2 + 1 if kind == "IRFFT" else lengths[-1]
    shape = Shape(F64 if kind == "RFFT" else C128, (2, *lengths[:-1], last))
    check(one_op(Fft(kind, lengths), shape), tolerance=1e-13)


def test_fft_lines_too_long_for_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft, "SCRATCH_BYTES", 64)
    check(one_op(Fft("FFT", (5, 12)), Shape(C64, (2, 5, 12))))


def test_fft_of_an_operand_of_another_length_is_refused() -> None:
    module = one_op(Fft("FFT", (8,)), Shape(C64, (7,)))
    with pytest.raises(UnsupportedOpError, match="pad or slice"):
        run_fused(module, arguments_of(module))


def test_radices_multiply_to_the_length() -> None:
    for length in range(1, 400):
        assert math.prod(fft.radices(length)) == length


def positive_definite(kind: ElementType, batch: int, size: int) -> np.ndarray:
    random = np.random.default_rng(size)
    m = random.normal(size=(batch, size, size))
    if kind.is_complex:
        m = m + 1j * random.normal(size=m.shape)
    return (m @ np.conj(np.swapaxes(m, 1, 2)) + size * np.eye(size)).astype(kind.dtype)


@pytest.mark.parametrize("kind", [F32, F64, C64])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("size", [1, 2, 9, 14])
def test_cholesky(kind: ElementType, lower: bool, size: int) -> None:
    module = one_op(Cholesky(lower), Shape(kind, (2, size, size)))
    check(module, [positive_definite(kind, 2, size)], machine=SSE2)


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_of_a_matrix_that_is_not_positive_definite(lower: bool) -> None:
    x = positive_definite(F32, 3, 5)
    x[1] -= 100 * np.eye(5, dtype=np.float32)
    check(one_op(Cholesky(lower), Shape(F32, (3, 5, 5))), [x])


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("kind", [F64, C64])
def test_triangular_solve(left: bool, lower: bool, unit: bool, transpose: str, kind: ElementType) -> None:
    size, other = 6, 3
    b_sizes = (size, other) if left else (other, size)
    module = one_op(
        TriangularSolve(left, lower, unit, transpose), Shape(kind, (2, size, size)), Shape(kind, (2, *b_sizes))
    )
    a, b = arguments_of(module)
    # What lies in the other triangle must not matter.
    a = a / 4 + 2 * np.eye(size) + np.where(np.tri(size, k=-1).T if lower else np.tri(size, k=-1), np.nan, 0)
    check(module, [np.where(np.isnan(a), 1e30, a).astype(kind.dtype), b])


@pytest.mark.parametrize("other", [1, 70, 130])
def test_triangular_solve_cuts_columns(other: int) -> None:
    module = one_op(TriangularSolve(True, True, False, "NO_TRANSPOSE"), Shape(F32, (3, 3)), Shape(F32, (3, other)))
    a, b = arguments_of(module)
    check(module, [(a / 4 + 2 * np.eye(3)).astype(np.float32), b])


def test_an_op_without_a_kernel_is_refused() -> None:
    module = one_op(RngBitGenerator("RNG_NONE", Shape(U64, (3,))), Shape(U64, (2,)))
    with pytest.raises(UnsupportedOpError, match="rng-bit-generator"):
        run_fused(module, arguments_of(module))
