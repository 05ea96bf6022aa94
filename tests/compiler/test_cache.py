"""Programs come back from memory and disk, and no state of the disk stops a compilation."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import programs
import pytest

import fusile
from fusile.compiler.cache import ProgramCache, program_cache
from fusile.runtime.program import Program

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def files(settings) -> list[Path]:
    return sorted(settings.cache_directory.rglob("*.fusile"))


def test_the_second_compilation_comes_from_disk(settings) -> None:
    first = fusile.compile(programs.softmax(3, 4), settings=settings)
    assert first.compile_times and len(files(settings)) == 1
    program_cache.clear_memory()
    second = fusile.compile(programs.softmax(3, 4), settings=settings)
    assert not second.compile_times
    np.testing.assert_array_equal(first(X), second(X))


def test_different_programs_have_different_keys(settings) -> None:
    fusile.compile(programs.softmax(3, 4), settings=settings)
    fusile.compile(programs.softmax(3, 5), settings=settings)
    fusile.compile(programs.log_sum_exp(3, 4), settings=settings)
    assert len(files(settings)) == 3


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign"])
def test_a_damaged_file_is_compiled_again(damage, settings) -> None:
    expected = fusile.compile(programs.softmax(3, 4), settings=settings)(X)
    (path,) = files(settings)
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes(
        {"empty": b"", "cut": bytes(data[:-100]), "flipped": bytes(data), "foreign": b"\x7fELF" + bytes(data)}[damage]
    )
    program_cache.clear_memory()
    with pytest.warns(RuntimeWarning, match="damaged"):
        again = fusile.compile(programs.softmax(3, 4), settings=settings)
    np.testing.assert_array_equal(again(X), expected)
    Program.from_bytes(files(settings)[0].read_bytes())


def test_a_full_disk_costs_one_warning(settings, monkeypatch) -> None:
    monkeypatch.setattr(program_cache, "_warned", False)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ProgramCache, "_write", staticmethod(full))
    with pytest.warns(RuntimeWarning, match="No space left"):
        result = fusile.compile(programs.softmax(3, 4), settings=settings)(X)
    assert result.shape == (3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fusile.compile(programs.softmax(3, 5), settings=settings)


def test_the_directory_is_bounded(settings) -> None:
    small = replace(settings, cache_bytes=1)
    fusile.compile(programs.softmax(3, 4), settings=small)
    fusile.compile(programs.softmax(3, 5), settings=small)
    assert len(files(settings)) <= 1


def test_two_processes_may_compile_the_same(settings) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import programs, fusile, numpy as np\n"
        "print(fusile.compile(programs.softmax(3, 4))(np.arange(12, dtype=np.float32).reshape(3, 4)).tobytes().hex())\n"
    )
    environment = {**os.environ, "FUSILE_CACHE_DIR": str(settings.cache_directory)}
    command = [sys.executable, "-c", script, str(Path(__file__).parent)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    outputs = {process.communicate()[0] for process in running}
    assert len(outputs) == 1 and all(process.returncode == 0 for process in running)


def test_a_program_survives_saving(settings, tmp_path) -> None:
    executable = fusile.compile(programs.dense(5, 6, 7), settings=settings)
    executable.save(tmp_path / "dense.fusile")
    loaded = fusile.load(tmp_path / "dense.fusile")
    given = [np.ones((5, 7), np.float32), np.ones((7, 6), np.float32), np.zeros(6, np.float32)]
    np.testing.assert_array_equal(loaded(*given), executable(*given))


def test_every_flipped_byte_of_a_program_is_noticed(settings, tmp_path) -> None:
    fusile.compile(programs.sum_of_squares(4), settings=settings).save(tmp_path / "p")
    data = (tmp_path / "p").read_bytes()
    for at in range(0, len(data), max(1, len(data) // 200)):
        changed = bytearray(data)
        changed[at] ^= 0x55
        with pytest.raises(fusile.LoadError):
            Program.from_bytes(bytes(changed))
    for length in (0, 7, 51, 52, 100, len(data) - 1):
        with pytest.raises(fusile.LoadError):
            Program.from_bytes(data[:length])
