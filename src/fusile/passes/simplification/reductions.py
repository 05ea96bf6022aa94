"""Reductions and sorts. Before/after: ``reduce(reshape(x)) => reduce(x)``, ``reduce(transpose(x)) => reduce(x)``."""

from __future__ import annotations

from fusile.hlo.ir import OPS, Instruction
from fusile.hlo.opset.reduction import Reduce, Sort, combiner_opcode
from fusile.hlo.opset.shape import Broadcast, Reshape, Transpose
from fusile.hlo.opset.structure import Tuple
from fusile.passes.simplification.shapes import common_groups
from fusile.passes.simplification.values import (
    has_one_user,
    is_all_ones,
    is_highest,
    is_lowest,
    is_one,
    is_positive_zero,
    is_zero,
)
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Rule, exact, moves

x, initial = anything("x"), anything("initial")

NEUTRAL = {
    "add": is_positive_zero,
    "multiply": is_one,
    "maximum": is_lowest,
    "minimum": is_highest,
    "and": is_all_ones,
    "or": is_zero,
    "xor": is_zero,
}
"""For each combining op, the test of its neutral initial value."""

IDEMPOTENT = ("maximum", "minimum", "and", "or")
"""Combining ops for which x op x is x: they never round, and elements may count twice."""


def _reduce_op(instruction: Instruction) -> Reduce:
    assert isinstance(instruction.op, Reduce)
    return instruction.op


def combining_op(instruction: Instruction) -> str:
    """The opcode of the one commutative op by which a Reduce combines; empty when it does otherwise."""
    opcode = combiner_opcode(_reduce_op(instruction).computation) or ""
    return opcode if opcode in NEUTRAL else ""


def _reduce_nothing(m: Match) -> Instruction | str:
    """Only dimensions of size 1 are reduced: the elements meet the initial value, that is all."""
    op, opcode, shape = _reduce_op(m.root), combining_op(m.root), m.root.array_shape
    sizes = m.x.array_shape.sizes
    if any(sizes[d] != 1 for d in op.dimensions) or not opcode:
        return "it combines several elements, or by more than one op"
    elements = m.x if m.x.array_shape == shape else m.add(Reshape(shape.sizes), m.x)
    start = m.initial if shape.is_scalar else m.add(Broadcast(shape.sizes, ()), m.initial)
    return m.add(OPS[opcode](), start, elements)


def _reduce_of_reshape(m: Match) -> Instruction | str:
    """Each run of dimensions that the reshape splits or joins must be reduced as a whole or not at all."""
    op, new = _reduce_op(m.root), m.inner.array_shape.sizes
    old = m.x.array_shape.sizes
    if not m.x.array_shape.elements or list(op.dimensions) != sorted(op.dimensions):
        return "it has no elements, or an order of its own"
    reduced: list[int] = []
    for old_run, new_run in common_groups(old, new):
        long = [d for d in new_run if new[d] != 1]
        inside = [d for d in long if d in op.dimensions]
        if inside and inside != long:
            return "a dimension mixes elements that are combined and kept"
        if inside:
            reduced += [d for d in old_run if old[d] != 1]
    result = m.add(Reduce(tuple(reduced), op.computation), m.x, m.initial)
    return result if result.shape == m.root.shape else m.add(Reshape(m.root.array_shape.sizes), result)


def _reduce_of_transpose(m: Match) -> Instruction:
    """The result is transposed instead, where the kept dimensions change their order."""
    op, inner = _reduce_op(m.root), m.inner.op
    assert isinstance(inner, Transpose)
    reduced = tuple(inner.permutation[d] for d in op.dimensions)
    kept = [p for d, p in enumerate(inner.permutation) if d not in op.dimensions]
    result = m.add(Reduce(reduced, op.computation), m.x, m.initial)
    order = tuple(sorted(kept).index(p) for p in kept)
    return result if order == tuple(range(len(order))) else m.add(Transpose(order), result)


def _reduce_twice(m: Match) -> Instruction | str:
    outer, inner = _reduce_op(m.root), _reduce_op(m.inner)
    opcode, kind = combining_op(m.root), m.root.array_shape.element_type
    if not opcode or opcode != combining_op(m.inner) or (opcode not in IDEMPOTENT and not kind.is_integer):
        return "the two combine by different ops, or the order of roundings would change"
    if not NEUTRAL[opcode](m.start):
        return "the inner initial value counts"
    kept = [d for d in range(m.x.array_shape.rank) if d not in inner.dimensions]
    dimensions = (*inner.dimensions, *(kept[d] for d in outer.dimensions))
    return m.add(Reduce(tuple(sorted(dimensions)), outer.computation), m.x, m.initial)


def _reduce_of_broadcast(m: Match) -> Instruction | str:
    """Elements that a broadcast repeats are combined once."""
    op, inner = _reduce_op(m.root), m.inner.op
    assert isinstance(inner, Broadcast)
    repeated = [d for d in op.dimensions if d not in inner.broadcast_dimensions]
    if not repeated or not m.inner.array_shape.elements or combining_op(m.root) not in IDEMPOTENT:
        return "it combines no repeated elements, or counts them"
    own = [i for i, d in enumerate(inner.broadcast_dimensions) if d in op.dimensions]
    small = m.add(Reduce(tuple(own), op.computation), m.x, m.initial)
    kept = [d for d in range(len(inner.dimensions)) if d not in op.dimensions]
    mapped = tuple(kept.index(d) for d in inner.broadcast_dimensions if d not in op.dimensions)
    return m.add(Broadcast(m.root.array_shape.sizes, mapped), small)


def _sort_of_one(m: Match) -> Instruction | str:
    op, operands = m.root.op, m.root.operands
    assert isinstance(op, Sort)
    if operands[0].array_shape.sizes[op.dimension] > 1:
        return "there are several elements to order"
    return operands[0] if len(operands) == 1 else m.add(Tuple(), *operands)


ORDER = "the same elements are combined; HLO leaves the order to the implementation"

RULES = (
    Rule("reduce-nothing", of(Reduce, x, initial), _reduce_nothing, exact("each element meets the initial value once")),
    Rule("reduce-of-reshape", of(Reduce, of(Reshape, x, name="inner"), initial), _reduce_of_reshape, moves(ORDER)),
    Rule(
        "reduce-of-transpose", of(Reduce, of(Transpose, x, name="inner"), initial), _reduce_of_transpose, moves(ORDER)
    ),
    Rule(
        "reduce-twice",
        of(Reduce, of(Reduce, x, anything("start"), name="inner", where=(has_one_user,)), initial),
        _reduce_twice,
        exact("checked: the op never rounds"),
    ),
    Rule(
        "reduce-of-broadcast",
        of(Reduce, of(Broadcast, x, name="inner"), initial),
        _reduce_of_broadcast,
        exact("checked: x op x is x, NaN too"),
    ),
    Rule("sort-of-one", of(Sort), _sort_of_one, moves()),
)
