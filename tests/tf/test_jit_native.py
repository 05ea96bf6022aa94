"""The same through machine code: calls, variables, loops, gradients, a training step, and no needless copies."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

X = np.random.default_rng(5).uniform(-1, 1, (6, 4)).astype(np.float32)


def loop(x):
    ta = tf.TensorArray(tf.float32, 5, element_shape=[4])
    for i in tf.range(5):
        ta = ta.write(i, tf.sin(x[i]) if tf.reduce_sum(x[i]) > 0 else x[i] * 2)
    return ta.stack()


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.scan(lambda a, r: tf.tanh(a) * r, x) ** 2)
    return tape.gradient(y, x)


@pytest.mark.parametrize("function", [lambda x: tf.nn.softmax(x @ tf.transpose(x)), loop, gradient])
def test_agrees_with_eager_mode(function, same):
    x = tf.constant(X)
    same(fusile.tf.jit(function)(x), function(x))


def test_a_training_step(same):
    losses = []
    for wrap in (lambda f: f, fusile.tf.jit):
        tf.keras.utils.set_random_seed(4)
        hidden = tf.keras.layers.Dense(8, activation="relu")
        model = tf.keras.Sequential(
            [tf.keras.Input((4,)), hidden, tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)]
        )
        optimizer = tf.keras.optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

        def step(x, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - 1.0) ** 2)
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            return loss

        compiled = wrap(step)
        losses.append([compiled(tf.constant(X)) for _ in range(5)])
    same(losses[1], losses[0], 1e-3)


def test_results_stay_when_memory_is_reused():
    compiled = fusile.tf.jit(lambda x: x + 1)
    inputs = [tf.fill([5000], float(i)) for i in range(6)]
    results = [compiled(x) for x in inputs]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(5000, i + 1.0, np.float32))


def test_variables_keep_their_own_memory():
    v = tf.Variable(tf.zeros([5000]))
    step = fusile.tf.jit(lambda: v.assign_add(tf.ones([5000])))
    kept = [step() for _ in range(3)]
    v.assign_add(tf.ones([5000]))
    for i, result in enumerate(kept):
        np.testing.assert_array_equal(result, np.full(5000, i + 1.0, np.float32))
    np.testing.assert_array_equal(v, np.full(5000, 4.0, np.float32))


def test_large_arrays_are_not_copied():
    compiled = fusile.tf.jit(lambda x: x * 2)
    x = tf.ones([100000])
    (found,) = compiled._specializations.values() if compiled(x) is not None else ()
    seen = []
    run = found._run

    def watched(arrays):
        results = run(arrays)
        seen.append((arrays[0].ctypes.data, results[0].ctypes.data))
        return results

    found._run = watched
    result = compiled(x)
    assert seen == [(x._numpy_internal().ctypes.data, result._numpy_internal().ctypes.data)]


def test_a_small_call_takes_few_steps(count_calls):
    compiled, x, a = fusile.tf.jit(lambda x, y: x + y), tf.ones([8]), np.ones(8, np.float32)
    for given in (x, a):
        compiled(given, given)
        assert count_calls(lambda given=given: compiled(given, given)) <= 42
