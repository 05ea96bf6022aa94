"""Ops that read and assign variables. Optimizers' fused updates are in `optimizer.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value


@converter("ReadVariableOp", effect=True)
def read_variable(context: Context, node: Node, inputs: list[Any]) -> Value:
    return context.read(inputs[0])


@converter("_ReadVariablesOp", effect=True)
def read_variables(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    return [context.read(resource) for resource in inputs]


@converter("AssignVariableOp", effect=True)
def assign_variable(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    context.assign(inputs[0], inputs[1])
    return []


@converter("AssignAddVariableOp", effect=True)
def assign_add(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    return _update(context, inputs, context.builder.add)


@converter("AssignSubVariableOp", effect=True)
def assign_subtract(context: Context, node: Node, inputs: list[Any]) -> list[Value]:
    return _update(context, inputs, context.builder.subtract)


def _update(context: Context, inputs: list[Any], combine: Any) -> list[Value]:
    resource, change = inputs
    context.assign(resource, combine(context.read(resource).instruction, change.instruction))
    return []


@converter("VariableShape", effect=True)
def variable_shape(context: Context, node: Node, inputs: list[Any]) -> Value:
    return context.known(np.array(inputs[0].shape.sizes), node.output_type())


@converter("VarIsInitializedOp", effect=True)
def is_initialized(context: Context, node: Node, inputs: list[Any]) -> Value:
    return context.known(np.array(True))
