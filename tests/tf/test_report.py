"""Reports on TensorFlow functions: timed with the variables' values, which they leave alone."""

from __future__ import annotations

import pytest
import tensorflow as tf

import fusile
import fusile.tf

pytest.importorskip("jinja2")


def test_a_function_with_variables() -> None:
    weights, steps = tf.Variable(tf.random.normal([64, 64])), tf.Variable(0)
    captured = tf.random.normal([64])

    @fusile.tf.jit
    def step(x):
        steps.assign_add(1)
        return tf.nn.softmax(x @ weights + captured)

    made = fusile.report(step, tf.random.normal([8, 64]))
    assert made.figures.seconds and steps.numpy() == 0, "a report assigns nothing"
    kernels = {k.prepared for k in made.figures.kernels}
    assert kernels == {False, True}, "the weights are packed once"
    assert "Prepared once" in made.html and "test_report.py" in made.html
    step(tf.zeros([8, 64]))
    assert steps.numpy() == 1


def test_a_specification_stands_for_a_tensor() -> None:
    made = fusile.report(fusile.tf.jit(tf.tanh), tf.TensorSpec([4, 4]))
    assert len(made.figures.kernels) == 1


def test_an_interpreted_function_has_no_report() -> None:
    with pytest.raises(fusile.ArgumentError, match="interpreter"):
        fusile.report(fusile.tf.jit(tf.tanh, target="interpreter"), tf.ones([2]))
