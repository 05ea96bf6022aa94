"""Updates of slices in place give what the HLO interpreter gives, with starts moved inside."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.base.element_type import BF16, C64, F32, F64, PRED, S8, S32, S64, U8, U32, U64, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.loops.ir import For, LoopKind
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check


def update(sizes: tuple[int, ...], part: tuple[int, ...], kind: ElementType = F32, index: ElementType = S32) -> Module:
    b = Builder("update")
    x, y = b.parameter(Shape(kind, sizes)), b.parameter(Shape(kind, part))
    return b.module(b.dynamic_update_slice(x, y, [b.parameter(Shape(index)) for _ in sizes]))


def at(module: Module, *starts: int) -> list[np.ndarray]:
    x, y, *indices = arguments_of(module)
    return [x, y, *(np.asarray(s).astype(i.dtype) for s, i in zip(starts, indices, strict=True))]


@pytest.mark.parametrize("kind", [F32, F64, BF16, C64, PRED, S8])
@pytest.mark.parametrize("machine", [SSE2, None])
def test_types(kind: ElementType, machine: object) -> None:
    module = update((5, 21), (3, 13), kind)
    check(module, at(module, 1, 4), **({} if machine is None else {"machine": machine}))


@pytest.mark.parametrize("start", [-(2**31), -1, 0, 3, 4, 2**31 - 1])
def test_starts_are_moved_inside(start: int) -> None:
    module = update((7, 9), (3, 4))
    check(module, at(module, start, -start // 2))


@pytest.mark.parametrize("index, start", [(U8, 255), (U32, 2**32 - 1), (U64, 2**64 - 1), (S64, -(2**63)), (U64, 2**63)])
def test_starts_at_the_ends_of_their_type(index: ElementType, start: int) -> None:
    module = update((300,), (5,), index=index)
    check(module, at(module, start))


@pytest.mark.parametrize(
    "sizes, part",
    [
        ((), ()),
        ((1,), (1,)),
        ((4, 3), (4, 3)),
        ((4, 3), (0, 3)),
        ((0,), (0,)),
        ((2, 3, 4, 5), (1, 2, 3, 4)),
        ((9,), (9,)),
    ],
)
def test_sizes(sizes: tuple[int, ...], part: tuple[int, ...]) -> None:
    module = update(sizes, part)
    check(module, at(module, *(1 for _ in sizes)))


def test_rows_are_parallel_and_only_the_window_is_written() -> None:
    module = update((100, 50), (6, 9))
    (kernel,) = check(module, at(module, 3, 7))
    (phase,) = kernel.body
    assert isinstance(phase, For) and phase.kind is LoopKind.PARALLEL
    assert phase.extent.value == 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("start", [-3, 2, 90])
def test_an_array_updated_by_what_is_computed_from_itself(start: int) -> None:
    """The compiled kernel writes where the update may have come from."""
    b = Builder("shifted")
    x = b.parameter(Shape(F32, (64, 3)))
    y = b.add(x, x)
    module = b.module(
        b.dynamic_update_slice(y, b.slice(y, (1, 0), (60, 3)), [b.parameter(Shape(S32)), b.constant(0, S32)])
    )
    given = [arguments_of(module)[0], np.asarray(start, np.int32)]
    check(module, given)
    (actual,) = fusile.compile(module).call_flat(given)
    assert np.array_equal(actual, interpret(module, given)[0])
