"""What must hold of every module: passes, prefixes of the pipeline, machine code and texts keep its meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies

import fusile
from fusile.base.settings import Settings
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.hlo.text import parse_module, print_module
from fusile.memory.plan import share_buffers
from fusile.passes.expand import ExpandComposites
from fusile.passes.fusion import Fuse
from fusile.passes.inline import InlineCalls
from fusile.passes.packing import PackContractions
from fusile.passes.pipeline import passes_after_packing, standard_passes
from fusile.passes.registry import passes
from fusile.passes.rematerialize import Rematerialize
from fusile.rewrite.passes import Pass, Repeat, run_passes
from fusile.stablehlo import parse as parse_stablehlo
from fusile.stablehlo import print_module as print_stablehlo
from random_programs.generator import Generator, array_of
from random_programs.meaning import Meaning

SETTINGS = replace(
    Settings(), cache=False, verify=True, dump="", disabled_passes=(), threads=2, compile_threads=1, log=False
)
PANEL_BYTES = 128
BEFORE = dict.fromkeys(("fusion", "rematerialize"), (InlineCalls(), ExpandComposites()))
"""What passes that see no calls and composites need first (`docs/architecture.md`)."""


def arguments_of(module: Module, seed: int = 0) -> list[np.ndarray]:
    """Arguments with edge values."""
    random = np.random.default_rng(seed)
    return [array_of(p.array_shape, random) for p in module.entry.parameters]


@dataclass(frozen=True)
class Watched:
    """A pass after which the module must still mean the same."""

    inner: Pass
    check: Callable[[Module, str], None]

    @property
    def name(self) -> str:
        return self.inner.name

    def __call__(self, module: Module) -> bool:
        changed = self.inner(module)
        if changed:
            self.check(module, self.name)
        return changed


def _watched(group: Sequence[Pass | Repeat], check: Callable[[Module, str], None]) -> list[Pass | Repeat]:
    found: list[Pass | Repeat] = []
    for one in group:
        if isinstance(one, Repeat):
            found.append(Repeat(tuple(Watched(p, check) for p in one.passes), one.limit))
        else:
            found.append(Watched(one, check))
    return found


def _keeper(g: Generator, seed: int) -> Callable[[Module, str], None]:
    """Fails when a module's results are no longer the generated one's."""
    given = arguments_of(g.module, seed)
    meaning = Meaning(g.module, g.level, given)

    def check(module: Module, name: str) -> None:
        wrong = meaning.difference(interpret(module, given))
        if wrong:
            raise MeaningChanged(f"the pass {name} changed the meaning: {wrong}")

    return check


class MeaningChanged(fusile.FusileError, AssertionError):
    """A pass changed what a module means. (The runner wraps errors of other classes.)"""


def check_pipeline(g: Generator, seed: int = 0, frozen: bool = False) -> None:
    """Every prefix of the pipeline keeps the meaning, and a second run finds nothing to do."""
    check, module = _keeper(g, seed), g.module.clone()
    standard = standard_passes(SETTINGS, frozen)
    run_passes(module, _watched(standard, check), SETTINGS)
    again = [r.name for r in run_passes(module.clone(), standard, SETTINGS) if r.changed]
    assert not again, f"a second run of the passes finds more to do: {again}"
    after = [PackContractions(PANEL_BYTES), *passes_after_packing(), Fuse(), Rematerialize()]
    run_passes(module, _watched(after, check), SETTINGS)
    share_buffers(module)
    check(module, "sharing of buffers")


def check_each_pass(g: Generator, seed: int = 0) -> None:
    """Every pass alone keeps the meaning of what a front end gives."""
    check = _keeper(g, seed)
    for name, make in passes(SETTINGS).items():
        module = g.module.clone()
        run_passes(module, BEFORE.get(name, ()), SETTINGS)
        run_passes(module, [Watched(make(), check)], SETTINGS)


def check_compiled(g: Generator, seed: int = 0, through_text: bool = False) -> None:
    """Machine code gives the interpreter's results; with `through_text`, that of the module read back from StableHLO
    text (HLO text where StableHLO has not all its ops)."""
    given = arguments_of(g.module, seed)
    meaning = Meaning(g.module, g.level, given)
    source: Any = g.module
    if through_text:
        source = print_stablehlo(g.module) if in_stablehlo(g.module) else print_module(g.module)
    executable: Any = fusile.compile(source, settings=replace(SETTINGS, verify=False))
    wrong = meaning.difference(executable.call_flat(given))
    assert not wrong, wrong


def check_texts(g: Generator, seed: int = 0) -> None:
    """The module printed as HLO and as StableHLO reads back to the same meaning."""
    check = _keeper(g, seed)
    check(parse_module(print_module(g.module)), "HLO text")
    if in_stablehlo(g.module):
        check(parse_stablehlo(print_stablehlo(g.module)), "StableHLO text")


def in_stablehlo(module: Module) -> bool:
    """Whether StableHLO and CHLO have all of a module's ops."""
    return not any(i.opcode == "bessel-i0e" for c in module.computations() for i in c.instructions)


def sweep(check: Callable[[Generator], None], number: int, programs: int) -> None:
    """Checks so many random programs, the same ones for the same number; the smallest failing one is shown."""

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=programs, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(strategies.randoms(use_true_random=False))
    def run(source: random.Random) -> None:
        generator = Generator(source)
        hypothesis.note(print_module(generator.module))
        check(generator)

    run()
