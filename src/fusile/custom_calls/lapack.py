"""The linear algebra that JAX calls by name on CPUs (`lapack_dgetrf_ffi`, ...), by SciPy's LAPACK.

Names are `lapack_` + a letter for the element type (s, d, c, z) + LAPACK's name + `_ffi`. Leading dimensions are
batches. What LAPACK says of failures is the last result, `info`, as in JAX, which gives NaN then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.custom_calls.registry import Array, register

LETTERS = "sdcz"
Routine = Callable[[Any, str, Sequence[Array], Mapping[str, Any], Sequence[Shape]], Sequence[Any]]
"""(scipy.linalg, letter, one batch element's operands, attributes, results' shapes) -> one batch element's results."""


def _scipy() -> Any:
    try:
        import scipy.linalg
    except ImportError as error:
        raise UnsupportedOpError("linear algebra by LAPACK needs SciPy", hint="pip install 'fusile[linalg]'") from error
    return scipy.linalg


def _routine(real: str, complex_: str | None = None) -> Callable[[Routine], Routine]:
    """Registers a routine for all element types, with another name for complex ones where LAPACK has one."""

    def enter(routine: Routine) -> Routine:
        for letter in LETTERS:
            name = real if letter in "sd" else complex_ or real
            register(f"lapack_{letter}{name}_ffi")(_batched(routine, letter))
        return routine

    return enter


def _batched(routine: Routine, letter: str) -> Any:
    def function(operands: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> list[Array]:
        linalg = _scipy()
        batch = operands[0].shape[: int(_batch_rank(operands[0], shapes))]
        results = [np.zeros(s.sizes, s.element_type.dtype) for s in shapes]
        inner = [Shape(s.element_type, s.sizes[len(batch) :]) for s in shapes]
        for place in np.ndindex(*batch):
            found = routine(linalg, letter, [o[place] for o in operands], attributes, inner)
            for result, value in zip(results, found, strict=True):
                if value is not None:
                    result[place] = value
        return results

    return function


def _batch_rank(operand: Array, shapes: Sequence[Shape]) -> int:
    """`info`, the last result of most routines, has a number a matrix; others give a matrix first."""
    last = shapes[-1]
    if len(shapes) > 1 and last.element_type.is_integer:
        return last.rank
    return operand.ndim - 2


def _lapack(linalg: Any, letter: str, name: str) -> Any:
    return getattr(linalg.lapack, letter + name)


def _flag(attributes: Mapping[str, Any], name: str, value: str) -> bool:
    """Whether an attribute, a letter's code, is this letter."""
    return int(attributes[name]) == ord(value)


@_routine("getrf")
def getrf(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    lu, pivots, info = _lapack(linalg, letter, "getrf")(operands[0])
    return lu, pivots + 1, info


@_routine("geqrf")
def geqrf(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    qr, tau, _, _ = _lapack(linalg, letter, "geqrf")(operands[0])
    return qr, tau


@_routine("geqp3")
def geqp3(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    qr, pivots, tau, _, _ = _lapack(linalg, letter, "geqp3")(operands[0])
    return qr, pivots, tau


@_routine("orgqr", "ungqr")
def orgqr(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    name = "orgqr" if letter in "sd" else "ungqr"
    q, _, _ = _lapack(linalg, letter, name)(operands[0], operands[1])
    return (q,)


@_routine("potrf")
def potrf(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    return _lapack(linalg, letter, "potrf")(operands[0], lower=_flag(attributes, "uplo", "L"), clean=False)


@_routine("gesdd")
def gesdd(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    (a,) = operands
    wanted = not _flag(attributes, "mode", "N")
    u, s, v, info = _lapack(linalg, letter, "gesdd")(a, compute_uv=wanted, full_matrices=_flag(attributes, "mode", "A"))
    return a, s, u if wanted else None, v if wanted else None, info


@_routine("syevd", "heevd")
def syevd(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    name = "syevd" if letter in "sd" else "heevd"
    values, vectors, info = _lapack(linalg, letter, name)(
        operands[0], compute_v=_flag(attributes, "mode", "V"), lower=_flag(attributes, "uplo", "L")
    )
    return vectors, values, info


@_routine("geev")
def geev(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    left, right = (_flag(attributes, f"compute_{side}", "V") for side in ("left", "right"))
    found = _lapack(linalg, letter, "geev")(operands[0], compute_vl=left, compute_vr=right)
    if letter in "cz":
        values, lefts, rights, info = found
        return values, lefts if left else None, rights if right else None, info
    real, imaginary, lefts, rights, info = found
    joined = [_joined(vectors, imaginary) if wanted else None for vectors, wanted in ((lefts, left), (rights, right))]
    return real, imaginary, *joined, info


def _joined(vectors: Array, imaginary: Array) -> Array:
    """Complex eigenvectors from LAPACK's real ones: a conjugate pair has its parts in two columns."""
    result = vectors.astype(np.result_type(vectors.dtype, np.complex64))
    column = 0
    while column < len(imaginary):
        if imaginary[column] != 0 and column + 1 < len(imaginary):
            pair = vectors[:, column] + 1j * vectors[:, column + 1]
            result[:, column], result[:, column + 1] = pair, pair.conj()
            column += 1
        column += 1
    return result


@_routine("gees")
def gees(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    wanted = _flag(attributes, "mode", "V")
    found = _lapack(linalg, letter, "gees")(lambda *_: None, operands[0], compute_v=wanted)
    form, count, *values, vectors, _, info = found
    return form, vectors if wanted else None, *values, count, info


@_routine("gehrd")
def gehrd(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    low, high = int(attributes["low"]) - 1, int(attributes["high"]) - 1
    return _lapack(linalg, letter, "gehrd")(operands[0], lo=low, hi=high)


@_routine("sytrd", "hetrd")
def sytrd(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    name = "sytrd" if letter in "sd" else "hetrd"
    return _lapack(linalg, letter, name)(operands[0], lower=_flag(attributes, "uplo", "L"))


@_routine("trsm")
def trsm(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    a, b = operands
    solve = getattr(linalg.blas, letter + "trsm")
    solved = solve(
        1.0, a, b,
        side=not _flag(attributes, "side", "L"), lower=_flag(attributes, "uplo", "L"),
        trans_a="NTC".index(chr(int(attributes["trans_x"]))), diag=_flag(attributes, "diag", "U"),
    )  # fmt: skip
    return (solved,)


@_routine("gtsv")
def gtsv(linalg: Any, letter: str, operands: Sequence[Array], attributes: Any, shapes: Sequence[Shape]) -> Any:
    below, diagonal, above, b = operands
    *_, solved, info = _lapack(linalg, letter, "gtsv")(below[1:], diagonal, above[:-1], b)
    return below, diagonal, above, solved, info
