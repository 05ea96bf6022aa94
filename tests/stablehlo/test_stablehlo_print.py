"""Printed StableHLO is what MLIR's own parser and verifier take, and means the same to JAX's dialects and to us."""

import numpy as np
import pytest

from fusile.base.element_type import F32, PRED
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape, TupleShape
from fusile.base.source import Source
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import OPS, Computation, Literal, Module
from fusile.stablehlo import parse, print_module

VECTOR = Shape(F32, (3,))


def fused() -> Module:
    """A fusion of two results, tuples, a copy, a loop, a branch and odd names."""
    inner = Computation("fused computation")
    a = inner.parameter(VECTOR)
    inner.root = inner.add(OPS["tuple"](), [inner.add(OPS["negate"](), [a]), a])
    body = Computation("body")
    body.root = body.add(OPS["tuple"](), [body.add(OPS["add"](), [body.parameter(VECTOR)] * 2)])
    condition = Computation("condition")
    x = condition.parameter(VECTOR)
    first = condition.add(OPS["reshape"](()), [condition.add(OPS["slice"]((0,), (1,), (1,)), [x])])
    bound = condition.add(OPS["constant"](Literal(np.array(20, np.float32))))
    condition.root = condition.add(OPS["compare"]("LT"), [first, bound])
    branches = []
    for opcode in ("sine", "erf"):
        branch = Computation(opcode)
        branch.root = branch.add(OPS["tuple"](), [branch.add(OPS[opcode](), [branch.parameter(VECTOR)])])
        branches.append(branch)
    main = Computation("main")
    p, v = main.parameter(Shape(PRED)), main.parameter(VECTOR, "v:0")
    pair = main.add(OPS["fusion"](inner, "loop"), [v])
    parts = [main.add(OPS["get-tuple-element"](i), [pair]) for i in range(2)]
    loop = main.add(OPS["while"](condition, body), [parts[1]], source=Source("loop", file='a "b".py', line=3))
    doubled = main.add(OPS["get-tuple-element"](0), [loop])
    chosen = main.add(OPS["conditional"](tuple(branches)), [p, main.add(OPS["copy"](), [doubled])])
    main.root = main.add(OPS["tuple"](), [parts[0], doubled, main.add(OPS["get-tuple-element"](0), [chosen])])
    module = Module("odd name", main)
    module.aliases, module.result_names = {0: 1}, ["x", "y", 'z"']
    return module


@pytest.mark.parametrize("which", [True, False])
def test_control_flow_and_fusions_mean_the_same_after_printing(which: bool) -> None:
    module = fused()
    again = parse(print_module(module))
    arguments = [np.bool_(which), np.array([1, 2, 3], np.float32)]
    for one, two in zip(interpret(module, arguments), interpret(again, arguments), strict=True):
        np.testing.assert_array_equal(one, two)
    assert again.aliases == module.aliases and again.result_names == module.result_names
    loop = next(i for i in again.entry.instructions if i.opcode == "while")
    assert loop.source == Source("loop", file='a "b".py', line=3)


def test_printing_is_stable() -> None:
    text = print_module(fused())
    assert print_module(parse(print_module(parse(text)))) == print_module(parse(text))


def test_what_stablehlo_lacks_is_named() -> None:
    main = Computation("main")
    main.root = main.add(OPS["bessel-i0e"](), [main.parameter(VECTOR)], source=Source("here"))
    with pytest.raises(UnsupportedOpError, match="bessel-i0e"):
        print_module(Module("m", main))


def test_a_tuple_argument_becomes_several() -> None:
    main = Computation("main")
    pair = main.parameter(TupleShape((VECTOR, Shape(F32))))
    main.root = main.add(OPS["get-tuple-element"](1), [pair])
    assert "(%0: tensor<3xf32>, %1: tensor<f32>)" in print_module(Module("m", main))


# Against MLIR and JAX


