"""Simplifies loops and conditionals whose course is known, and moves out of loops what they compute alike each time.

Before::

    c = conditional(constant(true), x), branches f, g
    w = while(i, x, m), body = { t = transpose(m); y = dot(x, t); tuple(add(i, 1), y, m) }
    r = get-tuple-element(w), index=2

After::

    c = f(x), inlined
    t = transpose(m); w = while(i, x, m, t), body = { y = dot(x, t); tuple(add(i, 1), y, m, t) }
    r = m

A loop that never runs is its initial state, one that runs once is its body inlined. State elements that the body passes
on unchanged are replaced: by their value outside the loop, and inside it too when it is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Conditional, While
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, Sort
from fusile.hlo.opset.shape import Broadcast, Concatenate, Gather, Reshape, Reverse, Transpose
from fusile.hlo.opset.structure import GetTupleElement, Iota, OptimizationBarrier, Parameter, Tuple
from fusile.rewrite.constants import is_constant, splat
from fusile.rewrite.effects import erase_unused, has_effect
from fusile.rewrite.inlining import copy_into
from fusile.rewrite.trip_count import trip_count

WORTH_MOVING = (Dot, Convolution, Reduce, ReduceWindow, Sort, Gather, Transpose, Concatenate, Reverse)
"""Ops that are worth a state element more when they can run once before the loop."""


@dataclass(frozen=True)
class SimplifyControlFlow:
    """The pass."""

    name: str = "simplify-control-flow"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in module.computations():
            for instruction in computation.post_order():
                if instruction.computation is None:
                    continue
                if isinstance(instruction.op, Conditional):
                    changed |= _known_branch(instruction, instruction.op)
                elif isinstance(instruction.op, While):
                    changed |= _simplify_loop(instruction, instruction.op)
        return changed


def _known_branch(conditional: Instruction, op: Conditional) -> bool:
    computation, value = conditional.computation, splat(conditional.operands[0])
    if computation is None or value is None:
        return False
    _replace(conditional, copy_into(computation, op.branches[op.chosen(value)], conditional.operands[1:]))
    return True


def _simplify_loop(loop: Instruction, op: While) -> bool:
    assert loop.computation is not None
    count = trip_count(loop)
    if count == 0:
        _replace(loop, loop.computation.add(Tuple(), loop.operands, source=loop.source))
        return True
    if count == 1:
        _replace(loop, copy_into(loop.computation, op.body, loop.operands))
        return True
    if not isinstance(op.body.root.op, Tuple):
        return False
    unchanged = [
        i for i, (new, old) in enumerate(zip(op.body.root.operands, op.body.parameters, strict=True)) if new is old
    ]
    changed = _forward_unchanged(loop, unchanged)
    for i in unchanged:
        if is_constant(loop.operands[i]) or isinstance(loop.operands[i].op, Iota):
            changed |= _put_inside(loop.operands[i], op.condition, i) | _put_inside(loop.operands[i], op.body, i)
    return _move_out(loop, op, unchanged) or changed


def _replace(old: Instruction, new: Instruction) -> None:
    old.replace_all_uses(new)
    erase_unused(old)


def _replace_element(old: Instruction, new: Instruction) -> None:
    """As `_replace`, but the tuple stays, even unused."""
    assert old.computation is not None
    old.replace_all_uses(new)
    old.computation.erase(old)


def _forward_unchanged(loop: Instruction, unchanged: list[int]) -> bool:
    """Outside, an element that the loop passes on is the initial one."""
    changed = False
    for user in list(loop.users):
        if isinstance(user.op, GetTupleElement) and user.op.index in unchanged:
            _replace_element(user, loop.operands[user.op.index])
            changed = True
    return changed


def _put_inside(constant: Instruction, computation: Computation, number: int) -> bool:
    """Inside, a parameter that always is `constant` is the constant; only the body's result still passes it on."""
    parameter, root = computation.parameters[number], computation.root
    places = [(u, i) for u in parameter.users for i, o in enumerate(u.operands) if o is parameter]
    places = [(u, i) for u, i in places if not (u is root and isinstance(u.op, Tuple) and i == number)]
    if not places:
        return False
    operands = [computation.add(o.op, source=o.source) for o in constant.operands]
    inside = computation.add(constant.op, operands, name=constant.name, source=constant.source)
    for user, i in places:
        user.replace_operand(i, inside)
    return True


