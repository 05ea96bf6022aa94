"""How often a loop's body runs, when that is known before it runs."""

from __future__ import annotations

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.control import While
from fusile.hlo.opset.elementwise import Add, And, Compare, Subtract
from fusile.hlo.opset.structure import Parameter, Tuple
from fusile.rewrite.constants import splat

MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def trip_count(loop: Instruction) -> int | None:
    """The number of times that a While's body runs; None when it isn't known.

    Known are loops that count an integer from a constant by a constant to a constant, and those that run while several
    such conditions hold.
    """
    assert isinstance(loop.op, While)
    counts = []
    pending = [loop.op.condition.root]
    while pending:
        condition = pending.pop()
        if isinstance(condition.op, And):
            pending += condition.operands
            continue
        count = _count(loop, condition)
        if count is None:
            return None
        counts.append(count)
    return min(counts)


def _count(loop: Instruction, condition: Instruction) -> int | None:
    """How often the body runs until one comparison of a counter with a constant fails."""
    value = splat(condition)
    if value is not None:
        return None if value else 0
    if not isinstance(condition.op, Compare):
        return None
    direction, counter, limit = condition.op.direction, condition.operands[0], splat(condition.operands[1])
    if limit is None:
        direction, counter, limit = MIRRORED[direction], condition.operands[1], splat(counter)
    if limit is None or not isinstance(counter.op, Parameter) or not counter.array_shape.element_type.is_integer:
        return None
    start, step = splat(loop.operands[counter.op.number]), _step(loop, counter.op.number)
    if start is None or step is None:
        return None
    count = _runs(direction, int(start), int(limit), step)
    if count is None:
        return None
    kind = counter.array_shape.element_type
    low = -(1 << (kind.bits - 1)) if kind.is_signed else 0
    return count if low <= int(start) + count * step < low + (1 << kind.bits) else None


def _step(loop: Instruction, number: int) -> int | None:
    """What the body adds to state element `number`."""
    assert isinstance(loop.op, While)
    body = loop.op.body
    if not isinstance(body.root.op, Tuple):
        return None
    new, old = body.root.operands[number], body.parameters[number]
    if not isinstance(new.op, Add | Subtract) or old not in new.operands:
        return None
    if isinstance(new.op, Subtract) and new.operands[0] is not old:
        return None
    step = splat(new.operands[1 - new.operands.index(old)])
    if step is None:
        return None
    return -int(step) if isinstance(new.op, Subtract) else int(step)


def _runs(direction: str, start: int, limit: int, step: int) -> int | None:
    """The least n for which `start + n * step` is not in `direction` of `limit`; None when there is none."""
    holds = {
        "LT": start < limit, "LE": start <= limit, "GT": start > limit, "GE": start >= limit,
        "EQ": start == limit, "NE": start != limit,
    }[direction]  # fmt: skip
    if not holds:
        return 0
    distance = limit - start
    if direction == "EQ":
        return 1 if step else None
    if step == 0 or (direction == "NE" and (distance % step or distance // step < 0)):
        return None
    if direction == "NE":
        return distance // step
    if (step > 0) != (direction in ("LT", "LE")):
        return None
    if direction in ("LT", "GT"):
        return -(-abs(distance) // abs(step))
    return abs(distance) // abs(step) + 1
