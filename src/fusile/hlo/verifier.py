"""Checks that a module keeps the IR's rules. Inference is the verifier: each instruction's shape is inferred again."""

from __future__ import annotations

from fusile.base.errors import ShapeError, VerificationError
from fusile.base.shape import AnyShape, Shape, TupleShape
from fusile.hlo.ir import OPS, Computation, Instruction, Module
from fusile.hlo.opset.structure import Parameter


def verify(module: Module) -> None:
    """Raises VerificationError naming the instruction and the rule it breaks."""
    for computation in module.computations():
        verify_computation(computation)


def verify_computation(computation: Computation) -> None:
    for number, parameter in enumerate(computation.parameters):
        if parameter not in computation.instructions or parameter.op != Parameter(number):
            raise VerificationError(f"parameter {number} of {computation.name} is {parameter}")
    if computation.root not in computation.instructions:
        raise VerificationError(f"the root {computation.root.name} of {computation.name} is not in it")
    uses: dict[Instruction, dict[Instruction, int]] = {i: {} for i in computation.instructions}
    for instruction in computation.post_order():
        _verify_instruction(computation, instruction)
        for operand in instruction.operands:
            uses[operand][instruction] = uses[operand].get(instruction, 0) + 1
    for instruction, users in uses.items():
        if users != instruction.users:
            raise VerificationError(
                f"{instruction.name} of {computation.name} has wrong users {list(instruction.users)}",
                source=instruction.source,
            )


def _verify_instruction(computation: Computation, instruction: Instruction) -> None:
    if OPS.get(instruction.opcode) is not type(instruction.op):
        raise VerificationError(f"{instruction.name} has the unknown opcode {instruction.opcode}")
    if instruction.computation is not computation:
        raise VerificationError(f"{instruction.name} is listed in {computation.name} but belongs elsewhere")
    for operand in instruction.operands:
        if operand.computation is not computation:
            raise VerificationError(
                f"operand {operand.name} of {instruction.name} is not in {computation.name}", source=instruction.source
            )
    if isinstance(instruction.op, Parameter):
        return
    try:
        inferred = instruction.op.infer([o.shape for o in instruction.operands])
    except ShapeError as error:
        raise VerificationError(f"{instruction.name}: {error.message}", source=instruction.source) from error
    if _plain(inferred) != _plain(instruction.shape):
        raise VerificationError(
            f"{instruction.name} has shape {instruction.shape}, not {inferred}", source=instruction.source
        )


def _plain(shape: AnyShape) -> AnyShape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_plain(s) for s in shape.shapes))
    return Shape(shape.element_type, shape.dimensions)
