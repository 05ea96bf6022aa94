"""CHLO's `ragged_dot`: products of consecutive groups of rows, of sizes known at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusile.base.element_type import S64, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts, integers_of


@dataclass(frozen=True)
class _Dimensions:
    """Which dimension of which operand is what."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    ragged: int
    group: int | None


@converts("chlo.ragged_dot")
def _ragged_dot(context: Context) -> Instruction:
    """Group g is the part of the left operand's ragged dimension that starts where the sizes of groups before it end.

    A ragged dimension of rows: each row is multiplied by its group's right matrix, [b,m,k] [g,b,k,n] -> [b,m,n]; rows
    of no group are 0. A contracted one: the products of each group's part, [b,m,k] [b,k,n] -> [g,b,m,n]. A batch
    dimension: the ordinary product.
    """
    lhs, rhs, sizes = context.operands
    d = _dimensions(context)
    kind = context.result_shape().element_type
    b = context.builder
    if d.ragged in d.lhs_batch:
        return b.dot(lhs, rhs, d.lhs_batch, d.rhs_batch, d.lhs_contracting, d.rhs_contracting, kind)
    groups = sizes.array_shape.sizes[-1] if sizes.array_shape.rank else 0
    member = _membership(b, lhs, sizes, d)
    if d.ragged in d.lhs_contracting:
        return _contracting(b, lhs, rhs, member, d, kind)
    if d.group is None or rhs.array_shape.sizes[d.group] != groups:
        raise ValueError(f"{groups} group sizes for a right operand of {rhs.array_shape}")
    return _rows(b, lhs, rhs, member, d, kind)


def _dimensions(context: Context) -> _Dimensions:
    fields = context.fields("ragged_dot_dimension_numbers")
    names = ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions",
             "rhs_contracting_dimensions", "lhs_ragged_dimensions", "rhs_group_dimensions")  # fmt: skip
    *four, ragged, group = (integers_of(name, fields.get(name, [])) for name in names)
    if len(ragged) != 1 or len(group) > 1:
        raise ValueError(f"{len(ragged)} ragged and {len(group)} group dimensions, not one and at most one")
    return _Dimensions(*four, ragged=ragged[0], group=group[0] if group else None)


def _membership(b: Builder, lhs: Instruction, sizes: Instruction, d: _Dimensions) -> Instruction:
    """Which elements of the left operand are of which group: a predicate [g, *lhs]."""
    shape, count = lhs.array_shape, sizes.array_shape.sizes[-1]
    sizes = b.convert(sizes, S64)
    batch = sizes.array_shape.sizes[:-1]
    rank = len(batch)
    if rank and batch != tuple(shape.sizes[i] for i in d.lhs_batch):
        raise ValueError(f"group sizes {sizes.array_shape} are not of the batch of {shape}")
    square = Shape(S64, (*batch, count, count))
    earlier = b.compare(b.iota(square, rank), b.iota(square, rank + 1), "LE")
    spread = b.broadcast(sizes, square.sizes, range(rank + 1))
    ends = b.reduce_with("add", b.select(earlier, spread, b.like(0, spread)), [rank])
    whole = Shape(S64, (count, *shape.sizes))
    places = [1 + i for i in d.lhs_batch[:rank]]
    starts = b.subtract(ends, sizes)
    start, end = (_along(b, bound, whole, [*places, 0]) for bound in (starts, ends))
    row = b.iota(whole, 1 + d.ragged)
    return b.and_(b.compare(row, start, "GE"), b.compare(row, end, "LT"))


def _along(b: Builder, x: Instruction, shape: Shape, places: Sequence[int]) -> Instruction:
    """x broadcast with its dimensions at these places of a shape, in any order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    return b.broadcast(b.transpose(x, order), shape.sizes, sorted(places))


def _contracting(
    b: Builder, lhs: Instruction, rhs: Instruction, member: Instruction, d: _Dimensions, kind: ElementType
) -> Instruction:
    """Both operands are 0 outside the group, so that what is outside (NaN, too) does not count."""
    parts = [_of_group(b, lhs, member)]
    rhs_ragged = d.rhs_contracting[d.lhs_contracting.index(d.ragged)]
    shape = member.array_shape.sizes
    kept = [0, 1 + d.ragged, *(1 + i for i in d.lhs_batch)]
    narrow = b.slice(member, [0] * len(shape), [s if i in kept else 1 for i, s in enumerate(shape)])
    narrow = b.reshape(narrow, [shape[i] for i in sorted(kept)])
    target = {0: 0, 1 + d.ragged: 1 + rhs_ragged}
    target |= {1 + i: 1 + j for i, j in zip(d.lhs_batch, d.rhs_batch, strict=True)}
    whole = Shape(member.array_shape.element_type, (shape[0], *rhs.array_shape.sizes))
    parts.append(_of_group(b, rhs, _along(b, narrow, whole, [target[i] for i in sorted(kept)])))
    return b.dot(*parts, *_shifted(d), kind)


def _rows(
    b: Builder, lhs: Instruction, rhs: Instruction, member: Instruction, d: _Dimensions, kind: ElementType
) -> Instruction:
    """Every row by every matrix, and of each row the product with its own."""
    assert d.group is not None
    order = [d.group, *(i for i in range(rhs.array_shape.rank) if i != d.group)]
    rhs = b.transpose(rhs, order)
    moved = {old: new for new, old in enumerate(order)}
    groups = rhs.array_shape.sizes[0]
    spread = b.broadcast(lhs, (groups, *lhs.array_shape.sizes), range(1, lhs.array_shape.rank + 1))
    lhs_batch, _, lhs_contracting, _ = _shifted(d)
    rhs_batch = [0, *(moved[i] for i in d.rhs_batch)]
    products = b.dot(spread, rhs, lhs_batch, rhs_batch, lhs_contracting, [moved[i] for i in d.rhs_contracting], kind)
    shape = member.array_shape.sizes
    contracted = set(lhs_contracting)
    narrow = b.slice(member, [0] * len(shape), [1 if i in contracted else s for i, s in enumerate(shape)])
    narrow = b.reshape(narrow, [s for i, s in enumerate(shape) if i not in contracted])
    kept = [i for i in range(len(shape)) if i not in contracted]
    free = [i for i in kept if i not in lhs_batch]
    places = [(lhs_batch + free).index(i) for i in kept]
    mask = _along(b, narrow, products.array_shape, places)
    return b.reduce_with("add", b.select(mask, products, b.like(0, products)), [0])


def _of_group(b: Builder, x: Instruction, member: Instruction) -> Instruction:
    spread = b.broadcast(x, member.array_shape.sizes, range(1, member.array_shape.rank))
    return b.select(member, spread, b.like(0, spread))


def _shifted(d: _Dimensions) -> tuple[list[int], list[int], list[int], list[int]]:
    """The product's dimensions with the group's as another batch dimension in front."""
    up = [[1 + i for i in group] for group in (d.lhs_batch, d.rhs_batch, d.lhs_contracting, d.rhs_contracting)]
    return [0, *up[0]], [0, *up[1]], up[2], up[3]
