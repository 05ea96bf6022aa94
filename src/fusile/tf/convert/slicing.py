"""Slices: the strided ones of `x[...]`, their gradients and assignments, and plain windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusile.base.element_type import PRED, S32, S64
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.elementwise import Add
from fusile.hlo.opset.structure import Constant
from fusile.tf.context import Context
from fusile.tf.convert.array import reshaped
from fusile.tf.convert.math import as_index
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


@dataclass
class Extent:
    """What one dimension's slice takes: `count` elements by `stride` from `start`, a number or a scalar at run time."""

    start: int | Instruction
    count: int
    stride: int


@dataclass
class StridedSlice:
    """A slice of each dimension, and the result's sizes once shrunk dimensions are gone and new ones are in."""

    extents: list[Extent]
    sizes: list[int]

    @property
    def is_static(self) -> bool:
        return all(isinstance(e.start, int) for e in self.extents)


def element(context: Context, vector: Value, index: int) -> Value:
    """One element of a vector as a scalar; known when it is a known part of a concatenation."""
    if vector.known is not None:
        return context.known(vector.known[index])
    b, packed = context.builder, vector.instruction
    if packed.opcode == "concatenate" and all(o.array_shape.elements == 1 for o in packed.operands):
        scalar = _unreshaped(packed.operands[index])
        if isinstance(scalar.op, Constant):
            return context.known(scalar.op.literal.array.reshape(()))
        return context.value(b.reshape(scalar, ()))
    if packed.array_shape.elements == 1:
        return context.value(b.reshape(_unreshaped(packed), ()))
    return context.value(b.reshape(b.slice(packed, [index], [index + 1]), ()))


def _unreshaped(x: Instruction) -> Instruction:
    while x.opcode == "reshape":
        x = x.operands[0]
    return x


