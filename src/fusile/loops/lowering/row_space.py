"""The space of a fusion: the dimensions of its full-sized instructions, cut in outer ones (rows) and inner ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import Reduce
from fusile.loops.ir import Accumulate, Apply, Expr, For, If, Let, Load, Stmt, Store, Var, const, sub_expressions
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.simplify import IndexMath

SHORTEST_RUN = 4
"""Fewer neighbours than this in the inner loop are worth collapsing more dimensions into it."""


@dataclass(frozen=True)
class RowSpace:
    """Sizes of all dimensions, and which of them are inner, in order."""

    sizes: tuple[int, ...]
    inner: tuple[int, ...]

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.sizes)) if d not in self.inner)

    @property
    def outer_sizes(self) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in self.outer)

    @property
    def inner_sizes(self) -> tuple[int, ...]:
        return tuple(self.sizes[d] for d in self.inner)

    @property
    def rows(self) -> int:
        return math.prod(self.outer_sizes)

    @property
    def columns(self) -> int:
        return math.prod(self.inner_sizes)

    @property
    def run(self) -> tuple[int, ...]:
        """The trailing inner dimensions that lie side by side: one loop along memory."""
        run = list(self.inner[-1:])
        for d in reversed(self.inner[:-1]):
            if d != run[0] - 1:
                break
            run.insert(0, d)
        return tuple(run)

    def place(self, outer: Sequence[Expr], inner: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of an element from its outer and inner coordinates."""
        at: list[Expr] = [const(0)] * len(self.sizes)
        for d, x in zip((*self.outer, *self.inner), (*outer, *inner), strict=True):
            at[d] = x
        return tuple(at)


def reachable(roots: Sequence[Instruction]) -> list[Instruction]:
    """What the roots need, operands first."""
    order: list[Instruction] = []
    seen: set[Instruction] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        i, done = stack.pop()
        if done:
            order.append(i)
        elif i not in seen:
            seen.add(i)
            stack.append((i, True))
            stack += [(o, False) for o in reversed(i.operands)]
    return order


def row_reductions(order: Sequence[Instruction]) -> list[Instruction]:
    """The reductions that give a fusion its rows: those of the largest space and set of dimensions that holds the minor
    one. Other reductions are computed where they are used."""
    found = [i for i in order if isinstance(i.op, Reduce) and reduces_minor(i)]
    if not found:
        return []
    largest = max(found, key=lambda i: i.operands[0].array_shape.elements)
    return [i for i in found if _space(i) == _space(largest)]


def _space(i: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert isinstance(i.op, Reduce)
    return i.operands[0].array_shape.sizes, tuple(sorted(i.op.dimensions))


def reduces_minor(i: Instruction) -> bool:
    """Whether a reduction runs along memory: the minor one of its dimensions that aren't of size 1 is reduced."""
    assert isinstance(i.op, Reduce)
    real = [d for d, s in enumerate(i.operands[0].array_shape.sizes) if s != 1]
    return bool(real) and real[-1] in i.op.dimensions


def space_of_rows(reduction: Instruction) -> RowSpace:
    """The space that a reduction's loops make."""
    return RowSpace(*_space(reduction))


def space_of_map(elemental: Elemental) -> RowSpace:
    """The largest root's dimensions; inner are as many trailing ones as leave loads runs of neighbours."""
    sizes = max((r.array_shape for r in elemental.roots), key=lambda s: s.elements).sizes
    rank = len(sizes)
    best, best_cost = RowSpace(sizes, tuple(range(max(0, rank - 1), rank))), 1 << 30
    for first in range(rank):
        space = RowSpace(sizes, tuple(range(first, rank)))
        cost = irregular_accesses(elemental, space)
        if cost < best_cost and (space.columns >= SHORTEST_RUN or best_cost == 1 << 30):
            best, best_cost = space, cost
        if cost == 0:
            break
    return best


def root_indices(math_: IndexMath, root: Instruction, space: RowSpace, at: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """Where a root has the space's element: at the same place, or at the same flat one. None if its size differs."""
    sizes = root.array_shape.sizes
    if sizes == space.sizes:
        return tuple(at)
    if math.prod(sizes) != math.prod(space.sizes):
        return None
    return math_.unflatten(math_.flatten(at, space.sizes), sizes)


# -- what an inner loop costs ------------------------------------------------------------------------------------------


def irregular_accesses(elemental: Elemental, space: RowSpace) -> int:
    """Weighs the loads and stores of a probe body that are neither one element nor neighbours along the inner loop."""
    math_ = elemental.math
    lane = math_.bound(elemental.names.var("probe"), max(1, space.columns))
    outer = [math_.bound(elemental.names.var("o"), max(1, s)) for s in space.outer_sizes]
    at = space.place(outer, math_.unflatten(lane, space.inner_sizes))
    block = elemental.block()
    for root, buffer in elemental.results:
        place = root_indices(math_, root, space, at)
        if place is None:
            return 1 << 20
        elemental.store(buffer, root, place, elemental.value(root, place, block), block)
    return _irregular(block.statements, {lane.name}, lane)


def _irregular(statements: Sequence[Stmt], varying: set[str], lane: Var) -> int:
    """Statements inside loops count more."""
    total = 0
    for s in statements:
        if isinstance(s, For):
            total += 4 * _irregular(s.body, varying, lane)
        elif isinstance(s, If):
            total += _irregular((*s.then, *s.otherwise), varying, lane)
        if isinstance(s, Let) and _mentions(s.value, varying):
            varying.add(s.var.name)
        if isinstance(s, Store):
            total += 2 * _cost(s.indices, lane, varying)
        for expression in _values(s):
            for x in sub_expressions(expression):
                if isinstance(x, Load):
                    total += _cost(x.indices, lane, varying)
                elif isinstance(x, Apply) and x.op in ("floor_divide", "modulo") and _mentions(x, varying):
                    total += 1
    return total


def _values(s: Stmt) -> Sequence[Expr]:
    if isinstance(s, Let | Store):
        return (s.value,)
    return s.values if isinstance(s, Accumulate) else ()


def _cost(indices: Sequence[Expr], lane: Var, varying: set[str]) -> int:
    """0 for one element or neighbours, 1 for neighbours backwards, 2 for a stride, 3 for a gather."""
    for index in indices:
        for atom, factor in IndexMath().linear(index)[1].items():
            if atom == lane:
                if factor != 1:
                    return 2 if factor > 0 else 1
            elif _mentions(atom, varying):
                return 3
    return 0


def _mentions(e: Expr, names: set[str]) -> bool:
    return any(isinstance(x, Var) and x.name in names for x in sub_expressions(e))
