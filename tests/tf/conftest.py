"""What the tests of the TensorFlow front end share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf


def leaves(result):
    return [np.asarray(t) for t in tf.nest.flatten(result)]


def assert_same(got, want, tolerance=1e-5):
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if g.dtype.kind in "fcV":
            wide = np.complex128 if g.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(g.astype(wide), w.astype(wide), rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(g, w)


@pytest.fixture
def agrees():
    """Checks that a function gives under the interpreter what TensorFlow's eager mode gives."""

    def check(function, *arguments, tolerance=1e-5):
        tensors = [tf.constant(a) for a in arguments]
        got = fusile.tf.jit(function, target="interpreter")(*tensors)
        assert_same(got, function(*tensors), tolerance)
        return got

    return check


@pytest.fixture
def same():
    return assert_same
