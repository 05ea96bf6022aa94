"""Scatters in the loop IR give what the HLO interpreter gives: also where windows meet, or stick out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.base.element_type import BF16, C64, F32, PRED, S8, S32, S64, U8, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.shape import Scatter
from fusile.loops.ir import For, LoopKind
from fusile.loops.lowering import scatter
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check


def combiner(kind: ElementType, op: str = "add") -> Computation:
    """`update` replaces; `half` gives (old - new) / 2, where the order of updates shows."""
    b = Builder("combine")
    old, new = b.parameter(Shape(kind)), b.parameter(Shape(kind))
    if op == "update":
        return b.build(new)
    if op == "half":
        return b.build(b.multiply(b.subtract(old, new), b.constant(0.5, kind)))
    return b.build(getattr(b, op)(old, new))


def module_of(
    op: Scatter, x: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...], kind: ElementType = F32,
    index: ElementType = S32,
) -> Module:  # fmt: skip
    b = Builder("scatter")
    operands = b.parameter(Shape(kind, x)), b.parameter(Shape(index, indices)), b.parameter(Shape(kind, updates))
    return b.module(b.emit(op, *operands))


def with_indices(module: Module, indices: object) -> list[np.ndarray]:
    given = arguments_of(module)
    given[1] = np.asarray(indices).astype(given[1].dtype).reshape(given[1].shape)
    return given


def is_parallel(kernels: list) -> bool:
    (phase,) = kernels[0].body
    assert isinstance(phase, For)
    return phase.kind is LoopKind.PARALLEL


@pytest.mark.parametrize(
    "kind, op",
    [(F32, "add"), (BF16, "add"), (C64, "multiply"), (PRED, "or_"), (S8, "maximum"), (U8, "update")],
)
def test_windows_that_stick_out(kind: ElementType, op: str) -> None:
    module = module_of(Scatter((1, 2), (), (), (), (0, 1), 1, combiner(kind, op)), (5, 6), (6, 2), (6, 2, 3), kind)
    check(module, with_indices(module, [[0, 0], [4, 1], [-1, 3], [2, 5], [1, -2], [9, 9]]))


@pytest.mark.parametrize("columns", [1, 7, 8, 33])
@pytest.mark.parametrize("machine", [None, SSE2])
def test_rows_meet_in_order(columns: int, machine: object) -> None:
    module = module_of(Scatter((1,), (0,), (), (), (0,), 1, combiner(F32, "half")), (4, columns), (9, 1), (9, columns))
    given = with_indices(module, [3, 0, 3, 3, -1, 1, 4, 0, 3])
    check(module, given, **({} if machine is None else {"machine": machine}))


@pytest.mark.parametrize("updates_first", [True, False])
def test_window_dimensions_before_batch_dimensions(updates_first: bool) -> None:
    """Windows are combined in the order of their batch, wherever its dimensions are among the update's."""
    dims, updates = ((0,), (3, 5)) if updates_first else ((1,), (5, 3))
    module = module_of(Scatter(dims, (), (), (), (0,), 1, combiner(F32, "half")), (6,), (5, 1), updates)
    check(module, with_indices(module, [2, 1, 3, 0, 2]))


@pytest.mark.parametrize("index", [S8, U8, S64])
def test_scalars_at_indices_without_a_vector(index: ElementType) -> None:
    module = module_of(Scatter((), (0,), (), (), (0,), 1, combiner(F32)), (7,), (10,), (10,), index=index)
    check(module, with_indices(module, [0, 6, 7, 3, 3, 3, 100, 2, 6, 127]))


def test_indices_near_the_ends_of_their_type() -> None:
    module = module_of(Scatter((1,), (), (), (), (0,), 1, combiner(F32)), (7,), (4, 1), (4, 3), index=S64)
    check(module, with_indices(module, np.array([2**63 - 1, -(2**63), 2**62, 5])))


