"""Uniform quantized types against the specification's formulas in NumPy, on both targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusile

sys.path.insert(0, str(Path(__file__).parent))
from quantized_reference import EXPRESSED, STORAGE, TARGETS, Type, program, run, tensor

KINDS = [
    Type(),
    Type("u8", "f32", (0.1,), (128,)),
    Type("i8", "f32", (0.1,), (-128,)),
    Type("i8", "bf16", (0.037,), (-7,)),
    Type("ui8", "f16", (0.3,), (255,)),
    Type("i4", "f32", (0.25,), (-8,)),
    Type("ui4", "f16", (1.5,), (15,)),
    Type("i2", "f32", (2.0,), (1,)),
    Type("u2", "bf16", (0.7,), (3,)),
    Type("i16", "f32", (1e-3,), (-32768,)),
    Type("ui16", "f64", (1e-3,), (65535,)),
    Type("i16", "bf16", (0.01,), (5,)),
    Type("i32", "f32", (1e-4,), (0,)),
    Type("i32", "f32", (0.3,), (2**31 - 1,)),
    Type("ui32", "f64", (0.3,), (7,)),
    Type("i8", "f64", (0.1,), (3,)),
    Type("i8", "f32", (0.1,), (0,), limits=(-127, 127)),
    Type("i8", "f32", (0.1,), (20,), limits=(5, 100)),
    Type("i8", "f32", (1e-38,), (0,)),
    Type("i16", "bf16", (1.0,), (0,), limits=(-311, 311)),
    Type("i32", "f32", (1.0,), (0,), limits=(-(2**24) - 1, 2**24 + 1)),
    Type("i32", "f16", (1.0,), (0,)),
    Type("i8", "f32", (3e38,), (1,)),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_dequantize_and_quantize(kind: Type, target: str) -> None:
    """Ties, both ends, beyond them, infinities and NaN."""
    x = kind.edges()
    dtype = EXPRESSED[kind.expressed]
    scale, zero = float(np.array(kind.scales[0]).astype(dtype)), kind.zero_points[0]
    ticks = np.concatenate([x.astype(np.float64) + d for d in (-0.5, 0, 0.25, 0.5)])
    with np.errstate(all="ignore"):
        numbers = ((ticks - zero) * scale).astype(dtype)
        ends = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30, 1e-45]).astype(dtype)
        numbers = np.concatenate([numbers, ends])
        text = program(
            f"%r0 = stablehlo.uniform_dequantize %a : ({tensor(kind, x.size)}) -> {tensor(kind.expressed, x.size)}\n"
            f"%r1 = stablehlo.uniform_quantize %b : ({tensor(kind.expressed, numbers.size)}) -> "
            f"{tensor(kind, numbers.size)}",
            [tensor(kind, x.size), tensor(kind.expressed, numbers.size)],
            [tensor(kind.expressed, x.size), tensor(kind, numbers.size)],
        )
        dequantized, quantized = run(target, text, x, numbers)
        assert quantized.dtype == STORAGE[kind.storage]
        np.testing.assert_array_equal(dequantized, kind.dequantize(x))
        np.testing.assert_array_equal(quantized, kind.quantize(numbers))


PER_AXIS = Type("i8", "f32", (0.5, 0.1, 2.0), (3, -128, 0), 1)


@pytest.mark.parametrize("target", TARGETS)
def test_per_axis_dequantize_and_quantize(target: str) -> None:
    x = PER_AXIS.random(4, 3, 2)
    numbers = np.random.default_rng(1).normal(0, 40, (4, 3, 2)).astype(np.float32)
    text = program(
        f"%r0 = stablehlo.uniform_dequantize %a : ({tensor(PER_AXIS, 4, 3, 2)}) -> tensor<4x3x2xf32>\n"
        f"%r1 = stablehlo.uniform_quantize %b : (tensor<4x3x2xf32>) -> {tensor(PER_AXIS, 4, 3, 2)}",
        [tensor(PER_AXIS, 4, 3, 2), "tensor<4x3x2xf32>"],
        ["tensor<4x3x2xf32>", tensor(PER_AXIS, 4, 3, 2)],
    )
    dequantized, quantized = run(target, text, x, numbers)
    np.testing.assert_array_equal(dequantized, PER_AXIS.dequantize(x))
    np.testing.assert_array_equal(quantized, PER_AXIS.quantize(numbers))


@pytest.mark.parametrize("new", [KINDS[1], KINDS[5], KINDS[9], KINDS[17], KINDS[0]], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_requantize(new: Type, target: str) -> None:
    old = Type("i16", "f32", (0.11,), (100,))
    x = old.random(50)
    text = program(
        f"%r0 = stablehlo.uniform_quantize %a : ({tensor(old, 50)}) -> {tensor(new, 50)}",
        [tensor(old, 50)], [tensor(new, 50)],
    )  # fmt: skip
    np.testing.assert_array_equal(run(target, text, x), new.quantize(old.dequantize(x)))


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs, "negate": np.negative, "floor": np.floor, "ceil": np.ceil, "sign": np.sign, "sqrt": np.sqrt,
    "round_nearest_even": np.rint, "exponential": np.exp, "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "cosine": np.cos, "sine": np.sin, "log": np.log, "rsqrt": lambda x: 1 / np.sqrt(x), "cbrt": np.cbrt,
    "exponential_minus_one": np.expm1, "log_plus_one": np.log1p, "tan": np.tan,
}  # fmt: skip
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "remainder": np.fmod, "power": np.power, "atan2": np.arctan2,
}  # fmt: skip
EXACT = {"abs", "negate", "floor", "ceil", "sign", "sqrt", "round_nearest_even", "add", "subtract", "multiply",
         "divide", "maximum", "minimum", "remainder"}  # fmt: skip
ELEMENTWISE_KINDS = [
    (Type("i8", "f32", (0.5,), (3,)), Type("i8", "f32", (0.1,), (-5,)), Type("i8", "f32", (0.3,), (7,))),
    (Type("u8", "bf16", (0.037,), (120,)),) * 3,
    (Type("i8", "f32", (0.25,), (-3,), limits=(-100, 100)),) * 3,
    (Type("i16", "f64", (0.01,), (100,)), Type("i16", "f64", (0.02,), (0,)), Type("i16", "f64", (0.03,), (-5,))),
]


def assert_close_integers(found: np.ndarray, wanted: np.ndarray, name: str) -> None:
    """Equal; a function that no two libraries round alike may fall to the other side of a tie."""
    if name in EXACT:
        np.testing.assert_array_equal(found, wanted)
    else:
        difference = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
        assert difference.max() <= 1 and (difference > 0).mean() < 0.05


@pytest.mark.parametrize("kinds", ELEMENTWISE_KINDS, ids=lambda k: str(k[0]))
@pytest.mark.parametrize("target", TARGETS)
def test_elementwise_ops(kinds: tuple[Type, Type, Type], target: str) -> None:
    """All in one program: dequantize, compute, quantize."""
    left, right, result = kinds
    x, y = left.random(64), right.random(64, seed=1)
    lines = [f"%r{i} = stablehlo.{op} %a : ({tensor(left, 64)}) -> {tensor(result, 64)}" for i, op in enumerate(UNARY)]
    lines += [
        f"%r{len(UNARY) + i} = stablehlo.{op} %a, %b :\n"
        f"({tensor(left, 64)}, {tensor(right, 64)}) -> {tensor(result, 64)}"
        for i, op in enumerate(BINARY)
    ]
    text = program("\n".join(lines), [tensor(left, 64), tensor(right, 64)], [tensor(result, 64)] * len(lines))
    results = run(target, text, x, y)
    with np.errstate(all="ignore"):
        a, b = left.dequantize(x), right.dequantize(y)
        for name, found in zip([*UNARY, *BINARY], results, strict=True):
            wanted = UNARY[name](a) if name in UNARY else BINARY[name](a, b)
            assert_close_integers(found, result.quantize(wanted.astype(EXPRESSED[result.expressed])), name)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_clamp_select_compare(same: bool, target: str) -> None:
    kinds = (Type(), Type(), Type()) if same else (Type(), Type("i8", "f32", (0.1,), (0,)), Type(zero_points=(-9,)))
    low, x, high = kinds[0].random(64), kinds[1].random(64, seed=1), kinds[2].random(64, seed=2)
    flags = np.random.default_rng(3).integers(0, 2, 64).astype(bool)
    a, b, c = (tensor(k, 64) for k in kinds)
    directions = ("EQ", "NE", "LT", "LE", "GT", "GE")
    lines = [
        f"%r0 = stablehlo.clamp %a, %b, %c : ({a}, {b}, {c}) -> {a}",
        f"%r1 = stablehlo.select %d, %b, %c : (tensor<64xi1>, {b}, {c}) -> {a}",
        *(f"%r{2 + i} = stablehlo.compare {d}, %a, %b, FLOAT : ({a}, {b}) -> tensor<64xi1>"
          for i, d in enumerate(directions)),
    ]  # fmt: skip
    text = program("\n".join(lines), [a, b, c, "tensor<64xi1>"], [a, a, *["tensor<64xi1>"] * 6])
    clamped, selected, *compared = run(target, text, low, x, high, flags)
    p, q, r = (k.dequantize(v) for k, v in zip(kinds, (low, x, high), strict=True))
    np.testing.assert_array_equal(clamped, kinds[0].quantize(np.minimum(np.maximum(p, q), r)))
    np.testing.assert_array_equal(selected, kinds[0].quantize(np.where(flags, q, r)))
    functions = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    for function, found in zip(functions, compared, strict=True):
        np.testing.assert_array_equal(found, function(p, q))


def test_choices_of_one_type_compare_integers() -> None:
    """Where the integers are in the numbers' order, nothing is dequantized; where they are not, it is."""

    def opcodes(kind: Type) -> set[str]:
        text = program(f"%r0 = stablehlo.maximum %a, %b : {tensor(kind, 4)}", [tensor(kind, 4)] * 2, [tensor(kind, 4)])
        return {i.opcode for i in fusile.stablehlo.parse(text).entry.instructions}

    assert opcodes(Type("i8", "f32", (0.1,), (0,))) == {"parameter", "maximum"}
    assert "divide" in opcodes(Type("i16", "bf16", (0.1,), (0,)))
    assert "divide" in opcodes(Type("i8", "f32", (3e38,), (1,)))


