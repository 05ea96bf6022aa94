"""Kernels whose results lie in an operand's place, in machine code: every kind, with ragged sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusile
from fusile.base.element_type import BF16, F16, F32, F64, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, neutral, scalar_computation
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Instruction
from fusile.runtime.buffers import RESULTS

SIZES = [(1, 1), (3, 7), (37, 101), (64, 64), (129, 1000), (2, 5000)]


def reduced(b: Builder, x: Instruction, opcode: str) -> Instruction:
    """A row's reduction, over its row again."""
    element = x.array_shape.element_type
    start = b.constant(neutral(opcode, element), element)
    total = b.reduce([x], [start], (1,), scalar_computation(opcode, element))
    return b.broadcast(total, x.array_shape.sizes, (0,))


def softmax(b: Builder, x: Instruction, y: Instruction) -> list[Instruction]:
    e = b.exponential(b.subtract(x, reduced(b, x, "maximum")))
    return [b.divide(e, reduced(b, e, "add"))]


def normalized(b: Builder, x: Instruction, y: Instruction) -> list[Instruction]:
    z = b.subtract(x, b.multiply(reduced(b, x, "add"), b.like(1 / x.array_shape.sizes[1], x)))
    return [b.multiply(z, b.rsqrt(b.add(reduced(b, b.multiply(z, z), "add"), b.like(1, x)))), b.add(z, y)]


def elementwise(b: Builder, x: Instruction, y: Instruction) -> list[Instruction]:
    return [b.tanh(b.add(b.multiply(x, y), x))]


def swapped(b: Builder, x: Instruction, y: Instruction) -> list[Instruction]:
    return [b.subtract(y, b.like(1, y)), b.multiply(x, b.like(2, x))]


def crossed(b: Builder, x: Instruction, y: Instruction) -> list[Instruction]:
    return [b.add(x, y), b.subtract(x, y)]


KERNELS: dict[str, Callable[[Builder, Instruction, Instruction], list[Instruction]]] = {
    "elementwise": elementwise,
    "swapped": swapped,
    "crossed": crossed,
    "softmax": softmax,
    "normalized": normalized,
}


def own(array: np.ndarray) -> np.ndarray:
    copy = RESULTS.array(array.shape, array.dtype, array.size)
    copy[...] = array
    return copy


def given(sizes: tuple[int, ...], of: ElementType, count: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.uniform(-2, 2, sizes).astype(of.dtype) for _ in range(count)]


def close(got: np.ndarray, want: np.ndarray) -> None:
    tolerance = {2: 2e-2, 4: 2e-5, 8: 1e-10}[got.dtype.itemsize]
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("of", [F32, F64, BF16, F16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_results_in_donated_operands(name: str, sizes: tuple[int, int], of: ElementType) -> None:
    b = Builder(name)
    x, y = b.parameter(Shape(of, sizes)), b.parameter(Shape(of, sizes))
    module = b.module(b.tuple(KERNELS[name](b, x, y)))
    arrays = given(sizes, of, 2)
    expected = interpret(module, arrays)
    exe = fusile.compile(module, donate=(0, 1))
    mine = [own(a) for a in arrays]
    results = exe(*mine)
    assert results[0] is mine[0]
    for got, want in zip(results, expected, strict=True):
        close(got, want)
    # And in memory of their own.
    for array in arrays:
        array.flags.writeable = False
    for got, want in zip(exe(*arrays), expected, strict=True):
        close(got, want)


@pytest.mark.parametrize("columns", [1, 7, 33, 64, 100, 257])
@pytest.mark.parametrize("rows", [1, 5, 30, 200])
def test_an_epilogue_writes_where_it_reads(rows: int, columns: int) -> None:
    """Residual sums: each product's result lies in the last one's."""
    b = Builder("residual")
    x, w = b.parameter(Shape(F32, (rows, columns))), b.parameter(Shape(F32, (columns, columns)))
    y = b.tanh(x)
    for _ in range(3):
        y = b.add(b.maximum(b.dot(y, w), b.like(0, y)), y)
    module = b.module(b.multiply(y, b.like(0.5, y)))
    arrays = [given((rows, columns), F32, 1)[0], given((columns, columns), F32, 1)[0] / columns]
    exe = fusile.compile(module)
    np.testing.assert_allclose(exe(*arrays), interpret(module, arrays)[0], rtol=1e-4, atol=1e-4)


def test_results_share_in_what_is_compiled() -> None:
    b = Builder("shares")
    x, w = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    y = b.dot(x, w)
    total = b.reduce([y], [b.constant(0.0, F32)], (0,), scalar_computation("add", F32))
    exe = fusile.compile(b.module(b.dot(b.tanh(b.add(y, b.broadcast(total, (64, 64), (1,)))), w)))
    assert exe.memory.temp < 2 * 64 * 64 * 4 + 64 * 64 * 4
    assert "shared=" in exe.text("optimized")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_one_kernel_whose_results_swap_places(sizes: tuple[int, int]) -> None:
    """Each result lies where the other's operand does: both are read before either is written."""
    b = Builder("swap")
    x, y, z = (b.parameter(Shape(F32, sizes)) for _ in range(3))
    module = b.module(b.tuple([b.subtract(y, z), b.multiply(x, z)]))
    arrays = given(sizes, F32, 3)
    expected = interpret(module, arrays)
    exe = fusile.compile(module, donate=(0, 1))
    assert len(exe.kernels) == 1 and exe.memory.temp == 0
    mine = [own(a) for a in arrays]
    results = exe(*mine)
    assert results[0] is mine[0] and results[1] is mine[1]
    for got, want in zip(results, expected, strict=True):
        close(got, want)
