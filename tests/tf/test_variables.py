"""Variables are read and assigned as in eager mode, also inside loops and branches."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.base.errors
import fusile.tf


def jit(function, **options):
    return fusile.tf.jit(function, target="interpreter", **options)


def leaves(result):
    return [np.array(t) for t in tf.nest.flatten(result)]


def twice(make):
    """Runs a step that `make` builds around a new variable three times, eagerly and compiled; the variable's values."""
    found = []
    for wrap in (lambda f: f, jit):
        variable = tf.Variable([1.0, 2.0, 3.0])
        step = wrap(make(variable))
        found.append([(*leaves(step(tf.constant(float(i)))), variable.numpy()) for i in range(3)])
    for got, want in zip(*found, strict=True):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


def test_assignments_are_seen_in_order():
    def make(v):
        def step(x):
            before = v * 2
            v.assign_add([x, 1.0, 0.0])
            middle = v + 0.0
            v.assign_sub([0.0, x, 0.0])
            return before, middle, v.read_value()

        return step

    twice(make)


def test_assignments_in_branches_and_loops():
    def make(v):
        @tf.autograph.experimental.do_not_convert
        def step(x):
            tf.cond(x > 0.5, lambda: v.assign(v * 2.0), lambda: v.assign(v + 1.0))
            tf.while_loop(
                lambda i: i < 3, lambda i: (i + tf.cast(v.assign_add([1.0, 0.0, 1.0])[0] > -9, tf.int32),), (0,)
            )
            return v + x

        return step

    twice(make)


def test_slices_and_scatters():
    def make(v):
        def step(x):
            v[1:].assign([x, 7.0])
            v.scatter_nd_add([[0]], [x])
            v.scatter_update(tf.IndexedSlices([5.0], [2]))
            return tf.gather(v, [2, 0]), v.sparse_read([1])

        return step

    twice(make)


def test_a_variable_as_argument_is_told_apart_by_identity():
    a, b = tf.Variable(1.0), tf.Variable(2.0)
    bump = jit(lambda v, x: v.assign_add(x))
    assert float(bump(a, tf.constant(1.0))) == 2.0
    assert float(bump(b, tf.constant(1.0))) == 3.0
    assert (a.numpy(), b.numpy()) == (2.0, 3.0)


def test_results_do_not_share_memory_with_variables():
    v = tf.Variable([1.0, 2.0])
    step = jit(lambda: (v.assign_add([1.0, 1.0]), v.read_value()))
    first, second = step()
    v.assign_add([10.0, 10.0])
    np.testing.assert_array_equal(first, [2.0, 3.0])
    np.testing.assert_array_equal(second, [2.0, 3.0])


def test_a_read_value_stays_when_the_variable_changes():
    v = tf.Variable([1.0, 2.0])
    before = v.read_value()
    jit(lambda: v.assign_add([1.0, 1.0]))()
    np.testing.assert_array_equal(before, [1.0, 2.0])
    np.testing.assert_array_equal(v, [2.0, 3.0])


def test_a_variable_as_result_is_its_value():
    v = tf.Variable([1.0, 2.0])
    alone, (pair, none) = jit(lambda: v)(), jit(lambda: (v, None))()
    v.assign([9.0, 9.0])
    assert none is None and not isinstance(alone, tf.Variable)
    np.testing.assert_array_equal(alone, [1.0, 2.0])
    np.testing.assert_array_equal(pair, [1.0, 2.0])


def test_variables_made_at_the_first_call():
    class Counter(tf.Module):
        count = None

        def __call__(self, x):
            if self.count is None:
                self.count = tf.Variable(10.0)
            return self.count.assign_add(x)

    counter = Counter()
    step = jit(counter)
    assert [float(step(tf.constant(1.0))) for _ in range(3)] == [11.0, 12.0, 13.0]


def test_variables_of_many_types():
    for dtype in ("bfloat16", "float64", "int64", "bool", "complex64"):
        v = tf.Variable(tf.cast([0, 1, 2], dtype))
        jit(lambda v=v: v.assign(v[::-1]))()
        np.testing.assert_array_equal(v.numpy(), tf.cast([2, 1, 0], dtype).numpy())


def test_a_failed_call_leaves_variables_unchanged():
    v = tf.Variable(1.0)

    def step(x):
        v.assign_add(1.0)
        return tf.py_function(lambda x: x, [x], tf.float32)

    with pytest.raises(fusile.base.errors.UnsupportedOpError):
        jit(step)(tf.constant(1.0))
    assert v.numpy() == 1.0


def test_frozen_variables_are_constants():
    v = tf.Variable([1.0, 2.0])
    scaled = jit(lambda x: x * v, freeze=True)
    x = tf.constant([1.0, 1.0])
    np.testing.assert_array_equal(scaled(x), [1.0, 2.0])
    v.assign([5.0, 5.0])
    np.testing.assert_array_equal(scaled(x), [1.0, 2.0])
    assert len(scaled.lower(x).module.entry.parameters) == 1


def test_a_frozen_function_may_not_assign():
    v = tf.Variable(1.0)
    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="frozen"):
        jit(lambda: v.assign_add(1.0), freeze=True)()


def test_the_module_says_which_results_may_take_variables_memory():
    v, w = tf.Variable([1.0]), tf.Variable([2.0])
    module = jit(lambda x: (v + w, w.assign_add(x))).lower(tf.constant([1.0])).module
    ((result, parameter),) = module.aliases.items()
    assert result == 2
    assert len(module.entry.parameters) == 3
    assert parameter in (1, 2)
