"""Settings from the environment: every value is understood or refused by name."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import fusile
from fusile.base.settings import MOST_THREADS, Settings


@pytest.mark.parametrize(
    "name", ["FUSILE_THREADS", "FUSILE_CACHE_BYTES", "FUSILE_CACHE", "FUSILE_VERIFY", "FUSILE_LOG"]
)
@pytest.mark.parametrize("value", ["abc", "-1", "1.5", "²", "1e3"])
def test_nonsense_is_refused_by_name(monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(fusile.SettingsError, match=f"{name}={value!r}"):
        Settings()


@pytest.mark.parametrize("value", ["", " ", "0"])
def test_no_number_of_threads_means_all_processors(monkeypatch, value: str) -> None:
    monkeypatch.setenv("FUSILE_THREADS", value)
    assert Settings().threads == len(os.sched_getaffinity(0))


def test_switches_take_words(monkeypatch) -> None:
    for word, on in {"1": True, "on": True, "YES": True, "0": False, "off": False, "False": False, "": True}.items():
        monkeypatch.setenv("FUSILE_CACHE", word)
        assert Settings().cache is on


def test_too_many_threads_are_refused(monkeypatch) -> None:
    monkeypatch.setenv("FUSILE_THREADS", str(MOST_THREADS + 1))
    with pytest.raises(fusile.SettingsError, match="threads"):
        Settings()
    with pytest.raises(fusile.SettingsError, match="loose"):
        replace(Settings(threads=1), numerics="loose")


def test_without_a_home_nothing_is_kept(monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FUSILE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    settings = Settings()
    with pytest.warns(RuntimeWarning, match="can't be kept"):
        fusile.compile("HloModule m\n\nENTRY e {\n  ROOT a = f32[3] parameter(0)\n}", settings=settings)
