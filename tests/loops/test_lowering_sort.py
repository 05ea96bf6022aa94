"""Sorts in the loop IR give what the HLO interpreter gives: also stability, ties, NaN and rows longer than a chunk."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import BF16, C64, F32, PRED, S8, S32, U8, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Module
from fusile.loops.lowering import sort

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check


def comparator(*types: ElementType, direction: str = "LT", total_order: bool = False) -> Computation:
    """Compares the first operand's elements; the others are carried along."""
    b = Builder("before")
    pairs = [b.parameter(Shape(t)) for t in types for _ in range(2)]
    left, right = pairs[:2]
    if types[0].is_complex:
        left, right = b.real(left), b.real(right)
    return b.build(b.compare(left, right, direction, total_order))


def sorted_module(sizes: tuple[int, ...], dimension: int, *types: ElementType, **how: object) -> Module:
    b = Builder("sorted")
    operands = [b.parameter(Shape(t, sizes)) for t in types]
    result = b.sort(operands, dimension, comparator(*types, **how))  # type: ignore[arg-type]
    return b.module(result)


@pytest.mark.parametrize(
    "sizes, dimension",
    [
        ((1,), 0),
        ((2,), 0),
        ((33,), 0),
        ((4, 7), 1),
        ((7, 4), 0),
        ((2, 9, 3), 1),
        ((0, 3), 1),
        ((3, 0), 1),
        ((70, 3), 1),
    ],
)
@pytest.mark.parametrize("kind", [F32, S8, BF16])
def test_one_operand(sizes: tuple[int, ...], dimension: int, kind: ElementType) -> None:
    check(sorted_module(sizes, dimension, kind))
    check(sorted_module(sizes, dimension, kind, direction="GT"))


@pytest.mark.parametrize("types", [(U8, S32), (S32, F32, PRED), (C64, S32), (F32, C64)])
def test_operands_are_carried_along_stably(types: tuple[ElementType, ...]) -> None:
    module = sorted_module((3, 100), 1, *types)
    given = arguments_of(module)
    given[0] = (np.arange(300).reshape(3, 100) * 7 % 5).astype(given[0].dtype)
    check(module, given)


@pytest.mark.parametrize("total_order", [False, True])
def test_nan_and_signed_zeros(total_order: bool) -> None:
    x = np.array([np.nan, -0.0, 0.0, 1, -np.inf, np.inf, -np.nan, 0.0, -0.0, 3, -2], np.float32)
    check(sorted_module((11,), 0, F32, total_order=total_order), [x])


@pytest.mark.parametrize("length", [17, 32, 33, 63, 64, 65, 100])
def test_rows_longer_than_a_chunk(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "CHUNK", 16)
    (kernel,) = check(sorted_module((2, length), 1, S32, F32))
    assert len(kernel.body) > 3
    check(sorted_module((length, 2), 0, S8, S32))


def test_only_one_of_the_results_is_used() -> None:
    b = Builder("argsort")
    x, i = b.parameter(Shape(F32, (40,))), b.iota(Shape(S32, (40,)), 0)
    check(b.module(b.element(b.sort([x, i], 0, comparator(F32, S32)), 1)))
