"""All of Fusile's knobs, typed, in one place. Environment variables give the defaults."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field
from pathlib import Path

from fusile.base.errors import SettingsError

NUMERICS = ("exact", "fast")
MOST_THREADS = 4096
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _cache_directory() -> Path:
    if chosen := os.environ.get("FUSILE_CACHE_DIR"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusile"
    except RuntimeError:
        # Without a home directory nothing is kept, which costs one warning.
        return Path(os.devnull) / "fusile"


def _number(name: str, default: int) -> int:
    """A whole number, 0 or more. Raises SettingsError for anything else."""
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise SettingsError(f"{name}={text!r} is no whole number", hint=f"unset it, or set it as in {name}={default}")
    return int(text)


def _switch(name: str, default: bool) -> bool:
    """On or off. Raises SettingsError for anything else."""
    text = os.environ.get(name, "").strip().lower()
    if text and text not in (*_YES, *_NO):
        raise SettingsError(f"{name}={text!r} is neither on nor off", hint="set it to 1 or 0, or unset it")
    return text in _YES if text else default


def _processors() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Settings:
    """Options of one compilation. `Settings()` reads the environment; `dataclasses.replace` changes one. Raises
    SettingsError for values that make no sense."""

    threads: int = field(default_factory=lambda: _number("FUSILE_THREADS", 0) or _processors())
    numerics: str = "exact"
    dump: str = field(default_factory=lambda: os.environ.get("FUSILE_DUMP", ""))
    log: bool = field(default_factory=lambda: _switch("FUSILE_LOG", False))
    cache: bool = field(default_factory=lambda: _switch("FUSILE_CACHE", True))
    cache_directory: Path = field(default_factory=_cache_directory)
    cache_bytes: int = field(default_factory=lambda: _number("FUSILE_CACHE_BYTES", 4 << 30))
    disabled_passes: tuple[str, ...] = field(
        default_factory=lambda: tuple(os.environ.get("FUSILE_DISABLE_PASSES", "").replace(",", " ").split())
    )
    verify: bool = field(default_factory=lambda: _switch("FUSILE_VERIFY", False))
    compile_threads: int = field(default_factory=_processors)

    def __post_init__(self) -> None:
        if self.numerics not in NUMERICS:
            raise SettingsError(f"numerics={self.numerics!r} is unknown", hint=f"there are: {', '.join(NUMERICS)}")
        for name in ("threads", "compile_threads"):
            value = getattr(self, name)
            try:
                fits = 1 <= operator.index(value) <= MOST_THREADS
            except TypeError:
                fits = False
            if not fits:
                raise SettingsError(f"{name}={value!r} is no number of threads", hint=f"from 1 to {MOST_THREADS}")
