"""Sorting, searching, counting and diagonals as TensorFlow's own kernels do them."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

RANDOM = np.random.default_rng(0)


def same(function, *arguments) -> None:
    got, wanted = (tf.nest.flatten(f(*arguments)) for f in (fusile.tf.jit(function), function))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("of", ["float32", "float64", "int32", "int64", "float16"])
def test_order(of: str) -> None:
    x = tf.constant((RANDOM.standard_normal((3, 17)) * 5).astype(of))
    for k in (0, 5, 17):
        same(lambda x, k=k: tf.math.top_k(x, k), x)
    same(lambda x: (tf.sort(x), tf.sort(x, 0, "DESCENDING"), tf.argsort(x)), x)
    same(lambda x: [tf.raw_ops.NthElement(input=x, n=3, reverse=r) for r in (False, True)], x)


@pytest.mark.parametrize("length", [0, 1, 5, 64, 65, 200])
@pytest.mark.parametrize("of", ["float32", "int32", "uint8"])
def test_search(of: str, length: int) -> None:
    rows = tf.constant(np.sort(RANDOM.integers(0, 9, (2, length))).astype(of))
    values = tf.constant(RANDOM.integers(0, 12, (2, 33)).astype(of))
    for wanted in (values, rows, values[:, :0]):
        same(
            lambda r, v: (tf.searchsorted(r, v), tf.searchsorted(r, v, "right", tf.int64)),
            rows,
            wanted,
        )


@pytest.mark.parametrize("length", [6, 70])
def test_search_among_nan(length: int) -> None:
    """What is found is where the C++ library's search ends."""
    rows = tf.constant([[-np.inf, *range(length - 4), np.inf, np.nan, np.nan]], tf.float32)
    values = tf.constant([[np.nan, -np.inf, np.inf, 0.0, -0.0, 2.5]])
    same(lambda r, v: (tf.searchsorted(r, v), tf.searchsorted(r, v, "right")), rows, values)


@pytest.mark.parametrize("of", ["float32", "float64", "int32", "int64"])
def test_parts_of_a_range(of: str) -> None:
    x = tf.cast([0.1, 0.2, 5, -3, 2, 1, 1, 7, 100, -100], of)
    for limits in ([], [0.2, 2.0, 5.0]):
        same(lambda x, limits=limits: tf.raw_ops.Bucketize(input=x, boundaries=limits), x)
    for bins in (1, 7):
        ends = tf.cast([-3, 5], of)
        same(lambda x, n=bins, ends=ends: tf.histogram_fixed_width(x, ends, nbins=n, dtype=tf.int64), x)
    same(lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0]), tf.constant([np.nan, np.inf, -np.inf]))


def test_in_top_k_of_odd_numbers() -> None:
    predictions = RANDOM.standard_normal((6, 9)).astype(np.float32)
    predictions[2, 3], predictions[4, 1], predictions[0, 0] = np.inf, np.nan, 99
    same(
        lambda p, t: [tf.math.in_top_k(t, p, k) for k in (1, 3, 9)], predictions, np.array([0, 8, 3, 2, 1, 9], np.int32)
    )


@pytest.mark.parametrize("rows, classes", [(0, 4), (3, 0), (0, 0)])
def test_in_top_k_of_nothing(rows: int, classes: int) -> None:
    same(lambda p, t: tf.math.in_top_k(t, p, 2), tf.zeros((rows, classes)), tf.zeros(rows, tf.int32))


def test_gather_from_empty_batches() -> None:
    x, places = tf.zeros((0, 4, 3)), tf.zeros((0, 2), tf.int32)
    same(lambda x, p: (tf.gather(x, p, batch_dims=1), tf.gather(x, p, axis=2, batch_dims=1)), x, places)


def test_counts() -> None:
    x = tf.constant(RANDOM.integers(0, 9, 40), tf.int32)

    def count(x):
        rows = tf.reshape(x, (4, 10))
        return (
            tf.math.bincount(x, minlength=12, maxlength=12),
            tf.math.bincount(x, minlength=5, maxlength=5),
            tf.math.bincount(x, weights=tf.cast(x, tf.float32), minlength=9, maxlength=9),
            tf.math.bincount(rows, axis=-1, minlength=7, maxlength=7),
            tf.math.bincount(rows, axis=-1, minlength=7, maxlength=7, binary_output=True),
        )

    same(count, x)


def test_a_number_of_bins_that_depends_on_values_is_refused() -> None:
    with pytest.raises(fusile.UnsupportedOpError, match="number of bins"):
        fusile.tf.jit(lambda x: tf.math.bincount(x, maxlength=9))(tf.constant([1, 2]))


@pytest.mark.parametrize("align", ["RIGHT_LEFT", "LEFT_RIGHT", "LEFT_LEFT", "RIGHT_RIGHT"])
@pytest.mark.parametrize("rows, columns", [(4, 4), (3, 5), (6, 2), (1, 1)])
def test_diagonals(rows: int, columns: int, align: str) -> None:
    x = tf.constant(RANDOM.standard_normal((2, rows, columns)).astype(np.float32))
    bands = [
        (0, 0),
        (-1, 1),
        (0, columns - 1),
        (1 - rows, columns - 1),
        (columns - 1, columns - 1),
        (1 - rows, 1 - rows),
    ]
    for low, high in bands:
        if not (-rows < low <= high < columns):
            continue
        k = low if low == high else (low, high)
        diagonal = tf.linalg.diag_part(x, k=k, align=align)
        same(lambda x, k=k: tf.linalg.diag_part(x, k=k, align=align, padding_value=7), x)
        same(lambda x, d, k=k: tf.linalg.set_diag(x, d, k=k, align=align), x, -diagonal)
        size = {"num_rows": rows, "num_cols": columns}
        same(lambda d, k=k, s=size: tf.linalg.diag(d, k=k, padding_value=9, align=align, **s), diagonal)


def test_diagonals_of_tensors() -> None:
    same(lambda x: (tf.linalg.tensor_diag(x), tf.linalg.trace(tf.eye(3) * x[0, 0])), tf.ones((2, 3)))
    same(lambda x: tf.linalg.tensor_diag_part(tf.reshape(x, (2, 3, 2, 3))), tf.range(36.0))
