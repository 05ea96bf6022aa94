"""TensorLists (what TensorArrays are made of) as one array of all elements and a length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from fusile.base.element_type import S32
from fusile.base.shape import Shape
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context
from fusile.tf.convert.indexing import combiner, put_rows, take
from fusile.tf.crossing import leaves_of
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import EMPTY, AnyValue, CompositeList, Optional, TensorList, Value, merged_uniform


def _shape_or_none(value: Value) -> tuple[int, ...] | None:
    """An element shape given as a tensor: None when it or one of its sizes is unknown."""
    if value.known is None or value.rank == 0 or (value.known < 0).any():
        return None
    return tuple(int(s) for s in value.known)


def with_buffer(context: Context, value: TensorList, element_shape: Sequence[int]) -> TensorList:
    """The list with room made for its elements, zeros at first, when there was none."""
    if value.buffer is not None:
        return value
    shape = tuple(element_shape)
    zeros = context.builder.full(0, Shape(value.element_type, (value.capacity, *shape)))
    return replace(value, buffer=context.value(zeros), element_shape=shape)


def with_capacity(context: Context, value: TensorList, capacity: int) -> TensorList:
    """The list with room for at least `capacity` elements."""
    more = capacity - value.capacity
    if more <= 0:
        return value
    if value.buffer is None:
        return replace(value, capacity=capacity)
    b, rank = context.builder, value.buffer.rank
    zero = b.constant(0, value.element_type)
    larger = b.pad(value.buffer.instruction, zero, [0] * rank, [more] + [0] * (rank - 1))
    return replace(value, capacity=capacity, buffer=context.value(larger))


def _ready(context: Context, value: TensorList, element_shape: Sequence[int] | None) -> TensorList:
    shape = element_shape if element_shape is not None else value.element_shape
    if value.buffer is None and shape is None:
        raise context.unsupported(
            "the shape of the list's elements is not known", "give the TensorArray an element_shape"
        )
    return with_buffer(context, value, shape or ())


def _stored(context: Context, value: TensorList, index: Value, item: Instruction) -> TensorList:
    """The list with one element replaced."""
    b = context.builder
    value = with_buffer(context, value, item.array_shape.sizes)
    assert value.buffer is not None
    if value.element_shape != item.array_shape.sizes:
        raise context.unsupported(f"an element {item.array_shape} is put into a list of {value.element_shape}")
    starts = [index.instruction, *[b.constant(0, index.element_type)] * item.array_shape.rank]
    row = b.reshape(item, (1, *item.array_shape.sizes))
    return replace(
        value, buffer=context.value(b.dynamic_update_slice(value.buffer.instruction, row, starts)), uniform=None
    )


def _loaded(context: Context, value: TensorList, index: Value) -> Instruction:
    b = context.builder
    assert value.buffer is not None and value.element_shape is not None
    starts = [index.instruction, *[b.constant(0, index.element_type)] * len(value.element_shape)]
    row = b.dynamic_slice(value.buffer.instruction, starts, (1, *value.element_shape))
    return b.reshape(row, value.element_shape)


def _length_plus(context: Context, value: TensorList, change: int) -> Value:
    if value.length.known is not None:
        return context.known(value.length.known + change, S32)
    return context.value(context.builder.add(value.length.instruction, context.builder.constant(change, S32)))


# -- making lists


@converter("TensorListReserve", effect=True)
def reserve(context: Context, node: Node, inputs: list[Value]) -> TensorList:
    size = int(context.scalar(inputs[1], "the number of elements of a TensorArray"))
    return _new(context, node, _shape_or_none(inputs[0]), size, size)


@converter("EmptyTensorList", effect=True)
def empty_list(context: Context, node: Node, inputs: list[Value]) -> TensorList | CompositeList:
    most = inputs[1].known
    capacity = max(0, int(most)) if most is not None else 0
    if node.attribute("element_dtype") == tf.variant:
        return CompositeList(capacity)
    return _new(context, node, _shape_or_none(inputs[0]), 0, capacity)


def _new(context: Context, node: Node, shape: tuple[int, ...] | None, length: int, capacity: int) -> TensorList:
    uniform = EMPTY if length == 0 else None
    made = TensorList(node.element_type("element_dtype"), capacity, shape, context.known(length, S32), uniform=uniform)
    return made if shape is None else with_buffer(context, made, shape)


@converter("TensorListFromTensor", effect=True)
def from_tensor(context: Context, node: Node, inputs: list[Value]) -> TensorList:
    x = inputs[0]
    return TensorList(x.element_type, x.sizes[0], x.sizes[1:], context.known(x.sizes[0], S32), x)


@converter("TensorListSplit", effect=True)
def split_into_list(context: Context, node: Node, inputs: list[Value]) -> TensorList:
    x, lengths = inputs[0], context.integers(inputs[2], "the lengths")
    if len(set(lengths)) != 1:
        raise context.unsupported(f"parts of different lengths {lengths}", "split into parts of one length")
    parts = context.builder.reshape(x.instruction, (len(lengths), lengths[0], *x.sizes[1:]))
    return TensorList(
        x.element_type, len(lengths), (lengths[0], *x.sizes[1:]), context.known(len(lengths), S32), context.value(parts)
    )


# -- elements


@converter("TensorListSetItem", effect=True)
def set_item(context: Context, node: Node, inputs: list[Any]) -> TensorList:
    value, index, item = inputs
    if not node.attribute("resize_if_index_out_of_bounds"):
        return _stored(context, value, index, item.instruction)
    b = context.builder
    if index.known is not None:
        value = with_capacity(context, value, int(index.known) + 1)
    stored = _stored(context, value, index, item.instruction)
    if index.known is not None and value.length.known is not None:
        return replace(stored, length=context.known(max(int(value.length.known), int(index.known) + 1), S32))
    if value.length.known is not None and int(value.length.known) == value.capacity:
        return stored
    reached = b.add(b.convert(index.instruction, S32), b.constant(1, S32))
    return replace(stored, length=context.value(b.maximum(value.length.instruction, reached)), change=None)


@converter("TensorListGetItem", effect=True)
def get_item(context: Context, node: Node, inputs: list[Any]) -> Instruction:
    value = _ready(context, inputs[0], _shape_or_none(inputs[2]))
    return _loaded(context, value, inputs[1])


@converter("TensorListPushBack", effect=True)
def push_back(context: Context, node: Node, inputs: list[Any]) -> TensorList | CompositeList:
    value, item = inputs
    if isinstance(value, CompositeList):
        return pushed_element(context, value, item)
    return pushed(context, value, item)


def pushed(context: Context, value: TensorList, item: Value) -> TensorList:
    """The list with one more element."""
    if value.length.known is not None:
        value = with_capacity(context, value, int(value.length.known) + 1)
    elif value.capacity == 0:
        hint = "give the loop maximum_iterations"
        raise context.unsupported("a list grows in a loop whose number of iterations is not known", hint)
    stored = _stored(context, value, value.length, item.instruction)
    uniform = merged_uniform(value.uniform, item.known) if item.known is not None else None
    return replace(stored, length=_length_plus(context, value, 1), change=_sum(value.change, 1), uniform=uniform)


@converter("TensorListPopBack", effect=True)
def pop_back(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    if isinstance(inputs[0], CompositeList):
        return list(popped_element(context, inputs[0]))
    return list(popped(context, _ready(context, inputs[0], _shape_or_none(inputs[1]))))


def popped(context: Context, value: TensorList) -> tuple[TensorList, Value]:
    """The list without its last element, and that element."""
    last = _length_plus(context, value, -1)
    rest = replace(value, length=last, change=_sum(value.change, -1))
    if value.uniform is not None and value.uniform is not EMPTY:
        return rest, context.known(value.uniform)
    return rest, context.value(_loaded(context, value, last))


def _sum(change: int | None, more: int) -> int | None:
    return None if change is None else change + more


# -- lists of lists and of optionals, which gradients of loops and branches inside loops keep


def empty_column(context: Context, capacity: int, model: Shape) -> TensorList:
    """An empty list of arrays of one shape."""
    made = TensorList(model.element_type, capacity, None, context.known(0, S32), uniform=EMPTY)
    return with_buffer(context, made, model.sizes)


def pushed_element(context: Context, value: CompositeList, item: AnyValue) -> CompositeList:
    """The list with one more element; all elements have arrays of the same shapes."""
    if not isinstance(item, TensorList | Optional):
        raise context.unsupported(f"a list of {type(item).__name__}s")
    leaves = leaves_of(item, False)
    columns = value.columns or tuple(empty_column(context, value.capacity, leaf.shape) for leaf in leaves)
    element = merged_element(value.element, item)
    grown = tuple(pushed(context, c, leaf) for c, leaf in zip(columns, leaves, strict=True))
    return replace(value, element=element, columns=grown)


def merged_element(a: TensorList | Optional | None, b: TensorList | Optional | None) -> TensorList | Optional | None:
    """What is known of elements that are like `a` or like `b`."""
    if isinstance(a, TensorList) and isinstance(b, TensorList):
        uniform = merged_uniform(a.uniform, b.uniform)
        return a if uniform is a.uniform else a.with_uniform(uniform)
    return b if a is None else a


def popped_element(context: Context, value: CompositeList) -> tuple[CompositeList, AnyValue]:
    """The list without its last element, and that element."""
    pairs = [popped(context, column) for column in value.columns]
    rest, arrays = replace(value, columns=tuple(column for column, _ in pairs)), [array for _, array in pairs]
    if isinstance(value.element, Optional):
        taken = iter(arrays)
        return rest, Optional(tuple(tuple(next(taken) for _ in values) for values in value.element.alternatives))
    if not isinstance(value.element, TensorList):
        raise context.unsupported("an element is taken from a list that never had one")
    *buffer, length = arrays
    return rest, replace(value.element, buffer=buffer[0] if buffer else None, length=length, change=0)


# -- whole lists


def _filled(context: Context, value: TensorList) -> Instruction:
    """All elements, whose number must be known."""
    assert value.buffer is not None
    length = value.length.known
    if length is None:
        hint = "give the TensorArray its size, or the loop maximum_iterations that it reaches"
        raise context.unsupported("the number of elements in a list is not known at compile time", hint)
    sizes = value.buffer.sizes
    return (
        context.builder.slice(value.buffer.instruction, [0] * len(sizes), [int(length), *sizes[1:]])
        if int(length) < sizes[0]
        else value.buffer.instruction
    )


@converter("TensorListStack", effect=True)
def stack(context: Context, node: Node, inputs: list[Any]) -> Instruction:
    value = inputs[0]
    if value.length.known is None and node.attribute("num_elements") == value.capacity:
        value = replace(value, length=context.known(value.capacity, S32))
    return _filled(context, _ready(context, value, _shape_or_none(inputs[1])))


@converter("TensorListConcat", "TensorListConcatV2", effect=True)
def concatenate_list(context: Context, node: Node, inputs: list[Any]) -> list[Any]:
    shape = _shape_or_none(inputs[1]) if len(inputs) > 1 else None
    elements = _filled(context, _ready(context, inputs[0], shape))
    count, first, *rest = elements.array_shape.sizes
    joined = context.builder.reshape(elements, (count * first, *rest))
    return [context.value(joined), context.known(np.full(count, first, np.int64))]


@converter("TensorListGather", effect=True)
def gather_list(context: Context, node: Node, inputs: list[Any]) -> Instruction:
    value = _ready(context, inputs[0], _shape_or_none(inputs[2]))
    return take(context.builder, value.buffer.instruction, inputs[1].instruction, 0)  # type: ignore[union-attr]


@converter("TensorListScatterIntoExistingList", effect=True)
def scatter_into_list(context: Context, node: Node, inputs: list[Any]) -> TensorList:
    value, items, indices = inputs
    return _scattered(context, with_buffer(context, value, items.sizes[1:]), items, indices)


@converter("TensorListScatterV2", "TensorListScatter", effect=True)
def scatter_list(context: Context, node: Node, inputs: list[Any]) -> TensorList:
    items, indices = inputs[:2]
    size = int(context.scalar(inputs[3])) if len(inputs) > 3 else -1
    if size < 0:
        size = max(context.integers(indices, "the indices"), default=-1) + 1
    made = TensorList(items.element_type, size, items.sizes[1:], context.known(size, S32))
    return _scattered(context, with_buffer(context, made, items.sizes[1:]), items, indices)


def _scattered(context: Context, value: TensorList, items: Value, indices: Value) -> TensorList:
    assert value.buffer is not None
    replaced = combiner("update", value.element_type)
    new = put_rows(context.builder, value.buffer.instruction, indices.instruction, items.instruction, replaced)
    return replace(value, buffer=context.value(new), uniform=None)


@converter("TensorListResize", effect=True)
def resize(context: Context, node: Node, inputs: list[Any]) -> TensorList:
    value, length = inputs
    if length.known is None and node.operation.inputs[0].op.type == "TensorListSetItem":
        # The gradient of a write that made the list longer makes it as short as it was: never longer.
        return replace(value, length=length, change=None, uniform=None)
    size = int(context.scalar(length, "the new size of a TensorArray"))
    return replace(with_capacity(context, value, size), length=context.known(size, S32), uniform=None)


@converter("TensorListLength", effect=True)
def length(context: Context, node: Node, inputs: list[Any]) -> Value:
    return inputs[0].length  # type: ignore[no-any-return]


@converter("TensorListElementShape", effect=True)
def element_shape(context: Context, node: Node, inputs: list[Any]) -> Value:
    shape = inputs[0].element_shape
    of = node.element_type("shape_type")
    return context.known(np.array(-1), of) if shape is None else context.known(np.array(shape, np.int64), of)


def zeros_like_list(context: Context, value: TensorList) -> TensorList:
    """A list of as many zeros."""
    if value.buffer is None:
        return value
    return replace(value, buffer=context.value(context.builder.full(0, value.buffer.shape)), uniform=None)


def add_lists(context: Context, lists: Sequence[TensorList]) -> TensorList:
    """Elementwise sum of lists of one length."""
    filled = [v for v in lists if v.buffer is not None]
    if not filled:
        return lists[0]
    total = filled[0].buffer.instruction  # type: ignore[union-attr]
    for other in filled[1:]:
        total = context.builder.add(total, other.buffer.instruction)  # type: ignore[union-attr]
    return replace(filled[0], buffer=context.value(total), uniform=None)
