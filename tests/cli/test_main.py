"""The command line, as a user types it."""

from __future__ import annotations

import json
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
    [
        ("hlo", "multiply"),
        ("optimized", "fusion"),
        ("loops", "vector"),
        ("llvm", "define"),
        ("asm", ".text"),
        ("kernels", "multiply"),
    ],
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


def test_opt_runs_the_passes_that_are_named(program, tmp_path, capsys) -> None:
    assert main(["opt", "--list"]) == 0
    names = capsys.readouterr().out.split()
    assert {"dead-code", "simplify", "fold-constants", "fusion"} <= set(names)
    assert main(["opt", str(program), "--passes", "dead-code,fusion"]) == 0
    assert "kind=loop" in capsys.readouterr().out
    for name in names:
        assert main(["opt", str(program), "--passes", name, "-o", str(tmp_path / "out.hlo")]) == 0
        assert main(["run", str(tmp_path / "out.hlo"), "--target", "interpreter"]) == 0


def test_opt_names_the_passes_when_one_is_unknown(program, capsys) -> None:
    assert main(["opt", str(program), "--passes", "simplfy"]) == 1
    assert "simplify" in capsys.readouterr().err


def test_convert_goes_both_ways(program, tmp_path, capsys) -> None:
    there, back = tmp_path / "double.mlir", tmp_path / "back.hlo"
    assert main(["convert", str(program), "-o", str(there)]) == 0
    assert "stablehlo.multiply" in there.read_text()
    assert main(["convert", str(there), "--to", "hlo", "-o", str(back)]) == 0
    assert "multiply" in back.read_text()
    assert main(["run", str(back), "--compare"]) == 0


def test_compare_names_the_first_instruction_that_differs(program, monkeypatch, capsys) -> None:
    """With a rule that multiplies wrongly."""
    from fusile.hlo.opset.elementwise import Add, Multiply
    from fusile.loops.ir import Apply
    from fusile.loops.lowering.elemental import RULES

    right = RULES[Multiply]

    def wrong(e, i, at, block):
        value = right(e, i, at, block)
        return Apply("add", (value, value), value.element_type)

    monkeypatch.setitem(RULES, Multiply, wrong)
    assert RULES[Add] is not wrong
    assert main(["run", str(program), "--compare", "--no-cache"]) == 1
    assert "r = f32[2,3] multiply" in capsys.readouterr().out


def test_show_writes_a_page(program, tmp_path, capsys) -> None:
    pytest.importorskip("jinja2")
    assert main(["show", str(program), "--html"]) == 0
    page = program.with_suffix(".html").read_text()
    assert capsys.readouterr().out.strip() == str(program.with_suffix(".html"))
    assert page.startswith("<!doctype html>") and "loop.r" in page and "not run" not in page
    assert main(["show", str(program), "--html", "-o", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").exists()


def test_pages_are_of_compiled_programs(program, capsys) -> None:
    assert main(["show", str(program), "--html", "--target", "interpreter"]) == 1
    assert "interpreter" in capsys.readouterr().err
    assert main(["show", str(program), "-o", "page.html"]) == 1
    assert "--html" in capsys.readouterr().err


def test_run_writes_a_trace(program, tmp_path, capsys) -> None:
    path = tmp_path / "trace.json"
    assert main(["run", str(program), "--trace", str(path)]) == 0
    (event,) = json.loads(path.read_text())["traceEvents"]
    assert event["name"] == "loop.r" and event["ph"] == "X" and event["args"]["flops"] == 12
    assert str(path) in capsys.readouterr().out
    assert main(["run", str(program), "--trace", str(path), "--target", "interpreter"]) == 1
    assert "interpreter" in capsys.readouterr().err


def test_assembly_for_another_kind_of_machine(program, capsys) -> None:
    assert main(["show", str(program), "--stage", "asm", "--target", "cpu:aarch64"]) == 0
    assert "fmul" in capsys.readouterr().out
