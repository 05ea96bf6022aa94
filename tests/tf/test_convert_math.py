"""Elementwise ops, casts and reductions agree with TensorFlow's eager mode, special values included."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import fusile.tf

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-30, 88.0, -88.0, 3.0], np.float32
)
PROBABILITIES = np.linspace(0.05, 0.95, 9, dtype=np.float32)
UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "is_finite",
    "is_inf",
    "is_nan",
    "log",
    "log1p",
    "negative",
    "reciprocal",
    "rint",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "bessel_i0e",
    "bessel_i1e",
]
RAW_BINARY = ["FloorDiv", "FloorMod", "TruncateDiv", "Mul", "Sub", "AddV2", "Maximum", "Minimum", "SquaredDifference"]


@pytest.mark.parametrize("name", UNARY)
def test_unary(agrees, name):
    agrees(getattr(tf.math, name), SPECIAL)


@pytest.mark.parametrize("name", ["lgamma", "digamma", "ndtri", "erfinv"])
def test_unary_of_probabilities(agrees, name):
    agrees(getattr(tf.math, name), PROBABILITIES)


def pairs():
    values = np.array([-7, -3, -1, 1, 2, 5, 9])
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("name", [*RAW_BINARY, "TruncateMod"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_binary_on_all_signs(agrees, name, dtype):
    a, b = (v.astype(dtype) for v in pairs())
    agrees(lambda a, b: getattr(tf.raw_ops, name)(x=a, y=b), a, b)


@pytest.mark.parametrize(
    "name", ["xdivy", "xlogy", "xlog1py", "divide_no_nan", "multiply_no_nan", "atan2", "pow", "equal", "less"]
)
def test_binary_on_special_values(agrees, name):
    a, b = np.meshgrid(SPECIAL, SPECIAL)
    agrees(getattr(tf.math, name), a, b)


def test_operands_broadcast(agrees):
    agrees(
        lambda a, b: (a + b, a < b, tf.where(a < b, a, b)),
        np.arange(6.0).reshape(3, 1, 2),
        np.arange(8.0).reshape(4, 2),
    )


def test_shifts_stay_within_the_width(agrees):
    agrees(tf.bitwise.left_shift, np.arange(8, dtype=np.int32), np.arange(0, 32, 4, dtype=np.int32))
    agrees(tf.bitwise.right_shift, np.array([-8, 8, -1], np.int32), np.array([1, 1, 31], np.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint32"])
def test_cast_of_floats_wraps_as_the_processor_does(agrees, dtype):
    values = np.array([0.9, -0.9, 3.7, -3.7, 127.5, 200.0, -200.0, 255.9, 1e4, -1e4], np.float32)
    agrees(lambda x: tf.cast(x, dtype), values[values >= 0] if dtype == "uint32" else values)


def test_cast_out_of_range_gives_the_lowest_integer(agrees):
    agrees(lambda x: tf.cast(x, tf.int32), np.array([np.inf, -np.inf, np.nan, 3e9, -3e9, 7.0], np.float32))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "bool", "complex64"])
def test_cast(agrees, dtype):
    agrees(lambda x: tf.cast(x, dtype), np.array([0.0, -0.0, 0.3, 2.0, 70000.0, np.nan], np.float32))


def test_casts_between_complex_and_real(agrees):
    agrees(lambda x: tf.cast(x, tf.float32), np.array([1 + 2j, -3j], np.complex64))


X = np.random.default_rng(0).uniform(-2, 2, (3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 1, -1, [0, 2]])
def test_reductions(agrees, axis, keepdims):
    ops = tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod
    agrees(lambda x: [op(x, axis, keepdims) for op in ops], X)


def test_reductions_of_other_types(agrees):
    agrees(
        lambda x: (tf.reduce_sum(x, 0), tf.reduce_max(x), tf.reduce_mean(x, 1)),
        np.arange(12, dtype=np.int32).reshape(3, 4) - 5,
    )
    agrees(lambda x: (tf.reduce_any(x, 0), tf.reduce_all(x, 1)), X[0] > 0)
    agrees(lambda x: tf.reduce_sum(tf.cast(x, tf.bfloat16), 0), X, tolerance=2e-2)


def test_reduction_of_nothing(agrees):
    agrees(lambda x: (tf.reduce_sum(x, 0), tf.reduce_max(x, 0), tf.reduce_mean(x, 0)), np.zeros((0, 3), np.float32))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, np.inf, -np.inf, np.nan]), min_size=4, max_size=4))
def test_argmax_skips_nan_and_takes_the_first(row):
    x = tf.constant([row, row[::-1]], tf.float32)
    compiled = fusile.tf.jit(lambda x: (tf.argmax(x, 1), tf.argmin(x, 1, tf.int32)), target="interpreter")
    for got, want in zip(compiled(x), (tf.argmax(x, 1), tf.argmin(x, 1, tf.int32)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(agrees, exclusive, reverse):
    ops = tf.cumsum, tf.math.cumprod, tf.math.cumulative_logsumexp
    agrees(lambda x: [op(x, 1, exclusive=exclusive, reverse=reverse) for op in ops], X)


def test_complex_numbers(agrees):
    z = np.array([1 + 2j, -3 + 0.5j, 0j], np.complex64)
    agrees(lambda z: (tf.math.angle(z), tf.abs(z), tf.math.conj(z), tf.math.real(z), tf.math.imag(z), z * z), z)


def test_gradients_of_single_ops(agrees):
    y, g = np.linspace(0.1, 0.9, 5, dtype=np.float32), np.arange(5, dtype=np.float32)
    for name in ["TanhGrad", "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"]:
        agrees(lambda y, g, name=name: getattr(tf.raw_ops, name)(y=y, dy=g), y, g)


def test_cross(agrees):
    agrees(tf.linalg.cross, X[:, :, :3], X[:, :, 1:4])


@pytest.mark.parametrize("name", [*RAW_BINARY, "Less", "Equal"])
def test_operands_known_when_compiling_give_the_same(agrees, name):
    a, b = (v.astype(np.float32) for v in pairs())
    op = getattr(tf.raw_ops, name)
    known, half = tf.constant(a[:40]), tf.constant(b[:40])
    agrees(lambda b: (op(x=a[:40], y=b[:40]), op(x=a, y=b), op(x=known, y=half)), b)
