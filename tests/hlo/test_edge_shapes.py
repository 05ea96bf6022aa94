"""Scalars, empty arrays and windows with nothing under them: results have the shapes that were inferred."""

from __future__ import annotations

import numpy as np
import pytest

import fusile
from fusile.base.element_type import BF16, C64, F16, F32, F64, S32, ElementType
from fusile.base.errors import ShapeError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import OPS
from fusile.hlo.opset.contraction import Convolution
from fusile.hlo.opset.elementwise import Elementwise, ReducePrecision
from fusile.hlo.opset.other import Cholesky
from fusile.hlo.opset.reduction import ReduceWindow
from fusile.hlo.opset.window import ConvolutionDimensions, Window

ELEMENTWISE = [cls for cls in OPS.values() if issubclass(cls, Elementwise)]


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0), (1,)], ids=str)
@pytest.mark.parametrize("cls", ELEMENTWISE, ids=lambda c: c.opcode)
def test_elementwise_ops_keep_shapes(cls, sizes: tuple[int, ...]) -> None:
    tried = 0
    for kind in (F32, C64, S32):
        b = Builder("keep")
        x = b.parameter(Shape(kind, sizes))
        try:
            y = b.emit(cls(), *[x] * (cls.arity or 1))
        except ShapeError:
            continue
        tried += 1
        (result,) = interpret(b.module(y), [np.full(sizes, 0.5).astype(kind.dtype)])
        assert result.shape == sizes and result.dtype == y.array_shape.element_type.dtype
    assert tried


@pytest.mark.parametrize("kind", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("exponent, mantissa", [(11, 52), (11, 30), (8, 7), (5, 10), (4, 3), (2, 1)])
def test_reduced_precision_of_the_least_numbers(kind: ElementType, exponent: int, mantissa: int) -> None:
    """Machine code, which works on bits, agrees with the interpreter, which divides."""
    least = float(np.nextafter(np.zeros((), kind.dtype), np.ones((), kind.dtype)))
    values = np.array([0.0, -0.0, least, -least, 3 * least, 1000 * least, 1.0, 1.5, 3e4, np.inf, np.nan], np.float64)
    b = Builder("reduced")
    x = b.parameter(Shape(kind, values.shape))
    module = b.module(b.emit(ReducePrecision(exponent, mantissa), x))
    given = values.astype(kind.dtype)
    (expected,) = interpret(module, [given])
    assert not np.isnan(expected[:-1].astype(np.float64)).any()
    actual = fusile.compile(module)(given)
    np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("sizes", [(0, 0), (3, 0, 0), (0, 2, 2)], ids=str)
def test_cholesky_of_nothing(sizes: tuple[int, ...]) -> None:
    b = Builder("empty")
    (result,) = interpret(b.module(b.emit(Cholesky(True), b.parameter(Shape(F32, sizes)))), [np.zeros(sizes, "f")])
    assert result.shape == sizes


@pytest.mark.parametrize("size, low, high", [(1, -1, -1), (2, -3, 0), (0, 0, -1), (3, 0, -4)])
def test_padding_takes_away_more_than_there_is(size: int, low: int, high: int) -> None:
    b = Builder("window")
    x = b.parameter(Shape(F32, (size,)))
    window = Window(size=(2,), padding_low=(low,), padding_high=(high,))
    y = b.emit(ReduceWindow(window, scalar_computation("add", F32)), x, b.constant(0, F32))
    assert interpret(b.module(y), [np.ones(size, "f")])[0].shape == (0,)
    b = Builder("convolution")
    x, k = b.parameter(Shape(F32, (1, size, 3))), b.parameter(Shape(F32, (2, 3, 4)))
    numbers = ConvolutionDimensions(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))
    y = b.emit(Convolution(window, numbers), x, k)
    assert interpret(b.module(y), [np.ones((1, size, 3), "f"), np.ones((2, 3, 4), "f")])[0].shape == (1, 0, 4)
