"""What is known about a loop before it runs: variables that never change, and how often it goes round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tensorflow.python.framework import tensor_util

from fusile.tf.graph import called_graph
from fusile.tf.value import AnyValue, Value


@dataclass(frozen=True)
class TripCount:
    """A loop runs at most `most` times; exactly so when `exact`."""

    most: int
    exact: bool


def _source(tensor: Any) -> Any:
    """The tensor behind identities."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _position(graph: Any, tensor: Any) -> int | None:
    """Which input of the graph a tensor is, if any."""
    source = _source(tensor)
    return next((i for i, t in enumerate(graph.inputs) if t is source), None)


def loop_invariants(body: Any) -> list[bool]:
    """For each loop variable, whether the body hands it on unchanged."""
    return [_position(body, output) == i for i, output in enumerate(body.outputs)]


def trip_count(condition: Any, body: Any, inputs: Sequence[AnyValue], invariant: Sequence[bool]) -> TripCount | None:
    """How often a loop counted by `counter < limit` runs, where its condition says so.

    Other terms that are and-ed to it can only end the loop earlier.
    """
    terms = _terms(condition.outputs[0])
    counts = [_count(condition, body, term, inputs, invariant) for term in terms]
    found = [c for c in counts if c is not None]
    return TripCount(min(found), len(found) == len(terms)) if found else None


def _terms(tensor: Any) -> list[Any]:
    """What is and-ed to a condition. AutoGraph writes `a and b` as `b if a else a`, or `else False` for `break`."""
    tensor = _source(tensor)
    if tensor.op.type == "LogicalAnd":
        return [t for i in tensor.op.inputs for t in _terms(i)]
    if tensor.op.type in ("If", "StatelessIf") and _is_false_otherwise(tensor):
        return [*_terms(tensor.op.inputs[0]), tensor]
    return [tensor]


def _is_false_otherwise(tensor: Any) -> bool:
    """Whether a branch's output is false when its condition is: the constant, or the condition handed in."""
    branch = called_graph(tensor.op.graph, tensor.op.get_attr("else_branch").name)
    condition, *operands = tensor.op.inputs
    output = branch.outputs[tensor.value_index]
    position = _position(branch, output)
    if position is not None:
        return _source(operands[position]) is _source(condition)
    constant = _source(output).op
    return constant.type == "Const" and not tensor_util.MakeNdarray(constant.get_attr("value")).any()


def _count(condition: Any, body: Any, term: Any, inputs: Sequence[AnyValue], invariant: Sequence[bool]) -> int | None:
    if term.op.type not in ("Less", "LessEqual"):
        return None
    counter = _position(condition, term.op.inputs[0])
    limit = _known(condition, term.op.inputs[1], inputs, invariant)
    if counter is None or limit is None or limit.dtype.kind not in "iu" or limit.ndim:
        return None
    start = inputs[counter]
    step = _step(body, counter, inputs, invariant)
    if not isinstance(start, Value) or start.known is None or step is None or step <= 0:
        return None
    last = int(limit) + (1 if term.op.type == "LessEqual" else 0)
    return max(0, -(-(last - int(start.known)) // step))


def _known(graph: Any, tensor: Any, inputs: Sequence[AnyValue], invariant: Sequence[bool]) -> np.ndarray | None:
    """A constant's array, or that of an input known at compile time which the loop does not change."""
    position = _position(graph, tensor)
    if position is not None:
        value = inputs[position]
        return value.known if invariant[position] and isinstance(value, Value) else None
    operation = _source(tensor).op
    return tensor_util.MakeNdarray(operation.get_attr("value")) if operation.type == "Const" else None


def _step(body: Any, counter: int, inputs: Sequence[AnyValue], invariant: Sequence[bool]) -> int | None:
    """What the body adds to the counter."""
    add = _source(body.outputs[counter]).op
    if add.type not in ("AddV2", "Add"):
        return None
    for own, other in ((0, 1), (1, 0)):
        if _position(body, add.inputs[own]) == counter:
            step = _known(body, add.inputs[other], inputs, invariant)
            return None if step is None or step.ndim or step.dtype.kind not in "iu" else int(step)
    return None
