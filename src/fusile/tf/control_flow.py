"""Calls, branches and loops. Calls are converted in place; branches and bodies become computations whose parameters are
everything that crosses: arrays, the leaves of TensorLists, and the current values of variables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusile.base.element_type import PRED, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.structure import Constant
from fusile.tf.context import Context
from fusile.tf.crossing import Boundary, leaves_of, like
from fusile.tf.graph import called_graph, convert_graph
from fusile.tf.lists import empty_column, merged_element, with_buffer, with_capacity
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.trip_count import TripCount, loop_invariants, trip_count
from fusile.tf.value import AnyValue, CompositeList, Optional, TensorList, Value, merged_uniform


@converter("PartitionedCall", "StatefulPartitionedCall", effect=True)
def call(context: Context, node: Node, inputs: list[Any]) -> list[AnyValue]:
    return convert_graph(context, called_graph(context.library, node.attribute("f")), inputs)


# -- branches


class Branch:
    """One branch, converted: its context and outputs."""

    def __init__(self, context: Context, boundary: Boundary, graph: Any) -> None:
        self.context = Context(Builder(graph.name), context.library)
        inside = boundary.enter(self.context)
        self.before = dict(self.context.variables)
        self.outputs = convert_graph(self.context, graph, inside)

    def assigned(self) -> set[str]:
        return {k for k, v in self.context.variables.items() if v is not self.before[k]}

    def finish(self, fixed: list[bool], keys: list[str]) -> Computation:
        leaves = [leaf for v, f in zip(self.outputs, fixed, strict=True) for leaf in leaves_of(v, f)]
        leaves += [self.context.variables[k] for k in keys]
        return self.context.builder.build(self.context.builder.tuple([v.instruction for v in leaves]))


@converter("If", "StatelessIf", effect=True)
def if_(context: Context, node: Node, inputs: list[Any]) -> list[AnyValue]:
    condition, *values = inputs
    names = [node.attribute("then_branch"), node.attribute("else_branch")]
    if condition.known is not None:
        chosen = names[0] if condition.known.any() else names[1]
        return convert_graph(context, called_graph(context.library, chosen), values)
    predicate = context.builder.reshape(condition.instruction, ())
    if condition.element_type is not PRED:
        predicate = context.builder.compare(predicate, context.builder.like(0, predicate), "NE")
    return _conditional(context, names, predicate, values)


@converter("Case", "StatelessCase", effect=True)
def case(context: Context, node: Node, inputs: list[Any]) -> list[AnyValue]:
    index, *values = inputs
    names = [f.name for f in node.operation.get_attr("branches")]
    if index.known is not None:
        number = int(index.known)
        chosen = names[number if 0 <= number < len(names) else -1]
        return convert_graph(context, called_graph(context.library, chosen), values)
    return _conditional(context, names, context.builder.convert(index.instruction, S32), values)


def _conditional(context: Context, names: list[str], index: Instruction, values: list[AnyValue]) -> list[AnyValue]:
    boundary = Boundary(context, values, [True] * len(values))
    branches = [Branch(context, boundary, called_graph(context.library, name)) for name in names]
    _agree(context, branches)
    fixed = [_same_known([b.outputs[i] for b in branches]) for i in range(len(branches[0].outputs))]
    assigned = set().union(*(b.assigned() for b in branches))
    keys = [k for k in boundary.keys if k in assigned]
    computations = [b.finish(fixed, keys) for b in branches]
    if len({str(c.root.shape) for c in computations}) > 1:
        raise context.unsupported(
            f"branches give {', '.join(str(c.root.shape) for c in computations)}",
            "make all branches give the same shapes",
        )
    result = context.builder.conditional(index, computations, boundary.operands())
    count = len(computations[0].root.operands)
    leaves = iter([context.builder.element(result, i) for i in range(count)])
    outputs = [like(context, v, f, leaves) for v, f in zip(branches[0].outputs, fixed, strict=True)]
    for key, leaf in zip(keys, leaves, strict=True):
        context.variables[key] = context.value(leaf)
    return outputs


def _agree(context: Context, branches: list[Branch]) -> None:
    """Makes lists and optionals that branches give alike: where one knows the elements' shape or a larger capacity, all
    take it; where one lacks values that another has, it gives zeros."""
    for i, outputs in enumerate(zip(*(b.outputs for b in branches), strict=True)):
        lists = [v for v in outputs if isinstance(v, TensorList)]
        shapes = [v.element_shape for v in lists if v.buffer is not None and v.element_shape is not None]
        optionals = [v for v in outputs if isinstance(v, Optional)]
        kinds = list(dict.fromkeys(_shapes(values) for v in optionals for values in v.alternatives))
        uniform = functools.reduce(merged_uniform, [v.uniform for v in lists]) if lists else None
        for branch in branches:
            value = branch.outputs[i]
            if isinstance(value, Optional):
                own = {_shapes(values): values for values in value.alternatives}
                branch.outputs[i] = Optional(tuple(own.get(k) or _zeros(branch.context, k) for k in kinds))
            if isinstance(value, TensorList):
                value = with_capacity(branch.context, value.with_uniform(uniform), max(v.capacity for v in lists))
                branch.outputs[i] = with_buffer(branch.context, value, shapes[0]) if shapes else value


def _shapes(values: Sequence[Value]) -> tuple[Shape, ...]:
    return tuple(v.shape for v in values)


def _zeros(context: Context, shapes: Sequence[Shape]) -> tuple[Value, ...]:
    return tuple(context.value(context.builder.full(0, shape)) for shape in shapes)


def _same_known(values: list[AnyValue]) -> bool:
    """True when what is known of a value (its array, a list's length) is the same in every branch."""
    arrays = [
        v.length.known if isinstance(v, TensorList) else v.known if isinstance(v, Value) else None for v in values
    ]
    first = arrays[0]
    return all(
        a is not None and first is not None and a.dtype == first.dtype and np.array_equal(a, first) for a in arrays
    )


@converter("OptionalFromValue")
def optional_from_value(context: Context, node: Node, inputs: list[Any]) -> Optional:
    return Optional((tuple(inputs),))


@converter("OptionalNone")
def optional_none(context: Context, node: Node, inputs: list[Any]) -> Optional:
    return Optional()


@converter("OptionalGetValue", effect=True)
def optional_get_value(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    wanted = list(zip(node.attribute("output_types"), node.attribute("output_shapes"), strict=True))
    for values in inputs[0].alternatives:
        if len(values) == len(wanted) and all(map(_fits, values, wanted)):
            return list(values)
    raise context.unsupported("a value that no branch has is asked for")


def _fits(value: Value, wanted: tuple[Any, tuple[int | None, ...] | None]) -> bool:
    """Whether a value has the TensorFlow type and the dimensions asked for, as far as they are known."""
    dtype, sizes = wanted
    same = sizes is None or (
        len(sizes) == value.rank and all(s in (None, v) for s, v in zip(sizes, value.sizes, strict=True))
    )
    return same and value.element_type.dtype == dtype.as_numpy_dtype


# -- loops


@converter("While", "StatelessWhile", effect=True)
def while_(context: Context, node: Node, inputs: list[Any]) -> list[AnyValue]:
    """Lists start with what is known of them (length, shape of elements). When the body shows otherwise, that is given
    up or filled in, and the body is converted again."""
    condition_graph = called_graph(context.library, node.attribute("cond"))
    body_graph = called_graph(context.library, node.attribute("body"))
    invariant = loop_invariants(body_graph)
    count = trip_count(condition_graph, body_graph, inputs, invariant)
    values = [_with_room(context, v, count) for v in inputs]
    fixed = [isinstance(v, TensorList | CompositeList) or invariant[i] for i, v in enumerate(values)]
    while True:
        boundary = Boundary(context, values, fixed)
        body = Branch(context, boundary, body_graph)
        if not _adjust(context, values, fixed, body.outputs):
            break
    return _emit_loop(context, boundary, body, condition_graph, count)


def _with_room(context: Context, value: AnyValue, count: TripCount | None) -> AnyValue:
    """A list that grows in the loop gets room for one element an iteration."""
    if isinstance(value, CompositeList):
        return replace(value, capacity=max(value.capacity, count.most if count else 0))
    if not isinstance(value, TensorList) or not value.growing or count is None:
        return value
    length = value.length.known
    return value if length is None else with_capacity(context, value, int(length) + count.most)


def _adjust(context: Context, values: list[AnyValue], fixed: list[bool], outputs: list[AnyValue]) -> bool:
    """Makes lists before the loop agree with the body's outputs; True when something had to change."""
    changed = False
    for i, (before, after) in enumerate(zip(values, outputs, strict=True)):
        now: AnyValue = before
        stays = fixed[i]
        if isinstance(before, TensorList) and isinstance(after, TensorList):
            now, stays = _adjusted(context, before, after, fixed[i])
        elif isinstance(before, CompositeList) and isinstance(after, CompositeList):
            now, stays = _adjusted_composite(context, before, after, fixed[i])
        changed = changed or now is not before or stays != fixed[i]
        values[i], fixed[i] = now, stays
    return changed


def _adjusted(context: Context, before: TensorList, after: TensorList, fixed: bool) -> tuple[TensorList, bool]:
    """The list before the loop, `before` itself when it agrees, and whether its length may be taken as known."""
    if after.capacity > before.capacity:
        hint = "give the TensorArray its size, or the loop maximum_iterations"
        raise context.unsupported("a list grows in a loop whose number of iterations is not known", hint)
    uniform = merged_uniform(before.uniform, after.uniform)
    stays = fixed and after.length.known is not None and after.length.known == before.length.known
    if before.buffer is None and after.buffer is not None:
        assert after.element_shape is not None
        before = with_buffer(context, before, after.element_shape)
    return before if uniform is before.uniform else before.with_uniform(uniform), stays


def _adjusted_composite(context: Context, before: CompositeList, after: CompositeList,
                        fixed: bool) -> tuple[CompositeList, bool]:  # fmt: skip
    if not before.columns and after.columns:
        shapes = [c.buffer.shape.with_dimensions(c.buffer.sizes[1:]) for c in after.columns if c.buffer is not None]
        columns = tuple(empty_column(context, before.capacity, s) for s in shapes)
        return replace(before, element=after.element, columns=columns), fixed
    pairs = [_adjusted(context, b, a, fixed) for b, a in zip(before.columns, after.columns, strict=True)]
    element = merged_element(before.element, after.element)
    stays = all(s for _, s in pairs)
    if element is before.element and all(c is b for (c, _), b in zip(pairs, before.columns, strict=True)):
        return before, stays
    return replace(before, element=element, columns=tuple(c for c, _ in pairs)), stays


def _emit_loop(
    context: Context, boundary: Boundary, body: Branch, condition_graph: Any, count: TripCount | None
) -> list[AnyValue]:
    b = context.builder
    operands = boundary.operands()
    step = body.finish(boundary.fixed, boundary.keys)
    found = [o.array_shape for o in step.root.operands]
    expected = [o.array_shape for o in operands]
    if found != expected:
        wrong = next(f"{e} becomes {f}" for e, f in zip(expected, found, strict=True) if e != f)
        raise context.unsupported(
            f"a loop variable changes its shape or type: {wrong}", "keep shapes of loop variables the same"
        )
    test = Context(Builder(condition_graph.name), context.library)
    (goes_on,) = convert_graph(test, condition_graph, boundary.enter(test))
    assert isinstance(goes_on, Value)
    condition = test.builder.build(test.builder.reshape(goes_on.instruction, ()))
    leaves = iter(b.while_loop(condition, step, operands))
    outputs = [like(context, v, f, leaves) for v, f in zip(boundary.values, boundary.fixed, strict=True)]
    assigned = body.assigned()
    for key, leaf in zip(boundary.keys, leaves, strict=True):
        if key in assigned:
            context.variables[key] = context.value(leaf)
    return [_known_length(context, o, i, boundary, body, count) for i, o in enumerate(outputs)]


def _known_length(context: Context, output: AnyValue, position: int, boundary: Boundary, body: Branch,
                  count: TripCount | None) -> AnyValue:  # fmt: skip
    """A list's length after a loop of a known number of iterations, each of which adds an element."""
    before, after = boundary.values[position], body.outputs[position]
    if not (isinstance(output, TensorList) and isinstance(before, TensorList) and isinstance(after, TensorList)):
        return output
    if count is None or not count.exact or before.length.known is None or output.length.known is not None:
        return output
    length = int(before.length.known)
    if after.change is not None:
        return replace(output, length=context.known(length + count.most * after.change, S32))
    first = _first_written(boundary, body, after)
    return output if first is None else replace(output, length=context.known(max(length, first + count.most), S32))


def _first_written(boundary: Boundary, body: Branch, after: TensorList) -> int | None:
    """The first index, when iteration n writes element first + n: the new length is max(length, counter + 1)."""
    length = after.length.instruction
    reached = length.operands[1] if length.opcode == "maximum" else None
    if reached is None or not _is_next(reached, reached.operands[0]):
        return None
    counter = reached.operands[0].operands[0] if reached.operands[0].opcode == "convert" else reached.operands[0]
    for position, parameter in boundary.array_parameters(body.context.builder.computation):
        value, output = boundary.values[position], body.outputs[position]
        if parameter is counter and isinstance(value, Value) and isinstance(output, Value):
            counts = output.known is None and _is_next(output.instruction, counter)
            return int(value.known) if counts and value.known is not None else None
    return None


def _is_next(x: Instruction, of: Instruction) -> bool:
    """Whether x is `of` + 1."""
    if x.opcode != "add" or x.operands[0] is not of:
        return False
    step = x.operands[1].op
    return isinstance(step, Constant) and bool((step.literal.array == 1).all())
