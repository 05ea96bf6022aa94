"""Random ops give the numbers that TensorFlow's own kernels give."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

SEEDS = ([3, 4], [-1, 2**31 - 1])
SIZES = ((5,), (3, 7), (0,), (1000,))
FLOATS = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


def same(function, *arguments, tolerance=0.0) -> None:
    got, wanted = (tf.nest.flatten(f(*arguments)) for f in (fusile.tf.jit(function), function))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(
            a.numpy().astype(np.float64), b.numpy().astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("of", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_floats(seed, of) -> None:
    close = 1e-14 if of is tf.float64 else 0.0
    for size in SIZES:
        same(lambda s, n=size: tf.random.stateless_uniform(n, s, dtype=of), tf.constant(seed))
        same(lambda s, n=size: tf.random.stateless_normal(n, s, dtype=of), tf.constant(seed), tolerance=close)
        wide = tf.constant(seed, tf.int64)
        same(lambda s, n=size: tf.random.stateless_truncated_normal(n, s, dtype=of), wide, tolerance=close)


def test_a_million_normals_bit_for_bit() -> None:
    """One logarithm or sine in a hundred that glibc gives isn't the nearest float."""
    for draw in (tf.random.stateless_normal, tf.random.stateless_truncated_normal):
        same(lambda s, draw=draw: draw((1000, 1000), s), tf.constant([5, 6]))


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_integers(seed) -> None:
    for size in SIZES:
        for of in (tf.int32, tf.int64, tf.uint32, tf.uint64):
            same(lambda s, n=size, t=of: tf.random.stateless_uniform(n, s, None, None, t), tf.constant(seed))
        for of in (tf.int32, tf.int64):
            same(lambda s, n=size, t=of: tf.random.stateless_uniform(n, s, -5, 17, t), tf.constant(seed))


def test_a_generators_state_moves_on_as_tensorflows() -> None:
    ours, theirs = (tf.random.Generator.from_seed(7, alg="philox") for _ in range(2))
    draw = fusile.tf.jit(lambda: (ours.uniform((4,)), ours.normal((3,))))
    for _ in range(3):
        uniform, normal = draw()
        assert np.array_equal(uniform, theirs.uniform((4,)))
        np.testing.assert_allclose(normal, theirs.normal((3,)), rtol=1e-5, atol=1e-6)
    assert np.array_equal(ours.state, theirs.state)


def test_dropout_follows_its_seed() -> None:
    ours, theirs = (tf.keras.layers.Dropout(0.5, seed=3) for _ in range(2))
    x = tf.ones((4, 8))
    drop = fusile.tf.jit(lambda x: ours(x, training=True))
    masks = [drop(x).numpy() for _ in range(3)]
    assert all(np.array_equal(m, theirs(x, training=True)) for m in masks)
    assert not np.array_equal(masks[0], masks[1])


def test_other_generators_are_refused_by_name() -> None:
    draw = fusile.tf.jit(lambda s: tf.random.stateless_uniform((4,), s, alg="threefry"))
    with pytest.raises(fusile.UnsupportedOpError, match="Philox"):
        draw(tf.constant([1, 2]))
