"""Linear algebra agrees with TensorFlow's own kernels: all types, batches, odd shapes."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

RANDOM = np.random.default_rng(0)
TYPES = ["float32", "float64", "complex64", "complex128"]


def matrices(of: str, *sizes: int) -> tf.Tensor:
    x = RANDOM.standard_normal(sizes)
    return tf.constant((x + 1j * RANDOM.standard_normal(sizes) if of.startswith("c") else x).astype(of))


def positive(of: str, *sizes: int) -> tf.Tensor:
    x = matrices(of, *sizes)
    return tf.matmul(x, x, adjoint_b=True) + tf.eye(sizes[-1], dtype=of)


def same(function, *arguments, loose: float = 1) -> None:
    got, wanted = (tf.nest.flatten(f(*arguments)) for f in (fusile.tf.jit(function), function))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        close = loose * (2e-3 if a.dtype in (tf.float32, tf.complex64) else 1e-8)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=close, atol=close)


def eigen(h):
    values, vectors = tf.linalg.eigh(h)
    scaled = vectors * tf.cast(values, vectors.dtype)[..., None, :]
    return values, tf.matmul(scaled, vectors, adjoint_b=True), tf.linalg.eigvalsh(h)


def gradient_of_cholesky(h):
    with tf.GradientTape() as tape:
        tape.watch(h)
        total = tf.reduce_sum(tf.abs(tf.linalg.cholesky(h)))
    return tape.gradient(total, h)


@pytest.mark.parametrize("sizes", [(4, 4), (1, 1), (2, 3, 5, 5)], ids=str)
@pytest.mark.parametrize("of", TYPES)
def test_square(of: str, sizes: tuple[int, ...]) -> None:
    x, h = matrices(of, *sizes), positive(of, *sizes)
    same(tf.linalg.cholesky, h)
    same(gradient_of_cholesky, h, loose=20)
    same(lambda x: (tf.linalg.inv(x), tf.linalg.inv(x, adjoint=True)), x, loose=50)
    same(lambda x: (tf.linalg.solve(x, x[..., :2]), tf.linalg.solve(x, x, adjoint=True)), x, loose=20)
    same(lambda x: (tf.linalg.det(x), *tf.linalg.slogdet(x)), x)
    same(lambda h, x: (tf.linalg.triangular_solve(h, x), tf.linalg.triangular_solve(h, x, False, True)), h, x, loose=10)
    same(eigen, h, loose=20)
    if not of.startswith("c"):  # Of complex pivots TensorFlow takes another measure.
        same(lambda x: list(tf.linalg.lu(x)), x)


def singular(x, full: bool):
    values, u, v = tf.linalg.svd(x, full_matrices=full)
    k = values.shape[-1]
    return values, tf.matmul(u[..., :k] * tf.cast(values, u.dtype)[..., None, :], v[..., :k], adjoint_b=True)


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("of", TYPES)
def test_rectangular(of: str, sizes: tuple[int, ...]) -> None:
    x = matrices(of, *sizes)
    for full in (False, True):
        same(lambda x, f=full: tf.linalg.qr(x, full_matrices=f), x)
        same(lambda x, f=full: singular(x, f), x)
    same(lambda x: tf.linalg.svd(x, compute_uv=False), x)


def test_half_precision_is_refused_by_name() -> None:
    with pytest.raises(fusile.UnsupportedOpError, match=r"MatrixInverse.*f16"):
        fusile.tf.jit(lambda x: tf.raw_ops.MatrixInverse(input=x))(tf.eye(2, dtype=tf.float16))
