"""JAX's linear algebra, which calls LAPACK by name, agrees with JAX's own: all types, batches, odd shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fusile.jax

jax.config.update("jax_enable_x64", True)
RANDOM = np.random.default_rng(3)
TYPES = ["float32", "float64", "complex64", "complex128"]


def matrices(of: str, *sizes: int) -> np.ndarray:
    x = RANDOM.standard_normal(sizes)
    return (x + 1j * RANDOM.standard_normal(sizes) if of.startswith("c") else x).astype(of)


def positive(of: str, *sizes: int) -> np.ndarray:
    x = matrices(of, *sizes)
    return x @ np.swapaxes(x.conj(), -1, -2) + np.eye(sizes[-1], dtype=of)


def rebuilt_qr(x):
    q, r = jnp.linalg.qr(x)
    return q @ r, jnp.abs(r)


def rebuilt_svd(x):
    u, s, v = jnp.linalg.svd(x, full_matrices=False)
    return (u * s[..., None, :].astype(u.dtype)) @ v, s, jnp.linalg.svd(x, compute_uv=False)


def rebuilt_eigh(x):
    values, vectors = jnp.linalg.eigh(x)
    return (vectors * values[..., None, :].astype(vectors.dtype)) @ jnp.swapaxes(vectors.conj(), -1, -2), values


GENERAL = {
    "qr": rebuilt_qr,
    "svd": rebuilt_svd,
    "pinv": jnp.linalg.pinv,
}
SQUARE = {
    "lu": lambda x: jax.scipy.linalg.lu(x)[1:] if x.ndim == 2 else jax.scipy.linalg.lu_factor(x),
    "det": lambda x: (jnp.linalg.det(x), jnp.linalg.slogdet(x)),
    "inv": jnp.linalg.inv,
    "solve": lambda x: jnp.linalg.solve(x, x[..., :2]),
    "triangular": lambda x: jax.scipy.linalg.solve_triangular(
        x + 9 * jnp.eye(x.shape[-1], dtype=x.dtype), x, lower=True
    ),
    "expm": lambda x: jax.scipy.linalg.expm(x / 9),
}
POSITIVE = {
    "cholesky": jnp.linalg.cholesky,
    "eigh": rebuilt_eigh,
}


def check(function, x, of: str) -> None:
    wanted = jax.tree.leaves(jax.jit(function)(x))
    found = jax.tree.leaves(fusile.jax.jit(function)(x))
    close = 2e-3 if of in ("float32", "complex64") else 1e-9
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=close, atol=close)


@pytest.mark.parametrize("of", TYPES)
@pytest.mark.parametrize("name", GENERAL)
def test_general(name: str, of: str) -> None:
    for sizes in ((5, 3), (3, 5), (2, 4, 4)):
        check(GENERAL[name], matrices(of, *sizes), of)


@pytest.mark.parametrize("of", TYPES)
@pytest.mark.parametrize("name", SQUARE)
def test_square(name: str, of: str) -> None:
    for sizes in ((5, 5), (1, 1), (2, 3, 4, 4)):
        if name == "expm" and len(sizes) > 2:
            continue
        check(SQUARE[name], matrices(of, *sizes), of)


@pytest.mark.parametrize("of", TYPES)
@pytest.mark.parametrize("name", POSITIVE)
def test_positive(name: str, of: str) -> None:
    for sizes in ((5, 5), (2, 3, 3)):
        check(POSITIVE[name], positive(of, *sizes), of)


@pytest.mark.parametrize("of", TYPES)
def test_eigenvalues(of: str) -> None:
    def eigenvalues(x):
        values, vectors = jnp.linalg.eig(x)
        return jnp.sort(values), x.astype(vectors.dtype) @ vectors - vectors * values[None, :]

    check(eigenvalues, matrices(of, 5, 5), of)


@pytest.mark.parametrize("of", TYPES)
def test_reduced_forms(of: str) -> None:
    check(lambda x: jnp.abs(jax.scipy.linalg.hessenberg(x)), matrices(of, 5, 5), of)

    def schur(x):
        form, vectors = jax.scipy.linalg.schur(x)
        return vectors @ form @ vectors.conj().T

    check(schur, matrices(of, 5, 5), of)
    check(lambda x: jax.lax.linalg.tridiagonal(x)[1:3], positive(of, 5, 5), of)


def test_a_matrix_that_is_not_positive_gives_nan() -> None:
    found = fusile.jax.jit(jnp.linalg.cholesky)(-np.eye(3))
    assert np.isnan(np.asarray(found)[np.tril_indices(3)]).all()
