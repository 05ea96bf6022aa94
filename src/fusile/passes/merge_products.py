"""Makes products of one array with several constant weights one product of all weights side by side.

Before (wq, wk: constants; b(v): a constant v of the columns, broadcast)::

    q = add(dot(x, wq), b(bq)); k = add(dot(x, wk), b(bk))

After::

    y = add(dot(x, concatenate(wq, wk)), b(concatenate(bq, bk)))
    q = slice(y); k = slice(y)

The array is read once, and one kernel has more columns to share among threads. Every element is the same sum as before.
Biases move along when every product has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.contraction import Dot
from fusile.hlo.opset.elementwise import Add
from fusile.hlo.opset.shape import Broadcast, Concatenate, Slice
from fusile.hlo.opset.structure import Constant
from fusile.rewrite.effects import erase_unused

MOST_PRODUCTS = 16


@dataclass(frozen=True)
class MergeProducts:
    """The pass. Comes before folding, which then joins the weights."""

    name: str = "merge-products"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in module.computations():
            for instruction in computation.post_order():
                groups: dict[object, list[Instruction]] = {}
                for user in dict.fromkeys(instruction.users):
                    if _is_product_of(user, instruction):
                        weights = user.operands[1].array_shape
                        groups.setdefault((user.op, weights.element_type, _free(user)), []).append(user)
                for products in groups.values():
                    for first in range(0, len(products), MOST_PRODUCTS):
                        some = products[first : first + MOST_PRODUCTS]
                        if len(some) > 1:
                            _merge(some)
                            changed = True
        return changed


def _is_product_of(user: Instruction, x: Instruction) -> bool:
    """Whether a user multiplies x, on the left, by a constant matrix."""
    op = user.op
    if not isinstance(op, Dot) or user.operands[0] is not x or op.rhs_batch or len(op.rhs_contracting) != 1:
        return False
    weights = user.operands[1]
    return isinstance(weights.op, Constant) and weights is not x and weights.array_shape.rank == 2


def _free(product: Instruction) -> int:
    """The dimension of the weights that is the result's last."""
    assert isinstance(product.op, Dot)
    return 1 - product.op.rhs_contracting[0]


def _merge(products: Sequence[Instruction]) -> None:
    first = products[0]
    computation = first.computation
    assert computation is not None
    biases = [_bias_of(p) for p in products]
    weights = computation.add(Concatenate(_free(first)), [p.operands[1] for p in products], source=first.source)
    merged = computation.add(first.op, [first.operands[0], weights], name=first.name, source=first.source)
    replaced = list(products)
    if all(b is not None for b in biases):
        found = [b for b in biases if b is not None]
        bias = computation.add(Concatenate(0), [vector for _, vector in found], source=first.source)
        last = merged.array_shape.rank - 1
        spread = computation.add(Broadcast(merged.array_shape.sizes, (last,)), [bias], source=first.source)
        merged = computation.add(Add(), [merged, spread], source=first.source)
        replaced = [total for total, _ in found]
    start = 0
    for product, old in zip(products, replaced, strict=True):
        sizes = product.array_shape.sizes
        begin, end = [0] * len(sizes), list(sizes)
        begin[-1], end[-1] = start, start + sizes[-1]
        start += sizes[-1]
        part = computation.add(
            Slice(tuple(begin), tuple(end), (1,) * len(sizes)), [merged], name=old.name, source=old.source
        )
        old.replace_all_uses(part)
        erase_unused(old)


def _bias_of(product: Instruction) -> tuple[Instruction, Instruction] | None:
    """The sum of a product and a constant of its columns, and that constant, if the product has no other use."""
    if len(product.users) != 1 or product.is_root:
        return None
    (total,) = product.users
    if not isinstance(total.op, Add):
        return None
    spread = total.operands[1] if total.operands[0] is product else total.operands[0]
    last = product.array_shape.rank - 1
    if not isinstance(spread.op, Broadcast) or spread.op.broadcast_dimensions != (last,):
        return None
    vector = spread.operands[0]
    whole = vector.array_shape.sizes == product.array_shape.sizes[-1:]
    return (total, vector) if whole and isinstance(vector.op, Constant) else None