def _move_out(loop: Instruction, op: While, unchanged: list[int]) -> bool:
    """Moves computations of unchanged state elements before the loop; their results become state elements."""
    chosen = _worth_moving(op.body, unchanged)
    if not chosen:
        return False
    outside = _copied_outside(loop, op.body, chosen)
    root = op.body.root
    carried = []
    for inside in chosen:
        op.condition.parameter(inside.shape, inside.name)
        parameter = op.body.parameter(inside.shape, inside.name)
        inside.replace_all_uses(parameter)
        carried.append(parameter)
    op.body.root = op.body.add(Tuple(), [*root.operands, *carried], name=root.name, source=root.source)
    op.body.erase(root)
    for inside in chosen:
        erase_unused(inside)
    _extend(loop, op, outside)
    return True


def _worth_moving(body: Computation, unchanged: list[int]) -> list[Instruction]:
    """The instructions to move: the last of each chain that depends on unchanged parameters only, if work is in it."""
    fixed: dict[Instruction, bool] = {}
    """Each fixed instruction, and whether it is worth moving."""
    order = body.post_order()
    for instruction in order:
        op = instruction.op
        if isinstance(op, Parameter):
            if op.number in unchanged:
                fixed[instruction] = False
        elif _is_movable(instruction) and all(o in fixed for o in instruction.operands):
            fixed[instruction] = isinstance(op, WORTH_MOVING) or any(fixed[o] for o in instruction.operands)
    chosen: list[Instruction] = []
    stays: set[Instruction] = set()
    for instruction in reversed(order):
        if instruction not in fixed:
            stays.add(instruction)
        elif any(u in stays for u in instruction.users):
            if fixed[instruction] and not isinstance(instruction.op, Broadcast | Reshape):
                chosen.append(instruction)
            else:
                stays.add(instruction)
    return chosen


def _is_movable(instruction: Instruction) -> bool:
    op = instruction.op
    if isinstance(op, Tuple | GetTupleElement | OptimizationBarrier | While | Conditional) or has_effect(op):
        return False
    return not instruction.shape.is_tuple and not instruction.shape.is_token


def _copied_outside(loop: Instruction, body: Computation, chosen: list[Instruction]) -> list[Instruction]:
    """Copies of `chosen`, and of what they need, before the loop."""
    assert loop.computation is not None
    needed: set[Instruction] = set()
    stack = list(chosen)
    while stack:
        instruction = stack.pop()
        if instruction not in needed:
            needed.add(instruction)
            stack += instruction.operands
    new: dict[Instruction, Instruction] = {}
    for instruction in body.post_order():
        if instruction not in needed:
            continue
        op, operands = instruction.op, [new[o] for o in instruction.operands]
        if isinstance(op, Parameter):
            new[instruction] = loop.operands[op.number]
        else:
            new[instruction] = loop.computation.add(op, operands, name=instruction.name, source=instruction.source)
    return [new[i] for i in chosen]


def _extend(loop: Instruction, op: While, more: list[Instruction]) -> None:
    """The loop with more state in the place of `loop`; who took the whole tuple takes one of the old elements."""
    computation, count = loop.computation, len(loop.operands)
    assert computation is not None
    new = computation.add(op, [*loop.operands, *more], name=loop.name, source=loop.source)
    elements = {i: computation.add(GetTupleElement(i), [new], source=loop.source) for i in range(count)}
    for user in list(loop.users):
        if isinstance(user.op, GetTupleElement):
            _replace_element(user, elements[user.op.index])
    if loop.users or loop.is_root:
        loop.replace_all_uses(computation.add(Tuple(), list(elements.values()), source=loop.source))
    computation.erase(loop)
    for element in elements.values():
        erase_unused(element)
