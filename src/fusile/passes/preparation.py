"""Parts a program in what depends on seldom-changing parameters (weights) alone, and the rest.

Before, with w stable::

    main(x, w):  p = packed(w);  y = dot(x, unpacked(barrier(p)));  s = rsqrt(v + 1e-3);  ...

After::

    preparation(w, v) -> (p, s)
    main(x, w, v, p, s):  y = dot(x, unpacked(barrier(p)));  ...

The preparation runs once, and again when one of those parameters has another value. What it gives stays in memory
beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.shape import Broadcast, Reshape, Reverse, Slice, Transpose
from fusile.hlo.opset.structure import (
    AfterAll,
    Constant,
    GetTupleElement,
    Iota,
    OptimizationBarrier,
    Parameter,
    Tuple,
)
from fusile.passes.dead_code import remove_dead
from fusile.rewrite.effects import has_effect

INDEXING = (Broadcast, Reshape, Reverse, Slice, Transpose, Iota, GetTupleElement, Tuple)
"""Ops that cost their reader nothing: they stay with it."""
OUTSIDE = ("while", "conditional", "custom-call", "tuple", "call")
"""Readers into which nothing can be fused."""


@dataclass(frozen=True)
class Preparation:
    """The part that is run once. `parameters`: which of the program's parameters it takes. Its results are the
    program's last parameters."""

    module: Module
    parameters: tuple[int, ...]


def settled(computation: Computation, stable: frozenset[int]) -> set[Instruction]:
    """The instructions that depend on constants and on these parameters alone, on one parameter at least."""
    fixed: dict[Instruction, bool] = {}
    for i in computation.post_order():
        if isinstance(i.op, Parameter):
            fixed[i] = i.op.number in stable
        else:
            fixed[i] = all(fixed[o] for o in i.operands) and not has_effect(i.op) and not isinstance(i.op, AfterAll)
    moving = {i for i, known in fixed.items() if known and isinstance(i.op, Parameter)}
    for i in computation.post_order():
        if fixed[i] and any(o in moving for o in i.operands):
            moving.add(i)
    return moving


def part_preparation(module: Module, stable: frozenset[int]) -> Preparation | None:
    """Takes what depends on the stable parameters alone out of the module; None when that is nothing that takes
    work."""
    entry = module.entry
    found = settled(entry, stable)
    cut: dict[Instruction, None] = {}
    for i in entry.post_order():
        if i in found and not isinstance(i.op, OptimizationBarrier):
            continue
        for operand in i.operands:
            if operand in found and (i not in found or isinstance(i.op, OptimizationBarrier)):
                _cut(operand, i, cut)
    if not cut:
        return None
    preparation = _preparation(module, list(cut))
    for number, value in enumerate(cut):
        prepared = entry.parameter(value.array_shape, f"prepared.{number}", value.source)
        value.replace_all_uses(prepared)
    remove_dead(entry)
    return preparation


def _cut(value: Instruction, reader: Instruction, cut: dict[Instruction, None]) -> None:
    """Finds what of a settled value is computed beforehand for a reader."""
    whole = isinstance(reader.op, OptimizationBarrier) or reader.opcode in OUTSIDE
    stack = [value]
    while stack:
        i = stack.pop()
        if isinstance(i.op, Parameter | Constant | OptimizationBarrier):
            continue
        if isinstance(i.op, INDEXING) and not (whole and i is value and not _is_free(i)):
            stack += i.operands
        elif not i.shape.is_tuple:
            cut[i] = None


def _is_free(i: Instruction) -> bool:
    """Whether a value is a parameter under another name."""
    while isinstance(i.op, Reshape):
        (i,) = i.operands
    return isinstance(i.op, Parameter)


def _preparation(module: Module, values: list[Instruction]) -> Preparation:
    copy = module.clone()
    entry = copy.entry
    by_name = {i.name: i for i in entry.instructions}
    entry.root = entry.add(Tuple(), [by_name[v.name] for v in values])
    copy.aliases = {}
    for i in reversed(entry.post_order()):
        # What has an effect stays in the program alone.
        if not i.users and not i.is_root and not isinstance(i.op, Parameter):
            entry.erase(i)
    used = tuple(n for n, p in enumerate(entry.parameters) if p.users)
    entry.remove_parameters(set(range(len(entry.parameters))) - set(used))
    result = Module(f"{module.name}.preparation", entry)
    return Preparation(result, used)
