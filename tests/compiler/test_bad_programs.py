"""Sources, options and arguments that make no sense: each is an error that says which, and nothing crashes."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusile
from fusile.runtime.executable import Executable

TEXT = "HloModule m\n\nENTRY e {\n  a = f32[100000] parameter(0)\n  ROOT r = f32[100000] sine(a)\n}"
X = np.arange(100000, dtype=np.float32)

WRONG_SOURCES: dict[str, Any] = {
    "nothing": "",
    "blank": " \n",
    "no text": None,
    "number": 3,
    "bytecode": b"ML\xefR\r\0",
    "directory": os.sep,
    "no file": "nonexistent.mlir",
    "one line": "module { func.func @main() { ",
    "no entry": "HloModule m\n",
    "zero byte": "HloModule m\0\nENTRY e { ROOT a = f32[3] parameter(0) }",
    "negative size": "HloModule m\nENTRY e { ROOT a = f32[-3] parameter(0) }",
    "huge size": "HloModule m\nENTRY e { ROOT a = f32[99999999999999999999] parameter(0) }",
    "element type": "HloModule m\nENTRY e { ROOT a = q7[3] parameter(0) }",
    "cycle": "HloModule m\nENTRY e { a = f32[4] add(b,b)\n ROOT b = f32[4] add(a,a) }",
    "recursion": "HloModule m\nf { a = f32[] parameter(0)\n ROOT b = f32[] call(a), to_apply=f }\n"
    "ENTRY e { a = f32[] parameter(0)\n ROOT b = f32[] call(a), to_apply=f }",
    "deep tuple": "HloModule m\nENTRY e { ROOT a = " + "(" * 5000 + "f32[3]" + ")" * 5000 + " parameter(0) }",
    "unknown op": "HloModule m\nENTRY e { a = f32[3] parameter(0)\n ROOT b = f32[3] frob(a) }",
    "wrong shape": "HloModule m\nENTRY e { a = f32[3] parameter(0)\n ROOT b = f32[4] add(a,a) }",
    "unknown size": "module {\n func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> } }",
}


@pytest.mark.parametrize("name", WRONG_SOURCES)
def test_what_is_no_program(name: str) -> None:
    with pytest.raises(fusile.FusileError):
        fusile.compile(WRONG_SOURCES[name])


def test_errors_in_files_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "wrong.hlo").write_text(WRONG_SOURCES["cycle"])
    with pytest.raises(fusile.ParseError, match=r"wrong\.hlo:2:11: "):
        fusile.compile(tmp_path / "wrong.hlo")


def test_a_program_on_one_line_is_no_path() -> None:
    text = "module { func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> { return %a : tensor<3xf32> } }"
    np.testing.assert_array_equal(fusile.compile(text)(X[:3]), X[:3])


@pytest.mark.parametrize("target", ["tpu", "", "cpu:pentium", None, 3])
def test_targets_that_do_not_exist(target: Any) -> None:
    with pytest.raises(fusile.ArgumentError):
        fusile.compile(TEXT, target=target)


@pytest.mark.parametrize("donate", [1, -1, "a", [0, 7], 0.5])
def test_arguments_that_cannot_be_donated(donate: Any) -> None:
    with pytest.raises((fusile.ArgumentError, TypeError)):
        fusile.compile(TEXT, donate=donate)


def test_passes_that_do_not_exist_are_not_disabled(settings) -> None:
    with pytest.raises(fusile.SettingsError, match="frobnicate"):
        fusile.compile(TEXT, settings=replace(settings, disabled_passes=("frobnicate",)))
    fusile.compile(TEXT, settings=replace(settings, disabled_passes=("simplify#2", "rematerialize")))


WRONG_ARGUMENTS = {
    "rank": X[:, None],
    "dtype": X.astype(np.float64),
    "shape": X[:5],
    "list": [1, 2],
    "text": "a",
    "none": None,
    "ragged": [[1], [1, 2]],
    "object": object(),
    "scalar": 3.0,
    "complex": X.astype(np.complex64),
}


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_arguments_that_do_not_fit(target: str, name: str) -> None:
    with pytest.raises(fusile.ArgumentError):
        fusile.compile(TEXT, target)(WRONG_ARGUMENTS[name])


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_numbers_of_arguments_that_do_not_fit(target: str) -> None:
    executable = fusile.compile(TEXT, target)
    for arguments in ((), (X, X)):
        with pytest.raises(fusile.ArgumentError):
            executable(*arguments)


def test_many_threads_call_one_program(settings) -> None:
    executable = fusile.compile(TEXT, settings=settings)
    expected, wrong = executable(X), []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(executable(X), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_forked_processes_go_on_while_others_call(settings) -> None:
    executable = fusile.compile(TEXT, settings=settings)
    expected, stop = executable(X), threading.Event()

    def work() -> None:
        while not stop.is_set():
            executable(X)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(0 if np.array_equal(executable(X), expected) else 3)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_threads_that_cannot_be_started_are_done_without(settings, monkeypatch) -> None:
    compiled = fusile.compile(TEXT, settings=settings)
    expected = compiled(X)

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.warns(RuntimeWarning, match="1 of 13 threads"):
        executable = Executable(compiled.program, 13)
    np.testing.assert_array_equal(executable(X), expected)
