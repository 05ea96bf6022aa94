"""Gather and scatter. An index out of range is moved inside by a gather and dropped by a scatter, as on accelerators;
TensorFlow's CPU kernels raise instead, which compiled code can't."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.shape import Gather, Scatter
from fusile.tf.context import Context
from fusile.tf.convert.math import as_index
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


def take(b: Builder, x: Instruction, indices: Instruction, axis: int, batch: int = 0) -> Instruction:
    """x's slices along `axis` at the indices; the first `batch` dimensions of both go together.

    Result: x's dimensions before the axis, the indices' after the batch, x's after the axis.
    """
    rank, index_rank = x.array_shape.rank, indices.array_shape.rank
    inside = index_rank - batch
    offset = [*range(batch, axis), *range(axis + inside, rank - 1 + inside)]
    slices = [min(1, s) if d == axis or d < batch else s for d, s in enumerate(x.array_shape.sizes)]
    op = Gather(tuple(offset), (axis,), tuple(range(batch)), tuple(range(batch)), (axis,), index_rank, tuple(slices))  # type: ignore[call-arg]
    return b.emit(op, x, as_index(b, indices))


def take_along(b: Builder, x: Instruction, indices: Instruction, axis: int) -> Instruction:
    """result[..., i, ...] = x[..., indices[..., i, ...], ...]: indices have x's shape but for the axis."""
    rank = x.array_shape.rank
    others = tuple(d for d in range(rank) if d != axis)
    slices = tuple(min(1, s) for s in x.array_shape.sizes)
    return b.emit(Gather((), (axis,), others, others, (axis,), rank, slices), x, as_index(b, indices))  # type: ignore[call-arg]


def take_nd(b: Builder, x: Instruction, indices: Instruction) -> Instruction:
    """x's slices at index vectors, which lie along the last dimension of `indices`."""
    depth, batch = indices.array_shape.sizes[-1], indices.array_shape.rank - 1
    sizes = x.array_shape.sizes
    offset = tuple(range(batch, batch + len(sizes) - depth))
    leading = tuple(range(depth))
    op = Gather(offset, leading, (), (), leading, batch, (*(min(1, s) for s in sizes[:depth]), *sizes[depth:]))  # type: ignore[call-arg]
    return b.emit(op, x, as_index(b, indices))


def put_nd(
    b: Builder, x: Instruction, indices: Instruction, updates: Instruction, computation: Computation
) -> Instruction:
    """x with updates combined in at index vectors, which lie along the last dimension of `indices`."""
    depth, batch = indices.array_shape.sizes[-1], indices.array_shape.rank - 1
    window = tuple(range(batch, updates.array_shape.rank))
    leading = tuple(range(depth))
    return b.emit(Scatter(window, leading, (), (), leading, batch, computation), x, as_index(b, indices), updates)  # type: ignore[call-arg]


def put_rows(
    b: Builder, x: Instruction, indices: Instruction, updates: Instruction, computation: Computation
) -> Instruction:
    """x with rows combined in at the indices. A scalar update goes to every element of the rows."""
    rank = indices.array_shape.rank
    sizes = (*indices.array_shape.sizes, *x.array_shape.sizes[1:])
    window = tuple(range(rank, len(sizes)))
    op = Scatter(window, (0,), (), (), (0,), rank, computation)  # type: ignore[call-arg]
    return b.emit(op, x, as_index(b, indices), b.broadcast_to(updates, sizes))


def combiner(opcode: str, of: ElementType) -> Computation:
    """(current, update) -> new. "update" replaces."""
    if opcode != "update":
        return scalar_computation(opcode, of)
    b = Builder("replace")
    b.parameter(Shape(of), "current")
    return b.build(b.parameter(Shape(of), "update"))


# -- gather


