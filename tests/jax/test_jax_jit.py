"""`fusile.jax.jit` on the interpreter: trees, signatures, static and donated arguments, transformations."""

import numpy as np
import pytest

from fusile.base.errors import UnsupportedOpError

jax = pytest.importorskip("jax")
jnp = jax.numpy
fusile_jax = pytest.importorskip("fusile.jax")


class Interpreted:
    """Stands in for the compiler: an Executable that runs the module in the interpreter."""

    compiled: int = 0

    def __init__(self, module) -> None:
        Interpreted.compiled += 1
        self.module = module

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        from fusile.hlo.interpreter import interpret

        assert all(isinstance(a, np.ndarray) for a in arrays)
        return interpret(self.module, list(arrays))


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusile_jax.Lowered, "compile", lambda self: Interpreted(self.module))
    Interpreted.compiled = 0


def test_trees_of_arrays_in_and_out() -> None:
    def function(parameters, x, *, scale=1.0):
        return {"y": x @ parameters["w"] + parameters["b"], "parts": (x * scale, [x.sum()])}

    parameters = {"w": np.ones((3, 2), np.float32), "b": np.arange(2, dtype=np.float32)}
    x = jnp.arange(6.0).reshape(2, 3)
    found, want = fusile_jax.jit(function)(parameters, x, scale=2), function(parameters, x, scale=2)
    assert jax.tree.structure(found) == jax.tree.structure(want)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert isinstance(one, jax.Array) and one.dtype == two.dtype
        np.testing.assert_allclose(one, two)


def test_one_program_a_signature() -> None:
    compiled = fusile_jax.jit(lambda x, y: x + y)
    compiled(np.ones(3, np.float32), 1.0)
    compiled(np.zeros(3, np.float32), 2.0)
    assert Interpreted.compiled == 1
    compiled(np.ones(4, np.float32), 1.0)
    compiled(np.ones(3, np.int32), 1)
    compiled(np.ones(3, np.float32), np.float32(1))
    assert Interpreted.compiled == 4


def test_static_arguments_are_part_of_the_signature() -> None:
    compiled = fusile_jax.jit(lambda x, n, y: x**n + y, static_argnums=(1,))
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(compiled(x, 2, 1.0), x**2 + 1)
    np.testing.assert_allclose(compiled(x, 3, 1.0), x**3 + 1)
    np.testing.assert_allclose(compiled(x, 2, 5.0), x**2 + 5)
    assert Interpreted.compiled == 2


def test_unused_arguments_and_no_arguments() -> None:
    assert fusile_jax.jit(lambda x, unused: x + 1)(np.float32(1), np.ones(5)) == 2
    np.testing.assert_array_equal(fusile_jax.jit(lambda: jnp.arange(3))(), [0, 1, 2])
    assert fusile_jax.jit(lambda x: ())(1.0) == ()


def test_donated_arguments_become_aliases() -> None:
    lowered = fusile_jax.jit(lambda x, y: (x + 1, y), donate_argnums=(0,)).lower(
        np.ones(3, np.float32), np.ones(3, np.float32)
    )
    assert lowered.module.aliases == {0: 0}


def test_it_is_a_decorator_with_and_without_options() -> None:
    @fusile_jax.jit
    def plain(x):
        """Doubles."""
        return x * 2

    @fusile_jax.jit(static_argnums=1)
    def optioned(x, n):
        return x * n

    assert plain.__doc__ == "Doubles." and plain(3.0) == 6 and optioned(3.0, 4) == 12


def test_under_other_transformations_the_function_is_traced() -> None:
    compiled = fusile_jax.jit(lambda x: jnp.sum(x**3))
    np.testing.assert_allclose(jax.grad(compiled)(jnp.array([1.0, 2.0])), [3, 12])
    np.testing.assert_allclose(jax.vmap(compiled)(jnp.ones((2, 3))), [3, 3])
    np.testing.assert_allclose(fusile_jax.jit(jax.grad(compiled))(jnp.array([1.0, 2.0])), [3, 12])


def test_random_keys_go_in_as_their_data() -> None:
    key = jax.random.key(3)
    np.testing.assert_allclose(
        fusile_jax.jit(lambda k: jax.random.uniform(k, (4,)))(key), jax.random.uniform(key, (4,))
    )
    with pytest.raises(UnsupportedOpError, match="returns random keys"):
        fusile_jax.jit(jax.random.split)(key)


def test_arguments_that_are_not_contiguous() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(fusile_jax.jit(lambda v: v + 1)(x[:, ::2].T), x[:, ::2].T + 1)


def test_a_function_that_raises_while_traced_raises_the_same() -> None:
    def bad(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fusile_jax.jit(bad)(1.0)


def test_lowered_programs_know_the_users_lines() -> None:
    lowered = fusile_jax.jit(lambda x: jnp.cos(x)).lower(jax.ShapeDtypeStruct((3,), np.float32))
    source = next(i.source for i in lowered.module.entry.instructions if i.opcode == "cosine")
    assert source.file.endswith("test_jax_jit.py") and "stablehlo.cosine" in lowered.text
