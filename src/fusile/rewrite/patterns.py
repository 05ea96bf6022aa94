"""Patterns over instructions, as data: op classes, operand patterns, capture names and predicates.

``of(Add, anything("x"), of(Negate, anything("y")))`` matches `add(x, negate(y))` in either order of the operands, as
Add is commutative. A name that stands twice must match the same instruction twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fusile.hlo.ir import Instruction, Op

Predicate = Callable[[Instruction], bool]
"""A condition on one instruction. Its name is what an explanation says: `has_one_user`."""


@dataclass(frozen=True)
class Pattern:
    """What an instruction must be: one of `ops` (any op when empty), with these operands (any when None), and every
    predicate of `where` true. `name`: what the match calls it."""

    ops: tuple[type[Op], ...] = ()
    operands: tuple[Pattern, ...] | None = None
    name: str = ""
    where: tuple[Predicate, ...] = ()

    def __repr__(self) -> str:
        ops = "|".join(o.opcode for o in self.ops) or "any"
        operands = "" if self.operands is None else f"({', '.join(map(repr, self.operands))})"
        return f"{self.name}:{ops}{operands}" if self.name else f"{ops}{operands}"


def anything(name: str = "", *where: Predicate) -> Pattern:
    """Matches every instruction for which the predicates hold."""
    return Pattern((), None, name, where)


def of(
    ops: type[Op] | tuple[type[Op], ...], *operands: Pattern, name: str = "", where: tuple[Predicate, ...] = ()
) -> Pattern:
    """An op on operands; without operands given, on any."""
    classes = ops if isinstance(ops, tuple) else (ops,)
    return Pattern(classes, operands or None, name, where)


class Mismatch(NamedTuple):
    """Where a pattern and an instruction part."""

    pattern: Pattern
    instruction: Instruction
    reason: str

    def __str__(self) -> str:
        return f"{self.instruction.name} ({self.instruction.opcode}) is not {self.pattern!r}: {self.reason}"


@dataclass
class Captures:
    """The instructions that a pattern's names stand for."""

    named: dict[str, Instruction] = field(default_factory=dict)


def match(pattern: Pattern, instruction: Instruction, captures: Captures) -> Mismatch | None:
    """None when the pattern matches, with `captures` filled; else the first place where it doesn't."""
    if pattern.ops and type(instruction.op) not in pattern.ops:
        return Mismatch(pattern, instruction, "another op")
    for predicate in pattern.where:
        if not predicate(instruction):
            return Mismatch(pattern, instruction, f"not {predicate.__name__}")
    if pattern.name:
        known = captures.named.setdefault(pattern.name, instruction)
        if known is not instruction:
            return Mismatch(pattern, instruction, f"{pattern.name} is {known.name} already")
    if pattern.operands is None:
        return None
    return _match_operands(pattern, pattern.operands, instruction, captures)


def _match_operands(
    pattern: Pattern, wanted: tuple[Pattern, ...], instruction: Instruction, captures: Captures
) -> Mismatch | None:
    operands = instruction.operands
    if len(operands) != len(wanted):
        return Mismatch(pattern, instruction, f"{len(operands)} operands")
    before = dict(captures.named)
    first = _match_all(wanted, operands, captures)
    if first is None or not instruction.op.commutative or len(operands) != 2:
        return first
    captures.named = before
    return first if _match_all(wanted, operands[::-1], captures) is not None else None


def _match_all(wanted: tuple[Pattern, ...], operands: list[Instruction], captures: Captures) -> Mismatch | None:
    for one, operand in zip(wanted, operands, strict=True):
        mismatch = match(one, operand, captures)
        if mismatch is not None:
            return mismatch
    return None
