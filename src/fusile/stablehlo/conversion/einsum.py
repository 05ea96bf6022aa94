"""`einsum` and `unary_einsum`, which old programs have: sums of products by labels of dimensions."""

from __future__ import annotations

from fusile.base.element_type import S32
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts

_ELLIPSIS = "..."
_FIRST_HIDDEN_LABEL = 0xE000
"""Labels of the dimensions that an ellipsis stands for are of Unicode's private area."""


@converts("stablehlo.einsum", "stablehlo.unary_einsum")
def _einsum(context: Context) -> Instruction:
    inputs, output = _labels(context)
    b = context.builder
    operands = []
    for number, (x, labels) in enumerate(zip(context.operands, inputs, strict=True)):
        others = set(output).union(*(i for n, i in enumerate(inputs) if n != number))
        operands.append(_single(b, x, labels, others))
    result, labels = operands[0] if len(operands) == 1 else _product(b, *operands, output)
    return b.transpose(result, [labels.index(label) for label in output])


def _labels(context: Context) -> tuple[list[str], str]:
    """The labels of each operand's dimensions, and of the result's: `ab,bc->ac`. Raises ValueError."""
    text = str(context.attribute("einsum_config", "")).replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if not arrow or len(inputs) != len(context.operands):
        raise ValueError(f"einsum_config {text!r} is not for {len(context.operands)} operands")
    hidden = 0
    for number, (labels, x) in enumerate(zip(inputs, context.operands, strict=True)):
        rank = x.array_shape.rank
        count = rank - len(labels.replace(_ELLIPSIS, "")) if _ELLIPSIS in labels else 0
        hidden = max(hidden, count)
        inputs[number] = labels.replace(_ELLIPSIS, _hidden(count))
        if len(inputs[number]) != rank or count < 0:
            raise ValueError(f"einsum_config {text!r} labels {labels!r} an operand of rank {rank}")
    output = output.replace(_ELLIPSIS, _hidden(hidden))
    if len(set(output)) < len(output) or not set(output) <= set("".join(inputs)):
        raise ValueError(f"einsum_config {text!r} has a result whose labels repeat or that no operand has")
    return inputs, output


def _hidden(count: int) -> str:
    """The last labels are the last dimensions', whatever their number."""
    return "".join(chr(_FIRST_HIDDEN_LABEL + i) for i in reversed(range(count)))


def _single(b: Builder, x: Instruction, labels: str, wanted: set[str]) -> tuple[Instruction, str]:
    """One operand with each label once, the diagonal of those that repeat, and summed over those that nobody wants."""
    while len(set(labels)) < len(labels):
        last = next(i for i, label in enumerate(labels) if label in labels[:i])
        first = labels.index(labels[last])
        place = x.array_shape.with_element_type(S32)
        on_diagonal = b.compare(b.iota(place, first), b.iota(place, last), "EQ")
        x = b.reduce_with("add", b.select(on_diagonal, x, b.like(0, x)), [last])
        labels = labels[:last] + labels[last + 1 :]
    summed = [i for i, label in enumerate(labels) if label not in wanted]
    x = b.reduce_with("add", x, summed) if summed else x
    return x, "".join(label for label in labels if label in wanted)


def _product(
    b: Builder, left: tuple[Instruction, str], right: tuple[Instruction, str], output: str
) -> tuple[Instruction, str]:
    (x, x_labels), (y, y_labels) = left, right
    common = [label for label in x_labels if label in y_labels]
    batch = [label for label in common if label in output]
    summed = [label for label in common if label not in output]
    result = b.dot(x, y, *([labels.index(label) for label in group] for group, labels in (
        (batch, x_labels), (batch, y_labels), (summed, x_labels), (summed, y_labels))))  # fmt: skip
    rest = [label for labels in (x_labels, y_labels) for label in labels if label not in common]
    return result, "".join(batch + rest)
