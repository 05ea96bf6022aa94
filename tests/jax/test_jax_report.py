"""Reports on JAX functions, timed on the arguments that are given."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fusile
import fusile.jax

pytest.importorskip("jinja2")


def test_a_function_with_static_and_donated_arguments() -> None:
    @fusile.jax.jit
    def plain(tree, times):
        return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ tree["w"]), tree["x"]) * times

    tree = {"x": jnp.ones((16, 16)), "w": jnp.full((16, 16), 0.1)}
    made = fusile.report(plain, tree, 2.0)
    assert made.figures.seconds and any(k.launches == 3 for k in made.figures.kernels)
    assert made.executable.compile_times and "test_jax_report.py" in made.html

    static = fusile.jax.jit(lambda x, n: x + n, static_argnums=1, donate_argnums=0)
    x = jnp.arange(64.0)
    assert fusile.report(static, x, 3).figures.seconds
    np.testing.assert_array_equal(x, np.arange(64.0))


def test_shapes_alone_are_not_run() -> None:
    made = fusile.report(fusile.jax.jit(jnp.sin), jax.ShapeDtypeStruct((8,), jnp.float32))
    assert made.figures.seconds is None and len(made.figures.kernels) == 1
