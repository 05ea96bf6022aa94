"""The loop interpreter: every statement, and errors for what has no meaning."""

import numpy as np
import pytest

from fusile.base.element_type import F16, F32, F64, PRED, S32, S64
from fusile.base.errors import CompileError
from fusile.loops.interpreter import run_kernel
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Space,
    Store,
    Var,
    While,
    compare,
    const,
    select,
)
from fusile.loops.scalar_ops import OPS, scalar_op

i, j = Var("i"), Var("j")


def run(body, *arrays, buffers):
    outputs = tuple(arrays)
    run_kernel(Kernel("k", buffers, buffers, tuple(body)), outputs)
    return outputs


def test_row_sums():
    x, y = Buffer("x", F32, (3, 5)), Buffer("y", F32, (3,))
    add = Accumulate(((y, (i,)),), (Load(x, (i, j)),), Combiner.of("add", F32), (const(0.0, F32),))
    data = np.arange(15, dtype=np.float32).reshape(3, 5)
    _, sums = run(
        [For(i, const(3), (For(j, const(5), (add,)),), LoopKind.PARALLEL)],
        data,
        np.zeros(3, np.float32),
        buffers=(x, y),
    )
    assert sums.tolist() == data.sum(1).tolist()


@pytest.mark.parametrize("active", [0, 3, 8, 11])
def test_only_active_lanes_run(active):
    y = Buffer("y", S32, (8,))
    body = For(i, const(8), (Store(y, (i,), const(7, S32)),), LoopKind.VECTOR, const(active))
    (result,) = run([body], np.zeros(8, np.int32), buffers=(y,))
    assert result.tolist() == [7] * min(8, active) + [0] * (8 - min(8, active))


def test_names_conditions_and_while():
    y, n = Buffer("y", S64, (4,)), Buffer("n", S64, (), Space.REGISTER)
    count = Var("count")
    halve = Store(n, (), Apply("floor_divide", (Load(n, ()), const(2)), S64))
    add = Accumulate(((y, (i,)),), (const(1),), Combiner.of("add", S64), (const(0),))
    odd = compare("eq", Apply("modulo", (count, const(2)), S64), const(1))
    body = (
        Let(count, Apply("multiply", (i, const(5)), S64)),
        Alloc(n),
        Store(n, (), count),
        While(compare("gt", Load(n, ()), const(0)), (halve, add)),
        If(odd, (Store(y, (i,), Apply("add", (Load(y, (i,)), const(100)), S64)),), (add,)),
    )
    (result,) = run([For(i, const(4), body)], np.zeros(4, np.int64), buffers=(y,))
    assert result.tolist() == [0 + 1, 3 + 100, 4 + 1, 4 + 100]


@pytest.mark.parametrize("index", [-1, 4])
def test_indices_out_of_bounds_are_found_even_in_the_arm_not_taken(index):
    x, y = Buffer("x", F32, (4,)), Buffer("y", F32, (1,))
    value = select(const(True, PRED), const(1.0, F32), Load(x, (const(index),)))
    with pytest.raises(CompileError, match="outside"):
        run([Store(y, (const(0),), value)], np.zeros(4, np.float32), np.zeros(1, np.float32), buffers=(x, y))


def test_arrays_must_fit():
    y = Buffer("y", F32, (4,))
    with pytest.raises(CompileError, match="was given"):
        run([], np.zeros(4, np.float64), buffers=(y,))
    with pytest.raises(CompileError, match="was given"):
        run([], np.zeros(5, np.float32), buffers=(y,))


def test_fma_rounds_once():
    a, b = np.float32(1 + 2**-12), np.float32(1 + 2**-12)
    assert scalar_op("fma")(F32, a, b, np.float32(-(1 + 2**-11))) == np.float32(2**-24)
    assert scalar_op("fma")(F64, np.float64(1e300), np.float64(1e300), np.float64(-np.inf)) == -np.inf
    assert scalar_op("fma")(F16, np.float16(3), np.float16(1.001), np.float16(0)) == np.float16(
        np.float64(3) * np.float64(np.float16(1.001))
    )
    tiny = np.float64(5e-324)
    assert scalar_op("fma")(F64, tiny, np.float64(0.5), np.float64(0)) == 0
    assert scalar_op("fma")(F64, tiny, np.float64(0.75), np.float64(0)) == tiny


def test_scalar_ops_know_their_arity_and_names():
    with pytest.raises(CompileError, match="takes 2"):
        scalar_op("add")(F32, np.float32(1))
    with pytest.raises(CompileError, match="no scalar op"):
        scalar_op("nonsense")
    assert OPS["add"].is_commutative and not OPS["subtract"].is_commutative and OPS["lt"].is_predicate
