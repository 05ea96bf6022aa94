"""Inlines calls, and gives each loop and branch computations of its own.

Before::

    f { p = parameter(0); ROOT r = negate(p) }
    ENTRY { x = parameter(0); c = call(x), to_apply=f; ROOT y = add(c, x) }

After::

    ENTRY { x = parameter(0); r = negate(x); ROOT y = add(r, x) }

A computation that is the condition, body or branch of two ops is copied for the second, so that later passes may change
what it takes and gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Call, Conditional, While
from fusile.rewrite.inlining import copy_into


@dataclass(frozen=True)
class InlineCalls:
    """The pass. Callees are inlined before callers, so one round leaves no call."""

    name: str = "inline-calls"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in module.computations():
            for instruction in list(computation.instructions):
                if isinstance(instruction.op, Call):
                    _inline(computation, instruction, instruction.op)
                    changed = True
        _unshare(module)
        return changed


def _inline(computation: Computation, call: Instruction, op: Call) -> None:
    root = copy_into(computation, op.computation, call.operands)
    call.replace_all_uses(root)
    computation.erase(call)


def _unshare(module: Module) -> None:
    """Copies conditions, bodies and branches that an earlier op has taken. The structure stays what it was."""
    taken: set[Computation] = set()

    def own(computation: Computation) -> Computation:
        if computation in taken:
            # The scalar computations that it calls may stay shared; nested control flow is met again below.
            computation = computation.clone(computations=_Itself())
        taken.add(computation)
        pending.append(computation)
        return computation

    pending = [module.entry]
    while pending:
        for instruction in list(pending.pop().instructions):
            if isinstance(instruction.op, While | Conditional):
                instruction.op = instruction.op.with_computations(own)


class _Itself(dict[Computation, Computation]):
    """Maps every computation to itself."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: Computation) -> Computation:
        return key
