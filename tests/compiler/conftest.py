"""Makes `programs` importable, and gives every test an empty cache of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusile.base.settings import Settings
from fusile.compiler.cache import program_cache

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    program_cache.clear_memory()
    return Settings(cache_directory=tmp_path / "cache", threads=2)
