"""Ops whose shape is an operand: the static op, once the operand's value is found to be known."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusile.hlo.interpreter import Interpreter
from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context, converts
from fusile.stablehlo.conversion.contractions import convolution
from fusile.stablehlo.conversion.elementwise import stretch
from fusile.stablehlo.conversion.shapes import gather

_MAX_ELEMENTS = 1 << 16


def known_integers(context: Context, operand: Instruction) -> tuple[int, ...]:
    """The operand's elements, computed from constants. Raises UnsupportedOpError when it depends on a parameter."""
    values: dict[Instruction, Any] = {}
    interpreter = Interpreter()
    for instruction in _reached(operand):
        if instruction.opcode == "parameter" or instruction.array_shape.elements > _MAX_ELEMENTS:
            raise context.unsupported("a shape that is known only when the program runs",
                                      "lower the program for concrete argument shapes")  # fmt: skip
        operands = [values[o] for o in instruction.operands]
        values[instruction] = instruction.op.evaluate(instruction, operands, interpreter)
    return tuple(int(v) for v in np.asarray(values[operand]).reshape(-1).tolist())


def _reached(root: Instruction) -> list[Instruction]:
    """What an instruction is computed from, operands first, itself last."""
    order: dict[Instruction, None] = {}
    stack = [(root, False)]
    while stack:
        instruction, visited = stack.pop()
        if visited:
            order[instruction] = None
        elif instruction not in order:
            stack.append((instruction, True))
            stack += [(o, False) for o in instruction.operands if o not in order]
    return list(order)


@converts("stablehlo.dynamic_reshape")
def _dynamic_reshape(context: Context) -> Instruction:
    return context.reshape(context.operands[0], known_integers(context, context.operands[1]))


@converts("stablehlo.dynamic_broadcast_in_dim")
def _dynamic_broadcast_in_dim(context: Context) -> Instruction:
    sizes = known_integers(context, context.operands[1])
    return stretch(context, context.operands[0], sizes, context.integers("broadcast_dimensions"))


@converts("stablehlo.dynamic_iota")
def _dynamic_iota(context: Context) -> Instruction:
    shape = context.result_shape().with_dimensions(known_integers(context, context.operands[0]))
    return context.add("iota", result=shape, dimension=context.integer("iota_dimension"))


@converts("stablehlo.dynamic_pad")
def _dynamic_pad(context: Context) -> Instruction:
    low, high, interior = (known_integers(context, o) for o in context.operands[2:5])
    return context.add("pad", context.operands[:2], low=low, high=high, interior=interior)


@converts("stablehlo.real_dynamic_slice")
def _real_dynamic_slice(context: Context) -> Instruction:
    starts, limits, strides = (known_integers(context, o) for o in context.operands[1:4])
    return context.add("slice", context.operands[:1], starts=starts, limits=limits, strides=strides)


@converts("stablehlo.dynamic_gather")
def _dynamic_gather(context: Context) -> Instruction:
    return gather(context, context.operands[:2], known_integers(context, context.operands[2]))


@converts("stablehlo.dynamic_conv")
def _dynamic_convolution(context: Context) -> Instruction:
    return convolution(context, context.operands[:2], known_integers(context, context.operands[2]))


@converts("stablehlo.set_dimension_size")
def _set_dimension_size(context: Context) -> Instruction:
    operand, size = context.operands[0], known_integers(context, context.operands[1])
    if operand.array_shape.sizes[context.integer("dimension")] != size[0]:
        raise context.unsupported("a dimension smaller than its buffer", "slice the operand instead")
    return operand
