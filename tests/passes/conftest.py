"""Collects `*.hlo`: text in, text out. A file is a header and cases:

    // pass: simplify                 the pass, by name, for the whole file
    // case: double-negate            starts a case; the module follows, without its HloModule line
    // fires: double-negate           (optional) rules that must fire, each at least once
    // not: add-zero                  (optional) rules that must not fire
    // numerics: fast                 (optional) default exact; fast results are compared with a tolerance
    ...
    // expect                         what the pass makes of it; `BLESS=1 pytest` rewrites these parts

Each case also runs before and after under the interpreter, on ordinary and on edge values: the same bits but for NaN.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusile.hlo.text import parse_module, print_module
from fusile.hlo.verifier import verify
from fusile.rewrite.fingerprint import fingerprint

sys.path.insert(0, str(Path(__file__).parent))

from pass_cases import check_meaning, pass_named
from text_cases import Case, header_value, read_cases

BLESS = os.environ.get("BLESS") == "1"
ROUNDING = ("fold-batch-norm", "expand-composites", "merge-products")
"""Passes whose results are rounded at other places."""


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    return PassFile.from_parent(parent, path=file_path) if file_path.suffix == ".hlo" else None


class PassFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        header, cases = read_cases(self.path)
        for case in cases:
            yield PassItem.from_parent(
                self,
                name=case.attributes["case"],
                case=case,
                pass_name=header_value(header, "pass"),
                every=(header, cases),
            )


class PassItem(pytest.Item):
    def __init__(self, *, case: Case, pass_name: str, every: tuple[str, list[Case]], **more: Any) -> None:
        super().__init__(**more)
        self.case, self.pass_name, self.every = case, pass_name, every

    def runtest(self) -> None:
        case = self.case
        numerics = case.attributes.get("numerics", "exact")
        before = parse_module(f"HloModule case\n\n{case.module}")
        after = before.clone()
        one = pass_named(self.pass_name, numerics)
        old = fingerprint(after)
        changed = one(after)
        verify(after)
        assert changed == (fingerprint(after) != old), f"{one.name} said changed={changed}"
        check_fired(case, getattr(one, "fired", {}))
        exact = numerics == "exact" and self.pass_name not in ROUNDING
        check_meaning(before, after, exact, signed_zeros=self.pass_name != "canonicalize-contractions")
        found = print_module(after).partition("\n\n")[2].strip() if changed else "unchanged"
        if BLESS:
            case.expected = found
            self.path.write_text(self.every[0].rstrip() + "\n\n" + "\n".join(c.text() for c in self.every[1]))
        assert found == case.expected.strip()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if excinfo.errisinstance(AssertionError):
            return f"{self.path.name}: {self.name}\n{excinfo.value}"
        return str(super().repr_failure(excinfo, style="short"))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.pass_name}: {self.name}"


def check_fired(case: Case, fired: dict[str, int]) -> None:
    silent = [n for n in case.names("fires") if not fired.get(n)]
    assert not silent, f"rules that did not fire: {silent}; fired: {dict(fired)}"
    wrong = [n for n in case.names("not") if fired.get(n)]
    assert not wrong, f"rules that fired but must not: {wrong}"
