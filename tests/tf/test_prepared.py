"""What depends on unassigned variables alone is made once, and again after every kind of assignment."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

X = np.random.default_rng(3).uniform(-1, 1, (40, 32)).astype(np.float32)


class Dense(tf.Module):
    def __init__(self):
        super().__init__()
        random = np.random.default_rng(4)
        self.w = tf.Variable(random.uniform(-1, 1, (32, 48)).astype(np.float32))
        self.scale = tf.Variable(random.uniform(1, 2, 48).astype(np.float32))

    def __call__(self, x):
        return tf.nn.relu(x @ self.w) * tf.math.rsqrt(self.scale + 1e-3)


def counted(compiled, *arguments):
    """The compiled function's calls of its preparation, as a list that grows."""
    compiled(*arguments)
    executable = compiled.executable(*arguments)
    assert executable.program.preparation is not None
    runs, run = [], executable._preparation.call_flat
    executable._preparation.call_flat = lambda *given: runs.append(1) or run(*given)
    return runs


def test_weights_are_packed_once():
    model = Dense()
    compiled = fusile.tf.jit(model.__call__)
    runs = counted(compiled, X)
    for _ in range(3):
        np.testing.assert_allclose(compiled(X), model(X), rtol=1e-5, atol=1e-5)
    assert not runs


def train(model):
    optimizer = tf.keras.optimizers.SGD(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X))
    variables = [model.w, model.scale]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def apply_adam(model):
    zero, one = tf.Variable(tf.zeros_like(model.w)), tf.constant(0.5)
    other = tf.Variable(tf.zeros_like(model.w))
    tf.raw_ops.ResourceApplyAdam(
        var=model.w.handle, m=zero.handle, v=other.handle, beta1_power=one, beta2_power=one, lr=one, beta1=one,
        beta2=one, epsilon=one, grad=tf.ones_like(model.w),
    )  # fmt: skip


ASSIGNMENTS = {
    "assign": lambda m: m.w.assign(m.w * 2),
    "assign the other": lambda m: m.scale.assign(m.scale * 2),
    "add": lambda m: m.w.assign_add(tf.ones_like(m.w)),
    "subtract": lambda m: m.w.assign_sub(tf.ones_like(m.w)),
    "a slice": lambda m: m.w[3:5].assign(m.w[3:5] * 2),
    "scatter": lambda m: m.w.scatter_nd_add([[1, 2]], [7.0]),
    "scatter rows": lambda m: m.w.scatter_add(tf.IndexedSlices(tf.ones((1, 48)), [4])),
    "a tf.function": lambda m: tf.function(lambda: m.w.assign_add(tf.ones_like(m.w)))(),
    "XLA": lambda m: tf.function(lambda: m.w.assign_add(tf.ones_like(m.w)), jit_compile=True)(),
    "a compiled function": lambda m: fusile.tf.jit(lambda: m.w.assign_add(tf.ones_like(m.w)))(),
    "an optimizer": train,
    "a fused optimizer op": apply_adam,
}


@pytest.mark.parametrize("kind", ASSIGNMENTS)
def test_every_assignment_is_seen(kind):
    model = Dense()
    compiled = fusile.tf.jit(model.__call__)
    compiled(X)
    for _ in range(3):
        before = compiled(X).numpy()
        ASSIGNMENTS[kind](model)
        np.testing.assert_allclose(compiled(X), model(X), rtol=1e-4, atol=1e-4)
        assert not np.array_equal(compiled(X), before)


def test_memory_that_comes_back_is_no_unchanged_weight():
    model = Dense()
    compiled = fusile.tf.jit(model.__call__)
    for turn in range(20):
        model.w.assign(tf.fill((32, 48), float(turn)))
        np.testing.assert_allclose(compiled(X), model(X), rtol=1e-4, atol=1e-4)


def test_assigned_variables_are_not_prepared():
    model = Dense()

    def step(x):
        y = model(x)
        model.w.assign_add(tf.ones_like(model.w))
        return y

    compiled = fusile.tf.jit(step)
    for _ in range(3):
        w = model.w.numpy()
        got = compiled(X)
        np.testing.assert_allclose(
            got, np.maximum(X @ w, 0) / np.sqrt(model.scale.numpy() + 1e-3), rtol=1e-4, atol=1e-4
        )


def test_threads_that_predict_while_another_assigns():
    model = Dense()
    model.scale.assign(tf.ones_like(model.scale))
    compiled = fusile.tf.jit(lambda x: x @ model.w)
    x = np.ones((40, 32), np.float32)
    values = [float(n) for n in range(1, 9)]
    model.w.assign(tf.fill((32, 48), 1.0))
    wrong = []

    def predict():
        for _ in range(100):
            y = compiled(x).numpy()
            if y.min() != y.max() or y[0, 0] / 32 not in values:
                wrong.append(y)

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for t in threads:
        t.start()
    for n in range(80):
        model.w.assign(tf.fill((32, 48), values[n % 8]))
    for t in threads:
        t.join()
    assert not wrong


def test_saved_programs_prepare_too(tmp_path):
    model = Dense()
    executable = fusile.tf.jit(model.__call__).executable(X)
    executable.save(tmp_path / "model.fusile")
    loaded = fusile.load(tmp_path / "model.fusile")
    given = [X, model.w.numpy(), model.scale.numpy()]
    for exe in (executable, loaded):
        np.testing.assert_allclose(exe(*given)[0], model(X), rtol=1e-5, atol=1e-5)
        with pytest.raises(fusile.FusileError, match="takes 3 arguments, not 4"):
            exe(*given, given[0])
        with pytest.raises(fusile.FusileError, match="takes 3 arguments, not 2"):
            exe(*given[:2])
        with pytest.raises(fusile.FusileError):
            exe(X, X, X)
