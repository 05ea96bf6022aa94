"""Fusile: an optimizing compiler for machine-learning programs, in Python."""

from typing import TYPE_CHECKING, Any

from fusile.base.errors import (
    ArgumentError,
    CompileError,
    FusileError,
    LoadError,
    OutOfMemoryError,
    ParseError,
    SettingsError,
    ShapeError,
    UnsupportedOpError,
    VerificationError,
)
from fusile.base.settings import Settings
from fusile.base.version import VERSION as __version__

if TYPE_CHECKING:
    from fusile.compiler.pipeline import compile
    from fusile.compiler.report import report
    from fusile.custom_calls.registry import register as register_custom_call
    from fusile.runtime.executable import Executable, load

__all__ = [
    "ArgumentError",
    "CompileError",
    "Executable",
    "FusileError",
    "LoadError",
    "OutOfMemoryError",
    "ParseError",
    "Settings",
    "SettingsError",
    "ShapeError",
    "UnsupportedOpError",
    "VerificationError",
    "__version__",
    "compile",
    "load",
    "register_custom_call",
    "report",
]
_LAZY = {
    "compile": "fusile.compiler.pipeline",
    "report": "fusile.compiler.report",
    "Executable": "fusile.runtime.executable",
    "load": "fusile.runtime.executable",
    "register_custom_call": "fusile.custom_calls.registry",
}
_NAMED = {"register_custom_call": "register"}


def __getattr__(name: str) -> Any:
    """`import fusile` stays quick: the compiler is imported when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'fusile' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), _NAMED.get(name, name))
