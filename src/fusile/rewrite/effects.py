"""Which instructions may be taken away when nobody uses their result."""

from __future__ import annotations

import dataclasses

from fusile.hlo.ir import Computation, Instruction, Op


def has_effect(op: Op) -> bool:
    """True when running `op` does more than give a result: a custom call that says so, or an op that calls one."""
    if getattr(op, "has_effect", op.has_side_effect):
        return True
    if not may_call(type(op)):
        return False
    return any(has_effect(i.op) for c in _reachable(op) for i in c.instructions if not may_call(type(i.op)))


_MAY_CALL: dict[type[Op], bool] = {}


def may_call(op: type[Op]) -> bool:
    """True of ops with computations among their attributes."""
    known = _MAY_CALL.get(op)
    if known is None:
        known = _MAY_CALL[op] = any("Computation" in str(f.type) for f in dataclasses.fields(op))
    return known


def is_removable(instruction: Instruction) -> bool:
    """True when nothing uses `instruction`, it isn't a parameter or the root, and running it has no effect."""
    if instruction.users or instruction.opcode == "parameter" or instruction.is_root:
        return False
    return not has_effect(instruction.op)


def erase_unused(start: Instruction) -> list[Instruction]:
    """Erases `start` if it is removable, then those of its operands that this leaves removable, and so on.

    Returns the operands that stay and have lost a user.
    """
    bereft: dict[Instruction, None] = {}
    stack = [start]
    while stack:
        instruction = stack.pop()
        computation = instruction.computation
        if computation is None or not is_removable(instruction):
            continue
        operands = list(dict.fromkeys(instruction.operands))
        computation.erase(instruction)
        for operand in operands:
            bereft[operand] = None
            stack.append(operand)
    return [i for i in bereft if i.computation is not None]


def _reachable(op: Op) -> list[Computation]:
    """The computations that `op` calls, and those that they call."""
    found: dict[Computation, None] = {}
    stack = list(op.computations())
    while stack:
        computation = stack.pop()
        if computation not in found:
            found[computation] = None
            stack += [c for i in computation.instructions for c in i.op.computations()]
    return list(found)