def strided_slice_of(context: Context, node: Node, sizes: Sequence[int], vectors: Sequence[Value]) -> StridedSlice:
    """Resolves begin, end and strides with the node's masks against an array of these sizes."""
    masks = {m: node.attribute(f"{m}_mask") for m in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    begin, end, strides = vectors
    count = begin.sizes[0]
    consumed = sum(1 for i in range(count) if not (masks["new_axis"] | masks["ellipsis"]) >> i & 1)
    extents: list[Extent] = []
    result: list[int] = []
    for i in range(count):
        has = {name: bool(mask >> i & 1) for name, mask in masks.items()}
        if has["ellipsis"]:
            for size in sizes[len(extents) : len(sizes) - (consumed - _consumed_before(masks, i))]:
                extents.append(Extent(0, size, 1))
                result.append(size)
        elif has["new_axis"]:
            result.append(1)
        else:
            size = sizes[len(extents)]
            first, last, step = (element(context, v, i) for v in (begin, end, strides))
            extents.append(_extent(context, size, first, last, step, has))
            if not has["shrink_axis"]:
                result.append(extents[-1].count)
    for size in sizes[len(extents) :]:
        extents.append(Extent(0, size, 1))
        result.append(size)
    return StridedSlice(extents, result)


def _consumed_before(masks: dict[str, int], position: int) -> int:
    return sum(1 for i in range(position) if not (masks["new_axis"] | masks["ellipsis"]) >> i & 1)


def _extent(context: Context, size: int, begin: Value, end: Value, stride: Value, has: dict[str, bool]) -> Extent:
    step = 1 if has["shrink_axis"] else int(context.scalar(stride, "the stride"))
    if has["begin"] and has["end"]:
        begin, end = context.known(0), context.known(0)
    if begin.known is None:
        return _moving_extent(context, size, begin, end, step, has)
    if has["shrink_axis"]:
        start = int(begin.known)
        if not -size <= start < size:
            raise context.unsupported(f"index {start} is out of range for a dimension of size {size}")
        return Extent(start % size, 1, 1)
    known_end = 0 if has["end"] else int(context.scalar(end, "the end"))
    start, stop, step = slice(
        None if has["begin"] else int(begin.known), None if has["end"] else known_end, step
    ).indices(size)
    return Extent(start, len(range(start, stop, step)), step)


def _moving_extent(context: Context, size: int, begin: Value, end: Value, step: int, has: dict[str, bool]) -> Extent:
    """A slice that begins at a place known only at run time: one element, or as many as end - begin says."""
    b, start = context.builder, begin.instruction
    count = 1 if has["shrink_axis"] else _constant_difference(end, begin)
    if count is None or step != 1 or has["begin"]:
        raise context.unsupported(
            "the size of a slice must be known at compile time", "write x[i : i + size] with a constant size"
        )
    wrapped = b.select(b.compare(start, b.like(0, start), "LT"), b.add(start, b.like(size, start)), start)
    return Extent(wrapped, min(count, size), 1)


def _constant_difference(end: Value, begin: Value) -> int | None:
    """end - begin, when end is computed as begin plus a constant."""
    if end.known is not None or not isinstance(end.instruction.op, Add):
        return None
    left, right = map(_unreshaped, end.instruction.operands)
    if isinstance(left.op, Constant):
        left, right = right, left
    if left is _unreshaped(begin.instruction) and isinstance(right.op, Constant):
        return int(right.op.literal.array.reshape(()))
    return None


@converter("StridedSlice")
def strided_slice(context: Context, node: Node, inputs: list[Value]) -> Value:
    x = inputs[0]
    spec = strided_slice_of(context, node, x.sizes, inputs[1:4])
    if not spec.is_static:
        starts = _starts(context.builder, spec)
        taken = context.builder.dynamic_slice(x.instruction, starts, [e.count for e in spec.extents])
        return context.value(context.builder.reshape(taken, spec.sizes))
    if x.known is not None:
        index = tuple(slice(e.start, _stop(e), e.stride) for e in spec.extents)
        return context.known(x.known[index].reshape(spec.sizes))
    return reshaped(context, context.value(_static_slice(context.builder, x.instruction, spec)), spec.sizes)


def _stop(extent: Extent) -> int | None:
    assert isinstance(extent.start, int)
    stop = extent.start + extent.count * extent.stride
    return stop if stop >= 0 else None


def _starts(b: Builder, spec: StridedSlice) -> list[Instruction]:
    """The starts as scalars of one integer type."""
    of = (
        S64
        if any(
            isinstance(e.start, Instruction) and as_index(b, e.start).array_shape.element_type is S64
            for e in spec.extents
        )
        else S32
    )
    return [
        b.convert(e.start, of) if isinstance(e.start, Instruction) else b.constant(e.start, of) for e in spec.extents
    ]


def _forward(e: Extent) -> tuple[int, int, int]:
    """Start, limit and positive stride of the elements that an extent takes."""
    assert isinstance(e.start, int)
    if e.count == 0:
        return 0, 0, 1
    first, last = sorted((e.start, e.start + (e.count - 1) * e.stride))
    return first, last + 1, abs(e.stride)


def _backward_dimensions(spec: StridedSlice) -> list[int]:
    return [d for d, e in enumerate(spec.extents) if e.stride < 0 and e.count > 1]


def _static_slice(b: Builder, x: Instruction, spec: StridedSlice) -> Instruction:
    starts, limits, strides = zip(*map(_forward, spec.extents), strict=True) if spec.extents else ((), (), ())
    taken = b.slice(x, starts, limits, strides)
    backward = _backward_dimensions(spec)
    return b.reverse(taken, backward) if backward else taken


@converter("StridedSliceGrad")
def strided_slice_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """The gradient laid into zeros of the sliced array's shape."""
    b = context.builder
    sizes, g = context.integers(inputs[0], "the shape"), inputs[4]
    spec = strided_slice_of(context, node, sizes, inputs[1:4])
    window = b.reshape(g.instruction, [e.count for e in spec.extents])
    if not spec.is_static:
        return b.dynamic_update_slice(b.full(0, Shape(g.element_type, tuple(sizes))), window, _starts(b, spec))
    return _laid(b, window, spec, sizes, b.constant(0, g.element_type))


def _laid(b: Builder, window: Instruction, spec: StridedSlice, sizes: Sequence[int], fill: Instruction) -> Instruction:
    """The window at its places in an array of `sizes` filled with a value: the inverse of the slice."""
    backward = _backward_dimensions(spec)
    forward = b.reverse(window, backward) if backward else window
    bounds = list(map(_forward, spec.extents))
    low = [start for start, _, _ in bounds]
    covered = [
        (e.count - 1) * stride + 1 if e.count else 0 for e, (_, _, stride) in zip(spec.extents, bounds, strict=True)
    ]
    high = [size - start - length for size, start, length in zip(sizes, low, covered, strict=True)]
    return b.pad(forward, fill, low, high, [stride - 1 for _, _, stride in bounds])


def _updated(context: Context, node: Node, x: Value, vectors: Sequence[Value], update: Value) -> Instruction:
    """x with the slice's elements replaced."""
    b = context.builder
    spec = strided_slice_of(context, node, x.sizes, vectors)
    window = b.reshape(b.broadcast_to(update.instruction, spec.sizes), [e.count for e in spec.extents])
    if all(e.stride == 1 for e in spec.extents):
        return b.dynamic_update_slice(x.instruction, window, _starts(b, spec))
    laid = _laid(b, window, spec, x.sizes, b.constant(0, x.element_type))
    chosen = _laid(b, b.full(True, Shape(PRED, window.array_shape.sizes)), spec,
                   x.sizes, b.constant(False))  # fmt: skip
    return b.select(chosen, laid, x.instruction)


@converter("TensorStridedSliceUpdate")
def strided_slice_update(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _updated(context, node, inputs[0], inputs[1:4], inputs[4])


@converter("ResourceStridedSliceAssign", effect=True)
def strided_slice_assign(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    context.assign(inputs[0], _updated(context, node, context.read(inputs[0]), inputs[1:4], inputs[4]))
    return []


@converter("Slice")
def slice_(context: Context, node: Node, inputs: list[Value]) -> Value:
    x, begin = inputs[0], inputs[1]
    wanted = context.integers(inputs[2], "the size of the slice")
    if begin.known is None:
        sizes = [s if w == -1 else w for w, s in zip(wanted, x.sizes, strict=True)]
        starts = [element(context, begin, i).instruction for i in range(x.rank)]
        return context.value(context.builder.dynamic_slice(x.instruction, starts, sizes))
    starts_known = context.integers(begin)
    limits = [s if w == -1 else at + w for at, w, s in zip(starts_known, wanted, x.sizes, strict=True)]
    if any(not 0 <= at <= limit <= s for at, limit, s in zip(starts_known, limits, x.sizes, strict=True)):
        raise context.unsupported(f"a slice from {starts_known} of size {wanted} sticks out of {x.shape}")
    if x.known is not None:
        return context.known(x.known[tuple(map(slice, starts_known, limits))])
    return context.value(context.builder.slice(x.instruction, starts_known, limits))
