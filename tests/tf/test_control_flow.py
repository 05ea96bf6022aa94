"""Loops, branches, calls and TensorArrays agree with TensorFlow's eager mode."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.base.errors
import fusile.tf

X = np.random.default_rng(2).uniform(-1, 1, (5, 3)).astype(np.float32)


def test_while(agrees):
    def loop(x):
        return tf.while_loop(lambda i, a: tf.reduce_sum(a) < 100.0, lambda i, a: (i + 1, a * 1.5 + 0.1), (0, tf.abs(x)))

    agrees(loop, X)


def test_loops_and_branches_of_python(agrees):
    def collatz(n):
        steps = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return tf.constant(steps) if tf.executing_eagerly() else steps

    for start in (1, 2, 7, 27):
        agrees(collatz, np.int32(start))


def test_loops_in_loops(agrees):
    def product_table(x):
        total = tf.zeros_like(x)
        for i in tf.range(3):
            for j in tf.range(2):
                if i > j:
                    total += x * tf.cast(i * j + 1, tf.float32)
        return total

    agrees(product_table, X)


def test_cond_takes_either_branch(agrees):
    for p in (True, False):
        agrees(lambda p, x: tf.cond(p, lambda: (tf.sin(x), x[0]), lambda: (tf.cos(x) * 2, x[1])), np.bool_(p), X)


def test_cond_on_a_number(agrees):
    agrees(lambda n, x: tf.raw_ops.Identity(input=tf.cond(n > 0, lambda: x, lambda: -x)), np.int32(0), X)


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 7])
def test_switch_case_out_of_range_takes_the_last(agrees, index):
    agrees(lambda i, x: tf.switch_case(i, [lambda: x, lambda: x * 2, lambda: x * 3]), np.int32(index), X)


def test_a_branch_known_when_compiling_is_the_only_one_converted(agrees):
    module = (
        fusile.tf.jit(lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: tf.sin(x), lambda: tf.cos(x)), target="interpreter")
        .lower(tf.constant(X))
        .module
    )
    assert {i.opcode for i in module.entry.instructions} == {"parameter", "sine", "tuple"}


def test_nested_functions(agrees):
    inner = tf.function(lambda y: tf.sin(y) + 1)
    agrees(lambda x: inner(x) * inner(x + 1), X)


def test_compiled_functions_nest(agrees):
    inner = fusile.tf.jit(lambda y: tf.sin(y) + 1, target="interpreter")
    agrees(lambda x: inner(x) * 2, X)


def test_tensor_array(agrees):
    def arrays(x):
        ta = tf.TensorArray(tf.float32, 5, clear_after_read=False, element_shape=[3])
        for i in tf.range(5):
            ta = ta.write(i, x[i] * tf.cast(i, tf.float32))
        return ta.stack(), ta.read(3), ta.concat(), ta.gather([4, 0])

    agrees(arrays, X)


def test_tensor_array_of_unknown_element_shape(agrees):
    def arrays(x):
        ta = tf.TensorArray(tf.float32, 5)
        for i in tf.range(5):
            ta = ta.write(i, x[i] + 1)
        return ta.stack()

    agrees(arrays, X)


def test_tensor_array_that_grows(agrees):
    def arrays(x):
        ta = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[3])
        for i in tf.range(4):
            ta = ta.write(i, x[i])
        return ta.stack() if tf.executing_eagerly() else tf.ensure_shape(ta.stack(), [4, 3])

    agrees(arrays, X)


def test_split_into_a_tensor_array(agrees):
    agrees(lambda x: tf.TensorArray(tf.float32, 2).split(x[:4], [2, 2]).read(1), X)


def test_map_scan_and_fold(agrees):
    agrees(
        lambda x: (
            tf.map_fn(lambda r: tf.reduce_sum(r**2), x),
            tf.scan(lambda a, r: a * 0.5 + r, x),
            tf.foldl(lambda a, r: a + r, x),
        ),
        X,
    )


def gradient_of(function):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return gradient


def test_gradient_of_a_loop(agrees):
    def loop(x):
        return tf.reduce_sum(tf.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, tf.tanh(a * 1.1)), (0, x))[1])

    agrees(gradient_of(loop), X)


def test_gradient_of_a_scan(agrees):
    agrees(gradient_of(lambda x: tf.reduce_sum(tf.scan(lambda a, r: tf.sin(a) * r, x) ** 2)), X)


@pytest.mark.parametrize("limit", [-100.0, 0.5, 100.0])
def test_gradient_of_a_loop_that_breaks(agrees, limit):
    def total(x):
        found = tf.zeros(3)
        for row in x:
            found += row * row
            if tf.reduce_sum(found) > limit:
                break
        return found

    agrees(gradient_of(total), X)


def test_gradient_of_a_loop_with_two_conditions(agrees):
    def total(x):
        i = 0
        while i < 5 and tf.reduce_sum(x) < 20.0:
            x = x * 1.5 + 1.0
            i += 1
        return x

    agrees(gradient_of(total), X)


def test_gradient_of_a_tensor_array_that_grows(agrees):
    def rows(x):
        found = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[3])
        for i in tf.range(5):
            found = found.write(i, x[i] * x[4 - i])
        return found.stack()

    agrees(gradient_of(rows), X)


def test_functions_of_the_older_kind(agrees):
    """TensorFlow's loss for connectionist temporal classification calls them by their names as ops."""
    logits = np.random.default_rng(5).normal(size=(2, 7, 5)).astype(np.float32)
    labels = np.array([[1, 2, 1], [2, 3, 0]], np.int32)
    agrees(gradient_of(lambda p: tf.keras.losses.CTC()(labels, p)), logits, tolerance=1e-4)


