"""dynamic-update-slice in place: the result's buffer holds the operand already; the kernel writes the window alone."""

from __future__ import annotations

import math

from fusile.hlo.ir import Instruction
from fusile.loops.ir import Expr, For, Kernel, LoopKind, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.index_ops import clamped_start
from fusile.loops.lowering.vector_loops import VectorLoops, lanes_for
from fusile.loops.machine import Machine


def lower_update(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of an `update` fusion, whose root is the dynamic-update-slice: rows of the update in parallel."""
    e = Elemental(fusion, machine)
    ((root, buffer),) = e.results
    x, update, *starts = root.operands
    sizes = update.array_shape.sizes
    if not update.array_shape.elements:
        return e.kernel(name)
    rows, columns = math.prod(sizes[:-1]), sizes[-1] if sizes else 1
    row = e.math.bound(e.names.var("row"), rows)
    block = e.block()
    totals = x.array_shape.sizes
    begin = [
        clamped_start(e, e.value(s, (), block), total - size, block)
        for s, total, size in zip(starts, totals, sizes, strict=True)
    ]
    outer = e.math.unflatten(row, sizes[:-1])

    def body(b: Block, column: Expr, slot: int, lane: Expr) -> None:
        at = (*outer, column) if sizes else ()
        place = tuple(e.math.add(i, start) for i, start in zip(at, begin, strict=True))
        e.store(buffer, root, place, e.value(update, at, b), b)

    VectorLoops(e, lanes_for([root], machine)).run(block, columns, const(0), body, unroll=1)
    return e.kernel(name, For(row, const(rows), block.body(), LoopKind.PARALLEL))
