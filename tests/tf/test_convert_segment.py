"""Segments, blocks and bands against eager TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import fusile.tf  # noqa: E402

X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
IMAGE = np.arange(1 * 4 * 6 * 3, dtype=np.float32).reshape(1, 4, 6, 3)

CASES = {
    "sum": lambda x: tf.math.unsorted_segment_sum(x, [0, 2, 0, 1], 3),
    "max": lambda x: tf.math.unsorted_segment_max(x, [0, 2, 0, -1], 4),
    "min": lambda x: tf.math.unsorted_segment_min(x, [1, 1, 0, 0], 2),
    "prod": lambda x: tf.math.unsorted_segment_prod(x, [1, 1, 3, 3], 4),
    "sorted": lambda x: tf.math.segment_sum(x, [0, 0, 1, 3]),
    "scalars": lambda x: tf.math.unsorted_segment_sum(x, tf.reshape(tf.range(20) % 3, (4, 5)), 3),
    "band": lambda x: tf.linalg.band_part(x, 1, -1),
}


@pytest.mark.parametrize("name", CASES)
def test_segments_and_bands(name: str) -> None:
    np.testing.assert_allclose(fusile.tf.jit(CASES[name])(tf.constant(X)), CASES[name](tf.constant(X)), rtol=1e-6)


BLOCKS = {
    "space_to_depth": lambda x: tf.nn.space_to_depth(x, 2),
    "depth_to_space": lambda x: tf.nn.depth_to_space(tf.nn.space_to_depth(x, 2), 2),
    "space_to_batch": lambda x: tf.space_to_batch(x, [2, 3], [[0, 2], [1, 2]]),
    "batch_to_space": lambda x: tf.batch_to_space(
        tf.space_to_batch(x, [2, 2], [[0, 0], [2, 0]]), [2, 2], [[0, 1], [2, 0]]
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    np.testing.assert_array_equal(fusile.tf.jit(BLOCKS[name])(tf.constant(IMAGE)), BLOCKS[name](tf.constant(IMAGE)))


def test_the_gradient_of_an_embedding() -> None:
    table = tf.constant(np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32))

    def gradient(t, i):
        with tf.GradientTape() as tape:
            tape.watch(t)
            loss = tf.reduce_sum(tf.gather(t, i) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, t))

    rows = tf.constant([[1, 1, 4], [19, 1, 0]])
    np.testing.assert_allclose(fusile.tf.jit(gradient)(table, rows), gradient(table, rows), rtol=1e-6)