@pytest.mark.parametrize("target", TARGETS)
def test_per_axis_elementwise(target: str) -> None:
    x, y = PER_AXIS.random(4, 3), PER_AXIS.random(4, 3, seed=1)
    shape = tensor(PER_AXIS, 4, 3)
    found = run(target, program(f"%r0 = stablehlo.add %a, %b : {shape}", [shape] * 2, [shape]), x, y)
    np.testing.assert_array_equal(found, PER_AXIS.quantize(PER_AXIS.dequantize(x) + PER_AXIS.dequantize(y)))


@pytest.mark.parametrize("target", TARGETS)
def test_ops_of_other_kinds_compute_on_numbers(target: str) -> None:
    """is_finite, reduce_precision, iota, batch_norm_inference, chlo.broadcast_add."""
    kind = Type("i8", "f32", (0.25,), (3,))
    x, v = kind.random(4, 3), kind.random(3, seed=1)
    shape, vector = tensor(kind, 4, 3), tensor(kind, 3)
    norm = "epsilon = 0.001 : f32, feature_index = 1 : i64"
    body = f"""
      %r0 = stablehlo.is_finite %a : ({shape}) -> tensor<4x3xi1>
      %r1 = stablehlo.reduce_precision %a, format = e5m2 : {shape}
      %r2 = stablehlo.iota dim = 0 : {shape}
      %r3 = "stablehlo.batch_norm_inference"(%a, %b, %b, %b, %c) <{{{norm}}}> :
        ({shape}, {vector}, {vector}, {vector}, {vector}) -> {shape}
      %r4 = chlo.broadcast_add %a, %b : ({shape}, {vector}) -> {shape}"""
    variance = kind.quantize(np.array([4, 9, 16], np.float32))
    text = program(body, [shape, vector, vector], ["tensor<4x3xi1>", shape, shape, shape, shape])
    finite, reduced, iota, norms, total = run(target, text, x, v, variance)
    a, b = kind.dequantize(x), kind.dequantize(v)
    assert finite.all()
    np.testing.assert_array_equal(reduced, kind.quantize(a.astype(ml_dtypes.float8_e5m2).astype(np.float32)))
    np.testing.assert_array_equal(iota, kind.quantize(np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (4, 3))))
    wanted = kind.quantize((a - b) / np.sqrt(np.array([4, 9, 16], np.float32) + np.float32(0.001)) * b + b)
    assert np.abs(norms.astype(int) - wanted.astype(int)).max() <= 1
    np.testing.assert_array_equal(total, kind.quantize(a + b))


