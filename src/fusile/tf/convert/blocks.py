"""Ops that trade space for depth or batch, and parts of matrices."""

from __future__ import annotations

import numpy as np

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


def _channels_last(context: Context, node: Node) -> None:
    if node.attribute("data_format") != "NHWC":
        raise context.unsupported(f"the data format {node.attribute('data_format')}", "use NHWC")


@converter("SpaceToDepth")
def space_to_depth(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    _channels_last(context, node)
    b, size = context.builder, node.attribute("block_size")
    n, h, w, c = inputs[0].sizes
    x = b.reshape(inputs[0].instruction, (n, h // size, size, w // size, size, c))
    return b.reshape(b.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h // size, w // size, size * size * c))


@converter("DepthToSpace")
def depth_to_space(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    _channels_last(context, node)
    b, size = context.builder, node.attribute("block_size")
    n, h, w, c = inputs[0].sizes
    x = b.reshape(inputs[0].instruction, (n, h, w, size, size, c // (size * size)))
    return b.reshape(b.transpose(x, (0, 1, 3, 2, 4, 5)), (n, h * size, w * size, c // (size * size)))


@converter("SpaceToBatchND", "SpaceToBatch")
def space_to_batch(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    block = _block(context, node, inputs)
    padding = context.constant(inputs[-1], "the paddings").reshape(-1, 2)
    count = len(block)
    low = [0, *(int(p) for p in padding[:, 0]), *[0] * (x.rank - 1 - count)]
    high = [0, *(int(p) for p in padding[:, 1]), *[0] * (x.rank - 1 - count)]
    y = b.pad(x.instruction, b.constant(0, x.element_type), low, high)
    sizes = y.array_shape.sizes
    split = [sizes[0]]
    for size, step in zip(sizes[1:], block, strict=False):
        split += [size // step, step]
    rest = list(sizes[1 + count :])
    y = b.reshape(y, [*split, *rest])
    order = [
        *(2 + 2 * i for i in range(count)),
        0,
        *(1 + 2 * i for i in range(count)),
        *range(1 + 2 * count, 1 + 2 * count + len(rest)),
    ]
    outer = [size // step for size, step in zip(sizes[1:], block, strict=False)]
    return b.reshape(b.transpose(y, order), [sizes[0] * int(np.prod(block)), *outer, *rest])


@converter("BatchToSpaceND", "BatchToSpace")
def batch_to_space(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    block = _block(context, node, inputs)
    crops = context.constant(inputs[-1], "the crops").reshape(-1, 2)
    count = len(block)
    batch = x.sizes[0] // int(np.prod(block))
    rest = list(x.sizes[1 + count :])
    y = b.reshape(x.instruction, [*block, batch, *x.sizes[1 : 1 + count], *rest])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    y = b.transpose(y, [*order, *range(2 * count + 1, 2 * count + 1 + len(rest))])
    outer = [size * step for size, step in zip(x.sizes[1:], block, strict=False)]
    y = b.reshape(y, [batch, *outer, *rest])
    starts = [0, *(int(c) for c in crops[:, 0]), *[0] * len(rest)]
    limits = [batch, *(size - int(c) for size, c in zip(outer, crops[:, 1], strict=True)), *rest]
    return b.slice(y, starts, limits)


def _block(context: Context, node: Node, inputs: list[Value]) -> list[int]:
    if node.type.endswith("ND"):
        return context.integers(inputs[1], "the block's shape")
    return [node.attribute("block_size")] * 2


@converter("MatrixBandPart")
def band_part(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Keeps `lower` diagonals below and `upper` above the main one; negative numbers keep all."""
    b, x = context.builder, inputs[0]
    rows, columns = x.sizes[-2:]
    lower, upper = (int(context.scalar(v, "the number of diagonals")) for v in inputs[1:])
    shape = Shape(S32, x.sizes)
    distance = b.subtract(b.iota(shape, x.rank - 1), b.iota(shape, x.rank - 2))
    low = b.compare(distance, b.like(-(lower if lower >= 0 else rows), distance), "GE")
    high = b.compare(distance, b.like(upper if upper >= 0 else columns, distance), "LE")
    return b.select(b.and_(low, high), x.instruction, b.like(0, x.instruction))
