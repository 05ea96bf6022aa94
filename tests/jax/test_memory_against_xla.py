"""Temporaries take less than XLA's.

Weights packed for products are not counted: XLA packs them in a library, in memory that its figure leaves out. `python
tests/jax/test_memory_against_xla.py` prints the table."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fusile.jax
from fusile.base.settings import Settings
from fusile.compiler.pipeline import Notes, donating, fuse, optimize
from fusile.memory.plan import CopyStep, Plan, plan
from fusile.targets.target import target

sys.path.insert(0, str(Path(__file__).parent))
from memory_programs import PROGRAMS, lstm, lstm_gradient, shape, train, train_arguments


def planned(name: str, packing: bool) -> Plan:
    function, arguments, donate = PROGRAMS[name]
    lowered = fusile.jax.jit(function, donate_argnums=donate).lower(*arguments)
    settings = replace(Settings(), disabled_passes=() if packing else ("pack-contractions",))
    module = donating(lowered.module, lowered.donated)
    optimize(module, target("cpu"), settings, False, Notes())
    fuse(module, settings, Notes())
    return plan(module)


def temporaries_of_xla(name: str) -> int:
    function, arguments, donate = PROGRAMS[name]
    compiled = jax.jit(function, donate_argnums=donate).lower(*arguments).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_temporaries_take_less_than_xlas(name: str) -> None:
    found = planned(name, packing=False)
    assert found.arena_bytes < temporaries_of_xla(name)
    assert found.arena_bytes < found.temp_unshared


def test_a_donated_step_copies_no_weight_matrix() -> None:
    copies = [s for s in planned("2-layer Transformer, Adam step, donated", True).steps if isinstance(s, CopyStep)]
    # Vectors of 256, which kernels that reduce columns give.
    assert all(s.source.bytes == 1024 for s in copies)


def filled(of: Any, random: np.random.Generator) -> Any:
    if of.dtype == np.int32:
        return random.integers(0, 1000, of.shape).astype(np.int32)
    return (np.abs(random.standard_normal(of.shape)) * 0.05).astype(np.float32)


SMALL = {
    "transformer": (train, train_arguments(2, 16, 32), (0,)),
    "lstm": (lstm, (shape(8, 64), shape(16, 64), shape(64), shape(5, 4, 8)), ()),
    "lstm gradient": (lstm_gradient, (shape(8, 64), shape(16, 64), shape(64), shape(5, 4, 8)), (1,)),
}


@pytest.mark.parametrize("name", SMALL)
def test_shared_places_hold_the_right_values(name: str) -> None:
    function, arguments, donate = SMALL[name]
    random = np.random.default_rng(0)
    given = jax.tree.map(lambda s: filled(s, random), arguments)
    wanted = jax.jit(function)(*given)
    compiled = fusile.jax.jit(function, donate_argnums=donate)
    # Results in memory of ours, so that the second call overwrites it.
    copy = fusile.jax.jit(lambda tree: jax.tree.map(lambda a: a + 0, tree), donate_argnums=0)
    for own in (given, copy(given)):
        for got, want in zip(jax.tree.leaves(compiled(*own)), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


if __name__ == "__main__":
    print(f"{'MB of temporaries':40} {'XLA':>8} {'ours':>8} {'packed':>8} {'unshared':>9}")
    for each in PROGRAMS:
        mine, packed = planned(each, packing=False), planned(each, packing=True)
        row = (temporaries_of_xla(each), mine.arena_bytes, packed.arena_bytes, packed.temp_unshared)
        print(f"{each:40} " + " ".join(f"{n / 1e6:8.2f}" for n in row))
