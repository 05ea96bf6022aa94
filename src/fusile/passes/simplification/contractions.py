"""Products and convolutions. Before/after: ``dot(transpose(x), y) => dot(x, y)`` with other dimension numbers;
a 1x1 convolution => dot; an outer product => multiply.

`RULES` belong to simplification; `CANONICAL` run once batch norms are folded into convolutions' weights.
"""

from __future__ import annotations

from dataclasses import replace

from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.elementwise import Add, Convert, Multiply
from fusile.hlo.opset.shape import Broadcast, Reshape, Transpose
from fusile.passes.simplification.values import full
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Rule, exact, moves

x, y = anything("x"), anything("y")


def _dot_op(instruction: Instruction) -> Dot:
    assert isinstance(instruction.op, Dot)
    return instruction.op


def _free(rank: int, *taken: tuple[int, ...]) -> list[int]:
    """The dimensions that are in none of `taken`."""
    used = {d for dimensions in taken for d in dimensions}
    return [d for d in range(rank) if d not in used]


def _untransposed(m: Match, batch: tuple[int, ...], contracting: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | str:
    """The batch and contracting dimensions before the transpose, or why the dot can't take its operand."""
    permutation = m.inner.op.permutation  # type: ignore[attr-defined]
    kept = [permutation[d] for d in _free(len(permutation), batch, contracting)]
    if kept != sorted(kept):
        return "the result's dimensions would change their order"
    return tuple(permutation[d] for d in batch), tuple(permutation[d] for d in contracting)


def _lhs_transposed(m: Match) -> Instruction | str:
    op = _dot_op(m.root)
    found = _untransposed(m, op.lhs_batch, op.lhs_contracting)
    if isinstance(found, str):
        return found
    return m.add(replace(op, lhs_batch=found[0], lhs_contracting=found[1]), m.x, m.y)


def _rhs_transposed(m: Match) -> Instruction | str:
    op = _dot_op(m.root)
    found = _untransposed(m, op.rhs_batch, op.rhs_contracting)
    if isinstance(found, str):
        return found
    return m.add(replace(op, rhs_batch=found[0], rhs_contracting=found[1]), m.x, m.y)


def _spread(m: Match, operand: Instruction, order: list[int], first: int, batch: int) -> Instruction:
    """`operand` with its dimensions in `order` (batch first), broadcast to the root's shape.

    Batch dimensions go to the first places, the others from `first` on. Dimensions left out are of size 1."""
    shape, result = operand.array_shape, m.root.array_shape
    if shape.element_type is not result.element_type:
        operand = m.add(Convert(result.element_type), operand)
    left_out = _free(shape.rank, tuple(order))
    if [*order, *left_out] != list(range(shape.rank)):
        operand = m.add(Transpose((*order, *left_out)), operand)
    if left_out:
        operand = m.add(Reshape(tuple(shape.sizes[d] for d in order)), operand)
    places = (*range(batch), *range(first, first + len(order) - batch))
    return operand if operand.shape == result else m.add(Broadcast(result.sizes, places), operand)


def _outer_product(m: Match) -> Instruction | str:
    op, a, b = _dot_op(m.root), m.x.array_shape, m.y.array_shape
    if any(a.sizes[d] != 1 for d in op.lhs_contracting):
        return "there are sums"
    rows, columns = _free(a.rank, op.lhs_batch, op.lhs_contracting), _free(b.rank, op.rhs_batch, op.rhs_contracting)
    batch = len(op.lhs_batch)
    left = _spread(m, m.x, [*op.lhs_batch, *rows], batch, batch)
    right = _spread(m, m.y, [*op.rhs_batch, *columns], batch + len(rows), batch)
    product = m.add(Multiply(), left, right)
    kind = m.root.array_shape.element_type
    # A sum starts at 0.0, which makes a product of -0.0 one of 0.0.
    return m.add(Add(), product, full(m, 0)) if kind.is_float or kind.is_complex else product


def _dot_without_batch(m: Match) -> Instruction | str:
    """Batch dimensions of size 1 are reshaped away."""
    op = _dot_op(m.root)
    gone = [i for i, d in enumerate(op.lhs_batch) if m.x.array_shape.sizes[d] == 1]
    if not gone:
        return "no batch dimension is of size 1"

    def without(
        operand: Instruction, batch: tuple[int, ...], contracting: tuple[int, ...]
    ) -> tuple[Instruction, list[int], list[int]]:
        dropped = {batch[i] for i in gone}
        kept = [d for d in range(operand.array_shape.rank) if d not in dropped]
        small = m.add(Reshape(tuple(operand.array_shape.sizes[d] for d in kept)), operand)
        return small, [kept.index(d) for d in batch if d not in dropped], [kept.index(d) for d in contracting]

    left, lhs_batch, lhs_contracting = without(m.x, op.lhs_batch, op.lhs_contracting)
    right, rhs_batch, rhs_contracting = without(m.y, op.rhs_batch, op.rhs_contracting)
    small_op = Dot(tuple(lhs_batch), tuple(rhs_batch), tuple(lhs_contracting), tuple(rhs_contracting), op.element_type)
    return m.add(Reshape(m.root.array_shape.sizes), m.add(small_op, left, right))


def _pointwise_convolution(m: Match) -> Instruction | str:
    """A convolution with a window of one element is a product, when its result comes out in the dot's order."""
    op = m.root.op
    assert isinstance(op, Convolution)
    window, numbers = op.window, op.dimension_numbers
    ones = (*window.size, *window.stride, *window.base_dilation, op.feature_group_count, op.batch_group_count)
    if any(v != 1 for v in ones) or any(window.padding_low) or any(window.padding_high):
        return "the window has several elements, strides, padding or groups"
    roles = {
        numbers.input_batch: numbers.output_batch,
        **dict(zip(numbers.input_spatial, numbers.output_spatial, strict=True)),
    }
    places = [roles[d] for d in _free(m.x.array_shape.rank, (numbers.input_feature,))] + [numbers.output_feature]
    sizes = m.root.array_shape.sizes
    long = [p for p in places if sizes[p] != 1]
    if long != sorted(long):
        return "the result would have to be transposed"
    kernel = m.y.array_shape.sizes
    matrix = sorted((numbers.kernel_input_feature, numbers.kernel_output_feature))
    weights = m.add(Reshape(tuple(kernel[d] for d in matrix)), m.y)
    contracting = matrix.index(numbers.kernel_input_feature)
    product = m.add(Dot((), (), (numbers.input_feature,), (contracting,), op.element_type), m.x, weights)
    return product if product.shape == m.root.shape else m.add(Reshape(sizes), product)


SUMS = "the sums are the same"

RULES = (
    Rule("dot-lhs-transposed", of(Dot, of(Transpose, x, name="inner"), y), _lhs_transposed, moves(SUMS)),
    Rule("dot-rhs-transposed", of(Dot, x, of(Transpose, y, name="inner")), _rhs_transposed, moves(SUMS)),
)

CANONICAL = (
    Rule("pointwise-convolution", of(Convolution, x, y), _pointwise_convolution, moves(SUMS)),
    Rule(
        "outer-product",
        of(Dot, x, y),
        _outer_product,
        exact("0.0 + x * y, rounded as the sum is"),
    ),
    Rule("dot-without-batch", of(Dot, x, y), _dot_without_batch, moves(SUMS)),
)
