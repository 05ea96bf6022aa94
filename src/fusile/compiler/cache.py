"""Compiled programs kept for the next time: in memory, and on disk across processes.

Files are written under another name and renamed, so readers see whole ones only and several writers do no harm. A
damaged file is deleted and the program compiled again; a full or unwritable disk costs one warning and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import tempfile
import threading
import warnings
from collections import OrderedDict
from pathlib import Path

from fusile.base.digest import digest_of
from fusile.base.errors import LoadError
from fusile.base.settings import Settings
from fusile.base.version import VERSION
from fusile.hlo.ir import Module
from fusile.hlo.opset.structure import Constant
from fusile.hlo.text import print_module
from fusile.runtime.program import Program

LARGEST_IN_MEMORY = 64
LARGEST_BYTES_IN_MEMORY = 1 << 30
"""How many programs are kept in memory, and of how many bytes: weights are part of a program."""
_SUFFIX, _WRITING = ".fusile", ".writing-"


@functools.cache
def _build() -> str:
    """Changes with the compiler's own files, so that a developer never runs code of another day's compiler."""
    root = Path(__file__).parents[1]
    files = sorted(root.rglob("*.py"))
    return hashlib.blake2b(
        repr([(str(f.relative_to(root)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]).encode(),
        digest_size=12,
    ).hexdigest()


class ProgramCache:
    """An LRU of programs in memory over a directory of files, bounded by `Settings.cache_bytes`."""

    def __init__(self) -> None:
        self._memory: OrderedDict[str, Program] = OrderedDict()
        self._lock = threading.Lock()
        self._warned = False

    def key(
        self,
        module: Module,
        target: str,
        target_key: str,
        settings: Settings,
        frozen: bool,
        stable: frozenset[int] = frozenset(),
    ) -> str:
        """Names everything a program depends on: the module with its constants' bytes, the target and the options."""
        options = (
            f"{VERSION}|{_build()}|{target}|{target_key}|{settings.numerics}|{settings.disabled_passes}|{frozen}\n"
        )
        parts: list[bytes | memoryview] = [options.encode(), print_module(module, elide=0).encode()]
        for computation in module.computations():
            for i in computation.post_order():
                if isinstance(i.op, Constant):
                    array = i.op.literal.array
                    parts.append(f"{array.dtype.str}{array.shape}".encode())
                    parts.append(array.reshape(-1).view("u1").data if array.size else b"")
        parts.append(repr((sorted(module.aliases.items()), sorted(stable))).encode())
        return digest_of(parts)[:24].hex()

    def load(self, key: str, settings: Settings) -> Program | None:
        """The program under this key, or None."""
        if not settings.cache or settings.dump or settings.verify:
            # Passes have to run for something to be dumped or verified.
            return None
        with self._lock:
            found = self._memory.get(key)
            if found is not None:
                self._memory.move_to_end(key)
                return found
        path = self._path(key, settings)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        try:
            program = Program.from_bytes(data)
        except LoadError as error:
            warnings.warn(
                f"a cached program was damaged and is compiled again ({error.message})", RuntimeWarning, stacklevel=2
            )
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        self._touch(path)
        self._remember(key, program)
        return program

    def store(self, key: str, program: Program, settings: Settings) -> None:
        """Keeps a program. Never raises for the disk's sake."""
        if not settings.cache:
            return
        self._remember(key, program)
        path = self._path(key, settings)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(path, program.to_bytes())
            self._shrink(settings)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"compiled programs can't be kept in {path.parent}: {error}", RuntimeWarning, stacklevel=2
                )

    def clear_memory(self) -> None:
        """Forgets what is in memory; files stay."""
        with self._lock:
            self._memory.clear()

    def _remember(self, key: str, program: Program) -> None:
        with self._lock:
            self._memory[key] = program
            self._memory.move_to_end(key)
            total = sum(p.kept_bytes for p in self._memory.values())
            while len(self._memory) > LARGEST_IN_MEMORY or total > LARGEST_BYTES_IN_MEMORY:
                total -= self._memory.popitem(last=False)[1].kept_bytes

    @staticmethod
    def _path(key: str, settings: Settings) -> Path:
        return settings.cache_directory / key[:2] / (key + _SUFFIX)

    @staticmethod
    def _touch(path: Path) -> None:
        with contextlib.suppress(OSError):
            os.utime(path)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @staticmethod
    def _shrink(settings: Settings) -> None:
        """Deletes the files used longest ago until the rest fits, those that a process did not finish among them."""
        files = []
        found = (settings.cache_directory.glob(f"*/{pattern}") for pattern in (f"*{_SUFFIX}", f"{_WRITING}*"))
        for path in itertools.chain(*found):
            try:
                status = path.stat()
            except OSError:
                continue
            files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= settings.cache_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


program_cache = ProgramCache()
