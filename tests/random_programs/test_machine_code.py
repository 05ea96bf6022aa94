"""Random programs of all ops give the same results compiled as interpreted."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_programs.guard import check_compiled, check_texts, sweep


@pytest.mark.parametrize("number", range(16))
def test_compiled_as_interpreted(number: int) -> None:
    sweep(check_compiled, number, 100)


@pytest.mark.parametrize("number", range(100, 104))
def test_compiled_from_text(number: int) -> None:
    sweep(partial(check_compiled, through_text=True), number, 100)


@pytest.mark.parametrize("number", range(2))
def test_texts_read_back(number: int) -> None:
    sweep(check_texts, number, 100)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(200, 300))
def test_compiled_as_interpreted_many_times(number: int) -> None:
    sweep(partial(check_compiled, through_text=number % 4 == 0), number, 500)
