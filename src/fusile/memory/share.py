"""Which results of a kernel may lie where one of its operands lies, because each element is read before it is written.

y = fusion(x, s), kind=loop, y[i] = tanh(x[i]) * s[0]           y may lie in x
y = fusion(x), kind=loop, y[i, j] = x[i, j] - max over j x[i, j]  y may lie in x: a row is read before it is written
y = fusion(x), kind=loop, y[i, j] = x[j, i]                       it may not
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.reduction import Reduce, ReduceWindow
from fusile.hlo.opset.shape import Broadcast
from fusile.hlo.opset.structure import Tuple

Pairs = tuple[tuple[int, int], ...]


def shareable(fusion: Instruction) -> Pairs:
    """All pairs (result leaf, operand) of a fusion whose buffers may be one, if nothing else needs the operand. A
    contraction's epilogue reads an element just before it writes it; it writes its results one after the other, so that
    only the last one which needs an operand may lie in its place."""
    op = fusion.op
    if not isinstance(op, Fusion) or op.kind not in ("loop", "contraction") or op.in_place:
        return ()
    body = op.computation
    roots = list(body.root.operands) if isinstance(body.root.op, Tuple) else [body.root]
    reductions = [i for i in body.instructions if isinstance(i.op, Reduce | ReduceWindow)]
    if reductions and (op.kind != "loop" or not _by_rows(reductions, roots)):
        return ()
    if op.kind == "contraction" and sum(isinstance(i.op, Dot | Convolution) for i in body.instructions) != 1:
        return ()
    pairs: list[tuple[int, int]] = []
    for number, parameter in enumerate(body.parameters):
        leaves = [n for n, root in enumerate(roots) if _alike(root, parameter)]
        if not leaves:
            continue
        needed_by = _read_in_place(parameter, reductions)
        if needed_by is not None:
            last = max((n for n, root in enumerate(roots) if root in needed_by), default=-1)
            pairs += [(n, number) for n in leaves if op.kind == "loop" or n == last]
    return tuple(sorted(pairs))


def _alike(a: Instruction, b: Instruction) -> bool:
    return (
        isinstance(a.shape, Shape)
        and isinstance(b.shape, Shape)
        and a.shape.dimensions == b.shape.dimensions
        and a.shape.bytes == b.shape.bytes
    )


def _by_rows(reductions: Sequence[Instruction], roots: Sequence[Instruction]) -> bool:
    """Whether all reductions are over the trailing dimensions of one space, which some root has: then a kernel goes
    row by row, and writes a row after it has reduced it."""
    if not all(isinstance(r.op, Reduce) for r in reductions):
        return False
    space, dimensions = reductions[0].operands[0].array_shape.sizes, set(reductions[0].op.dimensions)  # type: ignore[attr-defined]
    first = len(space) - len(dimensions)
    if dimensions != set(range(first, len(space))) or math.prod(space[first:]) <= 1:
        return False
    if not any(r.array_shape.sizes == space for r in roots):
        return False
    return all(
        r.operands[0].array_shape.sizes == space and set(r.op.dimensions) == dimensions  # type: ignore[attr-defined]
        for r in reductions
    )


def _read_in_place(parameter: Instruction, reductions: Sequence[Instruction]) -> set[Instruction] | None:
    """What needs the parameter, if its element i is read for element i of the results, or for its row, alone. Else
    None."""
    dimensions = parameter.array_shape.dimensions
    rows = reductions[0].operands[0].array_shape.dimensions if reductions else None
    seen: set[Instruction] = {parameter}
    stack = [parameter]
    while stack:
        i = stack.pop()
        for user in i.users:
            if user in seen or isinstance(user.op, Tuple):
                continue
            seen.add(user)
            if isinstance(user.op, Reduce) and i.shape == user.operands[0].shape and rows == dimensions:
                if not all(_back_to_rows(u, user, dimensions) for u in user.users):
                    return None
                seen.update(u for u in user.users if isinstance(u.op, Broadcast))
                stack += [u for u in user.users if isinstance(u.op, Broadcast)]
            elif user.op.elementwise and user.array_shape.dimensions == dimensions:
                stack.append(user)
            else:
                return None
    return seen


def _back_to_rows(user: Instruction, reduction: Instruction, dimensions: tuple[object, ...]) -> bool:
    """Whether a reduction's user is a result, or spreads each row's value over its own row."""
    if isinstance(user.op, Tuple):
        return True
    rank = reduction.array_shape.rank if isinstance(reduction.shape, Shape) else -1
    return (
        isinstance(user.op, Broadcast)
        and user.array_shape.dimensions == dimensions
        and user.op.broadcast_dimensions == tuple(range(rank))
    )
