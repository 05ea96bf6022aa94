"""Cheap values are computed where they are read; expensive ones, and those that products read, are stored."""

from __future__ import annotations

import numpy as np
import pytest
from pass_cases import argument
from random_modules import RandomModule

from fusile.base.element_type import F32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.control import Fusion
from fusile.hlo.verifier import verify
from fusile.passes.fusion import Fuse
from fusile.passes.rematerialize import Rematerialize


def fusions(module: Module) -> list[Instruction]:
    return [i for i in module.entry.post_order() if isinstance(i.op, Fusion)]


def check(module: Module, given: list[np.ndarray]) -> tuple[bool, Module]:
    expected = interpret(module, given)
    fused = module.clone()
    Fuse()(fused)
    before = [leaf for i in fusions(fused) for leaf in i.shape.leaves()]
    changed = Rematerialize()(fused)
    verify(fused)
    after = [leaf for i in fusions(fused) for leaf in i.shape.leaves()]
    assert (len(after) < len(before)) == changed
    for got, want in zip(interpret(fused, given), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    return changed, fused


def gelu_and_gradient(cheap: bool) -> Module:
    """h = f(x w) and something that reads f's derivative after another product."""
    b = Builder("gelu")
    x, w, v = (b.parameter(Shape(F32, (64, 64))) for _ in range(3))
    a = b.dot(x, w)
    t = b.tanh(a)
    c = b.multiply(b.add(t, b.like(1, t)), b.like(0.5, t)) if cheap else b.exponential(t)
    return b.module(b.multiply(b.multiply(b.dot(b.multiply(a, c), v), c), b.add(t, a)))


def values(count: int, size: int = 64) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal((size, size)).astype(np.float32) for _ in range(count)]


def test_a_derivative_is_computed_again() -> None:
    changed, module = check(gelu_and_gradient(cheap=True), values(3))
    first, *_ = [i for i in fusions(module) if "tanh" in {x.opcode for x in i.op.computations()[0].instructions}]
    assert changed and len(first.shape.leaves()) == 3


def test_an_expensive_value_is_stored() -> None:
    changed, _ = check(gelu_and_gradient(cheap=False), values(3))
    assert not changed


def test_what_a_product_reads_is_stored() -> None:
    b = Builder("product")
    x, w = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    a = b.dot(x, w)
    c = b.add(a, b.like(1, a))
    changed, _ = check(b.module(b.tuple([a, b.dot(c, w)])), values(2))
    assert not changed


def test_what_a_transpose_reads_is_stored() -> None:
    b = Builder("transposed")
    x, w = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    a = b.dot(x, w)
    c = b.add(a, b.like(1, a))
    total = b.reduce([b.dot(a, w)], [b.constant(0.0, F32)], (0,), scalar_computation("add", F32))
    changed, _ = check(
        b.module(b.tuple([a, b.add(b.transpose(c, (1, 0)), b.broadcast(total, (64, 64), (1,)))])), values(2)
    )
    assert not changed


@pytest.mark.parametrize("seed", range(150))
def test_random_modules(seed: int) -> None:
    module = RandomModule(seed, 40).module()
    random = np.random.default_rng(seed)
    check(module, [np.asarray(argument(p.array_shape, random, edges=False)) for p in module.entry.parameters])
