"""The command line, as a user types it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusile.cli.main import main

PROGRAM = """HloModule double
ENTRY main {
  x = f32[2,3] parameter(0)
  y = f32[2,3] add(x, x)
  ROOT r = f32[2,3] multiply(y, x)
}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSILE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "double.hlo"
    path.write_text(PROGRAM)
    return path


def test_run_with_inputs_saves_results(program, tmp_path, capsys) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    assert (
        main(
            ["run", str(program), "--inputs", str(tmp_path / "x.npy"), "--save", str(tmp_path / "out.npz"), "--compare"]
        )
        == 0
    )
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["result_0"], 2 * x * x)
    assert "largest difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    "stage, word",
    [("hlo", "multiply"), ("optimized", "fusion"), ("loops", "vector"), ("llvm", "define"), ("kernels", "multiply")],
)
def test_show_prints_every_stage(program, stage, word, capsys) -> None:
    assert main(["show", str(program), "--stage", stage]) == 0
    assert word in capsys.readouterr().out


def test_bench_prints_a_table(program, capsys) -> None:
    assert main(["bench", str(program), "--seconds", "0.01"]) == 0
    assert "latency" in capsys.readouterr().out


def test_ops_lists_the_op_set(capsys) -> None:
    assert main(["ops", "reduce-window"]) == 0
    assert "reduce-window" in capsys.readouterr().out


def test_errors_go_to_the_user_without_a_traceback(program, tmp_path, capsys) -> None:
    program.write_text(PROGRAM.replace("multiply(y, x)", "multiply(y, nowhere)"))
    assert main(["run", str(program)]) == 1
    message = capsys.readouterr().err
    assert "fusile:" in message and ":5:" in message
    assert main(["run", str(tmp_path / "missing.hlo")]) == 1
