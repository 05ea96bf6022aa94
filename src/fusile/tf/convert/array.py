"""Ops that make arrays and change their shape."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorflow.python.framework import tensor_util

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.convert.math import as_index
from fusile.tf.convert.reduction import axes_of
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import AnyValue, TensorList, Value

# -- constants and what passes through


@converter("Const")
def const(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(tensor_util.MakeNdarray(node.operation.get_attr("value")))


PASSED_THROUGH = (
    "Identity", "StopGradient", "PreventGradient", "Snapshot", "PlaceholderWithDefault", "GuaranteeConst",
    "EnsureShape", "CheckNumerics", "CheckNumericsV2", "DebugIdentityV2",
)  # fmt: skip


@converter(*PASSED_THROUGH)
def identity(context: Context, node: Node, inputs: list[AnyValue]) -> AnyValue:
    return inputs[0]


@converter("IdentityN")
def identity_all(context: Context, node: Node, inputs: list[AnyValue]) -> list[AnyValue]:
    return inputs


@converter("NoOp", "Assert", "ControlTrigger", effect=True)
def nothing(context: Context, node: Node, inputs: list[AnyValue]) -> list[AnyValue]:
    """Assertions are dropped, as in other compiled code."""
    return []


@converter("PrintV2", "Print", effect=True)
def print_nothing(context: Context, node: Node, inputs: list[AnyValue]) -> list[AnyValue]:
    """Compiled code prints nothing, and says so when it is compiled."""
    warnings.warn(f"tf.print does nothing in a compiled function: {node.source}", RuntimeWarning, stacklevel=2)
    return inputs[:1] if node.type == "Print" else []


@converter("StringFormat")
def string_format(context: Context, node: Node, inputs: list[AnyValue]) -> Value:
    """Only assertions and prints, which are dropped, take the string."""
    return context.known(np.array("", dtype=object))


@converter("Fill")
def fill(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.broadcast(inputs[1].instruction, context.integers(inputs[0], "the shape"), ())


@converter("ZerosLike")
def zeros_like(context: Context, node: Node, inputs: list[Any]) -> Any:
    if isinstance(inputs[0], TensorList):
        from fusile.tf.lists import zeros_like_list

        return zeros_like_list(context, inputs[0])
    return context.builder.full(0, inputs[0].shape)


@converter("OnesLike")
def ones_like(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.full(1, inputs[0].shape)


@converter("Empty")
def empty(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    sizes = tuple(context.integers(inputs[0], "the shape"))
    return context.builder.full(0, Shape(node.element_type("dtype"), sizes))


@converter("Range")
def range_(context: Context, node: Node, inputs: list[Value]) -> Value:
    start, limit, step = (
        context.constant(v, what) for v, what in zip(inputs, ("start", "limit", "delta"), strict=True)
    )
    of = node.element_type("Tidx")
    if of.is_integer:
        return context.known(np.arange(int(start), int(limit), int(step)), of)
    count = max(0, int(np.ceil((np.float64(limit) - np.float64(start)) / np.float64(step))))
    return context.known(start + np.arange(count).astype(of.dtype) * step, of)


@converter("LinSpace")
def linspace(context: Context, node: Node, inputs: list[Value]) -> Value:
    start, stop, count = (context.constant(v) for v in inputs)
    return context.known(np.linspace(start, stop, int(count)), node.element_type("T"))


# -- shapes


@converter("Shape")
def shape(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(np.array(inputs[0].sizes), node.output_type())


@converter("ShapeN")
def shape_of_each(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    return [context.known(np.array(v.sizes), node.output_type()) for v in inputs]


@converter("Size")
def size(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(np.array(inputs[0].shape.elements), node.output_type())


@converter("Rank")
def rank(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(np.array(inputs[0].rank, np.int32))


@converter("BroadcastArgs")
def broadcast_arguments(context: Context, node: Node, inputs: list[Value]) -> Value:
    shapes = [tuple(context.integers(v, "a shape")) for v in inputs]
    return context.known(np.array(np.broadcast_shapes(*shapes)), node.element_type())


@converter("BroadcastGradientArgs")
def broadcast_gradient_arguments(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    """For each of two shapes, the dimensions of their common shape along which its operand was repeated."""
    shapes = [context.integers(v, "a shape") for v in inputs]
    full = max(map(len, shapes))
    padded = [[1] * (full - len(s)) + s for s in shapes]
    result = np.broadcast_shapes(*map(tuple, padded))
    own = [[d for d in range(full) if p[d] != result[d] or result[d] == 1] for p in padded]
    return [context.known(np.array(o, dtype=node.element_type().dtype)) for o in own]


@converter("Reshape")
def reshape(context: Context, node: Node, inputs: list[Value]) -> Value:
    sizes = context.integers(inputs[1], "the shape")
    total = inputs[0].shape.elements
    if sizes.count(-1) == 1:
        rest = int(np.prod([s for s in sizes if s != -1], dtype=np.int64))
        sizes[sizes.index(-1)] = total // rest if rest else 0
    return reshaped(context, inputs[0], sizes)


def reshaped(context: Context, x: Value, sizes: Sequence[int]) -> Value:
    """Known values stay known."""
    if x.shape.elements != int(np.prod(sizes, dtype=np.int64)):
        raise context.unsupported(f"{x.shape} has not as many elements as {list(sizes)}")
    if x.known is not None:
        return context.known(x.known.reshape(sizes))
    return context.value(context.builder.reshape(x.instruction, sizes))


@converter("Squeeze")
def squeeze(context: Context, node: Node, inputs: list[Value]) -> Value:
    x = inputs[0]
    dimensions = [d % x.rank for d in node.attribute("squeeze_dims")] or [d for d, s in enumerate(x.sizes) if s == 1]
    return reshaped(context, x, [s for d, s in enumerate(x.sizes) if d not in dimensions])


@converter("ExpandDims")
def expand_dimensions(context: Context, node: Node, inputs: list[Value]) -> Value:
    (axis,) = axes_of(context, inputs[1], inputs[0].rank + 1)
    sizes = list(inputs[0].sizes)
    return reshaped(context, inputs[0], [*sizes[:axis], 1, *sizes[axis:]])


@converter("Transpose")
def transpose(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.transpose(
        inputs[0].instruction, axes_of(context, inputs[1], inputs[0].rank, "the permutation")
    )


@converter("ConjugateTranspose")
def conjugate_transpose(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    from fusile.tf.convert.math import conjugate

    return conjugate(context.builder, transpose(context, node, inputs))  # type: ignore[arg-type]


@converter("InvertPermutation")
def invert_permutation(context: Context, node: Node, inputs: list[Value]) -> Value:
    return context.known(np.argsort(context.constant(inputs[0], "the permutation")), node.element_type())


@converter("BroadcastTo")
def broadcast_to(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.broadcast_to(inputs[0].instruction, context.integers(inputs[1], "the shape"))


# -- putting together and taking apart


@converter("Pack")
def pack(context: Context, node: Node, inputs: list[Value]) -> Value | Instruction:
    axis = node.attribute("axis") % (inputs[0].rank + 1)
    if all(v.known is not None for v in inputs):
        return context.known(np.stack([v.known for v in inputs], axis))  # type: ignore[misc]
    sizes = [*inputs[0].sizes[:axis], 1, *inputs[0].sizes[axis:]]
    return context.builder.concatenate([context.builder.reshape(v.instruction, sizes) for v in inputs], axis)


@converter("ConcatV2")
def concatenate(context: Context, node: Node, inputs: list[Value]) -> Value | Instruction:
    *parts, axis = inputs
    return _concatenated(context, parts, axes_of(context, axis, parts[0].rank)[0])


@converter("Concat")
def concatenate_axis_first(context: Context, node: Node, inputs: list[Value]) -> Value | Instruction:
    axis, *parts = inputs
    return _concatenated(context, parts, axes_of(context, axis, parts[0].rank)[0])


def _concatenated(context: Context, parts: list[Value], axis: int) -> Value | Instruction:
    if all(v.known is not None for v in parts):
        return context.known(np.concatenate([v.known for v in parts], axis))  # type: ignore[misc]
    return context.builder.concatenate([v.instruction for v in parts], axis)


@converter("ConcatOffset")
def concatenate_offsets(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    """Where each part begins in the concatenation."""
    axis = int(context.scalar(inputs[0], "the axis"))
    shapes = [context.constant(v, "a shape") for v in inputs[1:]]
    offsets, begin = [], 0
    for part in shapes:
        offset = np.zeros_like(part)
        offset[axis] = begin
        begin += int(part[axis])
        offsets.append(context.known(offset))
    return offsets


@converter("Unpack")
def unpack(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    x, axis = inputs[0], node.attribute("axis") % inputs[0].rank
    parts = split_evenly(context, x, axis, [1] * x.sizes[axis])
    return [reshaped(context, p, [s for d, s in enumerate(x.sizes) if d != axis]) for p in parts]


@converter("Split")
def split(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    x, count = inputs[1], node.attribute("num_split")
    (axis,) = axes_of(context, inputs[0], x.rank)
    return split_evenly(context, x, axis, [x.sizes[axis] // count] * count)


@converter("SplitV")
def split_by_sizes(context: Context, node: Node, inputs: list[Value]) -> list[Value]:
    x, sizes = inputs[0], context.integers(inputs[1], "the sizes")
    (axis,) = axes_of(context, inputs[2], x.rank)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.sizes[axis] - sum(s for s in sizes if s != -1)
    return split_evenly(context, x, axis, sizes)


def split_evenly(context: Context, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
    """Consecutive parts of these sizes along an axis."""
    parts, begin = [], 0
    for part in sizes:
        starts = [begin if d == axis else 0 for d in range(x.rank)]
        limits = [begin + part if d == axis else s for d, s in enumerate(x.sizes)]
        begin += part
        if x.known is not None:
            parts.append(context.known(x.known[tuple(map(slice, starts, limits))]))
        else:
            parts.append(context.value(context.builder.slice(x.instruction, starts, limits)))
    return parts


@converter("Tile")
def tile(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    multiples = context.integers(inputs[1], "multiples")
    spread = b.broadcast(x.instruction, [v for m, s in zip(multiples, x.sizes, strict=True) for v in (m, s)],
                         [2 * d + 1 for d in range(x.rank)])  # fmt: skip
    return b.reshape(spread, [m * s for m, s in zip(multiples, x.sizes, strict=True)])


@converter("Pad", "PadV2")
def pad(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0]
    amounts = context.constant(inputs[1], "the paddings").reshape(-1, 2).tolist()
    value = inputs[2].instruction if len(inputs) > 2 else b.constant(0, x.element_type)
    return b.pad(x.instruction, value, [lo for lo, _ in amounts], [hi for _, hi in amounts])


@converter("MirrorPad")
def mirror_pad(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """REFLECT leaves the border element out of the mirror image, SYMMETRIC takes it in."""
    b, x = context.builder, inputs[0].instruction
    skip = 1 if node.attribute("mode") == "REFLECT" else 0
    for d, (low, high) in enumerate(context.constant(inputs[1], "the paddings").reshape(-1, 2).tolist()):
        n = x.array_shape.sizes[d]
        before = _along(b, x, d, skip, skip + low)
        after = _along(b, x, d, n - skip - high, n - skip)
        x = b.concatenate([b.reverse(before, [d]), x, b.reverse(after, [d])], d)
    return x


def _along(b: Builder, x: Instruction, axis: int, start: int, limit: int) -> Instruction:
    sizes = x.array_shape.sizes
    starts = [start if d == axis else 0 for d in range(len(sizes))]
    return b.slice(x, starts, [limit if d == axis else s for d, s in enumerate(sizes)])


@converter("MirrorPadGrad")
def mirror_pad_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Folds the mirrored borders back onto the elements they were copied from."""
    b, g = context.builder, inputs[0].instruction
    skip = 1 if node.attribute("mode") == "REFLECT" else 0
    zero = b.constant(0, inputs[0].element_type)
    for d, (low, high) in enumerate(context.constant(inputs[1], "the paddings").reshape(-1, 2).tolist()):
        n = g.array_shape.sizes[d] - low - high

        def placed(part: Instruction, at: int, d: int = d, n: int = n) -> Instruction:
            before = [at if i == d else 0 for i in range(part.array_shape.rank)]
            after = [n - at - part.array_shape.sizes[d] if i == d else 0 for i in range(part.array_shape.rank)]
            return b.pad(part, zero, before, after)

        before, after = _along(b, g, d, 0, low), _along(b, g, d, low + n, low + n + high)
        g = b.add(b.add(_along(b, g, d, low, low + n), placed(b.reverse(before, [d]), skip)),
                  placed(b.reverse(after, [d]), n - skip - high))  # fmt: skip
    return g


