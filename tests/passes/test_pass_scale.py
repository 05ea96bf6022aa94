"""Passes take steps in proportion to the module, and do not copy large constants again and again."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from fusile.base.element_type import F32
from fusile.base.settings import Settings
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Module
from fusile.hlo.opset.contraction import Convolution
from fusile.hlo.opset.control import While
from fusile.hlo.opset.window import ConvolutionDimensions, Window
from fusile.passes.inline import InlineCalls
from fusile.passes.pipeline import standard_passes
from fusile.rewrite.passes import run_passes

SETTINGS = replace(Settings(), verify=False, dump="", disabled_passes=())


def long_chain(repeats: int) -> Module:
    b = Builder("chain")
    x, w = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    for _ in range(repeats):
        y = b.multiply(x, b.like(1.5, x))
        y = b.reshape(b.reshape(b.reshape(y, (64, 8, 8)), (4096,)), (64, 64))
        y = b.transpose(b.transpose(y, (1, 0)), (1, 0))
        x = b.tanh(b.add(y, w))
    return b.module(x)


def convolutions(blocks: int, channels: int) -> Module:
    """Blocks of convolution, bias, batch norm and relu, with weights in constants."""
    b, random = Builder("convolutions"), np.random.default_rng(0)
    numbers = ConvolutionDimensions(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    x = b.parameter(Shape(F32, (1, 14, 14, channels)))

    def vector():
        return b.constant(random.random(channels).astype(np.float32) + 0.5)

    def along(v):
        return b.broadcast(v, x.array_shape.sizes, (3,))

    for _ in range(blocks):
        w = b.constant(random.normal(size=(1, 1, channels, channels)).astype(np.float32))
        y = b.add(b.emit(Convolution(Window((1, 1)), numbers), x, w), along(vector()))
        variance = vector()
        scale = b.multiply(b.rsqrt(b.add(variance, b.like(1e-3, variance))), vector())
        offset = b.subtract(vector(), b.multiply(vector(), scale))
        y = b.add(b.multiply(y, along(scale)), along(offset))
        x = b.maximum(y, b.like(0, y))
    return b.module(x)


def test_steps_grow_with_the_module(count_calls: Any):
    def steps(repeats: int) -> int:
        module = long_chain(repeats)
        count = count_calls(lambda: run_passes(module, standard_passes(SETTINGS, False), SETTINGS))
        assert len(module.entry.instructions) < 4 * repeats + 10
        return int(count)

    assert steps(800) < 9 * steps(100)


def test_frozen_batch_norms_leave_one_bias_each():
    module = convolutions(20, 256)
    run_passes(module, standard_passes(SETTINGS, frozen=True), SETTINGS)
    counts = Counter(i.opcode for i in module.entry.instructions)
    assert counts["dot"] == 20 and counts["add"] == 20 and counts["maximum"] == 20
    assert counts["multiply"] + counts["divide"] + counts["subtract"] + counts["convolution"] == 0


def test_loops_that_share_computations_get_their_own():
    b = Builder("main")
    x = b.parameter(Shape(F32))
    condition, body = Builder("condition"), Builder("body")
    condition.build(condition.compare(condition.parameter(Shape(F32)), condition.constant(9.0, F32), "LT"))
    p = body.parameter(Shape(F32))
    body.build(body.tuple([body.add(p, body.constant(1.0, F32))]))
    results = [b.while_loop(condition.computation, body.computation, [b.negate(x) if n else x])[0] for n in range(3)]
    module = b.module(b.tuple(results))
    assert not InlineCalls()(module)
    loops = [i.op for i in module.entry.instructions if isinstance(i.op, While)]
    assert len({op.body for op in loops}) == len({op.condition for op in loops}) == 3
