"""select-and-scatter, the gradient of pooling by maximum: each source element goes to the place its window selects."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.element_type import PRED, S64, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.reduction import SelectAndScatter
from fusile.loops.ir import (
    Alloc,
    Apply,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    LoopKind,
    Space,
    Stmt,
    Store,
    Var,
    compare,
    const,
)
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.scalar_bodies import scalar_results
from fusile.loops.machine import Machine


def lower_select_and_scatter(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """Two phases: the result becomes the initial value, then source elements are scattered, a batch in parallel."""
    e = Elemental(fusion, machine)
    ((root, buffer),) = e.results
    op = root.op
    assert isinstance(op, SelectAndScatter)
    if root.array_shape.element_type.is_complex:
        raise UnsupportedOpError("select-and-scatter of complex numbers has no code", source=root.source)
    if not root.array_shape.elements:
        return e.kernel(name)
    sizes = root.array_shape.sizes
    fill_at = e.math.bound(e.names.var("at"), root.array_shape.elements)
    fill = e.block()
    fill.emit(Store(buffer, (fill_at,), e.value(root.operands[2], (), fill)))
    first = For(fill_at, const(root.array_shape.elements), fill.body(), LoopKind.PARALLEL)
    if not root.operands[1].array_shape.elements:
        return e.kernel(name, first)
    loops = [e.math.bound(e.names.var("o"), s) for s in root.operands[1].array_shape.sizes]
    block = e.block()
    _one_window(e, root, buffer, loops, block)
    body: tuple[Stmt, ...] = block.body()
    independent = _independent(op, sizes)
    for d in reversed(range(len(loops))):
        if d != independent:
            body = (For(loops[d], const(root.operands[1].array_shape.sizes[d]), body),)
    if independent is None:
        return e.kernel(name, first, For(e.names.var("once"), const(1), body))
    return e.kernel(name, first, For(loops[independent], const(sizes[independent]), body, LoopKind.PARALLEL))


def _independent(op: SelectAndScatter, sizes: Sequence[int]) -> int | None:
    """A dimension whose slices do not touch each other, the longest."""
    window = op.window
    free = [
        d
        for d in range(len(sizes))
        if window.size[d] == window.stride[d] == 1 and window.padding_low[d] == window.padding_high[d] == 0
    ]
    return max(free, key=lambda d: sizes[d]) if free else None


def _one_window(e: Elemental, root: Instruction, buffer: Buffer, at: Sequence[Var], block: Block) -> None:
    """Finds the place that a window selects, and combines the source element into it."""
    op = root.op
    assert isinstance(op, SelectAndScatter)
    t = root.array_shape.element_type
    best = Buffer(e.names.var("best").name, t, (1,), Space.REGISTER)
    place = Buffer(e.names.var("place").name, S64, (1,), Space.REGISTER)
    block.emit(Alloc(best))
    block.emit(Alloc(place))
    block.emit(Store(best, (const(0),), _zero(t)))
    block.emit(Store(place, (const(0),), const(-1)))
    inner = block.child()
    offsets = [e.math.bound(e.names.var("w"), n) for n in op.window.size]
    inside, index = _inside(e, root, at, offsets)
    guarded = inner.child()
    candidate = guarded.let(e.value(root.operands[0], index, guarded), "x")
    chosen, none = Load(best, (const(0),)), compare("lt", Load(place, (const(0),)), const(0))
    (keep,) = scalar_results(op.select, [chosen, candidate])
    replaced = guarded.let(Apply("or", (none, Apply("not", (keep,), PRED)), PRED), "replaced")
    flat = e.math.flatten(index, root.array_shape.sizes)
    guarded.emit(If(replaced, (Store(best, (const(0),), candidate), Store(place, (const(0),), flat))))
    inner.statements += [If(inside, guarded.body())] if inside is not None else guarded.statements
    body = inner.body()
    for var, size in zip(reversed(offsets), reversed(op.window.size), strict=True):
        body = (For(var, const(size), body),)
    block.statements += body
    target = Load(place, (const(0),))
    last = block.child()
    cell = last.let(target, "cell")
    (total,) = scalar_results(op.scatter, [Load(buffer, (cell,)), e.value(root.operands[1], at, last)])
    last.emit(Store(buffer, (cell,), total))
    block.emit(If(compare("ge", target, const(0)), last.body()))


def _inside(
    e: Elemental, root: Instruction, at: Sequence[Var], offsets: Sequence[Var]
) -> tuple[Expr | None, list[Expr]]:
    """The input's index under a place of the window, and the test that it isn't padding."""
    window = root.op.window  # type: ignore[attr-defined]
    inside: Expr | None = None
    index: list[Expr] = []
    for d, size in enumerate(root.array_shape.sizes):
        moved = e.math.subtract(
            e.math.add(e.math.scale(at[d], window.stride[d]), offsets[d]), const(window.padding_low[d])
        )
        low, high = e.math.range_of(moved)
        for needed, test in (
            (low < 0, compare("ge", moved, const(0))),
            (high >= size, compare("lt", moved, const(size))),
        ):
            if needed:
                inside = test if inside is None else Apply("and", (inside, test), PRED)
        index.append(moved)
    return inside, index


def _zero(t: ElementType) -> Const:
    return Const(0.0 if t.is_float else False if t.is_predicate else 0, t)
