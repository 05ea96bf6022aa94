"""MLIR bytecode, portable artifacts and exports of jax.export run as their text does."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusile
from fusile.base.errors import FusileError, LoadError
from fusile.cli.main import main
from fusile.stablehlo.bytecode import bytecode_text, is_bytecode

jax = pytest.importorskip("jax")
from jax import export  # noqa: E402

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
W = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


def function(x: Any, unused: Any, w: Any) -> Any:
    return {"y": jax.numpy.tanh(x @ w), "s": x.sum() + np.arange(4000, dtype=np.float32).sum()}


def exported(**options: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, X, W)]
    return export.export(jax.jit(function), **options)(*shapes)


def bytecode(text: str) -> bytes:
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        out = io.BytesIO()
        ir.Module.parse(text).operation.write_bytecode(out)
    return out.getvalue()


FORMS: dict[str, Callable[[Any], Any]] = {
    "object": lambda e: e,
    "serialized": lambda e: e.serialize(),
    "serialized with derivatives": lambda e: bytes(e.serialize(vjp_order=2)),
    "artifact": lambda e: e.mlir_module_serialized,
    "bytecode": lambda e: bytecode(e.mlir_module()),
    "text": lambda e: e.mlir_module(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_every_form_is_the_same_program(form: str, target: str) -> None:
    """It takes the arguments that the exported function uses, and gives its results in their order."""
    e = exported()
    assert e.module_kept_var_idx == (0, 2)
    results = fusile.compile(FORMS[form](e), target=target)(X, W)
    wanted = jax.tree.leaves(function(X, X, W))
    assert len(results) == len(wanted) == 2
    for found, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5)


def test_several_platforms_take_the_number_of_one_first() -> None:
    e = exported(platforms=("tpu", "cpu"))
    compiled = fusile.compile(e, target="interpreter")
    kind = compiled.module.entry.parameters[0].array_shape.element_type  # type: ignore[union-attr]
    results = compiled(kind.dtype.type(e.platforms.index("cpu")), X, W)
    np.testing.assert_allclose(results[1], np.tanh(X @ W), rtol=1e-5)


def test_text_of_bytecode_keeps_constants_and_locations() -> None:
    text = bytecode_text(bytecode(exported().mlir_module()))
    assert "dense_resource" not in text and "test_bytecode.py" in text
    module = fusile.compile(exported(), target="interpreter").module  # type: ignore[union-attr]
    assert any(i.source and i.source.file.endswith("test_bytecode.py") for i in module.entry.instructions)


@pytest.mark.parametrize("form", ["serialized", "bytecode"])
def test_command_line_runs_and_converts_files(form: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "program.mlirbc"
    path.write_bytes(FORMS[form](exported()))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "w.npy", W)
    inputs = ["--inputs", str(tmp_path / "x.npy"), str(tmp_path / "w.npy")]
    assert main(["run", str(path), *inputs, "--target", "interpreter", "--save", str(tmp_path / "out.npz")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["result_1"], np.tanh(X @ W), rtol=1e-5)
    capsys.readouterr()
    assert main(["convert", str(path)]) == 0
    assert capsys.readouterr().out.startswith("HloModule")


def test_text_is_no_bytecode() -> None:
    assert not is_bytecode(exported().mlir_module().encode())
    assert not is_bytecode("ML\N{LATIN SMALL LETTER I WITH DIAERESIS}R".encode())


def test_without_jaxlib_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = bytes(exported().serialize())
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(LoadError, match=r"there is no jaxlib(.|\n)*pip install jaxlib"):
        fusile.compile(data)
    (tmp_path / "p.mlirbc").write_bytes(data)
    with pytest.raises(LoadError, match=r"p\.mlirbc: MLIR bytecode is read by jaxlib"):
        fusile.compile(tmp_path / "p.mlirbc")


@pytest.mark.parametrize("form", ["serialized", "artifact"])
def test_damaged_bytecode_is_an_error_of_ours(form: str) -> None:
    """Cut anywhere, and with bytes changed: what MLIR still reads is compiled or refused."""
    data = bytes(FORMS[form](exported()))
    start, size = data.index(b"ML\xefR"), len(exported().mlir_module_serialized)
    for part in (data[:n] for n in range(start + 4, start + size, size // 3)):
        with pytest.raises(FusileError):
            fusile.compile(part, target="interpreter")
    random = np.random.default_rng(0)
    for _ in range(3):
        damaged = bytearray(data)
        for place in random.integers(start, start + size, 3):
            damaged[int(place)] ^= int(random.integers(1, 256))
        try:
            fusile.compile(damaged, target="interpreter")
        except FusileError as error:
            assert str(error)


def test_importing_the_compiler_imports_no_jaxlib() -> None:
    import subprocess

    code = "import sys, fusile; fusile.compile; assert not [m for m in sys.modules if m.startswith('jax')]"
    subprocess.run([sys.executable, "-c", code], check=True)
