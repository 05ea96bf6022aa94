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
from fusile.base.records import PassRecord
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
        self.instructions = module.size()
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
        seconds = time.perf_counter() - start
        if self.settings.verify:
            _check(one, self.module, changed, changed_really=fingerprint(self.module) != before)
        dumped = ""
        if changed:
            self.instructions = self.module.size()
            if self.settings.dump:
                dumped = dump(self.module, one.name, Path(self.settings.dump)).name
        self.records.append(PassRecord(one.name, seconds, changed, self.instructions, dumped))
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
    """Writes the module's text to `directory/<module>/NNN-<stage>.hlo`, NNN one more than the last there. Text that the
    last file holds already is not written again."""
    folder = _folder(module, directory)
    taken = {int(number): p for p in folder.glob("*.hlo") if (number := p.name.partition("-")[0]).isdecimal()}
    text = print_module(module, elide=DUMPED_ELEMENTS)
    last = max(taken, default=-1)
    if taken and taken[last].read_text() == text:
        return taken[last]
    path = folder / f"{last + 1:03d}-{stage}.hlo"
    path.write_text(text)
    return path


def dump_records(module: Module, records: Sequence[PassRecord], directory: Path) -> Path:
    """Adds the table of a compilation's passes to `directory/<module>/passes.txt`."""
    path = _folder(module, directory) / "passes.txt"
    with path.open("a") as file:
        file.write(pass_table(records))
    return path


def pass_table(records: Sequence[PassRecord]) -> str:
    """The runs of passes as a table: milliseconds, instructions afterwards, and where the module was dumped to."""
    lines = [f"{'ms':>10} {'instructions':>12}  pass"]
    for r in records:
        after = f"{r.instructions:12}" if r.changed else f"{'-':>12}"
        lines.append(f"{r.seconds * 1e3:10.3f} {after}  {r.name}{'  -> ' * bool(r.dumped)}{r.dumped}")
    total = sum(r.seconds for r in records)
    lines.append(f"{total * 1e3:10.3f} {'':12}  total of {len(records)} runs ('-': nothing changed)")
    return "\n".join(lines) + "\n"


def _folder(module: Module, directory: Path) -> Path:
    folder = directory / re.sub(r"[^\w.\-]", "_", module.name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
