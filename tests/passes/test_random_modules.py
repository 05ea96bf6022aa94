"""The standard passes keep the meaning of random modules, bit for bit, and report changes honestly."""

from dataclasses import replace

import pytest
from pass_cases import check_meaning
from random_modules import RandomModule

from fusile.base.settings import Settings
from fusile.passes.pipeline import standard_passes
from fusile.rewrite.passes import run_passes

SETTINGS = replace(Settings(), verify=True, dump="", disabled_passes=())


def run(seed: int, frozen: bool) -> None:
    before = RandomModule(seed).module()
    after = before.clone()
    run_passes(after, standard_passes(SETTINGS, frozen), SETTINGS)
    check_meaning(before, after)
    again = run_passes(after, standard_passes(SETTINGS, frozen), SETTINGS)
    assert [r.name for r in again if r.changed] == [], "a second run of the passes finds more to do"


@pytest.mark.parametrize("seed", range(60))
def test_meaning_is_kept(seed: int):
    run(seed, frozen=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60, 2060))
def test_meaning_is_kept_many_times(seed: int):
    run(seed, frozen=seed % 2 == 0)
