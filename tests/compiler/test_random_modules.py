"""Random modules give the same results compiled as interpreted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.base.settings import Settings
from fusile.hlo.interpreter import interpret

sys.path.insert(0, str(Path(__file__).parents[1] / "passes"))
from pass_cases import argument
from random_modules import RandomModule

SETTINGS = replace(Settings(), cache=False)


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Integers equal, floats within what another order of sums explains."""
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    tolerance = 1e-4 if a.dtype.itemsize >= 4 else 5e-2
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True))


def check(seed: int) -> None:
    module = RandomModule(seed).module()
    random = np.random.default_rng(seed)
    given = [np.asarray(argument(p.array_shape, random, edges=False)) for p in module.entry.parameters]
    expected = interpret(module, given)
    actual = fusile.compile(module, settings=SETTINGS).call_flat(given)
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == e.shape and a.dtype == e.dtype
        assert close(a, np.asarray(e)), f"result {i} of seed {seed}:\n{a}\nnot\n{e}"


@pytest.mark.parametrize("seed", range(120))
def test_compiled_as_interpreted(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(120, 4000))
def test_compiled_as_interpreted_many_times(seed: int) -> None:
    check(seed)
