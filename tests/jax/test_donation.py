"""Donated arguments are overwritten and gone, as under `jax.jit`; calls take microseconds and copy nothing."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
fusile_jax = pytest.importorskip("fusile.jax")


def address(array):
    return array.unsafe_buffer_pointer()


def test_a_key_value_cache_stays_where_it_is():
    def decode(cache, row, at):
        cache = jax.lax.dynamic_update_slice(cache, row, (at, 0))
        return cache, cache @ row[0]

    compiled = fusile_jax.jit(decode, donate_argnums=0)
    cache, expected = jnp.zeros((2048, 64)), np.zeros((2048, 64), np.float32)
    places = []
    for at in range(6):
        row = jnp.full((1, 64), at + 1.0)
        before = cache
        cache, y = compiled(cache, row, at)
        assert before.is_deleted()
        expected[at] = at + 1
        np.testing.assert_array_equal(cache, expected)
        np.testing.assert_allclose(y, expected @ np.asarray(row)[0])
        places.append(address(cache))
    # The first array was JAX's own.
    assert len(set(places)) == 1


def test_a_training_step_on_a_tree():
    @jax.jit
    def plain(state, x):
        return jax.tree.map(lambda w: w - 0.1 * jnp.tanh(w) * x.sum(), state), x.mean()

    compiled = fusile_jax.jit(plain.__wrapped__, donate_argnums=(0,))
    state = {"w": jnp.ones((64, 64)), "b": [jnp.arange(3000.0), jnp.float32(2)]}
    want = jax.tree.map(lambda a: a + 0, state)
    x, places = jnp.ones(4), set()
    for _ in range(4):
        want, mean = plain(want, x)
        before = state
        state, got = compiled(state, x)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        for a, b in zip(jax.tree.leaves((state, got)), jax.tree.leaves((want, mean)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        places.add(address(state["w"]))
    assert len(places) == 1


def test_a_donated_array_may_not_be_used_again():
    compiled = fusile_jax.jit(lambda x: x + 1, donate_argnums=0)
    x = compiled(jnp.zeros(5000))
    y = compiled(x)
    with pytest.raises(RuntimeError, match="deleted"):
        compiled(x)
    np.testing.assert_array_equal(y, np.full(5000, 2.0))


def test_numpy_arrays_and_what_is_not_donated_are_never_changed():
    compiled = fusile_jax.jit(lambda x, y: (x + y, x - y), donate_argnums=0)
    x, y = np.ones(5000, np.float32), jnp.full(5000, 2.0)
    for _ in range(3):
        compiled(x, y)
    assert (x == 1).all() and (np.asarray(y) == 2).all()


def test_one_array_given_twice():
    compiled = fusile_jax.jit(lambda x, y: x + 2 * y, donate_argnums=0)
    x = compiled(jnp.zeros(5000), jnp.ones(5000))
    np.testing.assert_array_equal(compiled(x, x), np.full(5000, 6.0))


def test_results_lie_in_their_own_memory():
    compiled = fusile_jax.jit(lambda x: x * 2)
    x = jnp.arange(5000.0)
    first, second = compiled(x), compiled(x)
    assert address(first) != address(second)
    del second
    for _ in range(5):
        compiled(x + 1)
    np.testing.assert_array_equal(first, np.arange(5000.0) * 2)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "int4", "complex64"]
)
def test_results_of_every_kind(dtype):
    compiled = fusile_jax.jit(lambda x: jnp.concatenate([x, x]))
    x = jnp.ones(8, dtype)
    got = compiled(x)
    assert got.dtype == x.dtype and got.shape == (16,) and isinstance(got, jax.Array)
    np.testing.assert_array_equal(np.asarray(got).astype(np.complex64), np.ones(16))
    assert (jax.jit(lambda a: a)(got) == got).all()


def test_a_small_call_takes_few_steps(count_calls):
    compiled, x = fusile_jax.jit(lambda x, y: x + y), jnp.ones(8)
    compiled(x, x)
    assert count_calls(lambda: compiled(x, x)) <= 36
