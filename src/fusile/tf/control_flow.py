"""Calls, branches and loops. Calls are converted in place; branches and bodies become computations whose parameters are
everything that crosses: arrays, the leaves of TensorLists, and the current values of variables."""

from __future__ import annotations

from typing import Any

from fusile.tf.context import Context
from fusile.tf.graph import called_graph, convert_graph
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import AnyValue


@converter("PartitionedCall", "StatefulPartitionedCall", effect=True)
def call(context: Context, node: Node, inputs: list[Any]) -> list[AnyValue]:
    return convert_graph(context, called_graph(context.library, node.attribute("f")), inputs)
