"""Values that kernels make from nothing (zeros for a loop's state), made once for each place that they are to lie in.

Before::

    zero = fusion(), kind=loop
    while(zero, zero, ...)                      # two places: the plan would copy one from the other

After: a fusion for each. Writing zeros takes less than copying them.
"""

from __future__ import annotations

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Conditional, Fusion, While
from fusile.hlo.opset.shape import Reshape
from fusile.memory.values import invariant


def separate_fills(module: Module) -> None:
    """Gives every state of a loop and every operand written in place a fill of its own."""
    stack, seen = [module.entry], set()
    while stack:
        computation = stack.pop()
        if computation in seen:
            continue
        seen.add(computation)
        for i in list(computation.instructions):
            if isinstance(i.op, While | Conditional):
                stack += i.op.computations()
            for number in _written(i):
                _separate(computation, i, number)


def _written(i: Instruction) -> list[int]:
    """The operands in whose place an instruction writes."""
    if isinstance(i.op, While):
        return [n for n, constant in enumerate(invariant(i.op)) if not constant]
    return [operand for _, operand in i.op.in_place] if isinstance(i.op, Fusion) else []


def _separate(computation: Computation, user: Instruction, number: int) -> None:
    operand = user.operands[number]
    fill = operand.operands[0] if isinstance(operand.op, Reshape) else operand
    alone = len(fill.users) == 1 and sum(fill.users.values()) == 1 and sum(operand.users.values()) == 1
    if not isinstance(fill.op, Fusion) or fill.operands or fill.shape.is_tuple or (alone and not fill.is_root):
        return
    op = Fusion(fill.op.computation.clone(), fill.op.kind)
    own = computation.add(op, name=fill.name, source=fill.source, shape=fill.shape)
    if operand is not fill:
        own = computation.add(operand.op, [own], name=operand.name, source=operand.source)
    user.replace_operand(number, own)
    for old in (operand, fill):
        if old.computation is not None and not old.users and not old.is_root:
            computation.erase(old)
