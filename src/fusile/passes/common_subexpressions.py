"""Computes equal values once.

Before::

    a = add(x, y); b = add(y, x); c = multiply(a, b)

After::

    a = add(x, y); c = multiply(a, a)

Two instructions are equal when op, operands and shape are; operands of a commutative op count in any order. Reducers
and comparators that are alike become one computation first. Constants are compared byte by byte, large ones only after
type, shape and a sample of the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusile.hlo.ir import Computation, Instruction, Module, Op
from fusile.hlo.opset.control import Call, Conditional, Fusion, While
from fusile.hlo.opset.structure import Constant, Parameter
from fusile.rewrite.effects import has_effect
from fusile.rewrite.fingerprint import op_key

SAMPLE = 64
"""Bytes of a constant that are hashed, taken at even distances."""


@dataclass(frozen=True)
class CommonSubexpressions:
    """The pass."""

    name: str = "common-subexpressions"

    def __call__(self, module: Module) -> bool:
        _share_computations(module)
        changed = False
        for computation in module.computations():
            changed |= _merge_equal(computation)
        return changed


def _merge_equal(computation: Computation) -> bool:
    first: dict[Hashable, Instruction] = {}
    number: dict[Instruction, int] = {}
    changed = False
    for instruction in computation.post_order():
        number[instruction] = len(number)
        if isinstance(instruction.op, Parameter) or has_effect(instruction.op):
            continue
        earlier = first.setdefault(_key(instruction, number), instruction)
        if earlier is not instruction:
            instruction.replace_all_uses(earlier)
            computation.erase(instruction)
            changed = True
    return changed


def _key(instruction: Instruction, number: dict[Instruction, int]) -> Hashable:
    op = instruction.op
    if isinstance(op, Constant):
        return Bytes(op.literal.array)
    operands = [number[o] for o in instruction.operands]
    if op.commutative:
        operands.sort()
    return (op, tuple(operands), instruction.shape)


@dataclass(frozen=True, eq=False)
class Bytes:
    """An array as a key: equal when type, dimensions and bytes are."""

    array: np.ndarray[Any, Any]
    hash: int = field(init=False)

    def __post_init__(self) -> None:
        raw = _raw(self.array)
        sample = raw[:: max(1, math.ceil(raw.size / SAMPLE))].tobytes()
        object.__setattr__(self, "hash", hash((self.array.dtype.str, self.array.shape, sample)))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bytes) or self.hash != other.hash:
            return False
        a, b = self.array, other.array
        return a.dtype == b.dtype and a.shape == b.shape and (_same_memory(a, b) or np.array_equal(_raw(a), _raw(b)))


def _same_memory(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.ctypes.data == b.ctypes.data


def _raw(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)


def _share_computations(module: Module) -> None:
    """Makes one computation of those that are alike. Those of calls and control flow stay, as they have one caller."""
    first: dict[Hashable, Computation] = {}
    alike: dict[Computation, Computation] = {}
    for computation in module.computations():
        for instruction in computation.instructions:
            instruction.op = _with_shared(instruction.op, alike)
        if computation is not module.entry:
            alike[computation] = first.setdefault(_structure(computation), computation)


def _with_shared(op: Op, alike: dict[Computation, Computation]) -> Op:
    called = op.computations()
    if isinstance(op, Call | Conditional | Fusion | While) or all(alike[c] is c for c in called):
        return op
    return op.with_computations(alike.__getitem__)


def _structure(computation: Computation) -> Hashable:
    """Everything but names and source positions."""
    number: dict[Instruction, int] = {p: i for i, p in enumerate(computation.parameters)}
    lines: list[Hashable] = [p.shape for p in computation.parameters]
    for instruction in computation.post_order():
        op = instruction.op
        if isinstance(op, Parameter):
            continue
        number[instruction] = len(number)
        key = Bytes(op.literal.array) if isinstance(op, Constant) else op_key(op, _Identity())
        lines.append((key, tuple(number[o] for o in instruction.operands), instruction.shape))
    return (tuple(lines), number[computation.root])


class _Identity(dict[Computation, Any]):
    def __missing__(self, key: Computation) -> Computation:
        return key
