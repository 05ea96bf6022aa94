"""Sums and extremes over segments: scatters into as many rows as there are segments."""

from __future__ import annotations

from fusile.hlo.builder import neutral, scalar_computation
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.shape import Scatter
from fusile.tf.context import Context, shape_of
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

COMBINERS = {"Sum": "add", "Prod": "multiply", "Max": "maximum", "Min": "minimum"}


def _empty(opcode: str, value: Value) -> object:
    """What TensorFlow gives a segment without elements: 0, 1, or the type's lowest or highest finite value."""
    of = value.element_type
    if opcode in ("maximum", "minimum") and of.is_float:
        import ml_dtypes

        info = ml_dtypes.finfo(of.dtype)
        return info.min if opcode == "maximum" else info.max
    return neutral(opcode, of)


def _segments(context: Context, data: Value, ids: Value, count: int, opcode: str, empty: object) -> Instruction:
    """Combines data's rows, one an id, into `count` rows; ids out of range are dropped."""
    b, of = context.builder, data.element_type
    rest = data.sizes[ids.rank :]
    target = b.full(empty, shape_of(of, (count, *rest)))
    window = tuple(range(ids.rank, data.rank))
    op = Scatter(window, (0,), (), (), (0,), ids.rank, scalar_computation(opcode, of))
    return b.emit(op, target, ids.instruction, data.instruction)


@converter(*(f"UnsortedSegment{kind}" for kind in COMBINERS))
def unsorted_segment(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    data, ids, count = inputs
    opcode = COMBINERS[node.type.removeprefix("UnsortedSegment")]
    return _segments(
        context, data, ids, int(context.scalar(count, "the number of segments")), opcode, _empty(opcode, data)
    )


@converter("SegmentSumV2", "SegmentProdV2", "SegmentMaxV2", "SegmentMinV2")
def sorted_segment_of_known_number(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    data, ids, count = inputs
    opcode = COMBINERS[node.type.removeprefix("Segment").removesuffix("V2")]
    return _segments(
        context, data, ids, int(context.scalar(count, "the number of segments")), opcode, _empty(opcode, data)
    )


@converter("SegmentSum", "SegmentProd", "SegmentMax", "SegmentMin")
def sorted_segment(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The result has as many rows as the last id says, so ids must be known when compiling."""
    data, ids = inputs
    known = context.constant(ids, "the segment ids")
    opcode = COMBINERS[node.type.removeprefix("Segment")]
    empty = 0 if opcode in ("add", "maximum", "minimum") else 1
    if opcode in ("maximum", "minimum") and len(set(known.tolist())) < (int(known[-1]) + 1 if known.size else 0):
        raise context.unsupported("extremes of segments with gaps", "use tf.math.unsorted_segment_max")
    start = empty if opcode in ("add", "multiply") else _empty(opcode, data)
    return _segments(context, data, ids, int(known[-1]) + 1 if known.size else 0, opcode, start)
