"""Calls, branches and loops. Calls are converted in place; branches and bodies become computations whose parameters are
everything that crosses: arrays, the leaves of TensorLists, and the current values of variables."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from fusile.base.element_type import PRED, S32
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.structure import Constant
from fusile.tf.context import Context
from fusile.tf.crossing import Boundary, leaves_of, like
from fusile.tf.graph import called_graph, convert_graph
from fusile.tf.lists import with_buffer, with_capacity
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.trip_count import TripCount, loop_invariants, trip_count
from fusile.tf.value import AnyValue, Optional, TensorList, Value, merged_uniform


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
        present = [v.values for v in outputs if isinstance(v, Optional) and v.values is not None]
        uniform = functools.reduce(merged_uniform, [v.uniform for v in lists]) if lists else None
        for branch in branches:
            value = branch.outputs[i]
            if isinstance(value, Optional) and value.values is None and present:
                branch.outputs[i] = Optional(tuple(_zeros(branch.context, v) for v in present[0]))
            if isinstance(value, TensorList):
                value = with_capacity(branch.context, value.with_uniform(uniform), max(v.capacity for v in lists))
                branch.outputs[i] = with_buffer(branch.context, value, shapes[0]) if shapes else value


def _zeros(context: Context, like: Value) -> Value:
    return context.value(context.builder.full(0, like.shape))


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
    return Optional(tuple(inputs))


@converter("OptionalNone")
def optional_none(context: Context, node: Node, inputs: list[Any]) -> Optional:
    return Optional(None)


@converter("OptionalGetValue", effect=True)
def optional_get_value(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    if inputs[0].values is None:
        raise context.unsupported("a value that no branch has is asked for")
    return list(inputs[0].values)


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
    fixed = [isinstance(v, TensorList) or invariant[i] for i, v in enumerate(values)]
    while True:
        boundary = Boundary(context, values, fixed)
        body = Branch(context, boundary, body_graph)
        if not _adjust(context, values, fixed, body.outputs):
            break
    return _emit_loop(context, boundary, body, condition_graph, count)


def _with_room(context: Context, value: AnyValue, count: TripCount | None) -> AnyValue:
    """A list that grows in the loop gets room for one element an iteration."""
    if not isinstance(value, TensorList) or not value.growing or count is None:
        return value
    length = value.length.known
    return value if length is None else with_capacity(context, value, int(length) + count.most)


def _adjust(context: Context, values: list[AnyValue], fixed: list[bool], outputs: list[AnyValue]) -> bool:
    """Makes the state before the loop agree with the body's outputs; True when something had to change."""
    changed = False
    for i, (before, after) in enumerate(zip(values, outputs, strict=True)):
        if not isinstance(before, TensorList) or not isinstance(after, TensorList):
            continue
        if before.buffer is None and after.buffer is not None:
            assert after.element_shape is not None
            values[i], changed = with_buffer(context, before, after.element_shape), True
        if after.capacity > before.capacity:
            raise context.unsupported("a list grows in a loop whose number of iterations is not known",
                                      "give the TensorArray its size, or the loop maximum_iterations")  # fmt: skip
        if fixed[i] and (after.length.known is None or after.length.known != before.length.known):
            fixed[i], changed = False, True
        uniform = merged_uniform(before.uniform, after.uniform)
        if uniform is not before.uniform:
            values[i], changed = _as_list(values[i]).with_uniform(uniform), True
    return changed


def _as_list(value: AnyValue) -> TensorList:
    assert isinstance(value, TensorList)
    return value


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
