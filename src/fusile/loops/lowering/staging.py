"""Operands of a product copied to scratch memory, where one task reads them again and again.

Rows whose starts lie a multiple of 4096 bytes apart fall into the same few sets of the first-level cache and push each
other out; strides of convolutions do the same. Copied side by side, with an odd number of cache lines between them,
they stay. The copy is one pass over memory, and whatever the elements take to compute is computed once a task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fusile.base.element_type import ElementType
from fusile.loops.ir import Alloc, Apply, Buffer, Const, Expr, Load, Space, Store, const, sub_expressions
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.inline_loops import nest
from fusile.loops.lowering.vector_loops import VectorLoops

LINE = 64
L1_SETS = 64
MOST_LINES_A_SET = 5
"""Rows that may share a set of an 8-way cache, with room for the other operand."""
MOST_BYTES = 256 << 10
"""Scratch lives on the stack, and should stay in the second-level cache."""
Element = Callable[[Expr, Sequence[Expr], Block], Expr]
"""(row, depth coordinates, block) -> the element."""


def collide(places: Sequence[int | None], element_bytes: int) -> bool:
    """Whether too many rows that begin at these elements (None: not known) share a set of the cache."""
    lines = {p * element_bytes // LINE for p in places if p is not None}
    sets: dict[int, int] = {}
    for line in lines:
        sets[line % L1_SETS] = sets.get(line % L1_SETS, 0) + 1
    return max(sets.values(), default=0) > MOST_LINES_A_SET


def row_bytes(depth: Sequence[int], element_type: ElementType) -> int:
    """Bytes of one staged row."""
    return _padded(math.prod(depth), element_type) * element_type.bytes


def _padded(count: int, element_type: ElementType) -> int:
    """Elements in an odd number of cache lines, at least `count`."""
    per_line = LINE // element_type.bytes
    lines = -(-count // per_line)
    return (lines + 1 - lines % 2) * per_line


def stage_rows(
    elemental: Elemental, block: Block, rows: int, depth: Sequence[int], element_type: ElementType, element: Element
) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """Copies rows to scratch memory; what reads (row, depth coordinates) from there."""
    width = _padded(math.prod(depth), element_type)
    buffer = Buffer(elemental.names.var("rows").name, element_type, (rows, width), Space.SCRATCH)
    block.emit(Alloc(buffer))
    loops = VectorLoops(elemental, max(1, elemental.machine.lanes(element_type)))
    row = elemental.math.bound(elemental.names.var("i"), rows)
    outer = [elemental.math.bound(elemental.names.var("k"), size) for size in depth[:-1]]

    def place(i: Expr, at: Sequence[Expr]) -> tuple[Expr, Expr]:
        return i, elemental.math.flatten(at, depth)

    def one(b: Block, column: Expr, slot: int, lane: Expr) -> None:
        at = (*outer, column)
        value = element(row, at, b)
        value = value if value.element_type is element_type else Apply("convert", (value,), element_type)
        b.emit(Store(buffer, place(row, at), value))

    inner = block.child()
    body = inner.child()
    loops.run(body, depth[-1] if depth else 1, const(0), one)
    nest(inner, body, list(zip(outer, depth[:-1], strict=True)))
    block.loop(row, rows, inner)
    return lambda i, at: Load(buffer, place(i, at))


def staged_columns_bytes(columns: int, depth: Sequence[int], element_type: ElementType, panel: int) -> int:
    """Bytes of staged columns."""
    return -(-columns // panel) * panel * math.prod(depth) * element_type.bytes


def stage_columns(
    elemental: Elemental,
    block: Block,
    columns: int,
    depth: Sequence[int],
    element_type: ElementType,
    panel: int,
    element: Element,
) -> Callable[[Expr, Sequence[Expr]], Expr]:
    """Copies columns to scratch memory, panel by panel, each [depth, panel]; what reads (column, depth coordinates)
    from there. Columns that fill the last panel up are undefined."""
    math_, names = elemental.math, elemental.names
    panels = -(-columns // panel)
    buffer = Buffer(names.var("panels").name, element_type, (panels, math.prod(depth), panel), Space.SCRATCH)
    block.emit(Alloc(buffer))
    loops = VectorLoops(elemental, max(1, min(panel, elemental.machine.lanes(element_type))))

    def place(column: Expr, at: Sequence[Expr]) -> tuple[Expr, ...]:
        number, within = math_.unflatten(column, (panels, panel))
        return number, math_.flatten(at, depth), within

    def some(first: Expr, count: int, into: Block) -> None:
        coordinates = [math_.bound(names.var("k"), size) for size in depth]

        def one(b: Block, column: Expr, slot: int, lane: Expr) -> None:
            value = element(column, coordinates, b)
            value = value if value.element_type is element_type else Apply("convert", (value,), element_type)
            b.emit(Store(buffer, place(column, coordinates), value))

        body = into.child()
        loops.run(body, count, first, one)
        nest(into, body, list(zip(coordinates, depth, strict=True)))

    whole, rest = divmod(columns, panel)
    if whole:
        number = math_.bound(names.var("panel"), whole)
        inner = block.child()
        some(math_.scale(number, panel), panel, inner)
        block.loop(number, whole, inner)
    if rest:
        some(const(whole * panel), rest, block)
    return lambda column, at: Load(buffer, place(column, at))


def first_places(
    elemental: Elemental, rows: int, depth: Sequence[int], element: Element
) -> tuple[list[int | None], bool]:
    """Where each row's first element lies in its argument (None: not in one, or not known), and whether the innermost
    depth runs along memory."""
    block = elemental.block()
    origin = [const(0)] * len(depth)
    places = [_place(element(const(i), origin, block)) for i in range(rows)]
    if not depth or depth[-1] == 1:
        return places, True
    along = _place(element(const(0), [*origin[:-1], const(1)], block))
    return places, along is not None and places[0] is not None and along - places[0] == 1


def computes(elemental: Elemental, depth: Sequence[int], element: Element) -> bool:
    """Whether an element is more than a load from a place that moves evenly with the depth."""
    block = elemental.block()
    at = [elemental.math.bound(elemental.names.var("probe"), size) for size in depth]
    value = element(const(0), at, block)
    if isinstance(value, Apply) and value.op == "convert":
        (value,) = value.arguments
    if block.statements or not isinstance(value, Load):
        return True
    return any(
        isinstance(x, Apply) and x.op not in ("add", "subtract", "multiply")
        for i in value.indices
        for x in sub_expressions(i)
    )


def _place(value: Expr) -> int | None:
    while isinstance(value, Apply) and value.op == "convert":
        (value,) = value.arguments
    if isinstance(value, Load) and all(isinstance(i, Const) for i in value.indices):
        return int(value.indices[0].value)  # type: ignore[attr-defined]
    return None
