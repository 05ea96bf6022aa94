"""Code for another kind of processor is refused before it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.llvm import host
from fusile.runtime import processor
from fusile.runtime.executable import Executable

TEXT = "HloModule m\n\nENTRY e {\n  a = f32[64] parameter(0)\n  ROOT r = f32[64] add(a, a)\n}"


def test_this_machine_has_what_llvm_says_it_has() -> None:
    features = {f[1:] for f in host().features.split(",") if f.startswith("+")}
    known = {f for f in features if f in processor._FLAGS}
    assert known and {processor._FLAGS[f] for f in known} <= processor.flags()
    absent = {f[1:] for f in host().features.split(",") if f.startswith("-")} & set(processor._FLAGS)
    assert not {processor._FLAGS[f] for f in absent} & processor.flags()


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("aarch64-unknown-linux-gnu generic +neon", "aarch64"),
        ("x86_64-unknown-linux-gnu v9 +sse3,+avx512vnni", "avx512vnni"),
    ],
)
def test_foreign_code_is_not_loaded(monkeypatch, target: str, says: str) -> None:
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"pni"}))
    program = fusile.compile(TEXT).program
    with pytest.raises(fusile.LoadError, match=says):
        Executable(replace(program, target=target), 1)


def test_systems_that_tell_nothing_are_trusted(tmp_path: Path) -> None:
    assert processor.flags(tmp_path / "none") == frozenset()
    np.testing.assert_array_equal(fusile.compile(TEXT)(np.ones(64, np.float32)), np.full(64, 2, np.float32))
