"""What people give by mistake or as an edge case: a right result or an error that says what is wrong, never a crash."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import namedtuple

import numpy as np
import pytest
import tensorflow as tf

import fusile
import fusile.tf

X = np.arange(8, dtype=np.float32)


def add_one(x):
    return x + 1


# -- arrays


ARRAYS = {
    "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "strided": np.arange(12, dtype=np.float32)[::3],
    "reversed": X[::-1],
    "read-only": np.broadcast_to(np.float32(3), (2, 3)),
    "unaligned": np.ndarray((4,), np.float32, bytearray(b"\0" + X[:4].tobytes()), 1),
    "other byte order": X.astype(">f4"),
    "scalar": np.float32(3),
    "empty": np.zeros((0, 4), np.float32),
    "empty inside": np.zeros((3, 0, 2), np.float32),
    "single": np.ones((1, 1, 1, 1), np.float32),
    "special": np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32),
    "matrix": np.asmatrix(X),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_form(name):
    given = ARRAYS[name]
    result = fusile.tf.jit(add_one)(given)
    np.testing.assert_array_equal(result, np.asarray(given, np.float32) + 1)
    assert result.shape == given.shape


@pytest.mark.parametrize("dtype", ["datetime64[D]", np.longdouble, [("a", "f4")]], ids=str)
def test_element_types_that_tensorflow_has_not(dtype):
    with pytest.raises(fusile.ArgumentError, match="no element type"):
        fusile.tf.jit(add_one)(np.zeros(3, dtype))


@pytest.mark.parametrize(
    "given", [np.array(["a"]), np.array([object()]), tf.constant(["a"])], ids=["str", "object", "tf"]
)
def test_strings_are_named_by_the_parameter(given):
    with pytest.raises(fusile.UnsupportedOpError, match=r"argument words.* of string elements"):
        fusile.tf.jit(lambda words: tf.shape(words))(given)


def test_every_axis_may_be_empty():
    def f(x):
        return tf.reduce_sum(x, 0), tf.nn.softmax(x), tf.matmul(x, x, transpose_b=True), tf.sort(x, 1), tf.reduce_max(x)

    for sizes in ((0, 4), (3, 0), (0, 0)):
        x = tf.zeros(sizes)
        for ours, theirs in zip(fusile.tf.jit(f)(x), f(x), strict=True):
            np.testing.assert_array_equal(ours, theirs)


# -- Python values


def test_values_that_are_equal_and_differ():
    divide = fusile.tf.jit(lambda x, y: x / y)
    for y in (0.0, -0.0, np.nan, 1, 1.0, -0.0, 0.0):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(divide(X, y), X / np.float32(y))
    negative = fusile.tf.jit(lambda x, y: x * complex(y).imag)
    assert not np.signbit(negative(X, 0j)).any() and np.signbit(negative(X, complex(0, -0.0))).all()
    chosen = fusile.tf.jit(lambda x, y: x if isinstance(y, bool) else -x)
    np.testing.assert_array_equal(chosen(X, True), X)
    np.testing.assert_array_equal(chosen(X, 1), -X)


def test_a_changed_set_is_another_argument():
    chosen = fusile.tf.jit(lambda x, flags: x * 2 if "double" in flags else x)
    flags = {"double"}
    np.testing.assert_array_equal(chosen(X, flags), X * 2)
    flags.clear()
    np.testing.assert_array_equal(chosen(X, flags), X)


def test_none_strings_and_defaults_choose_at_compile_time():
    @fusile.tf.jit
    def f(x, mode="plain", scale=None, *, negate=False):
        x = x if scale is None else x * scale
        x = tf.square(x) if mode == "square" else x
        return -x if negate else x

    np.testing.assert_array_equal(f(X), X)
    np.testing.assert_array_equal(f(X, "square", scale=2.0), 4 * X**2)
    np.testing.assert_array_equal(f(X, negate=True, scale=tf.constant(3.0)), -3 * X)


@pytest.mark.parametrize("call", [lambda f: f(), lambda f: f(X, X, X), lambda f: f(X, X, z=1), lambda f: f(X, x=X)])
def test_calls_that_do_not_fit_are_named(call):
    def twice(x, y):
        return x + y

    for function in (twice, tf.function(twice)):
        with pytest.raises(fusile.ArgumentError, match="twice"):
            call(fusile.tf.jit(function))
    with pytest.raises(fusile.ArgumentError, match="twice"):
        call(fusile.tf.jit(twice).lower)


@pytest.mark.parametrize(
    "options",
    [{"numerics": "loose"}, {"threads": 0}, {"threads": -1}, {"threads": "all"}, {"threads": 1.5}, {"target": "tpu"}],
    ids=str,
)
def test_options_that_make_no_sense(options):
    for use in (lambda: fusile.tf.jit(add_one, **options), lambda: fusile.tf.jit(**options)):
        with pytest.raises(fusile.FusileError, match=str(next(iter(options.values())))):
            use()


def test_only_functions_are_compiled():
    with pytest.raises(fusile.ArgumentError, match="int"):
        fusile.tf.jit(3)


# -- composites and structures


def test_ragged_tensors_come_and_go():
    double = fusile.tf.jit(lambda r: (r * 2, tf.reduce_sum(r, axis=1)))
    for rows in ([[1.0, 2.0], [3.0]], [[4.0], [], [5.0, 6.0]]):
        r = tf.ragged.constant(rows)
        doubled, sums = double(r)
        assert doubled.to_list() == (r * 2).to_list()
        np.testing.assert_array_equal(sums, [sum(row) for row in rows])


def test_structures_of_all_kinds():
    Pair = namedtuple("Pair", "a b")
    f = fusile.tf.jit(lambda d: {"pair": Pair(d["p"].b, d["p"].a), "rest": [None, (d["x"][0] + 1,)], "none": None})
    result = f({"p": Pair(X, 2 * X), "x": [X]})
    np.testing.assert_array_equal(result["pair"].a, 2 * X)
    np.testing.assert_array_equal(result["rest"][1][0], X + 1)
    assert result["none"] is None and result["rest"][0] is None


def test_parameters_have_the_functions_names():
    lowered = fusile.tf.jit(lambda x, batch, *more, k: x + batch["image"] + more[0] + k).lower(X, {"image": X}, X, k=X)
    assert [p.name for p in lowered.module.entry.parameters] == ["x", "batch_image", "more_0", "k"]
    clash = fusile.tf.jit(lambda a, a_0: a[0] + a_0).lower([X], X)
    assert [p.name for p in clash.module.entry.parameters] == ["a_0", "a_0_1"]


# -- results


@pytest.mark.parametrize(
    ("result", "kind"),
    [("abc", "string"), (object(), "object"), (add_one, "function"), ({1, 2}, "set"), ([1, "a"], "string")],
    ids=["string", "object", "function", "set", "mixed"],
)
def test_results_that_are_no_tensors(result, kind):
    with pytest.raises(fusile.UnsupportedOpError, match=f"result .*{kind}"):
        fusile.tf.jit(lambda x: result)(X)


def test_a_tensor_array_is_no_result():
    with pytest.raises(fusile.UnsupportedOpError, match=r"result 0 .*TensorArray(.|\n)*stack\(\)"):
        fusile.tf.jit(lambda x: tf.TensorArray(tf.float32, 2).write(0, x))(X)


def test_arguments_constants_and_nothing_as_results():
    x = tf.constant(X)
    same, again, one, nothing = fusile.tf.jit(lambda x: (x, x, 1.0, None))(x)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(again, X)
    assert one == 1 and nothing is None
    assert fusile.tf.jit(lambda x: None)(x) is None and fusile.tf.jit(lambda x: ())(x) == ()
    assert fusile.tf.jit(lambda: 3)() == 3


def test_more_memory_than_there_is_names_the_amount():
    with pytest.raises(fusile.OutOfMemoryError, match="GiB"):
        fusile.tf.jit(lambda x: tf.broadcast_to(x[0], [10**7, 10**7]))(X)
    with pytest.raises(fusile.OutOfMemoryError, match="GiB"):
        fusile.tf.jit(lambda x: tf.broadcast_to(x[0], [2**31, 2**31, 8]))(X)
    np.testing.assert_array_equal(fusile.tf.jit(add_one)(X), X + 1)


# -- effects and what is around


def test_prints_are_said_to_be_dropped():
    def shows(x):
        tf.print("x is", x)
        return x + 1

    with pytest.warns(RuntimeWarning, match=r"tf\.print does nothing.*test_bad_input"):
        np.testing.assert_array_equal(fusile.tf.jit(shows)(X), X + 1)


def test_a_function_that_raises_can_be_called_again():
    fail = True

    def sometimes(x):
        if fail:
            raise LookupError("not today")
        return x + 1

    compiled = fusile.tf.jit(tf.autograph.experimental.do_not_convert(sometimes))
    for _ in range(2):
        with pytest.raises(LookupError, match="not today"):
            compiled(X)
    fail = False
    np.testing.assert_array_equal(compiled(X), X + 1)


def test_an_interrupted_compilation_can_be_repeated(monkeypatch):
    compiled = fusile.tf.jit(lambda x: tf.sin(x) + 7)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["fusile.tf.jit"], "compile_for_target", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
    np.testing.assert_allclose(compiled(X), np.sin(X) + 7, rtol=1e-6)


def test_forward_mode_is_refused():
    x = tf.constant(X)
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)), pytest.raises(fusile.UnsupportedOpError, match="forward"):
        fusile.tf.jit(tf.square)(x)


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    @fusile.tf.jit
    def __call__(self, x):
        return x * self.scale

    @fusile.tf.jit
    def twice(self, x):
        return x * self.scale * 2


def test_copies_of_an_object_call_their_own_methods():
    first = Scaled(2.0)
    np.testing.assert_array_equal(first.twice(X), X * 4)
    assert first.twice is first.twice
    copies = [copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    for other in copies:
        other.scale = 3.0
        np.testing.assert_array_equal(other.twice(X), X * 6)
        np.testing.assert_array_equal(other(X), X * 3)
    np.testing.assert_array_equal(first.twice(X), X * 4)


def test_compiled_functions_are_pickled_by_name():
    assert pickle.loads(pickle.dumps(ADD_TWO)) is ADD_TWO


@fusile.tf.jit
def ADD_TWO(x):
    return x + 2


def test_thousands_of_layers():
    def deep(x):
        for n in range(2000):
            x = x + float(n % 7) if n % 2 else tf.maximum(x, -x)
        return x

    np.testing.assert_array_equal(fusile.tf.jit(deep)(X), deep(tf.constant(X)))
