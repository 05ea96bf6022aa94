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


def test_what_has_to_be_seen_is_compiled_anew(settings, tmp_path) -> None:
    fusile.compile(programs.softmax(3, 4), settings=settings)
    assert fusile.compile(programs.softmax(3, 4), settings=replace(settings, dump=str(tmp_path / "d"))).compile_times
    assert list((tmp_path / "d").rglob("*.hlo"))
    assert fusile.compile(programs.softmax(3, 4), settings=replace(settings, verify=True)).compile_times


def test_a_damaged_file_that_cannot_be_deleted(settings, monkeypatch) -> None:
    fusile.compile(programs.softmax(3, 4), settings=settings)
    (path,) = files(settings)
    path.write_bytes(b"nothing")
    program_cache.clear_memory()

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert fusile.compile(programs.softmax(3, 4), settings=settings)(X).shape == (3, 4)


@pytest.mark.parametrize("place", ["a file", "a file/below"])
def test_a_directory_that_cannot_be_made(settings, tmp_path, monkeypatch, place) -> None:
    monkeypatch.setattr(program_cache, "_warned", False)
    (tmp_path / "a file").write_text("")
    with pytest.warns(RuntimeWarning, match="can't be kept"):
        fusile.compile(programs.softmax(3, 4), settings=replace(settings, cache_directory=tmp_path / place))


def test_an_interrupted_write_leaves_nothing(settings, monkeypatch) -> None:
    def interrupted(old: str, new: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fusile.compile(programs.softmax(3, 4), settings=settings)
    assert not [p for p in settings.cache_directory.rglob("*") if p.is_file()]


def test_unfinished_files_count(settings) -> None:
    fusile.compile(programs.softmax(3, 4), settings=settings)
    left = files(settings)[0].parent / ".writing-killed"
    left.write_bytes(bytes(1000))
    os.utime(left, (0, 0))
    fusile.compile(
        programs.softmax(3, 5),
        settings=replace(settings, cache_bytes=sum(p.stat().st_size for p in files(settings)) * 3),
    )
    assert left.exists()
    fusile.compile(programs.softmax(3, 6), settings=replace(settings, cache_bytes=10))
    assert not left.exists()


def test_memory_is_bounded_by_bytes(settings, monkeypatch) -> None:
    monkeypatch.setattr("fusile.compiler.cache.LARGEST_BYTES_IN_MEMORY", 1)
    fusile.compile(programs.softmax(3, 4), settings=settings)
    assert not program_cache._memory


def test_what_was_compiled_is_logged_when_asked(settings, capsys) -> None:
    for said in ("passes", "from the cache"):
        fusile.compile(programs.softmax(3, 4), settings=replace(settings, log=True))
        assert said in capsys.readouterr().err