def test_index_vectors_along_another_dimension() -> None:
    op = Scatter((2,), (0, 2), (), (), (2, 0), 0, combiner(F32))
    module = module_of(op, (3, 4, 5), (2, 2, 3), (2, 3, 4))
    check(module, with_indices(module, [[[0, 4, 5], [2, 2, 0]], [[2, 1, 0], [3, -1, 2]]]))


@pytest.mark.parametrize("kind", [F32, C64])
def test_batching_dimensions_are_parallel(kind: ElementType) -> None:
    op = Scatter((2,), (1,), (0,), (1,), (1,), 2, combiner(kind))
    module = module_of(op, (3, 4, 5), (6, 3, 1), (6, 3, 5), kind)
    assert is_parallel(check(module, with_indices(module, np.arange(18) % 6 - 1)))


@pytest.mark.parametrize("columns", [8, 9, 13, 40])
def test_wide_rows_are_cut_over_tasks(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "SLICE", 4)
    module = module_of(Scatter((1,), (0,), (), (), (0,), 1, combiner(F32, "half")), (4, columns), (6, 1), (6, columns))
    assert is_parallel(check(module, with_indices(module, [3, 0, 3, 7, 1, 3]), machine=SSE2))


def test_rows_that_indices_move_sideways_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "SLICE", 4)
    module = module_of(Scatter((1,), (), (), (), (0,), 1, combiner(F32, "half")), (40,), (5, 1), (5, 20))
    assert not is_parallel(check(module, with_indices(module, [3, 0, 30, -7, 10])))


def test_several_operands_see_each_others_old_values() -> None:
    c = Builder("swap")
    a, i, b, j = c.parameter(Shape(F32)), c.parameter(Shape(S32)), c.parameter(Shape(F32)), c.parameter(Shape(S32))
    computation = c.build(c.tuple([c.add(b, c.convert(i, F32)), c.add(j, c.convert(a, S32))]))
    build = Builder("pairs")
    operands = [
        build.parameter(Shape(*s)) for s in ((F32, (5, 3)), (S32, (5, 3)), (S32, (4, 1)), (F32, (4, 3)), (S32, (4, 3)))
    ]
    result: Instruction = build.emit(Scatter((1,), (0,), (), (), (0,), 1, computation), *operands)
    module = build.module(result)
    given = arguments_of(module)
    given[2] = np.array([[1], [4], [1], [-3]], np.int32)
    check(module, given)


@pytest.mark.parametrize("role", ["updates", "indices", "both operands"])
def test_an_operand_in_two_roles(role: str) -> None:
    """The compiled kernel writes into the operand's buffer, which nothing else reads: it must not see what it wrote."""
    b = Builder("twice")
    x, order = b.parameter(Shape(S32, (64, 1))), b.parameter(Shape(S32, (64, 1)))
    y = b.add(x, x)
    indices, updates = (y, order) if role == "indices" else (order, y)
    if role == "both operands":
        c = Builder("pairs")
        values = [c.parameter(Shape(S32)) for _ in range(4)]
        computation = c.build(c.tuple([c.add(values[0], values[2]), c.subtract(values[1], values[3])]))
        op = Scatter((1,), (0,), (), (), (0,), 1, computation)
        result = b.emit(op, y, y, indices, updates, order)
    else:
        result = b.emit(Scatter((1,), (0,), (), (), (0,), 1, combiner(S32)), y, indices, updates)
    module = b.module(result)
    given = [
        np.arange(64, dtype=np.int32)[::-1].reshape(64, 1) // 3 + 2,
        np.arange(64, dtype=np.int32).reshape(64, 1) * 29 % 64,
    ]
    check(module, given)
    compiled = fusile.compile(module).call_flat(given)
    for actual, expected in zip(compiled, interpret(module, given), strict=True):
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize("x, updates", [((0, 3), (2, 3)), ((4, 0), (2, 0)), ((4, 3), (0, 3))])
def test_nothing_to_write(x: tuple[int, ...], updates: tuple[int, ...]) -> None:
    op = Scatter((1,), (0,), (), (), (0,), 1, combiner(F32))
    check(module_of(op, x, (updates[0], 1), updates))
