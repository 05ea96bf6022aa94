"""What a pass is, and the runner around passes: it verifies, checks honesty, times, dumps and skips."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from fusile.base.errors import CompileError, FusileError, VerificationError
from fusile.base.settings import Settings
from fusile.hlo.ir import Module
from fusile.hlo.text import print_module
from fusile.hlo.verifier import verify
from fusile.rewrite.fingerprint import fingerprint

DUMPED_ELEMENTS = 1 << 14
"""Constants of more elements than this are elided in dumps, which are for people."""


@runtime_checkable
class Pass(Protocol):
    """A frozen value with a name; called, it changes the module in place and says whether it did."""

    @property
    def name(self) -> str: ...

    def __call__(self, module: Module) -> bool: ...


@dataclass(frozen=True)
class Repeat:
    """Passes that run in order, again and again until a round changes nothing, `limit` rounds at most."""

    passes: tuple[Pass, ...]
    limit: int = 8


@dataclass(frozen=True)
class PassRecord:
    """One run of one pass."""

    name: str
    seconds: float
    changed: bool


def run_passes(module: Module, passes: Sequence[Pass | Repeat], settings: Settings) -> list[PassRecord]:
    """Runs `passes` in order on `module`, in place; returns a record of every run, skipped ones left out.

    `settings.disabled_passes` holds names, or `name#n` for the n-th run of a pass (from 1), for bisection. Under
    `settings.verify` the module is verified before the first pass and after each, and CompileError is raised for a pass
    whose answer "changed" isn't true. `settings.dump` names a directory, see `dump`.
    """
    run = _Run(module, settings)
    for one in passes:
        if isinstance(one, Repeat):
            run.repeat(one)
        else:
            run.once(one)
    return run.records


class _Run:
    def __init__(self, module: Module, settings: Settings) -> None:
        self.module, self.settings = module, settings
        self.records: list[PassRecord] = []
        self.runs: Counter[str] = Counter()
        if settings.verify:
            verify(module)
        if settings.dump:
            dump(module, "input", Path(settings.dump))

    def repeat(self, group: Repeat) -> None:
        for _ in range(group.limit):
            changed = [self.once(one) for one in group.passes]
            if not any(changed):
                return

    def once(self, one: Pass) -> bool:
        self.runs[one.name] += 1
        if {one.name, f"{one.name}#{self.runs[one.name]}"} & set(self.settings.disabled_passes):
            return False
        before = fingerprint(self.module) if self.settings.verify else 0
        start = time.perf_counter()
        changed = _call(one, self.module)
        self.records.append(PassRecord(one.name, time.perf_counter() - start, changed))
        if self.settings.verify:
            _check(one, self.module, changed, changed_really=fingerprint(self.module) != before)
        if changed and self.settings.dump:
            dump(self.module, one.name, Path(self.settings.dump))
        return changed


def _call(one: Pass, module: Module) -> bool:
    try:
        return one(module)
    except FusileError as error:
        error.add_note(f"while running the pass {one.name} on {module.name}")
        raise
    except Exception as error:
        hint = f"to go on without it: FUSILE_DISABLE_PASSES={one.name}; please report this"
        raise CompileError(f"the pass {one.name} failed on {module.name}: {error!r}", hint=hint) from error


def _check(one: Pass, module: Module, changed: bool, changed_really: bool) -> None:
    try:
        verify(module)
    except VerificationError as error:
        raise CompileError(f"the pass {one.name} broke the module {module.name}: {error.message}") from error
    if changed != changed_really:
        said, did = ("a change", "made none") if changed else ("no change", "made one")
        raise CompileError(f"the pass {one.name} reported {said} of {module.name} but {did}")


def dump(module: Module, stage: str, directory: Path) -> Path:
    """Writes the module's text to `directory/<module>/NNN-<stage>.hlo`, NNN one more than the last there."""
    folder = directory / re.sub(r"[^\w.\-]", "_", module.name)
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(number) for p in folder.glob("*.hlo") if (number := p.name.partition("-")[0]).isdecimal()]
    path = folder / f"{max(taken, default=-1) + 1:03d}-{stage}.hlo"
    path.write_text(print_module(module, elide=DUMPED_ELEMENTS))
    return path
