"""Gradients of pooling in the loop IR give what the HLO interpreter gives: ties, padding, windows that overlap."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import BF16, F32, F64, S8, S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Module
from fusile.hlo.opset.reduction import SelectAndScatter
from fusile.hlo.opset.window import Window
from fusile.loops.ir import For, LoopKind
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check


def select(kind: ElementType, direction: str = "GE") -> Computation:
    b = Builder("select")
    return b.build(b.compare(b.parameter(Shape(kind)), b.parameter(Shape(kind)), direction))


def combine(kind: ElementType, op: str = "add") -> Computation:
    """`half` gives (old - new) / 2, where the order of source elements shows."""
    b = Builder("combine")
    old, new = b.parameter(Shape(kind)), b.parameter(Shape(kind))
    if op == "half":
        return b.build(b.multiply(b.subtract(old, new), b.constant(0.5, kind)))
    return b.build(getattr(b, op)(old, new))


def pooling(
    sizes: tuple[int, ...], window: Window, kind: ElementType = F32, direction: str = "GE", op: str = "add"
) -> Module:
    b = Builder("pooling")
    source = tuple(window.output_size(d, s) for d, s in enumerate(sizes))
    operands = b.parameter(Shape(kind, sizes)), b.parameter(Shape(kind, source)), b.parameter(Shape(kind))
    return b.module(b.emit(SelectAndScatter(window, select(kind, direction), combine(kind, op)), *operands))


def spatial(size: int, stride: int, low: int, high: int, features: bool = True) -> Window:
    """A square window of images [N, H, W, C], or [N, C, H, W]."""

    def along(value: int, other: int) -> tuple[int, ...]:
        return (other, value, value, other) if features else (other, other, value, value)

    return Window(along(size, 1), along(stride, 1), along(low, 0), along(high, 0))


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize(
    "size, stride, low, high", [(2, 2, 0, 0), (3, 2, 1, 1), (3, 2, 0, 1), (2, 1, 0, 0), (3, 1, 2, 2)]
)
@pytest.mark.parametrize("op", ["add", "half"])
def test_windows(features: bool, size: int, stride: int, low: int, high: int, op: str) -> None:
    sizes = (2, 6, 5, 11) if features else (2, 3, 6, 5)
    check(pooling(sizes, spatial(size, stride, low, high, features), op=op), machine=SSE2)


@pytest.mark.parametrize("channels", [1, 3, 8, 9, 16])
def test_channels(channels: int) -> None:
    (kernel,) = check(pooling((1, 5, 5, channels), spatial(3, 2, 1, 1)))
    assert any(isinstance(p, For) and p.kind is LoopKind.PARALLEL for p in kernel.body[1:])


@pytest.mark.parametrize("kind", [F32, F64, BF16, S8, S32])
@pytest.mark.parametrize("direction", ["GE", "GT", "LT"])
def test_ties_go_to_whom_the_comparison_keeps(kind: ElementType, direction: str) -> None:
    module = pooling((2, 6, 6, 9), spatial(3, 2, 1, 1), kind, direction)
    given = arguments_of(module)
    given[0] = (np.arange(given[0].size).reshape(given[0].shape) * 7 % 3).astype(given[0].dtype)
    check(module, given)


def test_nan_in_a_window() -> None:
    module = pooling((1, 6, 6, 5), spatial(3, 2, 1, 1))
    given = arguments_of(module)
    given[0].reshape(-1)[::7] = np.nan
    given[0].reshape(-1)[::5] = -np.inf
    check(module, given)


def test_padding_is_never_selected() -> None:
    """Every element is less than what padding would be, were it an element."""
    module = pooling((1, 4, 4, 3), spatial(3, 1, 2, 2))
    given = arguments_of(module)
    given[0] = -np.abs(given[0]) - 1
    check(module, given)


@pytest.mark.parametrize("padding", [(4, 0), (0, 5), (3, 4)])
def test_windows_all_in_padding_select_nothing(padding: tuple[int, int]) -> None:
    window = Window((2, 1), (2, 1), (padding[0], 0), (padding[1], 0))
    check(pooling((5, 3), window))


@pytest.mark.parametrize("sizes", [(7,), (7, 5)])
def test_windows_along_all_dimensions(sizes: tuple[int, ...]) -> None:
    rank = len(sizes)
    check(pooling(sizes, Window((3,) * rank, (2,) * rank, (1,) * rank, (1,) * rank), op="half"))


def test_strides_longer_than_windows_leave_elements_out() -> None:
    check(pooling((11, 3), Window((2, 1), (4, 1), (0, 0), (0, 0))))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (1, 2)])
def test_nothing_to_scatter(sizes: tuple[int, ...]) -> None:
    check(pooling(sizes, Window((2, 1), (2, 1), (0, 0), (0, 0))))
