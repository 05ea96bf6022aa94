"""HLO text as XLA dumps it, before and after its optimizations, gives the results that XLA gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.base.errors import ParseError
from fusile.hlo.interpreter import interpret
from fusile.hlo.text import parse_module, print_module
from fusile.hlo.text.dictionary import json_of_dictionary

PROGRAMS = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax import lax

r = np.random.default_rng(0)
x, w = r.normal(size=(6, 8)).astype(np.float32), r.normal(size=(8, 5)).astype(np.float32)
image, kernel = r.normal(size=(2, 8, 8, 3)).astype(np.float32), r.normal(size=(3, 3, 3, 4)).astype(np.float32)
square = (x @ x.T + 9 * np.eye(6)).astype(np.float32)

def softmax(v): return jax.nn.softmax(v), jnp.tanh(v).sum(0)
def attention(v): return jax.nn.softmax(v @ v.T / 3) @ v
def layers(v, m): return jax.grad(lambda m: jnp.mean(jax.nn.gelu(v @ m) ** 2))(m)
def convolution(a, k): return lax.conv_general_dilated(a, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
def pool(a): return lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
def pooling(a): return jax.grad(lambda b: (pool(b) ** 2).sum())(a)
def loop(v): return lax.fori_loop(0, 7, lambda i, s: jnp.sin(s) * 1.5 + i, v)
def scan(v): return lax.scan(lambda c, r: (c * 0.5 + r, (c + r).sum()), v[0], v)
def branches(v): return lax.switch(v.astype(jnp.int32)[0, 0] % 3, [jnp.sin, jnp.cos, jnp.exp], v)
def sorting(v): return jnp.sort(v, 1), jnp.argsort(v, 0), lax.top_k(v, 3)
def indexing(v): return v[jnp.array([3, 1])], v.at[jnp.array([0, 2])].add(1.0), lax.dynamic_slice(v, (2, 3), (2, 4))
def layouts(v): return jnp.pad(v[::2, ::-1], 1).T.reshape(-1), jnp.einsum("ij,kj->ki", v, v)
def constants(v): return v + np.arange(48, dtype=np.float32).reshape(6, 8) / 7
def narrow(v): return (v.astype(jnp.bfloat16) * 3).astype(jnp.float32), (v * 9).astype(jnp.int8), v > 0
def complex_numbers(v): return jnp.abs(jnp.fft.rfft(v)), jnp.angle(v * (1 + 2j))
def random(v): return jax.random.normal(jax.random.PRNGKey(3), v.shape) + v
def algebra(a): return jnp.linalg.cholesky(a), jnp.linalg.solve(a, a[:, :2])

cases = [(softmax, x), (attention, x), (layers, x, w), (convolution, image, kernel), (pooling, image), (loop, x),
         (scan, x), (branches, x), (sorting, x), (indexing, x), (layouts, x), (constants, x), (narrow, x),
         (complex_numbers, x), (random, x), (algebra, square)]
for function, *arguments in cases:
    results = jax.tree.leaves(jax.jit(function)(*arguments))
    np.savez(function.__name__ + ".npz", *arguments, **{f"result_{i}": v for i, v in enumerate(results)})
"""
NAMES = ["softmax", "attention", "layers", "convolution", "pooling", "loop", "scan", "branches", "sorting", "indexing",
         "layouts", "constants", "narrow", "complex_numbers", "random", "algebra"]  # fmt: skip


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what XLA dumped of the programs above, with their arguments and results."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("dumps")
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_large_constants=true"
    subprocess.run([sys.executable, "-c", PROGRAMS], check=True, cwd=folder,
                   env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})  # fmt: skip
    return folder


