"""Each pass, and each prefix of the pipeline, keeps the meaning of random programs of all ops: bit for bit, but for
functions and sums whose rounding is free."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from fusile.hlo.ir import OPS
from random_programs import FAMILIES, Generator
from random_programs.guard import check_each_pass, check_pipeline, sweep


@pytest.mark.parametrize("number", range(4))
def test_every_prefix_of_the_pipeline(number: int) -> None:
    sweep(partial(check_pipeline, frozen=number % 2 == 1), number, 100)


@pytest.mark.parametrize("number", range(2))
def test_every_pass_alone(number: int) -> None:
    sweep(check_each_pass, number, 100)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10, 50))
def test_every_prefix_of_the_pipeline_many_times(number: int) -> None:
    sweep(partial(check_pipeline, frozen=number % 2 == 1), number, 500)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10, 50))
def test_every_pass_alone_many_times(number: int) -> None:
    sweep(check_each_pass, number, 500)


def test_the_generator_knows_every_op() -> None:
    """But those that a program of a front end does not compute with."""
    met: set[str] = set()

    def note(generator: Generator) -> None:
        for computation in generator.module.computations():
            met.update(i.opcode for i in computation.instructions)

    sweep(note, 0, 1500)
    assert set(OPS) - met == {"after-all", "custom-call", "fusion"}
    assert len(FAMILIES) > 30
