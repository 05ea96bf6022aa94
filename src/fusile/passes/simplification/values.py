"""Conditions on constant values that rules share, and the writing of constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset.shape import Broadcast
from fusile.rewrite.constants import constant_array, is_constant, splat
from fusile.rewrite.rules import Match, Replacement


def is_computed(instruction: Instruction) -> bool:
    """True of all but constants and broadcasts of them."""
    return not is_constant(instruction)


def is_value(instruction: Instruction, value: float) -> bool:
    """True of a constant all of whose elements equal `value` (0.0 and -0.0 are equal)."""
    found = splat(instruction)
    return found is not None and bool(found == value)


def is_zero(instruction: Instruction) -> bool:
    return is_value(instruction, 0)


def is_negative_zero(instruction: Instruction) -> bool:
    """True of float constants only."""
    kind = instruction.shape.leaves()[0].element_type
    return kind.is_float and is_zero(instruction) and math.copysign(1, float(splat(instruction))) < 0


def is_positive_zero(instruction: Instruction) -> bool:
    """True of the zero of any type but -0.0."""
    return is_zero(instruction) and not is_negative_zero(instruction)


def is_one(instruction: Instruction) -> bool:
    return is_value(instruction, 1)


def is_minus_one(instruction: Instruction) -> bool:
    return is_value(instruction, -1)


def is_two(instruction: Instruction) -> bool:
    return is_value(instruction, 2)


def is_half(instruction: Instruction) -> bool:
    return is_value(instruction, 0.5)


def is_true(instruction: Instruction) -> bool:
    found = splat(instruction)
    return found is not None and found.dtype == np.bool_ and bool(found)


def is_false(instruction: Instruction) -> bool:
    found = splat(instruction)
    return found is not None and found.dtype == np.bool_ and not found


def is_all_ones(instruction: Instruction) -> bool:
    """True of an integer or predicate constant all of whose bits are set."""
    kind = instruction.shape.leaves()[0].element_type
    if kind.is_unsigned:
        return is_value(instruction, (1 << kind.bits) - 1)
    return is_true(instruction) if kind.is_predicate else kind.is_integer and is_minus_one(instruction)


def is_lowest(instruction: Instruction) -> bool:
    """True of a constant that no number is below."""
    return _is_bound(instruction, lowest=True)


def is_highest(instruction: Instruction) -> bool:
    """True of a constant that no number is above."""
    return _is_bound(instruction, lowest=False)


def _is_bound(instruction: Instruction, lowest: bool) -> bool:
    kind = instruction.shape.leaves()[0].element_type
    if kind.is_predicate:
        return is_false(instruction) if lowest else is_true(instruction)
    if kind.is_float:
        return is_value(instruction, -math.inf if lowest else math.inf)
    if not kind.is_integer:
        return False
    span = 1 << (kind.bits - int(kind.is_signed))
    found = splat(instruction)
    bound = (-span if kind.is_signed else 0) if lowest else span - 1
    return found is not None and int(found) == bound


def has_sign(instruction: Instruction) -> bool:
    """True of arrays of all but unsigned integers, whose negation is another positive number."""
    return not instruction.shape.leaves()[0].element_type.is_unsigned


def is_float(instruction: Instruction) -> bool:
    """True of arrays of floats (complex numbers aren't)."""
    return instruction.shape.leaves()[0].element_type.is_float


def is_integer(instruction: Instruction) -> bool:
    return instruction.shape.leaves()[0].element_type.is_integer


def is_unsigned(instruction: Instruction) -> bool:
    return instruction.shape.leaves()[0].element_type.is_unsigned


def has_one_user(instruction: Instruction) -> bool:
    return sum(instruction.users.values()) == 1 and not instruction.is_root


LEAST_EXPONENT = {"f16": 14, "bf16": 126, "f32": 126, "f64": 1022}
"""2**-e and 2**e are normal numbers for |e| up to this."""


def is_power_of_two(instruction: Instruction) -> bool:
    """True of float constants that are powers of two, or minus them, with normal reciprocals."""
    array = constant_array(instruction)
    least = LEAST_EXPONENT.get(instruction.shape.leaves()[0].element_type.name)
    if array is None or least is None or not array.size:
        return False
    mantissa, exponent = np.frexp(array.astype(np.float64))
    return bool(np.all(np.abs(mantissa) == 0.5) and np.all(np.abs(exponent - 1) <= least))


def full(m: Match, value: Any) -> Instruction:
    """The root's shape filled with `value`."""
    shape = m.root.array_shape
    if shape.elements == 1:
        return m.constant(np.full(shape.sizes, value), shape.element_type)
    return m.add(Broadcast(shape.sizes, ()), m.constant(value, shape.element_type))


def filled(value: Any) -> Replacement:
    return lambda m: full(m, value)


def captured(name: str = "x") -> Replacement:
    """The replacement that is what the pattern calls `name`."""
    return lambda m: getattr(m, name)


def applied(op: Op, *names: str) -> Replacement:
    """The replacement that applies `op` to what the pattern calls by these names."""
    return lambda m: m.add(op, *(getattr(m, name) for name in names))