def test_gradient_of_a_branch(agrees):
    agrees(
        gradient_of(
            lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(x**3), lambda: tf.reduce_sum(tf.exp(x)))
        ),
        X,
    )


def test_gradient_of_loops_in_loops(agrees):
    def loops(x):
        total = tf.zeros([3])
        for i in tf.range(4):
            row = x[i]
            for _ in tf.range(2):
                row = tf.sin(row) * 1.5
            total += row * row
        return tf.reduce_sum(total)

    agrees(gradient_of(loops), X)


def test_gradient_of_branches_in_loops(agrees):
    def branches(x):
        total = tf.constant(0.0)
        for i in tf.range(5):
            if tf.reduce_sum(x[i]) > 0.0:
                total += tf.reduce_sum(tf.exp(x[i]))
            else:
                total += tf.reduce_sum(x[i] ** 3)
        return total

    agrees(gradient_of(branches), X)


def test_gradient_of_a_loop_whose_length_is_not_known_is_refused():
    def loop(x):
        return tf.reduce_sum(tf.while_loop(lambda a: tf.reduce_sum(a) < 9.0, lambda a: (a * 1.5 + 1,), (x,))[0])

    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="number of iterations"):
        fusile.tf.jit(gradient_of(loop), target="interpreter")(tf.constant(X))


def test_a_loop_variable_that_changes_its_shape_is_refused():
    def loop(x):
        shapes = (tf.TensorShape([None, 3]),)
        return tf.while_loop(lambda a: tf.size(a) < 99, lambda a: (tf.concat([a, a], 0),), (x,), shapes)

    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="changes its shape"):
        fusile.tf.jit(loop, target="interpreter")(tf.constant(X))


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "SimpleRNN"])
def test_recurrent_layers_train(layer, same):
    tf.keras.utils.set_random_seed(0)
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32))
    stack = [getattr(tf.keras.layers, layer)(5, return_sequences=True), getattr(tf.keras.layers, layer)(2)]
    model = tf.keras.Sequential([tf.keras.Input((4, 3)), *stack])

    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    same(fusile.tf.jit(gradients, target="interpreter")(x), gradients(x))
