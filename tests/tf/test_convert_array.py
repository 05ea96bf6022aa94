"""Ops on shapes, slices, gathers and scatters agree with TensorFlow's eager mode."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import fusile.base.errors
import fusile.tf

X = np.random.default_rng(1).uniform(-2, 2, (2, 3, 4)).astype(np.float32)


def test_shapes_are_known_when_compiling(agrees):
    agrees(
        lambda x: tf.reshape(x, (tf.shape(x)[0] * tf.shape(x)[1], -1)) + tf.cast(tf.size(x) * tf.rank(x), tf.float32), X
    )


def test_reshaping(agrees):
    agrees(
        lambda x: (tf.reshape(x, (-1, 6)), tf.squeeze(x[:1], 0), tf.expand_dims(x, -1), tf.transpose(x, (2, 0, 1))), X
    )


def test_putting_together_and_taking_apart(agrees):
    agrees(lambda x: (tf.concat([x, x], 1), tf.stack([x, x], -1), tf.tile(x, (1, 2, 3)), tf.repeat(x, 3, 1)), X)
    agrees(lambda x: (*tf.split(x, 2, -1), *tf.split(x, [1, -1], 1), *tf.unstack(x, axis=1)), X)


@pytest.mark.parametrize("mode", ["CONSTANT", "REFLECT", "SYMMETRIC"])
def test_padding_and_its_gradient(agrees, mode):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.pad(x, [[0, 1], [2, 0], [1, 3]], mode) ** 3)
        return tape.gradient(y, x)

    agrees(lambda x: tf.pad(x, [[0, 1], [2, 0], [1, 3]], mode), X)
    agrees(gradient, X, tolerance=1e-4)


def test_order(agrees):
    agrees(
        lambda x: (
            tf.reverse(x, [1]),
            tf.roll(x, [1, -2], [0, 2]),
            tf.reverse_sequence(x, [1, 2], seq_axis=1, batch_axis=0),
        ),
        X,
    )


def test_making_arrays(agrees):
    agrees(
        lambda x: (
            tf.zeros_like(x),
            tf.ones_like(x),
            tf.fill([2, 3], 7),
            tf.range(3.0, 9.0, 2.0),
            tf.linspace(0.0, 1.0, 5),
        ),
        X,
    )


def test_one_hot(agrees):
    indices = np.array([[0, 4], [9, -1]], np.int32)
    agrees(lambda i: (tf.one_hot(i, 5), tf.one_hot(i, 5, 2.0, -1.0, axis=0), tf.one_hot(i, 3, True, False)), indices)


def slices(size):
    bound = st.one_of(st.none(), st.integers(-size - 1, size + 1))
    return st.one_of(
        st.integers(-2, 1), st.just(tf.newaxis), st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1, -2]))
    )


@settings(max_examples=60, deadline=None)
@given(st.tuples(slices(2), slices(3), slices(4)), st.booleans(), st.integers(0, 3))
def test_strided_slices_and_their_gradients(index, ellipsis, place):
    used = [i for i in index if i is not tf.newaxis]
    index = (*index[:place], ..., *index[place:]) if ellipsis and len(used) <= 3 else index

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x[index]
            loss = tf.reduce_sum(y * y)
        return y, tape.gradient(loss, x)

    x = tf.constant(X)
    for got, want in zip(fusile.tf.jit(both, target="interpreter")(x), both(x), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_slices_that_begin_at_run_time(agrees):
    agrees(lambda x, i: (x[i], x[:, i], x[0, i : i + 1], x[-i], tf.slice(x, [0, i, 0], [2, 1, 4])), X, np.int32(1))


def test_a_slice_of_unknown_size_is_refused():
    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="size of a slice"):
        fusile.tf.jit(lambda x, i: x[:, i:], target="interpreter")(tf.constant(X), tf.constant(1))


@pytest.mark.parametrize("step", [1, 2, -1])
def test_slice_assignment(agrees, step):
    def update(x):
        return tf.raw_ops.TensorStridedSliceUpdate(
            input=x, begin=[0, 2], end=[1, -5], strides=[1, step], value=x[:1, ::step] * 0 + 7, end_mask=2, begin_mask=2
        )

    agrees(update, X)


INDICES = np.array([[3, 0], [1, 1]], np.int32)


def test_gather(agrees):
    agrees(
        lambda t, i: (tf.gather(t, i), tf.gather(t, i, axis=1), tf.gather(t[:2], i, axis=1, batch_dims=1)),
        np.arange(20.0).reshape(4, 5),
        INDICES,
    )
    agrees(lambda t, i: (tf.gather_nd(t, i), tf.gather_nd(t, i[:, :1])), np.arange(20.0).reshape(4, 5), INDICES)


def test_gather_moves_indices_inside():
    got = fusile.tf.jit(tf.gather, target="interpreter")(tf.constant([10.0, 11.0, 12.0]), tf.constant([-4, 1, 99]))
    np.testing.assert_array_equal(got, [10.0, 11.0, 12.0])


def test_a_constant_index_out_of_range_is_refused():
    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="out of range"):
        fusile.tf.jit(lambda x: tf.gather(x, [0, 9]), target="interpreter")(tf.constant([1.0, 2.0]))


def test_scatter(agrees):
    table, rows = np.arange(20.0).reshape(4, 5), np.array([[0], [3], [0]], np.int32)
    updates = np.arange(15.0).reshape(3, 5)
    agrees(lambda i, u: tf.scatter_nd(i, u, (4, 5)), rows, updates)
    agrees(lambda t, i, u: (tf.tensor_scatter_nd_add(t, i, u), tf.tensor_scatter_nd_sub(t, i, u)), table, rows, updates)
    agrees(lambda t, i, u: (tf.tensor_scatter_nd_max(t, i, u), tf.tensor_scatter_nd_min(t, i, u)), table, rows, updates)
    agrees(lambda t, i, u: tf.tensor_scatter_nd_update(t, i, u), table, rows[:2], updates[:2])


def test_stitch(agrees):
    parts = [np.array([0, 2], np.int32), np.array([[3, 1]], np.int32)]
    agrees(lambda x: tf.dynamic_stitch(parts, [x[:2, 0], x[:1, 1:]]), X)


def test_lists_known_when_compiling(agrees):
    agrees(lambda x: (x[0, 0], *tf.raw_ops.ListDiff(x=[1, 2, 3, 4], y=[2, 4]), *tf.unique([7, 3, 7, 1])), X)
    agrees(lambda x: tf.raw_ops.Prod(input=x, axis=[0, 2]), X)


def test_gradient_of_a_product(agrees):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.reduce_prod(x, [0, 2]))
        return tape.gradient(y, x)

    agrees(gradient, X, tolerance=1e-4)


def test_where_of_known_values(agrees):
    agrees(lambda x: x + tf.cast(tf.where([True, False, True])[1, 0], tf.float32), X)


def test_empty_arrays(agrees):
    agrees(
        lambda x: (tf.concat([x, x], 1), tf.transpose(x), x[:, 1:], tf.tile(x, (2, 1))), np.zeros((0, 3), np.float32)
    )


def test_blocks_of_space(agrees):
    images = np.arange(2 * 4 * 6 * 8, dtype=np.float32).reshape(2, 4, 6, 8)
    agrees(lambda x: (tf.nn.space_to_depth(x, 2), tf.nn.depth_to_space(x, 2)), images)
    agrees(lambda x: tf.space_to_batch(x, [2, 3], [[1, 1], [0, 3]]), images)
    agrees(lambda x: tf.batch_to_space(tf.tile(x, (3, 1, 1, 1)), [3, 2], [[1, 2], [0, 1]]), images)
