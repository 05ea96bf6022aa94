"""Parting a program: preparation and rest together mean what the whole did."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import argument
from random_modules import RandomModule

from fusile.base.element_type import F32, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.hlo.verifier import verify
from fusile.passes.packing import PackContractions
from fusile.passes.preparation import part_preparation


def check(module: Module, stable: frozenset[int], given: list[np.ndarray]) -> Module | None:
    """Parts the module, checks its meaning and gives the preparation."""
    expected = interpret(module, given)
    preparation = part_preparation(module, stable)
    verify(module)
    prepared: list[np.ndarray] = []
    if preparation is not None:
        verify(preparation.module)
        assert set(preparation.parameters) <= stable
        prepared = interpret(preparation.module, [given[n] for n in preparation.parameters])
    for got, want in zip(interpret(module, [*given, *prepared]), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    return preparation.module if preparation is not None else None


def opcodes(module: Module) -> list[str]:
    return [i.opcode for i in module.entry.post_order()]


def test_packing_is_prepared_and_unpacking_is_not() -> None:
    b = Builder("product")
    x, w = b.parameter(Shape(F32, (64, 40))), b.parameter(Shape(F32, (40, 100)))
    module = b.module(b.dot(x, w))
    PackContractions(64, stable=frozenset({1}))(module)
    random = np.random.default_rng(0)
    preparation = check(
        module, frozenset({1}), [random.standard_normal(s).astype(np.float32) for s in ((64, 40), (40, 100))]
    )
    assert preparation is not None and "pad" in opcodes(preparation)
    assert "pad" not in opcodes(module) and "slice" in opcodes(module)


def test_stable_weights_are_packed_for_few_rows_too() -> None:
    for stable, packed in ((frozenset({1}), True), (frozenset(), False)):
        b = Builder("few_rows")
        x, w = b.parameter(Shape(F32, (2, 40))), b.parameter(Shape(F32, (40, 128)))
        module = b.module(b.dot(x, w))
        assert PackContractions(64, stable=stable)(module) == packed


def test_a_broadcast_stays_with_its_reader() -> None:
    b = Builder("scale")
    x, v = b.parameter(Shape(F32, (64, 8))), b.parameter(Shape(F32, (8,)))
    module = b.module(b.multiply(x, b.broadcast(b.rsqrt(b.add(v, b.like(1, v))), (64, 8), (1,))))
    preparation = check(module, frozenset({1}), [np.ones((64, 8), np.float32), np.arange(8, dtype=np.float32)])
    assert preparation is not None
    assert [s.elements for s in preparation.entry.root.shape.leaves()] == [8]


def test_nothing_is_prepared_when_nothing_takes_work() -> None:
    b = Builder("plain")
    x, w = b.parameter(Shape(F32, (4, 8))), b.parameter(Shape(F32, (8,)))
    module = b.module(b.tuple([b.add(x, b.broadcast(w, (4, 8), (1,))), b.reshape(w, (2, 4)), w]))
    assert check(module, frozenset({1}), [np.ones((4, 8), np.float32), np.ones(8, np.float32)]) is None


def test_what_a_loop_reads_is_whole() -> None:
    b = Builder("loop")
    state = [Shape(S32), Shape(F32, (4, 3)), Shape(F32, (4, 3))]
    test, body = Builder("test"), Builder("body")
    i, *_ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(3, S32), "LT"))
    i, x, w = (body.parameter(s) for s in state)
    done = body.build(body.tuple([body.add(i, body.constant(1, S32)), body.add(x, w), w]))
    x, w = b.parameter(state[1]), b.parameter(Shape(F32, (3, 4)))
    out = b.while_loop(condition, done, [b.constant(0, S32), x, b.transpose(w, (1, 0))])
    preparation = check(b.module(out[1]), frozenset({1}), [np.ones((4, 3), np.float32), np.ones((3, 4), np.float32)])
    assert preparation is not None and "transpose" in opcodes(preparation)


@pytest.mark.parametrize("seed", range(80))
def test_random_modules(seed: int) -> None:
    module = RandomModule(seed).module()
    random = np.random.default_rng(seed)
    stable = frozenset(int(n) for n in random.choice(3, random.integers(1, 4), replace=False))
    check(module, stable, [np.asarray(argument(p.array_shape, random, edges=False)) for p in module.entry.parameters])
