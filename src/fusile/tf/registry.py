"""Which function converts which TensorFlow op: one table, filled by the files of `tf/convert/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fusile.hlo.ir import Instruction
from fusile.tf.value import AnyValue

if TYPE_CHECKING:
    from fusile.tf.context import Context
    from fusile.tf.node import Node

Result = Instruction | AnyValue | Sequence[Instruction | AnyValue]
Converter = Callable[["Context", "Node", list[Any]], Result]
"""`(context, node, inputs) -> outputs`: one output may stand alone, several (or none) are a sequence. An output is an
HLO instruction of `context.builder`, or a Value, Resource or TensorList."""

CONVERTERS: dict[str, Converter] = {}
EFFECTS: set[str] = set()
"""Ops that are converted even when nothing uses their outputs, and never evaluated at compile time."""
GENERATORS: set[str] = set()
"""Ops that draw random numbers from a state of their own, kept from call to call: `tf/generators.py`."""


def converter(*op_types: str, effect: bool = False, generator: bool = False) -> Callable[[Converter], Converter]:
    """Decorator: enters a converter for these TensorFlow op types."""

    def enter(function: Converter) -> Converter:
        for op_type in op_types:
            if op_type in CONVERTERS:
                raise ValueError(
                    f"{op_type} has two converters: {CONVERTERS[op_type].__name__} and {function.__name__}"
                )
            CONVERTERS[op_type] = function
            if effect or generator:
                EFFECTS.add(op_type)
            if generator:
                GENERATORS.add(op_type)
        return function

    return enter
