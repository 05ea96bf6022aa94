"""Variables are read without a copy and assigned without one; old values stay what they were; no update is lost."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf
from fusile.tf.variables import VariableReader, VariableWriter

SIZE = (64, 64)


def address(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data


def read(*variables):
    return VariableReader([v.handle for v in variables])()


def observed(compiled, *arguments):
    """The arrays that the program of a compiled function is given and gives, of each later call."""
    compiled(*arguments)
    (specialization,) = compiled._specializations.values()
    calls, run = [], specialization._run

    def observe(inputs):
        outputs = run(inputs)
        calls.append((list(inputs), list(outputs)))
        return outputs

    specialization._run = observe
    return calls


def test_large_variables_are_passed_and_taken_over_without_a_copy():
    v = tf.Variable(tf.ones(SIZE))
    compiled = fusile.tf.jit(lambda x: v.assign_add(x).shape[0] * tf.reduce_sum(v))
    calls = observed(compiled, tf.ones(SIZE))
    for turn in range(3):
        before = address(read(v)[0])
        assert float(compiled(tf.ones(SIZE))) == (turn + 3) * 64**3
        ((_, taken), (_, made)) = calls[-1]
        assert taken.ctypes.data == before
        assert address(read(v)[0]) == made.ctypes.data


def mlp_with_adam():
    """Three layers, with everything an Adam step changes."""
    random = np.random.default_rng(0)
    shapes = [(64, 128), (128,), (128, 128), (128,), (128, 10), (10,)]
    weights = [tf.Variable(random.uniform(-0.1, 0.1, s).astype(np.float32)) for s in shapes]
    first = [tf.Variable(tf.zeros(s)) for s in shapes]
    second = [tf.Variable(tf.zeros(s)) for s in shapes]
    count = tf.Variable(0.0)

    def step(x, y):
        with tf.GradientTape() as tape:
            h = tf.nn.relu(x @ weights[0] + weights[1])
            h = tf.nn.relu(h @ weights[2] + weights[3])
            loss = tf.reduce_mean((h @ weights[4] + weights[5] - y) ** 2)
        count.assign_add(1.0)
        rate = 1e-2 * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        for w, m, v, g in zip(weights, first, second, tape.gradient(loss, weights), strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g * g)
            w.assign_sub(rate * m / (tf.sqrt(v) + 1e-7))
        return loss

    return step, [*weights, *first, *second, count]


def test_a_training_step_copies_no_large_variable():
    step, variables = mlp_with_adam()
    x, y = tf.random.normal((32, 64)), tf.random.normal((32, 10))
    compiled = fusile.tf.jit(step)
    calls = observed(compiled, x, y)
    for _ in range(3):
        before = {address(t) for t in read(*variables)}
        compiled(x, y)
        taken = {a.ctypes.data for a in calls[-1][0]}
        made = {a.ctypes.data for a in calls[-1][1]}
        large = [v for v in variables if v.shape.num_elements() * 4 > 4096]
        after = {address(t) for t in read(*large)}
        assert len(large) == 9
        # Every large variable's memory is a result's: nothing was copied when it was assigned, nor when it was read.
        assert after <= made and len(before & taken) >= len(variables) - 1
    sizes = [v.shape.num_elements() * 4 for v in variables]
    assert sum(s for s in sizes if s <= 4096) < 6000, "bytes that are copied"
    assert sum(a.nbytes for a in calls[-1][1]) == sum(sizes) + 4, "bytes of results"
    plan = compiled.executable(x, y).memory
    assert plan.temp < 2 * (32 * 128 * 4 * 4 + 128 * 128 * 4)


@pytest.mark.parametrize("size", [(), (8,), (64, 64)])
def test_old_values_stay_what_they_were(size):
    v = tf.Variable(tf.ones(size))
    compiled = fusile.tf.jit(lambda x: v.assign_add(x * tf.ones_like(v)))
    old = [v.read_value(), v.value(), tf.convert_to_tensor(v), tf.identity(v), v.numpy()]
    for turn in range(4):
        new = compiled(tf.constant(1.0))
        kept = new.numpy().copy()
        for value in old:
            np.testing.assert_array_equal(value, np.ones(size))
        np.testing.assert_array_equal(v.numpy(), np.full(size, turn + 2.0))
        compiled(tf.constant(0.0))
        v.assign_add(tf.ones_like(v))
        v.assign_sub(tf.ones_like(v))
        np.testing.assert_array_equal(new, kept)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_many_variables_are_assigned_at_once(count):
    variables = [tf.Variable(tf.fill((n + 1, 3), float(n))) for n in range(count)]
    write = VariableWriter([v.handle for v in variables])
    tensors = [tf.fill((n + 1, 3), 10.0 + n) for n in range(count)]
    write(tensors)
    for variable, tensor in zip(variables, tensors, strict=True):
        np.testing.assert_array_equal(variable, tensor)
        assert address(read(variable)[0]) == address(tensor)


def test_no_concurrent_update_is_lost():
    v = [tf.Variable(tf.zeros(SIZE)) for _ in range(10)]
    compiled = fusile.tf.jit(lambda x: tf.stack([u.assign_add(x)[0, 0] for u in v]))
    one = tf.ones(SIZE)
    compiled(one)
    torn = []

    def work():
        for _ in range(50):
            compiled(one)

    look = fusile.tf.jit(lambda: tf.stack([u[0, 0] for u in v]))

    def watch():
        for _ in range(100):
            seen = look().numpy()
            if (seen != seen[0]).any():
                torn.append(seen)

    look()
    threads = [threading.Thread(target=f) for f in (work, work, work, watch)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for u in v:
        np.testing.assert_array_equal(u, np.full(SIZE, 151.0))
    assert not torn


def test_a_call_that_fails_changes_nothing(monkeypatch):
    v = tf.Variable(tf.ones(SIZE))
    compiled = fusile.tf.jit(lambda x: v.assign_add(x))
    compiled(tf.ones(SIZE))
    (specialization,) = compiled._specializations.values()

    def fail(inputs):
        specialization.executable.call_flat(inputs)
        raise RuntimeError("stopped after the program has run")

    monkeypatch.setattr(specialization, "_run", fail)
    with pytest.raises(RuntimeError, match="stopped"):
        compiled(tf.ones(SIZE))
    np.testing.assert_array_equal(v, np.full(SIZE, 2.0))
    monkeypatch.undo()
    np.testing.assert_array_equal(compiled(tf.ones(SIZE)), np.full(SIZE, 3.0))
