"""A backward pass sees the variables as its forward pass saw them, whoever assigns them meanwhile."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf


def scaled(v):
    return lambda x: x * v


def scaled_then_assigned(v):
    def function(x):
        y = x * v
        v.assign_add(1.0)
        return y

    return function


def assigned_then_scaled(v):
    def function(x):
        v.assign_add(1.0)
        return x * v

    return function


def assigned_in_a_branch(v):
    def function(x):
        y = x * v
        if x > 0.0:
            v.assign_add(1.0)
        return y

    return function


FUNCTIONS = [scaled, scaled_then_assigned, assigned_then_scaled, assigned_in_a_branch]


def value_and_gradient(compiled, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = compiled(x)
    return float(y), float(tape.gradient(y, x))


@pytest.mark.parametrize("make", FUNCTIONS)
def test_variables_are_read_once_for_both_passes(make):
    """As if another thread assigned the variable right after each time that it is read."""
    v, x = tf.Variable(3.0), tf.constant(2.0)
    compiled = fusile.tf.jit(make(v))
    value_and_gradient(compiled, x)
    (forward,) = compiled._specializations.values()
    reads, read = [], forward._read

    def disturbed():
        values = read()
        reads.append(1)
        v.assign_add(100.0)
        return values

    forward._read = disturbed
    for _ in range(3):
        y, gradient = value_and_gradient(compiled, x)
        assert y == 2 * gradient
    assert len(reads) == 3


@pytest.mark.parametrize("make", FUNCTIONS)
def test_gradients_while_other_threads_assign(make):
    v, x = tf.Variable(1.0), tf.constant(2.0)
    compiled = fusile.tf.jit(make(v))
    value_and_gradient(compiled, x)
    other = fusile.tf.jit(lambda: v.assign_add(1.0))
    other()
    wrong, done = [], threading.Event()

    def differentiate():
        for _ in range(60):
            y, gradient = value_and_gradient(compiled, x)
            if y != 2 * gradient:
                wrong.append((y, gradient))

    def assign():
        while not done.is_set():
            other()

    workers = [threading.Thread(target=differentiate) for _ in range(3)]
    assigner = threading.Thread(target=assign)
    for t in (*workers, assigner):
        t.start()
    for t in workers:
        t.join()
    done.set()
    assigner.join()
    assert not wrong


def test_second_gradients_see_the_same_values():
    v, x = tf.Variable(3.0), tf.constant(2.0)

    def function(x):
        y = v * x**3
        v.assign_add(1.0)
        return y

    compiled = fusile.tf.jit(function)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = compiled(x)
        v.assign(50.0)
        first = inner.gradient(y, x)
    v.assign(60.0)
    assert float(first) == 3.0 * 3 * 4
    assert float(outer.gradient(first, x)) == pytest.approx(3.0 * 6 * 2)
    assert float(v) == 60.0


def test_the_gradient_of_a_frozen_function_has_its_constants():
    v, x = tf.Variable(3.0), tf.constant(2.0)
    compiled = fusile.tf.jit(scaled(v), freeze=True)
    assert float(compiled(x)) == 6.0
    v.assign(5.0)
    assert value_and_gradient(compiled, x) == (6.0, 3.0)


def test_random_numbers_of_the_forward_pass_come_again():
    tf.random.set_seed(1)
    compiled = fusile.tf.jit(lambda x: x * tf.random.uniform((1000,)))
    x = tf.ones(1000)
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = compiled(x)
        compiled(x)
        np.testing.assert_array_equal(tape.gradient(y, x), y)
