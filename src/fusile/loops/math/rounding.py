"""Rounding to whole numbers for machines without an instruction for it."""

from __future__ import annotations

from collections.abc import Callable

from fusile.loops.math.number import Number, fraction_bits


def round_nearest_even(x: Number) -> Number:
    """Adding 2**23 (2**52) to a smaller magnitude leaves no fraction bits."""
    size = abs(x)
    limit = 2.0 ** fraction_bits(x.type)
    return (size < limit).pick(((size + limit) - limit).copysign(x), x)


def trunc(x: Number) -> Number:
    size = abs(x)
    near = round_nearest_even(size)
    return (near > size).pick(near - 1.0, near).copysign(x)


def floor(x: Number) -> Number:
    near = round_nearest_even(x)
    return (near > x).pick(near - 1.0, near).copysign(x)


def ceil(x: Number) -> Number:
    return -floor(-x)


def round_nearest_afz(x: Number) -> Number:
    """Halves go away from zero."""
    whole = trunc(x)
    return (abs(x - whole) >= 0.5).pick(whole + x.constant(1.0).copysign(x), whole)


ROUNDING: dict[str, Callable[[Number], Number]] = {
    "round_nearest_even": round_nearest_even,
    "round_nearest_afz": round_nearest_afz,
    "trunc": trunc,
    "floor": floor,
    "ceil": ceil,
}