def jax_programs() -> dict:
    """Functions and arguments that between them use most operations."""
    jax = pytest.importorskip("jax")
    jnp, lax = jax.numpy, jax.lax
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
    rows = np.array([3, 0])
    image, kernel = np.linspace(0, 1, 96, dtype=np.float32).reshape(1, 4, 8, 3), np.ones((3, 3, 3, 2), np.float32)
    window = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"), rhs_dilation=(1, 2))
    pool = lambda v: lax.reduce_window(v, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")  # noqa: E731
    return {
        "elementwise": (lambda v: jnp.where(v > 0, lax.erf(v), lax.cbrt(v)) + jnp.arctan(v) ** 2, [x]),
        "shapes": (lambda v: jnp.pad(v[::2, ::-1], 1).T.reshape(-1)[:5].astype(jnp.bfloat16), [x]),
        "constants": (lambda v: v + np.linspace(-1e-9, 3e30, 24).reshape(4, 6).astype(np.float32), [x]),
        "special constants": (lambda v: v + np.array([np.nan, np.inf, -np.inf, -0.0, 1, 2], np.float32), [x]),
        "booleans": (lambda v: jnp.where(np.arange(24).reshape(4, 6) % 3 == 0, v, 0), [x]),
        "complex": (lambda v: jnp.abs(v * (1 + 2j)), [x]),
        "integers": (lambda v: lax.population_count(v.astype(jnp.int32)) >> 1, [x]),
        "reductions": (lambda v: (v.sum(), jnp.argmax(v, 1), jnp.any(v > 1, 0), jnp.cumsum(v, 1)), [x]),
        "windows": (lambda v: jax.grad(lambda w: jnp.sum(pool(w) ** 2))(v), [image]),
        "convolution": (lambda a, b: lax.conv_general_dilated(a, b, (2, 1), "SAME", **window), [image, kernel]),
        "products": (lambda v: jnp.einsum("ij,kj->ik", v, v) @ v, [x]),
        "indexing": (
            lambda v, i: (v[i], v.at[i].add(1.0), lax.dynamic_slice(v, (i[0], 1), (2, 3))),
            [x, rows],
        ),
        "sorting": (lambda v: (jnp.sort(v, 1), jnp.argsort(v, 0), lax.top_k(v, 2)), [x]),
        "loops": (lambda v: lax.fori_loop(0, 5, lambda i, s: s * 1.5 + i, v), [x]),
        "branches": (lambda v: lax.switch(v.astype(jnp.int32)[0, 0], [jnp.sin, jnp.cos], v), [x]),
        "scan": (lambda v: lax.scan(lambda c, r: (c + r, c * r), v[0], v), [x]),
        "transforms": (lambda v: jnp.fft.irfft(jnp.fft.rfft(v)), [x]),
        "random": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (5,)), [np.array([1, 2], np.uint32)]),
        "functions": (lambda v: jax.nn.softmax(jax.jit(jnp.tanh)(v)), [x]),
    }


@pytest.mark.parametrize("name", [
    "elementwise", "shapes", "constants", "special constants", "booleans", "complex", "integers", "reductions",
    "windows", "convolution", "products", "indexing", "sorting", "loops", "branches", "scan", "transforms", "random",
    "functions",
])  # fmt: skip
def test_programs_of_jax(name: str) -> None:
    """JAX's text gives JAX's results; so does what we print; MLIR parses and verifies what we print."""
    jax = pytest.importorskip("jax")
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    function, arguments = jax_programs()[name]
    lowered = jax.jit(function).lower(*arguments)
    wanted = [np.asarray(w) for w in jax.tree.leaves(jax.jit(function)(*arguments))]
    flat = [np.asarray(a, t.dtype) for a, t in zip(arguments, jax.tree.leaves(lowered.in_avals), strict=True)]
    module = parse(lowered.as_text(debug_info=True))
    printed = print_module(module)
    with mlir.make_ir_context():
        parsed = ir.Module.parse(printed)
        assert parsed.operation.verify()
        generic = parsed.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
        pretty = parsed.operation.get_asm(enable_debug_info=True)
    for one in (module, parse(printed), parse(generic), parse(pretty)):
        for found, want in zip(interpret(one, flat), wanted, strict=True):
            assert found.dtype == want.dtype and found.shape == want.shape
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            tolerance = 2e-2 if want.dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(found.astype(kind), want.astype(kind), rtol=tolerance, atol=tolerance)


def test_sources_come_through_from_jax() -> None:
    jax = pytest.importorskip("jax")
    text = jax.jit(lambda v: jax.numpy.sin(v)).lower(np.ones(3, np.float32)).as_text(debug_info=True)
    source = next(i.source for i in parse(text).entry.instructions if i.opcode == "sine")
    assert source is not None and source.file.endswith("test_stablehlo_print.py") and source.line > 0
