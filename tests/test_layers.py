"""Rooms import downward only, frameworks stay in their rooms, and only `llvm` imports llvmlite."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fusile

ROOT = Path(fusile.__file__).parent
ALLOWED = {
    "base": set(),
    "custom_calls": {"base"},
    "runtime": {"base", "custom_calls"},
    "hlo": {"base", "custom_calls"},
    "rewrite": {"base", "hlo"},
    "stablehlo": {"base", "hlo"},
    "passes": {"base", "hlo", "rewrite"},
    "memory": {"base", "hlo"},
    "loops": {"base", "hlo", "rewrite", "memory"},
    "llvm": {"base"},
    "targets": {"base", "hlo", "rewrite", "loops", "memory", "llvm"},
    "compiler": {
        "custom_calls",
        "base",
        "runtime",
        "hlo",
        "rewrite",
        "stablehlo",
        "passes",
        "memory",
        "loops",
        "llvm",
        "targets",
    },
    "tf": {
        "custom_calls",
        "base",
        "runtime",
        "hlo",
        "rewrite",
        "stablehlo",
        "passes",
        "memory",
        "loops",
        "llvm",
        "targets",
        "compiler",
    },
    "jax": {
        "custom_calls",
        "base",
        "runtime",
        "hlo",
        "rewrite",
        "stablehlo",
        "passes",
        "memory",
        "loops",
        "llvm",
        "targets",
        "compiler",
    },
    "cli": {
        "custom_calls",
        "base",
        "runtime",
        "hlo",
        "rewrite",
        "stablehlo",
        "passes",
        "memory",
        "loops",
        "llvm",
        "targets",
        "compiler",
    },
}
OUTSIDE = {
    "llvmlite": {"llvm"},
    "tensorflow": {"tf"},
    "jax": {"jax", "stablehlo"},
    "jaxlib": {"jax", "stablehlo"},
    "keras": {"tf"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_point_downward(room: str) -> None:
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "fusile" and len(parts) > 1 and parts[1] in ALLOWED:
                assert parts[1] == room or parts[1] in ALLOWED[room], f"{path} imports {name}"
            if parts[0] in OUTSIDE:
                assert room in OUTSIDE[parts[0]], f"{path} imports {name}"


def test_every_room_is_in_the_table() -> None:
    assert {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ALLOWED)
