"""Donated arguments are overwritten by results, all others never, and the results are the same."""

from __future__ import annotations

import numpy as np
import pytest

import fusile
from fusile.base.element_type import F32, S32
from fusile.base.errors import ArgumentError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.runtime.buffers import RESULTS


def new(*sizes: int) -> np.ndarray:
    return RESULTS.array(sizes, np.dtype(np.float32), int(np.prod(sizes)))


def cache_module() -> Module:
    """A key-value cache of 1 MB that gets a row, and what is read from it."""
    b = Builder("cache")
    cache, row, at = b.parameter(Shape(F32, (4096, 64))), b.parameter(Shape(F32, (1, 64))), b.parameter(Shape(S32))
    updated = b.dynamic_update_slice(cache, row, [at, b.constant(0, S32)])
    return b.module(b.tuple([updated, b.dot(updated, b.reshape(row, (64,)))]))


def step_module() -> Module:
    """Momentum: two parameters of one kernel are overwritten."""
    b = Builder("step")
    w, m, g = (b.parameter(Shape(F32, (300, 77))) for _ in range(3))
    moment = b.add(b.multiply(m, b.like(0.9, m)), g)
    return b.module(b.tuple([b.subtract(w, b.multiply(moment, b.like(0.1, m))), moment]))


def test_a_cache_is_updated_in_its_own_memory() -> None:
    module = cache_module()
    exe = fusile.compile(module, donate=0)
    cache, row = new(4096, 64), np.ones((1, 64), np.float32)
    cache[:] = 3
    for at in (0, 7, 4095):
        expected = interpret(module, [cache.copy(), row, np.int32(at)])
        got = exe(cache, row, np.int32(at))
        assert got[0] is cache
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_array_equal(g, e)
    assert exe.memory.temp < 4096


def test_momentum_is_updated_in_place() -> None:
    module = step_module()
    exe = fusile.compile(module, donate=(0, 1))
    w, m, g = (np.random.default_rng(n).standard_normal((300, 77)).astype(np.float32) for n in range(3))
    mine = [new(300, 77), new(300, 77)]
    mine[0][:], mine[1][:] = w, m
    for _ in range(3):
        w, m = interpret(module, [w, m, g])
        got = exe(*mine, g)
        assert got[0] is mine[0] and got[1] is mine[1]
        np.testing.assert_allclose(got[0], w, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got[1], m, rtol=1e-6, atol=1e-6)
    assert exe.memory.temp == 0


def test_arguments_that_are_not_donated_are_never_changed() -> None:
    module = step_module()
    module.aliases = {0: 0, 1: 1}
    given = [np.full((300, 77), n + 1, np.float32) for n in range(3)]
    fusile.compile(module)(*given)
    assert all((a == n + 1).all() for n, a in enumerate(given))


def unusable(kind: str) -> np.ndarray:
    if kind == "read-only":
        array = new(300, 77)
        array[:] = 1
        array.flags.writeable = False
        return array
    if kind == "columns first":
        return np.ones((300, 77), np.float32, order="F")
    memory = new(300 * 77 + 16)
    memory[:] = 1
    return memory[4 : 4 + 300 * 77].reshape(300, 77)


@pytest.mark.parametrize("kind", ["read-only", "columns first", "not at a multiple of 64"])
def test_what_can_not_be_overwritten_is_left_alone(kind: str) -> None:
    module = step_module()
    exe = fusile.compile(module, donate=(0, 1))
    w, m, g = unusable(kind), new(300, 77), new(300, 77)
    m[:], g[:] = 2, 3
    expected = interpret(module, [w, m.copy(), g])
    got = exe(w, m, g)
    assert got[0] is not w and got[1] is m and (w == 1).all()
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)


def test_an_array_given_twice_is_not_overwritten() -> None:
    module = step_module()
    exe = fusile.compile(module, donate=(0, 1))
    both, g = new(300, 77), new(300, 77)
    both[:], g[:] = 2, 3
    expected = interpret(module, [both, both, g])
    got = exe(both, both, g)
    assert (both == 2).all()
    for a, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6)
    # Views that overlap are found too, also inside of a longer one.
    memory = new(300 * 77 * 2)
    memory[:] = 2
    parts = [memory[: 300 * 77].reshape(300, 77), memory[300 * 64 : 300 * 64 + 300 * 77].reshape(300, 77)]
    exe(*parts, g)
    assert (memory == 2).all()


def test_donation_survives_saving(tmp_path) -> None:
    exe = fusile.compile(cache_module(), donate=0)
    exe.save(tmp_path / "cache.fusile")
    loaded = fusile.load(tmp_path / "cache.fusile")
    cache = new(4096, 64)
    assert loaded(cache, np.ones((1, 64), np.float32), np.int32(3))[0] is cache


def test_an_argument_that_is_not_there_can_not_be_donated() -> None:
    with pytest.raises(ArgumentError, match="argument 3 can't be donated"):
        fusile.compile(step_module(), donate=3)


def test_programs_with_and_without_donation_are_two() -> None:
    module = cache_module()
    fusile.compile(module, donate=0)
    cache = np.zeros((4096, 64), np.float32)
    fusile.compile(module)(cache, np.ones((1, 64), np.float32), np.int32(3))
    assert not cache.any()
