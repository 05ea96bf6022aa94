"""`fusile.tf.jit`: signatures, structures, errors, threads, methods, gradients."""

import collections
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf

import fusile.base.errors
import fusile.tf
from fusile.tf.jit import MOST_SIGNATURES

Point = collections.namedtuple("Point", "x y")


def jit(function, **options):
    return fusile.tf.jit(function, target="interpreter", **options)


def test_as_decorator_with_and_without_options():
    @fusile.tf.jit
    def plain(x):
        "What it does."
        return x

    @fusile.tf.jit(target="interpreter")
    def with_options(x):
        return x + 1

    assert (plain.__name__, plain.__doc__) == ("plain", "What it does.")
    assert float(with_options(tf.constant(1.0))) == 2.0


def test_structures_go_in_and_come_out():
    def function(point, values, *, scale, nothing=None):
        return {
            "sum": point.x + values["a"][0] * scale,
            "none": nothing,
            "pair": Point(point.y, [values["a"][1]]),
            "number": 3,
        }

    arguments = Point(tf.constant(1.0), np.float32(2)), {"a": [tf.constant(3.0), np.ones(2, np.float32)]}
    got = jit(function)(*arguments, scale=2.0)
    assert float(got["sum"]) == 7.0 and got["none"] is None and int(got["number"]) == 3
    assert isinstance(got["pair"], Point) and isinstance(got["pair"].y, list)
    assert all(isinstance(t, tf.Tensor) for t in tf.nest.flatten(got) if t is not None)


def test_python_values_are_part_of_the_signature():
    traces = []

    def function(x, n):
        traces.append(n)
        return x * n

    compiled, x = jit(function), tf.constant(2.0)
    assert [float(compiled(x, n)) for n in (2, 3, 2, 3)] == [4.0, 6.0, 4.0, 6.0]
    assert traces == [2, 3]
    compiled(x, True), compiled(x, 1.0)
    assert traces == [2, 3, True, 1.0]


def test_one_executable_serves_a_signature():
    traces = []

    def function(x):
        traces.append(x.shape)
        return x + 1

    compiled = jit(function)
    for shape in ((2,), (3,), (2,), (2, 1)):
        np.testing.assert_array_equal(compiled(tf.ones(shape)), np.full(shape, 2.0))
    np.testing.assert_array_equal(compiled(np.ones(2, np.float32)), [2.0, 2.0])
    assert traces == [(2,), (3,), (2, 1)]


def test_the_number_of_executables_is_bounded():
    compiled = jit(lambda x, n: x)
    for n in range(MOST_SIGNATURES + 5):
        compiled(tf.constant(0.0), n)
    assert len(compiled._specializations) == MOST_SIGNATURES


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int64", "float16", "bfloat16", "float64", "complex64", "complex128"]
)
def test_element_types_go_through(dtype):
    x = tf.cast([[0, 1, 2], [3, 4, 5]], dtype)
    got = jit(lambda x: (x, x[0, 1], tf.transpose(x)))(x)
    for g, w in zip(got, (x, x[0, 1], tf.transpose(x)), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g.numpy(), w.numpy())


def test_numpy_arrays_of_any_layout():
    array = np.arange(12.0).reshape(3, 4)
    for view in (array.T, array[::2, ::-1], array[:, 1]):
        np.testing.assert_array_equal(jit(lambda x: x * 2)(view), view * 2)
    array.flags.writeable = False
    np.testing.assert_array_equal(jit(lambda x: x * 2)(array), array * 2)


def test_captured_tensors_are_parameters_unless_frozen():
    captured = tf.constant(np.arange(4, dtype=np.float32))
    x = tf.constant(1.0)
    assert len(jit(lambda x: x + captured).lower(x).module.entry.parameters) == 2
    assert len(jit(lambda x: x + captured, freeze=True).lower(x).module.entry.parameters) == 1


def test_unsupported_ops_are_named_all_at_once():
    def function(x):
        text = tf.strings.as_string(x)
        inner = tf.function(lambda t: tf.strings.length(t))
        return inner(text)

    with pytest.raises(fusile.base.errors.UnsupportedOpError) as caught:
        jit(function)(tf.constant([1.0]))
    message = str(caught.value)
    assert "AsString" in message and "StringLength" in message
    assert message.count("test_jit.py") >= 2


def test_errors_of_the_traced_function_reach_the_caller():
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        jit(function)(tf.constant(1.0))
    with pytest.raises(ValueError, match="must be equal"):
        jit(lambda x, y: x + y)(tf.ones(2), tf.ones(3))


def test_strings_are_refused():
    with pytest.raises(fusile.base.errors.UnsupportedOpError, match="string"):
        jit(lambda s: s)(tf.constant("a"))


