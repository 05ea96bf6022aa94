"""Results as arrays: handed over when nobody else can see them, else copied."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf


@pytest.mark.parametrize("size", [1 << 10, 1 << 18])
def test_a_changed_array_leaves_the_tensor_alone(size: int) -> None:
    double = fusile.tf.jit(lambda x: (x * 2, x + 1))
    kept, _ = double(tf.ones(size))
    array = kept.numpy()
    array[0] = 7
    assert kept[0].numpy() == 2 and kept.numpy()[0] == 2


def test_an_array_outlives_its_tensor_and_later_calls() -> None:
    double = fusile.tf.jit(lambda x: x * 2)
    x = tf.ones(1 << 18)
    array = double(x).numpy()
    array[0] = 9
    assert array.flags.writeable and double(x).numpy()[0] == 2 and array[0] == 9
    assert np.all(array[1:] == 2)


def test_the_array_of_a_dropped_tensor_is_not_copied() -> None:
    double = fusile.tf.jit(lambda x: x * 2)
    array = double(tf.ones(1 << 18)).numpy()
    assert not array.flags.owndata  # It looks into the memory that the kernels wrote.
