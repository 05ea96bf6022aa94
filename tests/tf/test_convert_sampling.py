"""Classes drawn by logits and shuffles are those that TensorFlow draws from the same seed."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

RANDOM = np.random.default_rng(0)


def same(function, *arguments) -> None:
    got, wanted = fusile.tf.jit(function)(*arguments), function(*arguments)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("of", [tf.float32, tf.float64, tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("rows, classes, count", [(1, 5, 1), (2, 7, 9), (3, 5, 0), (1, 1, 3), (0, 4, 2), (1, 100, 33)])
def test_classes(rows: int, classes: int, count: int, of) -> None:
    logits = tf.cast(RANDOM.standard_normal((rows, classes)), of)
    for index in (tf.int32, tf.int64):
        same(lambda x, t=index: tf.random.stateless_categorical(x, count, [1, 2], t), logits)


def test_logits_that_are_not_finite_have_no_weight() -> None:
    logits = tf.constant([[np.nan, 1, np.inf, 0], [-np.inf] * 4, [1, -np.inf, 2, 3], [0, 0, 0, -1000]], tf.float32)
    same(lambda x: tf.random.stateless_categorical(x, 9, [1, 2]), logits)


@pytest.mark.parametrize("sizes", [(0,), (1,), (5,), (1, 3), (4, 3), (7, 0), (6, 2, 2), (1000,)], ids=str)
def test_shuffles(sizes: tuple[int, ...]) -> None:
    x = tf.constant(RANDOM.standard_normal(sizes), tf.float32)
    same(lambda x: tf.random.experimental.stateless_shuffle(x, [3, 9]), x)
    same(lambda x: tf.random.experimental.stateless_shuffle(x > 0, [3, 9]), x)


def test_ops_with_a_generator_of_their_own() -> None:
    def draw():
        return (
            tf.random.shuffle(tf.range(20)),
            tf.random.categorical(tf.zeros((2, 5)), 3),
            tf.random.shuffle([[1.0, 2]]),
        )

    found = []
    for wrap in (fusile.tf.jit, tf.function):
        tf.random.set_seed(3)
        run = wrap(draw)
        found.append([[t.numpy() for t in run()] for _ in range(3)])
    for got, wanted in zip(*found, strict=True):
        assert all(map(np.array_equal, got, wanted))