def test_calls_from_many_threads():
    traces = []

    def function(x):
        traces.append(1)
        return tf.sin(x) + 1

    compiled, failures = jit(function), []

    def work(seed):
        x = np.random.default_rng(seed).normal(size=7).astype(np.float32)
        for _ in range(20):
            if not np.allclose(compiled(tf.constant(x)), np.sin(x) + 1, atol=1e-6):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(traces) == 1


class Scaler(tf.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(factor)

    @fusile.tf.jit(target="interpreter")
    def scale(self, x):
        return x * self.factor


def test_methods_are_compiled_per_instance():
    two, three = Scaler(2.0), Scaler(3.0)
    x = tf.constant(1.0)
    assert (float(two.scale(x)), float(three.scale(x)), float(two.scale(x))) == (2.0, 3.0, 2.0)
    assert two.scale.lower(x).module.entry.parameters


def test_training_flag_of_a_keras_model():
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Lambda(lambda x, training=False: x)])
    compiled = jit(model)
    x = tf.constant([[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(compiled(x, training=True), x)
    np.testing.assert_array_equal(compiled(x, training=False), x)
    assert len(compiled._specializations) == 2


def test_lower_and_executable():
    compiled = jit(lambda x: tf.square(x) + 1)
    x = tf.constant([1.0, 2.0])
    low = compiled.lower(x)
    assert [i.opcode for i in low.module.entry.post_order()][-1] == "tuple"
    (result,) = low.compile()(x.numpy())
    np.testing.assert_array_equal(result, [2.0, 5.0])
    assert compiled.executable(x) is compiled.executable(tf.TensorSpec((2,), tf.float32))
    with pytest.raises(fusile.base.errors.ArgumentError, match="sizes"):
        compiled.lower(tf.TensorSpec((None,), tf.float32))


def test_sources_name_the_users_lines():
    def function(x):
        return tf.sin(x)

    module = jit(function).lower(tf.constant(1.0)).module
    (sine,) = [i for i in module.entry.instructions if i.opcode == "sine"]
    assert sine.source.op_type == "Sin"
    assert sine.source.file == __file__ and sine.source.line == function.__code__.co_firstlineno + 1


def test_inside_a_tf_function_it_is_traced_along():
    compiled = jit(lambda x: x * 2)
    outer = tf.function(lambda x: compiled(x) + 1)
    assert float(outer(tf.constant(3.0))) == 7.0


def test_gradients_of_arguments_captured_tensors_and_variables():
    v, captured = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])

    def function(x):
        return tf.reduce_sum(x * v * captured), tf.sin(x)

    x, found = tf.constant([0.5, -0.5]), []
    for f in (function, jit(function)):
        with tf.GradientTape() as tape:
            tape.watch([x, captured])
            scalar, vector = f(x)
            loss = scalar * 2 + tf.reduce_sum(vector)
        found.append(tape.gradient(loss, [x, v, captured]))
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_second_gradients():
    cube = jit(lambda x: x**3)
    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube(x)
        first = inner.gradient(y, x)
    assert float(first) == pytest.approx(12.0)
    assert float(outer.gradient(first, x)) == pytest.approx(12.0)


def test_the_gradient_sees_the_values_of_the_forward_call():
    v = tf.Variable(3.0)

    def step(x):
        y = x * v
        v.assign_add(10.0)
        return y

    x, compiled = tf.constant(2.0), jit(step)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = compiled(x)
    v.assign(100.0)
    assert float(tape.gradient(y, x)) == 3.0
    assert v.numpy() == 100.0


def test_gradients_that_are_slices_of_a_table():
    def function(table, i):
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = tf.reduce_sum(tf.gather(table, i) ** 2)
        return tape.gradient(y, table)

    table, i = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([1, 1])
    got, want = jit(function)(table, i), function(table, i)
    assert isinstance(got, tf.IndexedSlices)
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got.indices, want.indices)


def test_assertions_and_prints_are_dropped():
    def function(x):
        tf.debugging.assert_positive(x, message="must be positive")
        tf.print("x is", x)
        return x + 1

    assert float(jit(function)(tf.constant(-1.0))) == 0.0


def test_the_first_calls_arrays_are_not_kept():
    array = np.ones((3, 3), np.float32)
    compiled = jit(lambda x: x + 1)
    compiled(array)
    found = weakref.ref(array)
    del array
    assert found() is None


def test_integers_and_stopped_gradients_give_none():
    f = jit(lambda x, i: (tf.stop_gradient(x) * 2, i + 1))
    x, i = tf.constant(1.0), tf.constant(1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = f(x, i)
    assert tape.gradient(y, x) is None
