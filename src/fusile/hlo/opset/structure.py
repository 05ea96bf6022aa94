"""Ops that hold a program together: parameters, constants, tuples, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import element_type
from fusile.base.errors import ShapeError
from fusile.base.shape import TOKEN_SHAPE, AnyShape, Shape, TupleShape
from fusile.hlo.ir import Instruction, Literal, Op, op


@op
class Parameter(Op):
    """The computation's argument with this number; its shape is given when it is made."""

    number: int

    opcode = "parameter"
    arity = 0

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        raise AssertionError("the interpreter binds parameters")


@op
class Constant(Op):
    """A value known when the program is compiled (StableHLO `constant`)."""

    literal: Literal

    opcode = "constant"
    arity = 0

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        return Shape(element_type(self.literal.array.dtype), self.literal.array.shape)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return self.literal.array


@op
class Iota(Op):
    """Counts from 0 along `dimension` (StableHLO `iota`)."""

    result: Shape
    dimension: int

    opcode = "iota"
    arity = 0

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        if not 0 <= self.dimension < self.result.rank:
            raise ShapeError(f"iota dimension {self.dimension} is not one of {self.result}")
        if self.result.element_type.is_predicate:
            raise ShapeError("iota has no meaning for predicates")
        return self.result

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        sizes, dtype = self.result.sizes, self.result.element_type.dtype
        count = np.arange(sizes[self.dimension]).astype(dtype)
        view = [1] * len(sizes)
        view[self.dimension] = -1
        return np.ascontiguousarray(np.broadcast_to(count.reshape(view), sizes))


@op
class Tuple(Op):
    """Puts values together (StableHLO `tuple`)."""

    opcode = "tuple"

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        return TupleShape(tuple(operands))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return tuple(operands)


@op
class GetTupleElement(Op):
    """One element of a tuple (StableHLO `get_tuple_element`)."""

    index: int

    opcode = "get-tuple-element"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        shape = operands[0]
        if not isinstance(shape, TupleShape) or not 0 <= self.index < len(shape.shapes):
            raise ShapeError(f"get-tuple-element {self.index} of {shape}")
        return shape.shapes[self.index]

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0][self.index]


@op
class Copy(Op):
    """The same value in a buffer of its own."""

    opcode = "copy"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        return operands[0]

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0]


@op
class OptimizationBarrier(Op):
    """The same value, which no pass may look through (StableHLO `optimization_barrier`)."""

    opcode = "optimization-barrier"
    arity = 1

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        return operands[0]

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return operands[0]


@op
class AfterAll(Op):
    """A token that comes after its operands' (StableHLO `after_all`)."""

    opcode = "after-all"

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        return TOKEN_SHAPE

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return np.zeros((), bool)
