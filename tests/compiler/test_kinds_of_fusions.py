"""Kinds of kernels that random programs found wrong, each over all its cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fusile
import fusile.hlo.opset.elementwise
import fusile.hlo.opset.shape
from fusile.base.element_type import BF16, F16, F32, F64, PRED, S8, S16, S32, U8, ElementType
from fusile.base.settings import Settings
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Instruction, Module

SETTINGS = replace(Settings(), cache=False)


def check(module: Module, given: list[np.ndarray], tolerance: float = 0) -> None:
    for a, e in zip(fusile.compile(module, settings=SETTINGS).call_flat(given), interpret(module, given), strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("where", ["alone", "before", "after"])
def test_next_after_is_of_its_own_type(kind: ElementType, where: str) -> None:
    """Narrow floats are computed in f32, which has numbers between."""
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.inf, -np.inf, np.nan, 1e-7, -6e-8, 65504.0, 3.0, 1e-40, -1e-45]
    x, y = (np.asarray(a, np.float64).astype(kind.dtype).reshape(-1) for a in np.meshgrid(edges, edges))
    b = Builder("next")
    p, q = b.parameter(Shape(kind, x.shape)), b.parameter(Shape(kind, x.shape))
    if where == "after":
        p = b.negate(p)
    made = b.emit(fusile.hlo.opset.elementwise.NextAfter(), p, q)
    check(b.module(b.select(b.compare(q, q, "EQ"), made, b.negate(q)) if where == "before" else made), [x, y])


def moves(b: Builder, x: Instruction) -> dict[str, Instruction]:
    """Ops that ask for a product's elements at other indices than its own."""
    rows, columns = x.array_shape.sizes
    zero = b.constant(0.0, x.array_shape.element_type)
    at = b.constant(np.array([[1], [0]], np.int32))
    gather = fusile.hlo.opset.shape.Gather((1,), (0,), (), (), (0,), 1, (1, columns))
    return {
        "broadcast before": b.broadcast(x, (3, rows, columns), (1, 2)),
        "broadcast after": b.broadcast(x, (rows, columns, 3), (0, 1)),
        "broadcast between": b.broadcast(x, (rows, 3, columns), (0, 2)),
        "transpose": b.transpose(x, (1, 0)),
        "reshape": b.reshape(x, (rows * columns,)),
        "slice": b.slice(x, (1, 1), (rows, columns)),
        "pad": b.pad(x, zero, (1, 0), (0, 2)),
        "reverse": b.reverse(x, (1,)),
        "concatenate": b.concatenate([x, x], 0),
        "gather": b.emit(gather, x, at),
        "dynamic slice": b.dynamic_slice(x, [b.constant(1, S32), b.constant(0, S32)], (2, 3)),
    }


@pytest.mark.parametrize("keep", [True, False], ids=["also itself", "alone"])
@pytest.mark.parametrize("kind", [F32, F16, S32], ids=str)
def test_what_moves_a_products_elements(keep: bool, kind: ElementType) -> None:
    random = np.random.default_rng(0)
    given = [random.integers(-3, 4, s).astype(kind.dtype) for s in ((6, 9), (9, 7))]
    count = 11
    for number in range(count):
        b = Builder("moved")
        y = b.dot(b.parameter(Shape(kind, (6, 9))), b.parameter(Shape(kind, (9, 7))))
        every = list(moves(b, y).values())
        assert len(every) == count
        made = b.add(every[number], every[number])
        check(b.module(b.tuple([y, made] if keep else [made])), given)


@pytest.mark.parametrize("keep", [True, False], ids=["also itself", "alone"])
def test_a_row_of_sums_that_is_broadcast(keep: bool) -> None:
    """A product of a matrix and a vector, whose every result many elements ask for."""
    b = Builder("rows")
    x, v = b.parameter(Shape(F16, (16, 65))), b.parameter(Shape(F16, (65,)))
    y = b.dot(x, v)
    wide = b.broadcast(y, (16, 16, 7), (0,))
    given = [np.ones((16, 65), np.float16), np.arange(65).astype(np.float16) % 3]
    check(b.module(b.tuple([y, wide] if keep else [wide])), given)


@pytest.mark.parametrize("kind", [S8, U8, PRED, S16, F16, BF16, S32, F32, F64], ids=str)
@pytest.mark.parametrize("columns", [1, 15, 17, 18, 33, 65])
def test_the_last_columns_leave_the_next_row_alone(kind: ElementType, columns: int) -> None:
    """Rows whose ends fill one or two lanes of a vector."""
    random = np.random.default_rng(0)
    b = Builder("rows")
    x = b.parameter(Shape(kind, (16, columns)))
    results = [
        b.transpose(b.transpose(x, (1, 0)), (1, 0)),
        b.add(x, x),
        b.reverse(x, (1,)),
        b.slice(x, (1, 0), (15, columns)),
    ]
    given = [random.integers(0, 2, (16, columns)).astype(kind.dtype)]
    if not kind.is_predicate:
        w = b.parameter(Shape(kind, (9, columns)))
        results.append(b.dot(b.parameter(Shape(kind, (28, 9))), w))
        given += [random.integers(0, 3, s).astype(kind.dtype) for s in ((9, columns), (28, 9))]
    check(b.module(b.tuple(results)), given)
