"""All of Fusile's knobs, typed, in one place. Environment variables give the defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


def _cache_directory() -> Path:
    if chosen := os.environ.get("FUSILE_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fusile"


@dataclass(frozen=True)
class Settings:
    """Options of one compilation. `Settings()` reads the environment; `dataclasses.replace` changes one."""

    threads: int = field(
        default_factory=lambda: int(os.environ.get("FUSILE_THREADS", "0")) or len(os.sched_getaffinity(0))
    )
    numerics: str = "exact"
    dump: str = field(default_factory=lambda: os.environ.get("FUSILE_DUMP", ""))
    log: str = field(default_factory=lambda: os.environ.get("FUSILE_LOG", ""))
    cache: bool = field(default_factory=lambda: os.environ.get("FUSILE_CACHE", "1") != "0")
    cache_directory: Path = field(default_factory=_cache_directory)
    cache_bytes: int = field(default_factory=lambda: int(os.environ.get("FUSILE_CACHE_BYTES", str(4 << 30))))
    disabled_passes: tuple[str, ...] = field(
        default_factory=lambda: tuple(filter(None, os.environ.get("FUSILE_DISABLE_PASSES", "").split(",")))
    )
    verify: bool = field(default_factory=lambda: os.environ.get("FUSILE_VERIFY", "0") != "0")
    compile_threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