# Contractions


def exact_dot(lhs: Type, rhs: Type, out: Type, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[m, k] by [k, n]: exact sums of integers, both scales, then the specification's quantize."""
    left = x.astype(np.int64) - lhs.zero_points[0]
    right = y.astype(np.int64) - rhs.parameters(2)[1]
    kind = np.float64 if out.expressed == "f64" else np.float32
    dtype = EXPRESSED[out.expressed]
    scales = np.array(rhs.scales).astype(dtype).astype(np.float64) * float(np.array(lhs.scales[0]).astype(dtype))
    return out.quantize(((left @ right).astype(kind) * scales.astype(kind)).astype(dtype))


SCALES = (0.5, 0.1, 0.7, 0.01, 0.3)
DOTS = [
    (Type(), Type("i8", "f32", (0.25,), (0,)), Type("i32", "f32", (0.125,), (0,))),
    (Type("u8", "f32", (0.013,), (131,)), Type("u8", "f32", (0.017,), (99,)), Type("u8", "f32", (0.31,), (12,))),
    (Type(), Type("i8", "f32", SCALES, (0, 4, 0, -9, 0), 1), Type("i8", "f32", (9.0,), (0,))),
    (Type(), Type("i8", "f32", SCALES, (0,) * 5, 1), Type("i32", "f32", SCALES, (0,) * 5, 1)),
    (Type("i4", "bf16", (0.3,), (-8,)), Type("i4", "bf16", (0.2,), (0,)), Type("i8", "bf16", (1.5,), (3,))),
    (Type("i8", "f16", (0.3,), (2,)), Type("i8", "f16", (0.2,), (0,)), Type("i8", "f16", (30.0,), (3,))),
    (Type("i16", "f32", (0.01,), (0,)), Type("i16", "f32", (0.01,), (0,)), Type("i16", "f32", (1000.0,), (0,))),
    (Type("i8", "f64", (0.01,), (5,)), Type("i8", "f64", (0.01,), (0,)), Type("i32", "f64", (1e-4,), (0,))),
]  # fmt: skip


@pytest.mark.parametrize("kinds", DOTS, ids=lambda k: f"{k[0]} {k[1].dimension}")
@pytest.mark.parametrize("depth", [1, 7, 300])
@pytest.mark.parametrize("target", TARGETS)
def test_dot(kinds: tuple[Type, Type, Type], depth: int, target: str) -> None:
    """Exact, whatever the depth: 300 products of 8-bit integers no longer fit f32, of 16-bit ones not s32."""
    lhs, rhs, out = kinds
    x, y = lhs.random(3, depth), rhs.random(depth, 5, seed=1)
    types = (tensor(lhs, 3, depth), tensor(rhs, depth, 5), tensor(out, 3, 5))
    text = program(
        f"%r0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({types[0]}, {types[1]}) -> {types[2]}\n"
        f'%r1 = "stablehlo.dot"(%a, %b) : ({types[0]}, {types[1]}) -> {types[2]}',
        types[:2],
        [types[2]] * 2,
    )
    wanted = exact_dot(lhs, rhs, out, x, y)
    for found in run(target, text, x, y):
        np.testing.assert_array_equal(found, wanted)
    # What dequantize_op_quantize gives, up to its rounding in the expressed type:
    numbers = lhs.dequantize(x).astype(np.float64) @ rhs.dequantize(y).astype(np.float64)
    literal = out.quantize(numbers.astype(EXPRESSED[out.expressed]))
    if out.expressed in ("f32", "f64") and out.storage != "i32":
        assert np.abs(wanted.astype(np.int64) - literal.astype(np.int64)).max() <= 1


def test_dot_accumulates_in_the_fastest_exact_type() -> None:
    def kinds(storage: str, depth: int) -> set[str]:
        kind = Type(storage, "f32", (0.5,), (0,))
        types = (tensor(kind, 2, depth), tensor(kind, depth, 2), tensor(kind, 2, 2))
        text = program(f"%r0 = stablehlo.dot %a, %b : ({types[0]}, {types[1]}) -> {types[2]}", types[:2], types[2:])
        return {
            i.array_shape.element_type.name
            for i in fusile.stablehlo.parse(text).entry.instructions
            if i.opcode == "dot"
        }

    assert kinds("i8", 1024) == {"f32"} and kinds("i8", 1025) == {"s32"}
    assert kinds("i16", 1) == {"s32"} and kinds("i16", 2) == {"f64"}


def test_scales_whose_product_underflows_follow_the_formula() -> None:
    lhs, rhs, out = (
        Type("i8", "f32", (1e-30,), (0,)),
        Type("i8", "f32", (1e-15,), (0,)),
        Type("i8", "f32", (1e-42,), (0,)),
    )
    x, y = lhs.random(3, 4), rhs.random(4, 5, seed=1)
    types = (tensor(lhs, 3, 4), tensor(rhs, 4, 5), tensor(out, 3, 5))
    text = program(f"%r0 = stablehlo.dot %a, %b : ({types[0]}, {types[1]}) -> {types[2]}", types[:2], types[2:])
    found = run("interpreter", text, x, y)
    wanted = out.quantize(
        (lhs.dequantize(x).astype(np.float64) @ rhs.dequantize(y).astype(np.float64)).astype(np.float32)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axis", [None, 0, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_batched_dot(axis: int | None, target: str) -> None:
    """Per-axis scales of a batch dimension and of a free one, which stand first and last in the result."""
    lhs, out = Type(), Type("i8", "f32", (2.0,), (0,))
    scales = {None: (0.5,), 0: (0.5, 0.25), 2: (0.5, 0.25, 1.0, 2.0)}[axis]
    rhs = Type("i8", "f32", scales, (0,) * len(scales), axis)
    x, y = lhs.random(2, 3, 6), rhs.random(2, 6, 4, seed=1)
    types = (tensor(lhs, 2, 3, 6), tensor(rhs, 2, 6, 4), tensor(out, 2, 3, 4))
    text = program(
        "%r0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1] : "
        f"({types[0]}, {types[1]}) -> {types[2]}", types[:2], types[2:],
    )  # fmt: skip
    wanted = out.quantize(np.matmul(lhs.dequantize(x).astype(np.float64), rhs.dequantize(y)).astype(np.float32))
    np.testing.assert_array_equal(run(target, text, x, y), wanted)


@pytest.mark.parametrize(
    "rhs", [Type("i8", "f32", (0.5,), (3,)), Type("i8", "f32", (0.5, 0.1, 2.0, 0.3), (0, 1, 2, 3), 1)], ids=str
)
@pytest.mark.parametrize("target", TARGETS)
def test_hybrid_dot(rhs: Type, target: str) -> None:
    """A float left operand: the right one is dequantized, the result is numbers."""
    x = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    y = rhs.random(6, 4)
    text = program(
        f"%r0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<3x6xf32>, {tensor(rhs, 6, 4)}) -> "
        "tensor<3x4xf32>", ["tensor<3x6xf32>", tensor(rhs, 6, 4)], ["tensor<3x4xf32>"],
    )  # fmt: skip
    np.testing.assert_allclose(run(target, text, x, y), x @ rhs.dequantize(y), rtol=1e-5, atol=1e-4)


def convolve(x: np.ndarray, kernel: np.ndarray, groups: int) -> np.ndarray:
    """NHWC by HWIO with padding 1 and stride 2, in x's type; padding is 0, which is what zero points express."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width, depth, count = kernel.shape
    rows, columns = (padded.shape[1] - height) // 2 + 1, (padded.shape[2] - width) // 2 + 1
    out = np.zeros((x.shape[0], rows, columns, count), x.dtype)
    for o in range(count):
        first = o // (count // groups) * depth
        for i in range(rows):
            for j in range(columns):
                window = padded[:, 2 * i : 2 * i + height, 2 * j : 2 * j + width, first : first + depth]
                out[:, i, j, o] = (window * kernel[..., o]).sum((1, 2, 3))
    return out


CONVOLUTION = """%r0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
  window = {{stride = [2, 2], pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = {} : i64}} :
  ({}, {}) -> {}"""


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_convolution(groups: int, per_axis: bool, target: str) -> None:
    lhs = Type("u8", "f32", (0.05,), (131,))
    scales, axis = ((0.1, 0.2, 0.3, 0.4), 3) if per_axis else ((0.1,), None)
    rhs = Type("u8", "f32", scales, (0, 3, 255, 7) if per_axis else (9,), axis)
    out = Type("i32", "f32", tuple(0.05 * s for s in scales), (0,) * len(scales), axis)
    x, kernel = lhs.random(2, 7, 6, 4), rhs.random(3, 3, 4 // groups, 4, seed=1)
    types = (tensor(lhs, *x.shape), tensor(rhs, *kernel.shape), tensor(out, 2, 4, 3, 4))
    text = program(CONVOLUTION.format(groups, *types), types[:2], types[2:])
    sums = convolve(x.astype(np.int64) - 131, kernel.astype(np.int64) - rhs.parameters(4)[1], groups)
    factors = (np.array(rhs.scales, np.float32).astype(np.float64) * float(np.float32(0.05))).astype(np.float32)
    np.testing.assert_array_equal(run(target, text, x, kernel), out.quantize(sums.astype(np.float32) * factors))


@pytest.mark.parametrize("target", TARGETS)
def test_hybrid_convolution(target: str) -> None:
    rhs = Type("i8", "f32", (0.1, 0.2), (0, 3), 3)
    x = np.random.default_rng(0).normal(size=(1, 5, 5, 3)).astype(np.float32)
    kernel = rhs.random(3, 3, 3, 2)
    types = ("tensor<1x5x5x3xf32>", tensor(rhs, *kernel.shape), "tensor<1x3x3x2xf32>")
    found = run(target, program(CONVOLUTION.format(1, *types), types[:2], types[2:]), x, kernel)
    np.testing.assert_allclose(found, convolve(x, rhs.dequantize(kernel), 1), rtol=1e-5, atol=1e-4)


# Random types


@st.composite
def types(draw: Any) -> Type:
    """Any storage with a range and a zero point within it, any expressed type, a scale that suits it."""
    storage = draw(st.sampled_from(["i2", "u2", "i4", "ui4", "i8", "u8", "i16", "ui16", "i32"]))
    low, high = Type(storage).range
    expressed = draw(st.sampled_from(sorted(EXPRESSED)))
    least = draw(st.integers(low, high - 1))
    most = draw(st.integers(least + 1, high))
    limits = draw(st.sampled_from([None, (least, most)]))
    zero_point = draw(st.integers(*(limits or (low, high))))
    scale = draw(st.floats(1e-3, 1e3))
    return Type(storage, expressed, (scale,), (zero_point,), limits=limits)


@settings(max_examples=20, deadline=None)
@given(types(), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_any_type_follows_the_formulas_on_both_targets(kind: Type, other_scale: float, seed: int) -> None:
    """Dequantized, added, multiplied, requantized: both targets give what NumPy does."""
    other = replace(kind, scales=(other_scale,))
    x, y = kind.random(33, seed=seed), other.random(33, seed=seed + 1)
    a, b = tensor(kind, 33), tensor(other, 33)
    body = f"""
      %r0 = stablehlo.uniform_dequantize %a : ({a}) -> {tensor(kind.expressed, 33)}
      %r1 = stablehlo.add %a, %b : ({a}, {b}) -> {b}
      %r2 = stablehlo.multiply %a, %b : ({a}, {b}) -> {a}
      %r3 = stablehlo.uniform_quantize %a : ({a}) -> {b}"""
    text = program(body, [a, b], [tensor(kind.expressed, 33), b, a, b])
    with np.errstate(all="ignore"):
        p, q = kind.dequantize(x), other.dequantize(y)
        wanted = (p, other.quantize(p + q), kind.quantize(p * q), other.quantize(p))
    for target in TARGETS:
        for found, want in zip(run(target, text, x, y), wanted, strict=True):
            np.testing.assert_array_equal(found, want)