# -- order along dimensions


@converter("ReverseV2")
def reverse(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return context.builder.reverse(inputs[0].instruction, axes_of(context, inputs[1], inputs[0].rank))


@converter("Roll")
def roll(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, x = context.builder, inputs[0].instruction
    shifts, axes = context.integers(inputs[1], "the shift"), axes_of(context, inputs[2], inputs[0].rank)
    for shift, axis in zip(shifts, axes, strict=True):
        n = x.array_shape.sizes[axis]
        cut = -shift % n if n else 0
        x = b.concatenate([_along(b, x, axis, cut, n), _along(b, x, axis, 0, cut)], axis) if cut else x
    return x


@converter("ReverseSequence")
def reverse_sequence(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The first `length` elements of each batch row turned around, the rest left."""
    from fusile.tf.convert.indexing import take_along

    b, x = context.builder, inputs[0]
    along, batch = node.attribute("seq_dim"), node.attribute("batch_dim")
    lengths = b.broadcast(b.convert(as_index(b, inputs[1].instruction), S32), x.sizes, (batch,))
    place = b.iota(Shape(S32, x.sizes), along)
    mirrored = b.subtract(b.subtract(lengths, b.like(1, place)), place)
    source = b.select(b.compare(place, lengths, "LT"), mirrored, place)
    return take_along(b, x.instruction, source, along)


@converter("OneHot")
def one_hot(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """`on` where the index equals the place along the new axis; an index out of range gives only `off`."""
    b, indices = context.builder, inputs[0]
    depth, axis = int(context.scalar(inputs[1], "the depth")), node.attribute("axis") % (indices.rank + 1)
    array = as_index(b, indices.instruction)
    sizes = [*indices.sizes[:axis], depth, *indices.sizes[axis:]]
    spread = b.broadcast(array, sizes, [d for d in range(len(sizes)) if d != axis])
    hit = b.compare(spread, b.iota(spread.array_shape, axis), "EQ")
    on, off = (b.broadcast(v.instruction, sizes, ()) for v in inputs[2:])
    return b.select(hit, on, off)