def test_the_dumps_have_what_xla_adds(dumps: Path) -> None:
    """Otherwise the tests below would not show that we read it."""
    text = "".join(p.read_text() for p in dumps.glob("*optimizations.txt"))
    for word in ("{0,1}", "metadata={", "fusion(", "kind=kLoop", "backend_config={", "bitcast(", "custom-call(",
                 'custom_call_target="TopK"', "is_scheduled=true", "StackFrames"):  # fmt: skip
        assert word in text, word


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stage", ["before_optimizations", "cpu_after_optimizations"])
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_dumps_run(dumps: Path, name: str, stage: str, target: str) -> None:
    (path,) = dumps.glob(f"module_*.jit_{name}.{stage}.txt")
    with np.load(dumps / f"{name}.npz") as arrays:
        arguments = [arrays[n] for n in arrays.files if n.startswith("arr_")]
        wanted = [arrays[n] for n in arrays.files if n.startswith("result_")]
    results = fusile.compile(path, target=target)(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    for found, want in zip(results, wanted, strict=True):
        assert found.dtype == want.dtype and found.shape == want.shape
        tolerance = 2e-2 if name == "narrow" else 2e-4  # XLA's fusions leave out roundings to bf16
        np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_layouts_are_gone_once_read(dumps: Path, name: str) -> None:
    """What is read prints and reads back, and no instruction is left with a layout."""
    (path,) = dumps.glob(f"module_*.jit_{name}.cpu_after_optimizations.txt")
    module = parse_module(path.read_text())
    shapes = [s for c in module.computations() for i in c.instructions for s in i.shape.leaves()]
    assert shapes and all(s.layout is None for s in shapes)
    text = print_module(module)
    assert print_module(parse_module(text)) == text


def test_elided_constants_say_how_to_dump_them(dumps: Path) -> None:
    text = (next(dumps.glob("module_*.jit_constants.before_optimizations.txt"))).read_text()
    start = text.index("constant({ {") if "constant({ {" in text else text.index("constant({")
    end = text.index("})", start)
    with pytest.raises(ParseError, match="xla_dump_large_constants"):
        parse_module(text[:start] + "constant({...})" + text[end + 2 :])


def test_sorts_compare_bits() -> None:
    """Computations of scalars are interpreted for many elements at once, bitcasts in them too."""
    text = """HloModule m
compare {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] bitcast(a)
  d = s32[] bitcast-convert(b)
  ROOT r = pred[] compare(c, d), direction=LT
}
ENTRY main {
  x = f32[3,4] parameter(0)
  ROOT y = f32[3,4] sort(x), dimensions={1}, to_apply=compare
}
"""
    x = np.random.default_rng(0).random((3, 4), np.float32)
    np.testing.assert_array_equal(interpret(parse_module(text), [x])[0], np.sort(x, 1))


DICTIONARIES = {
    "{}": {},
    '{"a": [1, 2.5], "b": {"c": null}}': {"a": [1, 2.5], "b": {"c": None}},
    "{diag = 78 : ui8, on, flags = [true, false], n = -3 : i64}": {
        "diag": 78, "on": True, "flags": [True, False], "n": -3},
    '{name = "a \\"b\\"", x = 1.5e-3 : f32, sizes = array<i64: 1, 2>, none = array<i64>, in = {y = 2}}': {
        "name": 'a "b"', "x": 1.5e-3, "sizes": [1, 2], "none": [], "in": {"y": 2}},
}  # fmt: skip


@pytest.mark.parametrize("text", DICTIONARIES)
def test_configurations_of_typed_calls_are_json(text: str) -> None:
    assert json.loads(json_of_dictionary(text)) == DICTIONARIES[text]


@pytest.mark.parametrize("text", ["{a = }", "{a 1}", "{", "{a = 1} b", "{a = [1 2]}", "{a = ~}", "{a = " + "[" * 99])
def test_malformed_configurations_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        json_of_dictionary(text)
    line = f'ROOT r = f32[3] custom-call(x), custom_call_target="f", backend_config={text}'
    with pytest.raises(ParseError):
        parse_module(f"HloModule m\nENTRY e {{\n x = f32[3] parameter(0)\n {line}\n}}\n")
