"""Converts a TensorFlow graph node by node; calls are converted in place."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

import fusile.tf.convert as _families  # noqa: F401  (fills the registry)
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import CONVERTERS, EFFECTS
from fusile.tf.value import AnyValue, Value

FOLD_LIMIT = 4096
"""Nodes whose inputs are all known, of at most this many elements in all, are evaluated at compile time."""


def called_graph(library: Any, name: str) -> Any:
    """The FuncGraph of a function by name."""
    function = library._get_function(name)
    if hasattr(function, "graph"):
        return function.graph
    found = _GRAPHS.get(function)
    if found is None:  # TensorFlow's older kind of function, which few of its own ops (`ctc_loss`) still make.
        with library.as_default():
            found = function_def_to_graph(function.definition, include_library_functions=True)
        _GRAPHS[function] = found
    return found


_GRAPHS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The graphs of functions that hold none."""


def calls_by_type(operation: Any) -> bool:
    """Whether the operation calls the function that its type names, as older graphs' calls do."""
    return operation.type not in CONVERTERS and operation.graph._is_function(operation.type)


def live_operations(graph: Any) -> list[Any]:
    """The operations that the outputs and effects of a FuncGraph need: operands first, in the order of their making
    otherwise, which is the order that the user's program states."""
    roots = [t.op for t in graph.outputs] + list(graph.control_outputs)
    needed = _reachable(roots)
    order: list[Any] = []
    seen: set[Any] = set()
    for start in graph.get_operations():
        if start not in needed or start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(_dependencies(start)))]
        while stack:
            operation, rest = stack[-1]
            for dependency in rest:
                if dependency not in seen:
                    seen.add(dependency)
                    stack.append((dependency, iter(_dependencies(dependency))))
                    break
            else:
                order.append(operation)
                stack.pop()
    return order


def _dependencies(operation: Any) -> list[Any]:
    return [*operation.control_inputs, *(t.op for t in operation.inputs)]


def _reachable(roots: list[Any]) -> set[Any]:
    found: set[Any] = set()
    stack = list(roots)
    while stack:
        operation = stack.pop()
        if operation not in found:
            found.add(operation)
            stack += _dependencies(operation)
    return found


def check_supported(graph: Any) -> None:
    """Raises UnsupportedOpError naming every op of the graph and of the functions it calls that has no converter."""
    missing = [
        Node(operation).source
        for operation in all_operations(graph)
        if operation.type not in CONVERTERS and operation.type != "Placeholder" and not calls_by_type(operation)
    ]
    if missing:
        kinds = ", ".join(sorted({s.op_type for s in missing}))
        rest = "".join(f"\n     {source}" for source in missing[1:])
        hint = "keep these ops outside the compiled function, or add a converter (CONTRIBUTING.md)"
        error = UnsupportedOpError(f"ops that can't be compiled yet: {kinds}\n  at {missing[0]}{rest}", hint=hint)
        error.source = missing[0]
        raise error


def all_operations(graph: Any) -> Iterator[Any]:
    """The live operations of the graph and of the functions it calls, each once."""
    seen: set[str] = set()
    stack = [graph]
    while stack:
        current = stack.pop()
        for operation in live_operations(current):
            yield operation
            for name in called_functions(operation):
                if name not in seen:
                    seen.add(name)
                    stack.append(called_graph(current, name))


def called_functions(operation: Any) -> list[str]:
    """Names of the functions among an operation's attributes."""
    if calls_by_type(operation):
        return [operation.type]
    if operation.type not in CALLERS:
        return []
    names = []
    for attribute in CALLERS[operation.type]:
        value = operation.get_attr(attribute)
        names += [v.name for v in (value if isinstance(value, list) else [value])]
    return names


CALLERS: dict[str, tuple[str, ...]] = {
    "PartitionedCall": ("f",),
    "StatefulPartitionedCall": ("f",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
}
"""Ops that call functions, and the attributes that name them."""


def convert_graph(context: Context, graph: Any, inputs: list[AnyValue]) -> list[AnyValue]:
    """Converts a FuncGraph on these inputs in `context`; gives its outputs."""
    values: dict[int, AnyValue] = {id(t): v for t, v in zip(graph.inputs, inputs, strict=True)}
    outside, context.library = context.library, graph
    for operation in live_operations(graph):
        if operation.type == "Placeholder":
            continue
        node = Node(operation)
        outputs = convert_node(context, node, [values[id(t)] for t in operation.inputs])
        for tensor, value in zip(operation.outputs, outputs, strict=True):
            values[id(tensor)] = value
    context.library = outside
    return [values[id(t)] for t in graph.outputs]


def convert_node(context: Context, node: Node, inputs: list[AnyValue]) -> list[AnyValue]:
    """Converts one node, or evaluates it when all its inputs are known and small."""
    context.node = node
    if calls_by_type(node.operation):
        return convert_graph(context, called_graph(context.library, node.type), inputs)
    convert = CONVERTERS[node.type]
    if inputs and node.type not in EFFECTS and node.type not in CALLERS and _all_known(inputs):
        return _fold(context, node, inputs)
    with context.builder.at(node.source):
        return context.wrap(convert(context, node, inputs))


def _all_known(inputs: list[AnyValue]) -> bool:
    sizes = [v.known.size if isinstance(v, Value) and v.known is not None else FOLD_LIMIT + 1 for v in inputs]
    return sum(sizes) <= FOLD_LIMIT


def _fold(context: Context, node: Node, inputs: list[AnyValue]) -> list[AnyValue]:
    """Converts the node into a computation of its own and interprets that: a node's meaning is stated once."""
    inner = Context(Builder("fold"), context.library)
    inner.node = node
    known = [v.within(inner.builder) for v in inputs if isinstance(v, Value)]
    results = inner.wrap(CONVERTERS[node.type](inner, node, known))
    arrays = [r for r in results if isinstance(r, Value)]
    if len(arrays) < len(results) or sum(r.shape.elements for r in arrays) > FOLD_LIMIT:
        with context.builder.at(node.source):
            return context.wrap(CONVERTERS[node.type](context, node, inputs))
    computed = [r.instruction for r in arrays if r.known is None]
    found = iter(interpret(inner.builder.module(inner.builder.tuple(computed)), [])) if computed else iter(())
    return [context.known(next(found) if r.known is None else r.known) for r in arrays]
