"""Fusion keeps every result's bits, leaves no work outside of kernels, and makes few of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusile.base.element_type import C64, F32, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.control import Conditional, CustomCall, Fusion, While
from fusile.hlo.opset.shape import Reshape, Scatter
from fusile.hlo.opset.structure import (
    AfterAll,
    Constant,
    GetTupleElement,
    OptimizationBarrier,
    Parameter,
    Tuple,
)
from fusile.hlo.verifier import verify
from fusile.passes.fusion import Fuse, fusion_key, scheduled_computations

sys.path.insert(0, str(Path(__file__).parent))
from pass_cases import check_meaning
from random_modules import RandomModule

OUTSIDE = (
    Parameter, Constant, Fusion, While, Conditional, Tuple, GetTupleElement, Reshape, CustomCall, AfterAll,
    OptimizationBarrier,
)  # fmt: skip


def fuse(module: Module) -> tuple[Module, Fuse]:
    copy, fusion = module.clone(), Fuse()
    fusion(copy)
    verify(copy)
    return copy, fusion


def kernels(module: Module) -> list[Instruction]:
    return [i for c in scheduled_computations(module) for i in c.post_order() if isinstance(i.op, Fusion)]


def kernels_of(b: Builder, *results: Instruction) -> list[Instruction]:
    """The kernels of a computation with these results, in an order of execution."""
    return kernels(fuse(b.module(b.tuple(list(results))))[0])


@pytest.mark.parametrize("seed", range(150))
def test_random_modules_keep_their_bits(seed: int) -> None:
    module = RandomModule(seed, length=30).module()
    fused, _ = fuse(module)
    for computation in scheduled_computations(fused):
        assert all(isinstance(i.op, OUTSIDE) for i in computation.instructions)
    for kernel in kernels(fused):
        assert not any(isinstance(i.op, Fusion | While | Conditional) for i in kernel.op.computations()[0].instructions)
    check_meaning(module, fused)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150, 3000))
def test_many_random_modules_keep_their_bits(seed: int) -> None:
    module = RandomModule(seed, length=40).module()
    check_meaning(module, fuse(module)[0])


def test_an_elementwise_chain_is_one_kernel() -> None:
    b = Builder("chain")
    x, y = b.parameter(Shape(F32, (100, 100))), b.parameter(Shape(F32, (100, 100)))
    (kernel,) = kernels_of(b, b.exponential(b.add(b.multiply(x, y), x)))
    assert kernel.operands == [*kernel.computation.parameters]


def test_an_expensive_value_that_two_kernels_use_is_not_computed_twice() -> None:
    b = Builder("shared")
    x, w = b.parameter(Shape(F32, (100, 100))), b.parameter(Shape(F32, (100, 100)))
    e = b.exponential(x)
    found = kernels_of(b, b.dot(e, w), b.dot(w, e))
    assert sorted(k.op.kind for k in found) == ["contraction", "contraction", "loop"]


def test_users_of_one_value_become_one_kernel() -> None:
    b = Builder("users")
    x = b.parameter(Shape(F32, (100, 100)))
    e = b.exponential(x)
    (kernel,) = kernels_of(b, b.negate(e), b.multiply(e, e), e)
    assert len(kernel.shape.leaves()) == 3


def test_kernels_that_read_one_array_become_one() -> None:
    b = Builder("siblings")
    x = b.parameter(Shape(F32, (100, 100)))
    total, most = b.reduce_with("add", x, (1,)), b.reduce_with("maximum", b.abs(x), (1,))
    (kernel,) = kernels_of(b, total, most, b.negate(x))
    assert len(kernel.shape.leaves()) == 3


def test_a_kernel_never_waits_for_itself() -> None:
    """The product stands between the two readers of x and e, so that they can't be one kernel."""
    b = Builder("between")
    x = b.parameter(Shape(F32, (32, 32)))
    e = b.exponential(x)
    y = b.add(b.dot(e, e), b.add(e, x))
    found = kernels_of(b, b.multiply(y, e), b.negate(e))
    assert [k.op.kind for k in found].count("contraction") == 1 and len(found) == 2
    module = b.module(b.tuple([y, e]))
    check_meaning(module, fuse(module)[0], exact=False)


def test_contractions_take_epilogues_and_index_ops() -> None:
    b = Builder("dense")
    x, w, bias = b.parameter(Shape(F32, (64, 32))), b.parameter(Shape(F32, (48, 32))), b.parameter(Shape(F32, (48,)))
    other = b.parameter(Shape(F32, (64, 48)))
    y = b.add(b.dot(x, b.transpose(w, (1, 0))), b.broadcast(bias, (64, 48), (1,)))
    (kernel,) = kernels_of(b, b.add(b.maximum(y, b.like(0, y)), other))
    assert kernel.op.kind == "contraction" and len(kernel.operands) == 4


def test_a_contraction_may_give_what_is_before_its_activation_too() -> None:
    b = Builder("dense")
    x, w = b.parameter(Shape(F32, (64, 32))), b.parameter(Shape(F32, (32, 48)))
    y = b.dot(x, w)
    (kernel,) = kernels_of(b, b.maximum(y, b.like(0, y)), y)
    assert kernel.op.kind == "contraction" and len(kernel.shape.leaves()) == 2