@converter("GatherV2")
def gather(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, indices = inputs[0], inputs[1]
    axis = int(context.scalar(inputs[2], "the axis")) % max(x.rank, 1)
    _check_known(context, indices, [x.sizes[axis]])
    return take(
        context.builder, x.instruction, indices.instruction, axis, node.attribute("batch_dims") % max(indices.rank, 1)
    )


@converter("Gather")
def gather_rows(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return take(context.builder, inputs[0].instruction, inputs[1].instruction, 0)


@converter("ResourceGather", effect=True)
def gather_from_variable(context: Context, node: Node, inputs: list[Any]) -> Instruction:
    batch = node.attribute("batch_dims")
    return take(context.builder, context.read(inputs[0]).instruction, inputs[1].instruction, batch, batch)


@converter("GatherNd")
def gather_nd(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    _check_known(context, inputs[1], inputs[0].sizes)
    return take_nd(context.builder, inputs[0].instruction, inputs[1].instruction)


@converter("ResourceGatherNd", effect=True)
def gather_nd_from_variable(context: Context, node: Node, inputs: list[Any]) -> Instruction:
    return take_nd(context.builder, context.read(inputs[0]).instruction, inputs[1].instruction)


def _check_known(context: Context, indices: Value, sizes: Sequence[int]) -> None:
    """Raises UnsupportedOpError for an index known to be out of range: TensorFlow would raise, too."""
    if indices.known is None:
        return
    limits = np.array(sizes[: indices.sizes[-1]] if len(sizes) > 1 else sizes)
    if indices.known.size and ((indices.known < 0) | (indices.known >= limits)).any():
        raise context.unsupported(f"indices {indices.known.tolist()} are out of range for sizes {list(sizes)}")


# -- scatter

COMBINERS = {
    "Update": "update",
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Min": "minimum",
    "Max": "maximum",
}


@converter("ScatterNd")
def scatter_nd(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, updates = context.builder, inputs[1]
    zeros = b.full(0, Shape(updates.element_type, tuple(context.integers(inputs[2], "the shape"))))
    return put_nd(b, zeros, inputs[0].instruction, updates.instruction, combiner("add", updates.element_type))


@converter(*(f"TensorScatter{name}" for name in COMBINERS if name not in ("Mul", "Div")))
def tensor_scatter(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, indices, updates = (v.instruction for v in inputs)
    opcode = COMBINERS[node.type.removeprefix("TensorScatter")]
    return put_nd(context.builder, x, indices, updates, combiner(opcode, inputs[0].element_type))


@converter(*(f"ResourceScatterNd{name}" for name in COMBINERS if name not in ("Mul", "Div")), effect=True)
def resource_scatter_nd(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    resource, indices, updates = inputs
    x = context.read(resource)
    opcode = COMBINERS[node.type.removeprefix("ResourceScatterNd")]
    new = put_nd(
        context.builder, x.instruction, indices.instruction, updates.instruction, combiner(opcode, x.element_type)
    )
    context.assign(resource, new)
    return []


@converter(*(f"ResourceScatter{name}" for name in COMBINERS), effect=True)
def resource_scatter(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    resource, indices, updates = inputs
    x = context.read(resource)
    opcode = COMBINERS[node.type.removeprefix("ResourceScatter")]
    new = put_rows(
        context.builder, x.instruction, indices.instruction, updates.instruction, combiner(opcode, x.element_type)
    )
    context.assign(resource, new)
    return []


@converter("Where")
def where(context: Context, node: Node, inputs: list[Value]) -> Value:
    """The places of non-zero elements; how many there are must be known."""
    return context.known(
        np.argwhere(context.constant(inputs[0], "the condition (its result's size depends on it)")).astype(np.int64)
    )


@converter("DynamicStitch", "ParallelDynamicStitch")
def dynamic_stitch(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Rows of several arrays laid at known places of one; later ones win."""
    b, count = context.builder, len(inputs) // 2
    places = [context.constant(v, "the indices") for v in inputs[:count]]
    size = 1 + max((int(p.max()) for p in places if p.size), default=-1)
    row = inputs[count].sizes[places[0].ndim :]
    rows = [b.reshape(v.instruction, (p.size, *row)) for p, v in zip(places, inputs[count:], strict=True)]
    order = np.zeros(size, np.int32)
    order[np.concatenate([p.reshape(-1) for p in places])] = np.arange(sum(p.size for p in places))
    return take(b, b.concatenate(rows, 0), b.constant(order), 0)


@converter("ListDiff")
def list_difference(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    """The elements of one known vector that another lacks, and where they are."""
    x, y = (context.constant(v, "a list (the result's size depends on it)") for v in inputs)
    kept = np.flatnonzero(~np.isin(x, y))
    return [context.known(x[kept]), context.known(kept, node.element_type("out_idx"))]


@converter("Unique", "UniqueV2")
def unique(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    """The different elements of a known vector in order of first appearance, and for each element which it is."""
    x = context.constant(inputs[0], "the list (the result's size depends on it)").reshape(-1)
    _, first, which = np.unique(x, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return [context.known(x[np.sort(first)]), context.known(rank[which], node.element_type("out_idx"))]
