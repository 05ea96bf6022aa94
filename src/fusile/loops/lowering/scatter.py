"""Scatter in place: updates are combined one after the other, in order; what sticks out is dropped."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base.element_type import PRED, S64
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import Scatter
from fusile.loops.ir import Apply, Expr, For, If, Kernel, Load, LoopKind, Store, Var, compare, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.scalar_bodies import scalar_results
from fusile.loops.machine import Machine


def lower_scatter(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a `scatter` fusion. The results' buffers hold the operands already."""
    e = Elemental(fusion, machine)
    scatter = next(i for i in e.computation.instructions if isinstance(i.op, Scatter))
    assert isinstance(scatter.op, Scatter)
    count = len(scatter.operands) // 2
    updates = scatter.operands[count + 1 :]
    sizes = updates[0].array_shape.sizes
    if not updates[0].array_shape.elements or not scatter.operands[0].array_shape.elements:
        return e.kernel(name)
    loops = [e.math.bound(e.names.var("u"), size) for size in sizes]
    block = e.block()
    place, inside = _place(e, scatter, loops, block)
    inner = block.child()
    flat = e.math.flatten(place, scatter.operands[0].array_shape.sizes)
    cells = [(buffer, (inner.let(flat, "cell"),)) for _, buffer in e.results]
    old = [Load(b, i) for b, i in cells]
    new = scalar_results(scatter.op.computation, [*old, *(e.value(u, loops, inner) for u in updates)])
    named = [inner.let(v) for v in new]
    for (_, buffer), (_, index), value in zip(e.results, cells, named, strict=True):
        inner.emit(Store(buffer, index, value))
    block.statements += [If(inside, inner.body())] if inside is not None else inner.statements
    body = block.body()
    for var, size in zip(reversed(loops), reversed(sizes), strict=True):
        body = (For(var, const(size), body),)
    once = e.names.var("once")
    return e.kernel(name, For(once, const(1), body, LoopKind.SERIAL))


def _place(e: Elemental, scatter: Instruction, loops: Sequence[Var], block: Block) -> tuple[list[Expr], Expr | None]:
    """Where an update's element goes, and the test that it is inside (None when it always is)."""
    op = scatter.op
    assert isinstance(op, Scatter)
    count = len(scatter.operands) // 2
    indices, shape = scatter.operands[count], scatter.operands[0].array_shape.sizes
    batch = [v for d, v in enumerate(loops) if d not in op.update_window_dims]
    window = iter([loops[d] for d in op.update_window_dims])
    dropped = {*op.inserted_window_dims, *op.input_batching_dims}
    place: list[Expr] = [const(0) if d in dropped else next(window) for d in range(len(shape))]
    inside: Expr | None = None
    for number, d in enumerate(op.scatter_dims_to_operand_dims):
        at = list[Expr](batch)
        if op.index_vector_dim < indices.array_shape.rank:
            at.insert(op.index_vector_dim, const(number))
        start = e.value(indices, at, block)
        wide = start if start.element_type is S64 else Apply("convert", (start,), S64)
        place[d] = block.let(Apply("add", (wide, place[d]), S64), "at")
        test = Apply("and", (compare("ge", place[d], const(0)), compare("lt", place[d], const(shape[d]))), PRED)
        inside = test if inside is None else Apply("and", (inside, test), PRED)
    batch_dims = [d for d in range(indices.array_shape.rank) if d != op.index_vector_dim]
    for d, from_dim in zip(op.input_batching_dims, op.scatter_indices_batching_dims, strict=True):
        place[d] = batch[batch_dims.index(from_dim)]
    return place, inside