def test_reshapes_and_constants_are_no_kernels() -> None:
    b = Builder("free")
    x = b.parameter(Shape(F32, (6, 4)))
    assert not kernels_of(b, b.reshape(x, (24,)), b.constant(np.arange(3.0, dtype=np.float32)), x)


def test_loops_and_branches_have_kernels_of_their_own() -> None:
    test, body, b = Builder("test"), Builder("body"), Builder("loop")
    state = [Shape(S32), Shape(F32, (50,))]
    i, _ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(3, S32), "LT"))
    i, x = (body.parameter(s) for s in state)
    step = body.build(body.tuple([body.add(i, body.constant(1, S32)), body.multiply(x, body.exponential(x))]))
    results = b.while_loop(condition, step, [b.constant(0, S32), b.parameter(Shape(F32, (50,)))])
    assert len(kernels_of(b, *results)) == 3


def test_scatters_are_written_in_place() -> None:
    b = Builder("scatter")
    x, i, u = b.parameter(Shape(F32, (9, 4))), b.parameter(Shape(S32, (3, 1))), b.parameter(Shape(F32, (3, 4)))
    op = Scatter((1,), (0,), (), (), (0,), 1, scalar_computation("add", F32))
    (first, second) = kernels_of(b, b.emit(op, b.negate(x), i, u))
    assert first.op.kind == "loop" and second.op.kind == "scatter"
    assert [second.operands[operand] for _, operand in second.op.in_place] == [first]


def test_a_constant_written_in_place_is_an_operand() -> None:
    b = Builder("update")
    x = b.constant(np.zeros(1, np.float32))
    module = b.module(b.dynamic_update_slice(x, b.parameter(Shape(F32, (1,))), [b.parameter(Shape(S32))]))
    fused, _ = fuse(module)
    (kernel,) = kernels(fused)
    assert isinstance(kernel.operands[kernel.op.in_place[0][1]].op, Constant)
    check_meaning(module, fused)


def test_equal_kernels_have_equal_keys() -> None:
    """Two layers that differ only in names and in where they stand."""
    b = Builder("layers")
    x = b.parameter(Shape(F32, (16, 16)))
    for n in range(3):
        w, bias = b.parameter(Shape(F32, (16, 16)), f"w{n}"), b.parameter(Shape(F32, (16,)), f"b{n}")
        x = b.tanh(b.add(b.dot(x, w), b.broadcast(bias, (16, 16), (1,))))
    found = kernels_of(b, x)
    assert len(found) == 3 and len({fusion_key(k) for k in found}) == 1


def test_keys_tell_attributes_and_constants_apart() -> None:
    keys = set()
    for value, dimension in ((1.0, 0), (2.0, 0), (1.0, 1), (-0.0, 0), (0.0, 0)):
        b = Builder("key")
        x = b.parameter(Shape(F32, (4, 4)))
        total = b.reduce_with("add", b.multiply(x, b.like(value, x)), (dimension,))
        keys.add(fusion_key(kernels_of(b, total)[0]))
    assert len(keys) == 5


def test_decisions_say_why() -> None:
    b = Builder("why")
    x = b.parameter(Shape(F32, (100, 100)))
    e = b.exponential(x)
    _, fusion = fuse(b.module(b.tuple([b.dot(e, x), b.negate(e), e])))
    texts = [str(d) for d in fusion.decisions]
    assert any(t.startswith("not fused: exponential") for t in texts) and any(" beside " in t for t in texts)


def test_complex_sums_are_kernels_too() -> None:
    b = Builder("complex")
    x = b.parameter(Shape(C64, (5, 9)))
    module = b.module(b.reduce_with("add", b.multiply(x, x), (1,)))
    fused, _ = fuse(module)
    assert len(kernels(fused)) == 1
    check_meaning(module, fused)


def test_large_modules_are_fused_in_near_linear_time(count_calls: Any) -> None:
    def steps(layers: int) -> int:
        b = Builder("deep")
        x = b.parameter(Shape(F32, (8, 8)))
        w = b.parameter(Shape(F32, (8, 8)))
        kept = [x]
        for n in range(layers):
            x = b.add(b.tanh(b.dot(x, w)), kept[n // 2])
            kept.append(b.multiply(x, x))
        module = b.module(b.tuple([x, *kept[-3:]]))
        return int(count_calls(lambda: Fuse()(module)))

    assert steps(800) < 9 * steps(100)


def shifted(b: Builder, x: Instruction, by: int, move: str) -> Instruction:
    """x moved right, zeros coming in, by ops that read it at other indices."""
    (size,) = x.array_shape.sizes
    zero = b.constant(0, F32)
    if move == "pad":
        return b.pad(x, zero, [by], [-by])
    return b.concatenate([b.full(0, Shape(F32, (by,))), b.slice(x, [0], [size - by])], 0)


@pytest.mark.parametrize("move", ["pad", "concatenate"])
def test_running_sums_by_doubling_are_not_computed_anew_for_each_term(move: str) -> None:
    b = Builder("running_sums")
    total = b.exponential(b.parameter(Shape(F32, (1024,))))
    for step in range(10):
        total = b.add(shifted(b, total, 1 << step, move), total)
    module = b.module(b.tuple([total]))
    fused, _ = fuse(module)
    bodies = [k.op.computation for k in kernels(fused)]
    assert "exponential" in [body.root.opcode for body in bodies]
    for body in bodies:
        assert len([i for i in body.instructions if i.opcode == "add"]) <= 5  # Each doubles the code before it.
    check_meaning(module, fused)
