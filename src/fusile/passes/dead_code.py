"""Removes what nobody uses: instructions, elements of loops' state, results and operands of conditionals.

Before::

    c = while(i, sum, unused), ...; r = get-tuple-element(c), index=1; dead = exponential(r)

After::

    c = while(i, sum), ...; r = get-tuple-element(c), index=1
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Conditional, While
from fusile.hlo.opset.structure import GetTupleElement, Parameter, Tuple
from fusile.rewrite.effects import erase_unused, has_effect


@dataclass(frozen=True)
class DeadCode:
    """The pass. Callers come before callees, so what a caller does not use is dead in the callee in the same round."""

    name: str = "dead-code"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in reversed(module.computations()):
            changed |= remove_dead(computation)
            for instruction in list(computation.instructions):
                if instruction.computation is None:
                    continue  # what an earlier loop no longer takes
                if isinstance(instruction.op, While):
                    changed |= _shrink_while(instruction, instruction.op)
                elif isinstance(instruction.op, Conditional):
                    changed |= _shrink_conditional(instruction, instruction.op)
        return changed


def remove_dead(computation: Computation) -> bool:
    """Erases instructions without users or effects; says whether there were any."""
    before = len(computation.instructions)
    for instruction in reversed(computation.post_order()):
        if not instruction.users:
            erase_unused(instruction)
    return len(computation.instructions) < before


def _used_elements(instruction: Instruction) -> set[int]:
    """The numbers of a tuple's elements that are used: all of them, when the tuple is used whole."""
    count = len(instruction.shape.leaves())
    if instruction.is_root or any(not isinstance(u.op, GetTupleElement) for u in instruction.users):
        return set(range(count))
    return {u.op.index for u in instruction.users if isinstance(u.op, GetTupleElement)}


def _reached(start: Iterable[Instruction], body: Computation | None = None) -> set[int]:
    """The numbers of the parameters on which any of these instructions depends.

    With a loop's `body` given, a parameter that is reached depends on its own next value too.
    """
    found: set[int] = set()
    seen: set[Instruction] = set()
    stack = list(start)
    while stack:
        instruction = stack.pop()
        if instruction in seen:
            continue
        seen.add(instruction)
        stack += instruction.operands
        if isinstance(instruction.op, Parameter):
            found.add(instruction.op.number)
            if body is not None:
                stack.append(body.root.operands[instruction.op.number])
    return found


def _effects(computation: Computation) -> list[Instruction]:
    return [i for i in computation.instructions if has_effect(i.op)]


def _shrink_while(loop: Instruction, op: While) -> bool:
    """Removes the state elements that neither the result, the condition, nor a live element's next value needs."""
    assert loop.computation is not None
    root = op.body.root
    if not isinstance(root.op, Tuple) or root.users:
        return False
    needed = _used_elements(loop) | _reached([op.condition.root, *_effects(op.condition)])
    live = needed | _reached([*(root.operands[i] for i in needed), *_effects(op.body)], op.body)
    dead = set(range(len(loop.operands))) - live
    if not dead:
        return False
    keep = sorted(live)
    _replace_root(op.body, keep)
    for computation in (op.condition, op.body):
        remove_dead(computation)
        computation.remove_parameters(dead)
    _replace_tuple(loop, While(op.condition, op.body), [loop.operands[i] for i in keep], keep)
    return True


def _shrink_conditional(conditional: Instruction, op: Conditional) -> bool:
    """Removes the results that are not used, then the operands that no branch uses."""
    if any(not isinstance(b.root.op, Tuple) or b.root.users for b in op.branches):
        return False
    keep = sorted(_used_elements(conditional))
    fewer_results = len(keep) < len(conditional.shape.leaves())
    if fewer_results:
        for branch in op.branches:
            _replace_root(branch, keep)
            remove_dead(branch)
    parameters = range(len(conditional.operands) - 1)
    dead = {i for i in parameters if all(not b.parameters[i].users for b in op.branches)}
    if not dead and not fewer_results:
        return False
    for branch in op.branches:
        branch.remove_parameters(dead)
    operands = [conditional.operands[0], *(conditional.operands[i + 1] for i in parameters if i not in dead)]
    _replace_tuple(conditional, Conditional(op.branches), operands, keep)
    return True


def _replace_root(computation: Computation, keep: list[int]) -> None:
    """The computation gives only these elements of its result."""
    old = computation.root
    computation.root = computation.add(Tuple(), [old.operands[i] for i in keep], name=old.name, source=old.source)
    computation.erase(old)


def _replace_tuple(old: Instruction, op: While | Conditional, operands: list[Instruction], keep: list[int]) -> None:
    """`op` on `operands` in the place of `old`, whose elements `keep` it gives."""
    computation, before = old.computation, dict.fromkeys(old.operands)
    assert computation is not None
    new = computation.add(op, operands, name=old.name, source=old.source)
    if old.is_root or any(not isinstance(u.op, GetTupleElement) for u in old.users):
        old.replace_all_uses(new)
    for user in list(old.users):
        assert isinstance(user.op, GetTupleElement)
        element = computation.add(GetTupleElement(keep.index(user.op.index)), [new], name=user.name, source=user.source)
        user.replace_all_uses(element)
        computation.erase(user)
    computation.erase(old)
    for operand in before:
        erase_unused(operand)
