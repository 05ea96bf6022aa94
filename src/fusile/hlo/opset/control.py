"""Ops that call computations: call, while, conditional, fusion; and calls out of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import PRED, S32
from fusile.base.errors import ShapeError, UnsupportedOpError
from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.custom_calls import registry as custom_calls
from fusile.hlo.ir import Computation, Instruction, Op, op


def check_arguments(opcode: str, computation: Computation, operands: Sequence[AnyShape]) -> None:
    """Raises ShapeError unless the computation takes exactly these shapes."""
    expected = [p.shape for p in computation.parameters]
    if len(expected) != len(operands) or any(_plain(a) != _plain(b) for a, b in zip(expected, operands, strict=True)):
        raise ShapeError(f"{opcode}: {computation.name} takes {expected}, not {list(operands)}")


def _plain(shape: AnyShape) -> AnyShape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_plain(s) for s in shape.shapes))
    return Shape(shape.element_type, shape.dimensions)


@op
class Call(Op):
    """The computation's result (`func.call`)."""

    computation: Computation

    opcode = "call"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        check_arguments("call", self.computation, operands)
        return self.computation.root.shape

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return interpreter.call(self.computation, operands)


@op
class Fusion(Op):
    """A computation that becomes one kernel. `kind` says how it is lowered; `in_place` pairs (result leaf, operand)
    whose buffers are one, `shared` pairs whose buffers may be one. Means the same as a call."""

    computation: Computation
    kind: str
    in_place: tuple[tuple[int, int], ...] = ()
    shared: tuple[tuple[int, int], ...] = ()

    opcode = "fusion"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        check_arguments("fusion", self.computation, operands)
        return self.computation.root.shape

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return interpreter.call(self.computation, operands)


@op
class While(Op):
    """Runs `body` on the state as long as `condition` holds (`while`). Operands are the state's leaves; the result is
    a tuple."""

    condition: Computation
    body: Computation

    opcode = "while"

    def infer(self, operands: Sequence[AnyShape]) -> TupleShape:
        check_arguments("while condition", self.condition, operands)
        check_arguments("while body", self.body, operands)
        if _plain(self.condition.root.shape) != Shape(PRED):
            raise ShapeError(f"while: the condition gives {self.condition.root.shape}, not pred[]")
        state = TupleShape(tuple(operands))
        if _plain(self.body.root.shape) != _plain(state):
            raise ShapeError(f"while: the body gives {self.body.root.shape}, not the state {state}")
        return state

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        state = tuple(operands)
        while bool(interpreter.call(self.condition, state)):
            state = interpreter.call(self.body, state)
        return state


@op
class Conditional(Op):
    """One of `branches`, by operand 0: a pred (branch 0 is true) or an s32 index, the last branch when out of range
    (`if`, `case`). Each branch takes the other operands; the result is a tuple."""

    branches: tuple[Computation, ...]

    opcode = "conditional"

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        index = operands[0] if operands else None
        if not isinstance(index, Shape) or not index.is_scalar or index.element_type not in (PRED, S32):
            raise ShapeError(f"conditional's operand 0 is {index}, not pred[] or s32[]")
        if not self.branches or (index.element_type is PRED and len(self.branches) != 2):
            raise ShapeError(f"conditional on {index} with {len(self.branches)} branches")
        for branch in self.branches:
            check_arguments("conditional", branch, operands[1:])
            if _plain(branch.root.shape) != _plain(self.branches[0].root.shape):
                raise ShapeError(f"conditional: branches give {self.branches[0].root.shape} and {branch.root.shape}")
        return self.branches[0].root.shape

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return interpreter.call(self.branches[self.chosen(operands[0])], operands[1:])

    def chosen(self, index: Any) -> int:
        """The branch's number for the value of operand 0."""
        if np.asarray(index).dtype == np.bool_:
            return 0 if index else 1
        number = int(index)
        return number if 0 <= number < len(self.branches) else len(self.branches) - 1


@op
class CustomCall(Op):
    """A call of a function outside the program, by name (`custom_call`)."""

    target: str
    result: AnyShape
    config: str = ""
    has_effect: bool = False

    opcode = "custom-call"
    has_side_effect = True

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        return self.result

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        if custom_calls.find(self.target) is None:
            raise UnsupportedOpError(
                f"no function is registered for the custom call to {self.target!r}",
                source=instruction.source,
                hint="register one with fusile.register_custom_call",
            )
        results = custom_calls.call(self.target, self.config, [np.asarray(o) for o in operands], self.result.leaves())
        return tuple(results) if self.result.is_tuple else results[0]
