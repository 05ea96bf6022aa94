"""Reshape, transpose, broadcast and tuples. One canonical form: a broadcast's operand has no dimensions of size 1, a
transpose that moves only such dimensions is a reshape, and elementwise ops come before broadcasts.

Before/after: ``reshape(reshape(x)) => reshape(x)``, ``add(broadcast(a), broadcast(b)) => broadcast(add(a, b))``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusile.hlo.ir import OPS, Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.elementwise import Clamp, Compare, Convert, Elementwise, ReducePrecision, Select
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter, Sort
from fusile.hlo.opset.shape import (
    Broadcast,
    Concatenate,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Pad,
    Reshape,
    Reverse,
    Scatter,
    Slice,
    Transpose,
)
from fusile.hlo.opset.structure import Constant, Copy, GetTupleElement, Iota, Tuple
from fusile.passes.simplification.values import captured, full
from fusile.rewrite.constants import splat
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Rule, moves

x = anything("x")
ELEMENTWISE = tuple(
    cls for cls in OPS.values() if issubclass(cls, Elementwise | Select | Clamp | Compare | Convert | ReducePrecision)
)
MOVING = (
    Broadcast,
    Reshape,
    Transpose,
    Slice,
    Pad,
    Concatenate,
    Reverse,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Iota,
)
COMPUTING = (Dot, Convolution, Reduce, ReduceWindow, SelectAndScatter, Sort, Scatter)


def _keeps_shape(instruction: Instruction) -> bool:
    return instruction.shape == instruction.operands[0].shape


def _is_identity_permutation(instruction: Instruction) -> bool:
    assert isinstance(instruction.op, Transpose)
    return instruction.op.permutation == tuple(range(len(instruction.op.permutation)))


def _has_as_many_elements(instruction: Instruction) -> bool:
    return instruction.array_shape.elements == instruction.operands[0].array_shape.elements


def moves_only_ones(instruction: Instruction) -> bool:
    """True of transposes that keep the order of all dimensions but those of size 1."""
    assert isinstance(instruction.op, Transpose)
    sizes = instruction.operands[0].array_shape.sizes
    kept = [p for p in instruction.op.permutation if sizes[p] != 1]
    return kept == sorted(kept)


def _transpose_twice(m: Match) -> Instruction:
    outer, inner = m.root.op, m.inner.op
    assert isinstance(outer, Transpose) and isinstance(inner, Transpose)
    return m.add(Transpose(tuple(inner.permutation[p] for p in outer.permutation)), m.x)


def _to_reshape(m: Match) -> Instruction:
    return m.add(Reshape(m.root.array_shape.sizes), m.x)


def _broadcast_twice(m: Match) -> Instruction:
    outer, inner = m.root.op, m.inner.op
    assert isinstance(outer, Broadcast) and isinstance(inner, Broadcast)
    mapped = tuple(outer.broadcast_dimensions[d] for d in inner.broadcast_dimensions)
    return m.add(Broadcast(outer.dimensions, mapped), m.x)


def _has_ones(instruction: Instruction) -> bool:
    return 1 in instruction.array_shape.sizes


def _broadcast_of_ones(m: Match) -> Instruction:
    """broadcast(x[1,64]) => broadcast(reshape(x)[64])."""
    op, sizes = m.root.op, m.x.array_shape.sizes
    assert isinstance(op, Broadcast)
    kept = [i for i, s in enumerate(sizes) if s != 1]
    small = m.add(Reshape(tuple(sizes[i] for i in kept)), m.x)
    return m.add(Broadcast(op.dimensions, tuple(op.broadcast_dimensions[i] for i in kept)), small)


def _transpose_of_broadcast(m: Match) -> Instruction:
    """The smaller operand is transposed instead, where its dimensions change their order."""
    op, inner = m.root.op, m.inner.op
    assert isinstance(op, Transpose) and isinstance(inner, Broadcast)
    place = [op.permutation.index(d) for d in inner.broadcast_dimensions]
    order = sorted(range(len(place)), key=place.__getitem__)
    small = m.x if order == sorted(order) else m.add(Transpose(tuple(order)), m.x)
    return m.add(Broadcast(m.root.array_shape.sizes, tuple(sorted(place))), small)


def common_groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[range, range]]:
    """The finest cut of two lists of sizes with one product, not 0, into runs of equal products, in order."""
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        first_i, first_j = i, j
        left = right = 1
        while True:
            if left == right and (i > first_i or j > first_j):
                break
            if (left <= right and i < len(a)) or j == len(b):
                left, i = left * a[i], i + 1
            else:
                right, j = right * b[j], j + 1
        groups.append((range(first_i, i), range(first_j, j)))
    return groups


def _reshape_of_broadcast(m: Match) -> Instruction | str:
    """Each run of dimensions that the reshape splits or joins must be broadcast as a whole or not at all."""
    inner, sizes, new = m.inner.op, m.inner.array_shape.sizes, m.root.array_shape.sizes
    assert isinstance(inner, Broadcast)
    if not m.root.array_shape.elements:
        return "it has no elements"
    small: list[int] = []
    mapped: list[int] = []
    for old_run, new_run in common_groups(sizes, new):
        from_operand = [d for d in old_run if d in inner.broadcast_dimensions]
        if not from_operand:
            continue
        if any(sizes[d] != 1 for d in old_run if d not in from_operand):
            return "a dimension mixes repeated and own elements"
        kept = [d for d in new_run if new[d] != 1]
        small += [new[d] for d in kept]
        mapped += kept
    operand = m.x if tuple(small) == m.x.array_shape.sizes else m.add(Reshape(tuple(small)), m.x)
    return m.add(Broadcast(new, tuple(mapped)), operand)


def _spread(instruction: Instruction) -> tuple[int, ...] | None:
    """Where the dimensions of operand 0 stand in a broadcast, or a reshape that only adds dimensions of size 1."""
    if isinstance(instruction.op, Broadcast):
        return instruction.op.broadcast_dimensions
    if not isinstance(instruction.op, Reshape) or not instruction.array_shape.elements:
        return None
    own, sizes = instruction.operands[0].array_shape.sizes, instruction.array_shape.sizes
    places: list[int] = []
    for d, size in enumerate(sizes):
        if len(places) < len(own) and size == own[len(places)]:
            places.append(d)
        elif size != 1:
            return None
    return tuple(places) if len(places) == len(own) < len(sizes) else None


def _hoisted(m: Match) -> Instruction | str:
    """f(broadcast(a), broadcast(b)) => broadcast(f(a, b)), where b's dimensions are among a's; reshapes that only add
    dimensions of size 1 likewise."""
    spread = {o: _spread(o) for o in m.root.operands}
    places = [p for p in spread.values() if p is not None]
    if not places or any(p is None and not o.array_shape.is_scalar for o, p in spread.items()):
        return "an operand is no broadcast"
    mapped = max(places, key=len)
    if any(d not in mapped for p in places for d in p):
        return "the operands' dimensions differ"
    sizes = tuple(m.root.array_shape.sizes[d] for d in mapped)
    if sizes == m.root.array_shape.sizes:
        return "a broadcast repeats nothing"
    small = m.add(m.root.op, *(_narrowed(m, o, spread[o], sizes, mapped) for o in m.root.operands))
    if small.array_shape.elements == m.root.array_shape.elements:
        return m.add(Reshape(m.root.array_shape.sizes), small)
    return m.add(Broadcast(m.root.array_shape.sizes, mapped), small)


def _narrowed(
    m: Match, operand: Instruction, own: tuple[int, ...] | None, sizes: tuple[int, ...], mapped: tuple[int, ...]
) -> Instruction:
    """`operand`, which spreads its dimensions to `own`, as an array of `sizes` whose dimensions spread to `mapped`."""
    if own is None:
        return operand
    inner = operand.operands[0]
    return inner if own == mapped else m.add(Broadcast(sizes, tuple(mapped.index(d) for d in own)), inner)


def _splat_constant(m: Match) -> Instruction | str:
    """One canonical form: a constant of equal elements is a broadcast scalar."""
    assert isinstance(m.root.op, Constant)
    array = m.root.op.literal.array
    if array.size < 2:
        return "it has no two elements"
    flat = array.reshape(-1).view(np.uint8).reshape(array.size, -1)
    if not np.array_equal(flat[0], flat[-1]) or not np.array_equal(flat[0], flat[array.size // 2]):
        return "the elements differ"
    return full(m, flat[0].copy().view(array.dtype)[0]) if (flat == flat[0]).all() else "the elements differ"


def _no_elements(m: Match) -> Instruction | str:
    shape = m.root.shape
    if shape.is_tuple or shape.is_token or m.root.array_shape.elements:
        return "it has elements"
    if isinstance(m.root.op, Broadcast) and splat(m.root) is not None:
        return "it is canonical"
    return full(m, 0)


def _element(m: Match) -> Instruction:
    assert isinstance(m.root.op, GetTupleElement)
    return m.tuple.operands[m.root.op.index]


def _tuple_of_elements(m: Match) -> Instruction | str:
    sources = {o.operands[0] if isinstance(o.op, GetTupleElement) else o for o in m.root.operands}
    if len(sources) != 1:
        return "the elements come from several tuples"
    source = sources.pop()
    numbers = [o.op.index for o in m.root.operands if isinstance(o.op, GetTupleElement)]
    if source.shape != m.root.shape or numbers != list(range(len(m.root.operands))):
        return "they aren't all elements of the tuple in order"
    return source


ALL_BUT_LEAVES = (*ELEMENTWISE, *MOVING, *COMPUTING)

RESHAPE = (
    Rule("reshape-nothing", of(Reshape, x, where=(_keeps_shape,)), captured(), moves()),
    Rule("reshape-twice", of(Reshape, of(Reshape, x)), _to_reshape, moves()),
    Rule("reshape-of-broadcast", of(Reshape, of(Broadcast, x, name="inner")), _reshape_of_broadcast, moves()),
)

TRANSPOSE = (
    Rule("transpose-nothing", of(Transpose, x, where=(_is_identity_permutation,)), captured(), moves()),
    Rule("transpose-ones", of(Transpose, x, where=(moves_only_ones,)), _to_reshape, moves()),
    Rule("transpose-twice", of(Transpose, of(Transpose, x, name="inner")), _transpose_twice, moves()),
    Rule("transpose-of-broadcast", of(Transpose, of(Broadcast, x, name="inner")), _transpose_of_broadcast, moves()),
)

BROADCAST = (
    Rule("broadcast-nothing", of(Broadcast, x, where=(_keeps_shape,)), captured(), moves()),
    Rule("broadcast-twice", of(Broadcast, of(Broadcast, x, name="inner")), _broadcast_twice, moves()),
    Rule("broadcast-ones", of(Broadcast, x, where=(_has_as_many_elements,)), _to_reshape, moves()),
    Rule("broadcast-of-ones", of(Broadcast, anything("x", _has_ones)), _broadcast_of_ones, moves()),
    Rule("elementwise-before-broadcast", of(ELEMENTWISE), _hoisted, moves("the same function of the same elements")),
    Rule("splat-constant", of(Constant), _splat_constant, moves()),
    Rule("no-elements", of(ALL_BUT_LEAVES), _no_elements, moves("there are no elements")),
)

TUPLES = (
    Rule("element-of-tuple", of(GetTupleElement, of(Tuple, name="tuple")), _element, moves()),
    Rule("tuple-of-elements", of(Tuple), _tuple_of_elements, moves()),
    Rule("copy-nothing", of(Copy, x), captured(), moves("who needs a buffer of its own copies")),
)

RULES = RESHAPE + TRANSPOSE + BROADCAST + TUPLES
