"""Random ops that keep a state draw what TensorFlow's draw after the same seed, call for call."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

CLOSE = {"rtol": 1e-14, "atol": 1e-14}


def after_seed(seed: int, make, calls: int = 3) -> list:
    """What a function gives in its first calls after `tf.random.set_seed`."""
    tf.random.set_seed(seed)
    function = make()
    return [[t.numpy() for t in tf.nest.flatten(function())] for _ in range(calls)]


def same_draws(function, calls: int = 3) -> None:
    ours, theirs = (after_seed(5, lambda w=w: w(function), calls) for w in (fusile.tf.jit, tf.function))
    for got, wanted in zip(ours, theirs, strict=True):
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, **(CLOSE if a.dtype == np.float64 else {"rtol": 0}))


def test_every_op_of_its_own_generator() -> None:
    same_draws(
        lambda: (
            [tf.random.uniform((3,), dtype=t) for t in (tf.float32, tf.float64, tf.float16)],
            [tf.random.normal((2, 5), seed=3, dtype=t) for t in (tf.float32, tf.float64)],
            [tf.random.truncated_normal((7,), dtype=t) for t in (tf.float32, tf.float64)],
            [tf.random.uniform((4,), -5, 90, t) for t in (tf.int32, tf.int64)],
            tf.random.uniform((0, 3)),
        )
    )


def test_loops_and_branches_draw_anew() -> None:
    def walk():
        total = tf.zeros(2)
        for _ in tf.range(5):
            total += tf.random.uniform((2,))
            if total[0] > 1:
                total -= tf.random.normal((2,))
        return total

    same_draws(walk, 6)


def test_seeding_again_starts_anew() -> None:
    draw = fusile.tf.jit(lambda: tf.random.uniform((3,)))
    tf.random.set_seed(1)
    first = [draw().numpy() for _ in range(2)]
    tf.random.set_seed(1)
    again = [draw().numpy() for _ in range(2)]
    assert np.array_equal(first, again) and not np.array_equal(*first)


def test_without_a_seed_functions_differ() -> None:
    def draw() -> np.ndarray:
        return fusile.tf.jit(lambda: tf.raw_ops.RandomUniform(shape=(8,), dtype=tf.float32, seed=0, seed2=0))().numpy()

    assert not np.array_equal(draw(), draw())
    chance = fusile.tf.jit(lambda: tf.raw_ops.NonDeterministicInts(shape=(4,), dtype=tf.int64))
    assert not np.array_equal(chance(), chance())


def test_gradients_see_the_numbers_of_their_call() -> None:
    scale = fusile.tf.jit(lambda x: x * tf.random.uniform((6,)))
    x = tf.ones(6)
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = scale(x)
        np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_a_frozen_function_draws_on() -> None:
    weight = tf.Variable(2.0)
    draw = fusile.tf.jit(lambda: weight * tf.random.uniform((4,)), freeze=True)
    assert not np.array_equal(draw(), draw())


def test_calls_of_a_compiled_function_in_another() -> None:
    inner = fusile.tf.jit(lambda: tf.random.uniform((4,)))
    first, second = fusile.tf.jit(lambda: (inner(), inner()))()
    assert not np.array_equal(first, second)


def test_dropout_trains() -> None:
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]
    )
    optimizer = tf.keras.optimizers.SGD(0.05)
    x = tf.random.stateless_normal((64, 4), (1, 2))
    y = tf.reduce_sum(x, 1, keepdims=True)
    model(x)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    variables = [*model.variables, *optimizer.variables]
    start = [v.numpy() for v in variables]
    losses = []
    for wrap in (fusile.tf.jit, tf.function):
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        run = wrap(step)
        losses.append([run(x, y).numpy() for _ in range(20)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


STATE_OPS = {
    "StatefulUniform": tf.float32,
    "StatefulStandardNormalV2": tf.float32,
    "StatefulTruncatedNormal": tf.float32,
    "StatefulUniformFullInt": tf.uint32,
}


@pytest.mark.parametrize("op", STATE_OPS)
def test_ops_on_a_generators_state(op: str) -> None:
    ours, theirs = (tf.Variable([2**40 + 1, -1, 77], dtype=tf.int64) for _ in range(2))

    def draw(state):
        return getattr(tf.raw_ops, op)(
            resource=state.handle, algorithm=tf.constant(1, tf.int64), shape=(5,), dtype=STATE_OPS[op]
        )

    run = fusile.tf.jit(lambda: draw(ours))
    for _ in range(2):
        assert np.array_equal(run(), draw(theirs))
        assert np.array_equal(ours, theirs)


def test_a_counter_carries_into_its_high_half() -> None:
    ours, theirs = (tf.random.Generator.from_state([-3, 5, 9], alg="philox") for _ in range(2))
    run = fusile.tf.jit(lambda: (ours.uniform((40,)), ours.uniform_full_int((5,)), ours.uniform((3,), -7, 9, tf.int64)))
    for _ in range(2):
        wanted = theirs.uniform((40,)), theirs.uniform_full_int((5,)), theirs.uniform((3,), -7, 9, tf.int64)
        assert all(map(np.array_equal, run(), wanted))
        assert np.array_equal(ours.state, theirs.state)
    ours.skip(2**60)
    theirs.skip(2**60)
    fusile.tf.jit(lambda: ours.skip(tf.constant(2**60, tf.uint64)))()
    theirs.skip(2**60)
    assert np.array_equal(ours.state, theirs.state)


def test_another_algorithm_is_refused_by_name() -> None:
    state = tf.Variable([1, 2, 3], dtype=tf.int64)
    draw = fusile.tf.jit(
        lambda: tf.raw_ops.StatefulUniform(
            resource=state.handle, algorithm=tf.constant(2, tf.int64), shape=(5,), dtype=tf.float32
        )
    )
    with pytest.raises(fusile.UnsupportedOpError, match=r"StatefulUniform.*Philox"):
        draw()
