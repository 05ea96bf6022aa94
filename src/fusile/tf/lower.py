"""Lowers a traced function to an HLO module: arguments, captured tensors and variables become parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorflow.python.ops import handle_data_util

from fusile.base.element_type import element_type
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Module
from fusile.tf import control_flow  # noqa: F401  (enters its converters)
from fusile.tf.context import Context
from fusile.tf.generators import STATE
from fusile.tf.graph import all_operations, check_supported, convert_graph
from fusile.tf.signature import as_numpy
from fusile.tf.trace import Trace
from fusile.tf.value import GENERATOR_PREFIX, AnyValue, Resource, TensorList, Value
from fusile.tf.variables import VariableReader


@dataclass
class Lowering:
    """A module and how a call fills it. Parameters are the arguments, then `tensors`, then the arrays of `variables`,
    random ops' generators first; results are the function's tensors, then the new arrays of the variables numbered in
    `assigned`."""

    module: Module
    arguments: int
    tensors: list[Any]
    variables: list[Any]
    assigned: list[int]
    results: int


def lower(trace: Trace, freeze: bool = False) -> Lowering:
    """The module of a traced function. With `freeze`, captured tensors and variables become constants.

    Raises UnsupportedOpError naming every op that has no converter.
    """
    graph = trace.graph
    check_supported(graph)
    context = Context(Builder(trace.name), graph)
    inputs, tensors, handles = _inputs(context, trace, freeze)
    before = dict(context.variables)
    outputs = convert_graph(context, graph, inputs)
    results = [_array(context, value, i) for i, value in enumerate(outputs)]
    changed = {key for key, value in context.variables.items() if value is not before[key]}
    if freeze and not all(key.startswith(GENERATOR_PREFIX) for key in changed):
        raise UnsupportedOpError("a frozen function assigns a variable", hint="compile it without freeze=True")
    keys = list(handles)
    assigned = [i for i, key in enumerate(keys) if key in changed]
    new = [context.variables[keys[i]].instruction for i in assigned]
    module = context.builder.module(context.builder.tuple([*(r.instruction for r in results), *new]))
    first = trace.arguments + len(tensors)
    module.aliases = {len(results) + n: first + i for n, i in enumerate(assigned)}
    return Lowering(module, trace.arguments, tensors, list(handles.values()), assigned, len(results))


def _inputs(context: Context, trace: Trace, freeze: bool) -> tuple[list[AnyValue], list[Any], dict[str, Any]]:
    """A value for each input of the graph, the captured tensors that are parameters, and the handles of the variables
    that are, and of random ops' generators, by key."""
    symbols = trace.graph.inputs
    values: list[AnyValue] = [_parameter(context, symbol) for symbol in symbols[: trace.arguments]]
    tensors, resources = [], {}
    handles = trace.generators.handles(all_operations(trace.graph))
    for symbol, captured in zip(symbols[trace.arguments :], trace.captured, strict=True):
        if captured.dtype.name == "resource":
            resource = Resource(_key(captured), variable_shape(captured))
            resources[resource.key] = (resource, captured)
            values.append(resource)
        elif freeze:
            values.append(context.known(as_numpy(captured)))
        else:
            values.append(_parameter(context, symbol))
            tensors.append(captured)
    for key in handles:
        context.variables[key] = context.value(context.builder.parameter(STATE, "generator"))
    if freeze:
        unread = [handle for _, handle in resources.values() if id(handle) not in trace.frozen]
        trace.frozen.update(zip(map(id, unread), VariableReader(unread)(), strict=True))
    for key, (resource, handle) in resources.items():
        if freeze:
            context.variables[key] = context.known(as_numpy(trace.frozen[id(handle)]))
        else:
            context.variables[key] = context.value(context.builder.parameter(resource.shape, "variable"))
            handles[key] = handle
    return values, tensors, handles


def _parameter(context: Context, symbol: Any) -> Value:
    if not symbol.shape.is_fully_defined():
        raise UnsupportedOpError(f"argument {symbol.name} has the shape {symbol.shape}, whose sizes are not all known")
    try:
        of = element_type(symbol.dtype.as_numpy_dtype)
    except TypeError as error:
        raise UnsupportedOpError(f"argument {symbol.name} is of {symbol.dtype.name} elements, which can't be compiled",
                                 hint="keep strings and variants outside the compiled function") from error  # fmt: skip
    name = symbol.name.split(":")[0].replace("/", ".")
    return context.value(context.builder.parameter(Shape(of, tuple(symbol.shape)), name))


def _array(context: Context, value: AnyValue, index: int) -> Value:
    if isinstance(value, Value):
        return value
    kind = "a TensorArray" if isinstance(value, TensorList) else "a variable's handle"
    raise UnsupportedOpError(
        f"result {index} of the function is {kind}, not a tensor", hint="return its stack() or its value"
    )


def _key(handle: Any) -> str:
    return str(id(handle))


def variable_shape(handle: Any) -> Shape:
    """The shape of the variable behind an eager handle. Raises UnsupportedOpError when it has none."""
    data = getattr(handle, "_handle_data", None) or handle_data_util.get_resource_handle_data(handle)
    if not data.is_set or len(data.shape_and_type) != 1:
        raise UnsupportedOpError("the function uses a resource that is no variable (a table, an iterator, ...)",
                                 hint="keep it outside the compiled function")  # fmt: skip
    from tensorflow.python.framework import dtypes, tensor_shape

    described = data.shape_and_type[0]
    shape = tensor_shape.as_shape(described.shape)
    if not shape.is_fully_defined():
        raise UnsupportedOpError(
            f"a variable of shape {shape}, whose sizes are not all known", hint="give the variable a static shape"
        )
    return Shape(element_type(dtypes.as_dtype(described.dtype).as_numpy_dtype), tuple(shape.as_list()))
