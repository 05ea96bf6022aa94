"""Folds per-channel arithmetic after a product or convolution with constant weights into the weights and one bias.

Before (b(v): a constant v of the output channels, broadcast to the result's shape)::

    c = convolution(x, w); y = add(multiply(divide(subtract(c, b(mean)), b(deviation)), b(scale)), b(offset))

After::

    y = add(convolution(x, w'), b(bias'))     # w' = w * scale / deviation, bias' = offset - mean * scale / deviation

The result is rounded at other places than before, so this belongs to the pipeline for frozen weights only. The new
weights and bias are computed in f64 and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusile.hlo.ir import Instruction, Literal, Module
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.elementwise import Add, Divide, Multiply, Negate, Subtract
from fusile.hlo.opset.shape import Broadcast
from fusile.hlo.opset.structure import Constant
from fusile.rewrite.constants import constant_array
from fusile.rewrite.effects import erase_unused

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FoldBatchNorm:
    """The pass."""

    name: str = "fold-batch-norm"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in module.computations():
            for instruction in computation.post_order():
                if isinstance(instruction.op, Dot | Convolution) and instruction.computation is not None:
                    changed |= _fold(instruction)
        return changed


@dataclass
class Affine:
    """y = scale * contraction + bias, a number a channel; `last` is the instruction that gives y."""

    last: Instruction
    scale: Vector
    bias: Vector
    steps: int = 0

    def take(self, user: Instruction, channel: int) -> bool:
        """Takes the one user of `last` in, if it is arithmetic with a constant of the channels."""
        op = user.op
        if isinstance(op, Negate):
            self._set(user, -self.scale, -self.bias)
            return True
        if not isinstance(op, Add | Subtract | Multiply | Divide) or len(user.operands) != 2:
            return False
        at = user.operands.index(self.last)
        vector = per_channel(user.operands[1 - at], channel)
        return vector is not None and self._apply(user, vector, at)

    def _apply(self, user: Instruction, vector: Vector, at: int) -> bool:
        op = user.op
        if isinstance(op, Add):
            self._set(user, self.scale, self.bias + vector)
        elif isinstance(op, Multiply):
            self._set(user, self.scale * vector, self.bias * vector)
        elif isinstance(op, Subtract) and at == 0:
            self._set(user, self.scale, self.bias - vector)
        elif isinstance(op, Subtract):
            self._set(user, -self.scale, vector - self.bias)
        elif at == 0:
            self._set(user, self.scale / vector, self.bias / vector)
        else:
            return False
        return True

    def _set(self, user: Instruction, scale: Vector, bias: Vector) -> None:
        self.last, self.scale, self.bias, self.steps = user, scale, bias, self.steps + 1


def per_channel(instruction: Instruction, channel: int) -> Vector | None:
    """The f64 value for each channel (or one for all) of a constant that varies along dimension `channel` only."""
    op = instruction.op
    if isinstance(op, Broadcast):
        if op.broadcast_dimensions not in ((), (channel,)):
            return None
        array = constant_array(instruction.operands[0])
    else:
        array = constant_array(instruction)
        if array is not None and array.ndim and array.size != array.shape[channel]:
            return None
    return None if array is None else array.reshape(-1).astype(np.float64)


def channels(instruction: Instruction) -> tuple[int, int] | None:
    """The dimension of the result and that of the weights (operand 1) that are the output channels."""
    op = instruction.op
    if isinstance(op, Convolution):
        return op.dimension_numbers.output_feature, op.dimension_numbers.kernel_output_feature
    assert isinstance(op, Dot)
    rank = instruction.operands[1].array_shape.rank
    free = [d for d in range(rank) if d not in (*op.rhs_batch, *op.rhs_contracting)]
    return (instruction.array_shape.rank - 1, free[0]) if len(free) == 1 else None


def _fold(contraction: Instruction) -> bool:
    weights, found = contraction.operands[1], channels(contraction)
    shape = contraction.array_shape
    if found is None or not isinstance(weights.op, Constant) or not shape.element_type.is_float:
        return False
    if weights.array_shape.element_type is not shape.element_type or not shape.elements:
        return False
    channel, weights_channel = found
    count = shape.sizes[channel]
    affine = _chain(contraction, channel, count)
    scaled = bool((affine.scale != 1).any())
    if not scaled and affine.steps < 2:
        return False
    if not (np.isfinite(affine.scale).all() and np.isfinite(affine.bias).all()):
        return False
    _replace(contraction, affine, weights_channel if scaled else None, channel)
    return True


def _chain(contraction: Instruction, channel: int, count: int) -> Affine:
    """All the per-channel arithmetic that follows, as far as each result has one user."""
    affine = Affine(contraction, np.ones(count), np.zeros(count))
    while True:
        last = affine.last
        if last.is_root or len(last.users) != 1:
            return affine
        (user,) = last.users
        with np.errstate(all="ignore"):
            if last.users[user] != 1 or not affine.take(user, channel):
                return affine


def _replace(contraction: Instruction, affine: Affine, weights_channel: int | None, channel: int) -> None:
    computation, old = contraction.computation, contraction.operands[1]
    assert computation is not None and isinstance(old.op, Constant)
    source, shape = contraction.source, contraction.array_shape
    dtype = shape.element_type.dtype
    weights = old
    if weights_channel is not None:
        view = [1] * old.array_shape.rank
        view[weights_channel] = -1
        array = (old.op.literal.array * affine.scale.reshape(view)).astype(dtype)
        weights = computation.add(Constant(Literal(array)), name=old.name, source=old.source)
    result = computation.add(contraction.op, [contraction.operands[0], weights], name=contraction.name, source=source)
    if (affine.bias != 0).any():
        bias = computation.add(Constant(Literal(affine.bias.astype(dtype))), source=affine.last.source)
        along = computation.add(Broadcast(shape.sizes, (channel,)), [bias], source=affine.last.source)
        result = computation.add(Add(), [result, along], source=affine.last.source)
    affine.last.replace_all_uses(result)
    erase_unused(affine.last)
