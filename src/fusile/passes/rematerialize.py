"""Computes cheap values again in the kernels that read them, from others that these read anyway.

Before::

    a, t, c = fusion(...)           # t = tanh(a), c = 0.5 * (1 + t)
    ...
    d = fusion(g, a, t, c)          # much later: the gradient

After: c is no result of the first kernel, and the second computes it from t. Neither writes or reads it, and its
memory is free in between. A value is given up when every kernel that reads it can do that elementwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.shape import Broadcast
from fusile.hlo.opset.structure import Constant, GetTupleElement, Tuple
from fusile.passes.dead_code import remove_dead
from fusile.passes.fusion import scheduled_computations
from fusile.passes.fusion_group import EXPENSIVE, MOST_OPERANDS

KINDS = ("loop", "contraction")
MOST_AGAIN = 8
"""Instructions that are computed again for one value."""
SMALL_SHARE = 16
"""What a kernel has to read in addition must be so many times smaller than the value."""


@dataclass(frozen=True)
class Rematerialize:
    """The pass, for a module of fusions."""

    name: str = "rematerialize"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in scheduled_computations(module):
            for i in computation.post_order():
                if i.computation is not None and isinstance(i.op, Fusion) and i.op.kind in KINDS and i.shape.is_tuple:
                    changed |= _give_up(i)
        return changed


def _give_up(fusion: Instruction) -> bool:
    """Takes what can be computed again out of a fusion's results."""
    elements = {u.op.index: u for u in fusion.users if isinstance(u.op, GetTupleElement)}
    if fusion.is_root or len(elements) != len(fusion.users):
        return False
    (body,) = fusion.op.computations()
    roots = body.root.operands
    kept = dict.fromkeys(n for n in range(len(roots)) if n in elements)
    for number in list(kept):
        leaves = {roots[n]: elements[n] for n in kept if n != number}
        recipe = _recipe(roots[number], leaves, dict(zip(body.parameters, fusion.operands, strict=True)))
        element = elements[number]
        if recipe is None or roots.count(roots[number]) > 1 or element.is_root or not element.users:
            continue
        if all(_can_compute(reader, element, recipe) for reader in element.users):
            for reader in list(element.users):
                _compute_again(reader, element, recipe)
            del kept[number]
    if len(kept) == len(elements) or not kept:
        return False
    _keep(fusion, list(kept), elements)
    return True


@dataclass(frozen=True)
class _Recipe:
    """How a value is computed: instructions of the fusion that made it, operands first, and what each of their operands
    from outside is in the computation."""

    steps: tuple[Instruction, ...]
    given: Mapping[Instruction, Instruction]


def _recipe(
    value: Instruction, leaves: Mapping[Instruction, Instruction], parameters: Mapping[Instruction, Instruction]
) -> _Recipe | None:
    steps: dict[Instruction, None] = {}
    given: dict[Instruction, Instruction] = {}
    stack = [(value, False)]
    while stack:
        i, done = stack.pop()
        if done:
            steps[i] = None
            continue
        if i in steps or i in given:
            continue
        if i in leaves or i in parameters:
            given[i] = leaves[i] if i in leaves else parameters[i]
            continue
        if not _is_cheap(i, value) or len(steps) + len(stack) > 4 * MOST_AGAIN:
            return None
        stack.append((i, True))
        stack += [(o, False) for o in i.operands]
    work = [i for i in steps if not isinstance(i.op, Constant | Broadcast)]
    return _Recipe(tuple(steps), given) if given and 0 < len(work) <= MOST_AGAIN else None


def _is_cheap(i: Instruction, value: Instruction) -> bool:
    if i.shape.is_tuple:
        return False
    if isinstance(i.op, Constant):
        return i.array_shape.elements == 1
    if isinstance(i.op, Broadcast):
        return i.array_shape.dimensions == value.array_shape.dimensions
    same = i.array_shape.dimensions == value.array_shape.dimensions
    return i.op.elementwise and same and not isinstance(i.op, EXPENSIVE)


def _can_compute(reader: Instruction, value: Instruction, recipe: _Recipe) -> bool:
    """Whether a kernel reads a value element by element, and all that it is computed from, or little more."""
    op = reader.op
    if not isinstance(op, Fusion) or op.kind not in KINDS or op.in_place or reader.operands.count(value) != 1:
        return False
    parameter = op.computation.parameters[reader.operands.index(value)]
    dimensions = parameter.array_shape.dimensions
    if not all(u.op.elementwise and u.array_shape.dimensions == dimensions for u in parameter.users):
        return False
    if _reaches_product(parameter):
        return False
    more = [g for g in dict.fromkeys(recipe.given.values()) if g not in reader.operands]
    small = sum(g.array_shape.bytes for g in more) * SMALL_SHARE <= value.array_shape.bytes
    return small and len(reader.operands) + len(more) <= MOST_OPERANDS


def _reaches_product(parameter: Instruction) -> bool:
    seen: set[Instruction] = set()
    stack = [parameter]
    while stack:
        i = stack.pop()
        if isinstance(i.op, Dot | Convolution):
            return True
        if i not in seen:
            seen.add(i)
            stack += i.users
    return False


def _compute_again(reader: Instruction, value: Instruction, recipe: _Recipe) -> None:
    """Replaces a kernel by one that computes a value instead of reading it."""
    assert isinstance(reader.op, Fusion) and reader.computation is not None
    body = reader.op.computation.clone()
    number = reader.operands.index(value)
    operands = list(reader.operands)
    new: dict[Instruction, Instruction] = {}
    for inside, outside in recipe.given.items():
        if outside not in operands:
            operands.append(outside)
            body.parameter(outside.shape, f"p{len(operands) - 1}", outside.source)
        new[inside] = body.parameters[operands.index(outside)]
    for i in recipe.steps:
        new[i] = body.add(i.op, [new[o] for o in i.operands], name=i.name, source=i.source, shape=i.shape)
    body.parameters[number].replace_all_uses(new[recipe.steps[-1]])
    body.remove_parameters({number})
    del operands[number]
    _replace(reader, body, operands)


def _replace(fusion: Instruction, body: Computation, operands: list[Instruction]) -> Instruction:
    assert isinstance(fusion.op, Fusion) and fusion.computation is not None
    computation = fusion.computation
    op = replace(fusion.op, computation=body)
    made = computation.add(op, operands, name=fusion.name, source=fusion.source)
    fusion.replace_all_uses(made)
    computation.erase(fusion)
    return made


def _keep(fusion: Instruction, kept: list[int], elements: Mapping[int, Instruction]) -> None:
    """Leaves a fusion these results alone."""
    assert isinstance(fusion.op, Fusion) and fusion.computation is not None
    computation, body = fusion.computation, fusion.op.computation.clone()
    roots = [body.root.operands[n] for n in kept]
    old = body.root
    body.root = roots[0] if len(roots) == 1 else body.add(Tuple(), roots)
    if not old.users and old is not body.root:
        body.erase(old)
    remove_dead(body)
    unused = {n for n, p in enumerate(body.parameters) if not p.users and p is not body.root}
    body.remove_parameters(unused)
    operands = [o for n, o in enumerate(fusion.operands) if n not in unused]
    op = replace(fusion.op, computation=body)
    made = computation.add(op, operands, name=fusion.name, source=fusion.source)
    for place, number in enumerate(kept):
        element = elements[number]
        new = made if len(kept) == 1 else computation.add(GetTupleElement(place), [made], source=element.source)
        element.replace_all_uses(new)
    for element in elements.values():
        computation.erase(element)
    computation.erase(fusion)


__all__ = ["Rematerialize"]
