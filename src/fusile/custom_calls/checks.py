"""The custom calls with which StableHLO's own tests compare results: `check.expect_eq`, `check.expect_close` and the
like.

They give nothing; a difference raises a CompileError that names the first elements that differ. Where the program says
that they give a predicate (`check.eq` of old programs), they give it and raise nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusile.base.errors import CompileError
from fusile.base.shape import Shape
from fusile.custom_calls.registry import Array, register

ALMOST = 1e-4
"""The tolerance of `expect_almost_eq`."""
MOST_ULPS = 3
"""The distance that `expect_close` allows, in representable numbers, unless it says otherwise."""


@register("check.expect_eq")
@register("check.eq")
def expect_equal(operands: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> Sequence[Array]:
    a, b = operands
    return _verdict(_equal(a, b), a, b, "equal", shapes)


@register("check.expect_almost_eq")
@register("check.almost_eq")
def expect_almost(operands: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> Sequence[Array]:
    a, b = operands
    tolerance = float(attributes.get("tolerance", ALMOST))
    with np.errstate(all="ignore"):
        near = np.abs(_wide(a) - _wide(b)) <= tolerance
    return _verdict(_equal(a, b) | near, a, b, f"within {tolerance} of each other", shapes)


@register("check.expect_close")
@register("check.close")
def expect_close(operands: Sequence[Array], attributes: Mapping[str, Any], shapes: Sequence[Shape]) -> Sequence[Array]:
    a, b = operands
    least = int(attributes.get("min_ulp_difference", 0))
    most = int(attributes.get("max_ulp_difference", MOST_ULPS))
    distance = _ulps(a, b)
    fine = _equal(a, b) | ((distance >= least) & (distance <= most))
    return _verdict(fine, a, b, f"within {most} ulp of each other", shapes)


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _equal(a: Array, b: Array) -> Array:
    if a.dtype.kind in "biu":
        return np.asarray(a == b)
    x, y = _wide(a), _wide(b)
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _ulps(a: Array, b: Array) -> Array:
    """How many representable numbers apart; of complex numbers the farther part counts."""
    if a.dtype.kind == "c":
        return np.maximum(_ulps(a.real, b.real), _ulps(a.imag, b.imag))
    kind = np.dtype(f"i{a.dtype.itemsize}")
    x, y = (np.ascontiguousarray(v).view(kind).astype(object) for v in (a, b))
    lowest = 1 << (8 * kind.itemsize - 1)
    ordered = [np.where(v < 0, -lowest - v, v) for v in (x, y)]
    distance = np.abs(ordered[0] - ordered[1]).astype(np.float64)
    with np.errstate(all="ignore"):
        odd = np.isnan(_wide(a)) | np.isnan(_wide(b))
    return np.asarray(np.where(odd, np.inf, distance))


def _verdict(fine: Array, a: Array, b: Array, how: str, shapes: Sequence[Shape]) -> Sequence[Array]:
    if shapes:
        return [np.array(bool(np.all(fine)))]
    wrong = np.argwhere(~np.asarray(fine).reshape(a.shape))
    if len(wrong):
        place = tuple(int(i) for i in wrong[0])
        raise CompileError(
            f"{len(wrong)} of {a.size} elements are not {how}, the first at {list(place)}: {a[place]} and {b[place]}"
        )
    return []
