"""The meaning of a module: runs it on NumPy arrays, one instruction at a time. Every pass and target is tested against
it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError, FusileError, UnsupportedOpError
from fusile.base.shape import AnyShape, TupleShape
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.structure import Constant, Parameter


def interpret(module: Module, arguments: Sequence[Any]) -> list[Any]:
    """The entry's results, leaf by leaf, as arrays of exactly the declared element types and dimensions.

    Raises ArgumentError when the arguments are not the entry's parameters.
    """
    parameters = module.entry.parameters
    if len(arguments) != len(parameters):
        raise ArgumentError(f"{module.name} takes {len(parameters)} arguments, not {len(arguments)}")
    values = [_checked(p, a) for p, a in zip(parameters, arguments, strict=True)]
    return leaves_of(Interpreter().call(module.entry, values))


def _checked(parameter: Instruction, argument: Any) -> Any:
    shape = parameter.shape
    if isinstance(shape, TupleShape):
        return tuple(argument)
    array = np.asarray(argument)
    if array.shape != shape.sizes or array.dtype != shape.element_type.dtype:
        raise ArgumentError(f"argument {parameter.name} is {array.dtype}{list(array.shape)}, not {shape}")
    return array


def leaves_of(value: Any) -> list[Any]:
    """The arrays in a possibly nested tuple, depth first."""
    if isinstance(value, tuple):
        return [leaf for v in value for leaf in leaves_of(v)]
    return [np.asarray(value)]


class Interpreter:
    """Runs computations. `call` on values of the declared shapes, `call_elementwise` a scalar computation on whole
    arrays."""

    def __init__(self) -> None:
        self._orders: dict[Computation, list[Instruction]] = {}

    def call(self, computation: Computation, operands: Sequence[Any]) -> Any:
        values: dict[Instruction, Any] = {}
        for instruction in self._order(computation):
            op = instruction.op
            if isinstance(op, Parameter):
                values[instruction] = operands[op.number]
                continue
            arguments = [values[o] for o in instruction.operands]
            try:
                values[instruction] = op.evaluate(instruction, arguments, self)
            except NotImplementedError as error:
                if isinstance(error, FusileError):
                    raise
                raise UnsupportedOpError(str(error), source=instruction.source) from error
        return values[computation.root]

    def call_elementwise(self, computation: Computation, operands: Sequence[Any]) -> list[Any]:
        """The results of a computation of scalars for every element of equally shaped arrays."""
        shape = np.broadcast_shapes(*(np.shape(o) for o in operands)) if operands else ()
        values: dict[Instruction, Any] = {}
        for instruction in self._order(computation):
            op = instruction.op
            if isinstance(op, Parameter):
                values[instruction] = np.broadcast_to(operands[op.number], shape)
            elif isinstance(op, Constant):
                values[instruction] = np.broadcast_to(op.literal.array, shape)
            else:
                values[instruction] = op.evaluate(instruction, [values[o] for o in instruction.operands], self)
        result = values[computation.root]
        return [np.array(r) for r in result] if isinstance(result, tuple) else [np.array(result)]

    def _order(self, computation: Computation) -> list[Instruction]:
        if computation not in self._orders:
            self._orders[computation] = computation.post_order()
        return self._orders[computation]


def zeros_of(shape: AnyShape) -> Any:
    """Zeros of a shape, nested tuples included."""
    if isinstance(shape, TupleShape):
        return tuple(zeros_of(s) for s in shape.shapes)
    return np.zeros(shape.sizes, shape.element_type.dtype)
