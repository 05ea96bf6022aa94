"""Writes composite ops as primitive ones: batch normalization, top-k.

Before::

    y = batch-norm-inference(x, scale, offset, mean, variance), epsilon=0.001, feature_index=3

After (all vectors are of the feature dimension; b(v) is v broadcast to x's shape)::

    y = add(multiply(divide(subtract(x, b(mean)), b(sqrt(add(variance, 0.001)))), b(scale)), b(offset))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusile.base.element_type import F32, S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import Computation, Instruction, Literal, Module, Op
from fusile.hlo.opset.elementwise import Add, Compare, Convert, Divide, Multiply, Select, Sqrt, Subtract
from fusile.hlo.opset.other import BatchNormGrad, BatchNormInference, BatchNormTraining, TopK
from fusile.hlo.opset.reduction import Reduce, Sort
from fusile.hlo.opset.shape import Broadcast, Slice
from fusile.hlo.opset.structure import Constant, GetTupleElement, Iota, Tuple


@dataclass(frozen=True)
class ExpandComposites:
    """The pass. Afterwards there are no batch-norm ops and no top-k."""

    name: str = "expand-composites"

    def __call__(self, module: Module) -> bool:
        changed = False
        for computation in module.computations():
            for instruction in list(computation.instructions):
                expansion = EXPANSIONS.get(type(instruction.op))
                if expansion is not None:
                    instruction.replace_all_uses(expansion(_Writer(instruction)))
                    computation.erase(instruction)
                    changed = True
        return changed


class _Writer:
    """Adds instructions at the position of the composite one."""

    def __init__(self, instruction: Instruction) -> None:
        assert instruction.computation is not None
        self.instruction, self.computation = instruction, instruction.computation
        self.operands: list[Instruction] = instruction.operands

    def add(self, op: Op, *operands: Instruction) -> Instruction:
        return self.computation.add(op, operands, source=self.instruction.source)

    def filled(self, value: float, like: Instruction) -> Instruction:
        """`value` in the shape of `like`."""
        shape = like.array_shape
        scalar = self.scalar(value, shape.element_type)
        return self.add(Broadcast(shape.sizes, ()), scalar) if shape.rank else scalar

    def scalar(self, value: float, element_type: ElementType) -> Instruction:
        return self.add(Constant(Literal(np.asarray(value).astype(element_type.dtype))))

    def convert(self, x: Instruction, element_type: ElementType) -> Instruction:
        return x if x.array_shape.element_type is element_type else self.add(Convert(element_type), x)


class _BatchNorm(_Writer):
    """What the three batch-norm ops share: operand 0 is normalized along one feature dimension."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__(writer.instruction)
        op: Any = self.instruction.op
        self.feature, self.epsilon = int(op.feature_index), float(op.epsilon)
        x = self.operands[0].array_shape
        self.result_type = x.element_type
        narrow = x.element_type.is_float and x.element_type.bits < 32
        self.wide = F32 if narrow else x.element_type
        self.sizes = x.sizes
        self.count = x.elements // max(1, x.sizes[self.feature])

    def widened(self) -> list[Instruction]:
        """The operands, narrow floats as f32: statistics of many elements need the range and precision."""
        return [self.convert(o, self.wide) for o in self.operands]

    def along(self, vector: Instruction) -> Instruction:
        """A vector over the features, repeated to x's shape."""
        return self.add(Broadcast(self.sizes, (self.feature,)), vector)

    def deviation(self, variance: Instruction) -> Instruction:
        return self.add(Sqrt(), self.add(Add(), variance, self.filled(self.epsilon, variance)))

    def total(self, x: Instruction) -> Instruction:
        """Sums over all but the features."""
        dimensions = tuple(d for d in range(len(self.sizes)) if d != self.feature)
        return self.add(Reduce(dimensions, scalar_computation("add", self.wide)), x, self.scalar(0, self.wide))

    def mean(self, x: Instruction) -> Instruction:
        total = self.total(x)
        return self.add(Divide(), total, self.filled(self.count, total))

    def narrowed(self, *results: Instruction) -> Instruction:
        return self.add(Tuple(), *(self.convert(r, self.result_type) for r in results))


def _inference(writer: _Writer) -> Instruction:
    norm = _BatchNorm(writer)
    x, scale, offset, mean, variance = norm.widened()
    centered = norm.add(Subtract(), x, norm.along(mean))
    normal = norm.add(Divide(), centered, norm.along(norm.deviation(variance)))
    result = norm.add(Add(), norm.add(Multiply(), normal, norm.along(scale)), norm.along(offset))
    return norm.convert(result, norm.result_type)


def _training(writer: _Writer) -> Instruction:
    norm = _BatchNorm(writer)
    x, scale, offset = norm.widened()
    mean = norm.mean(x)
    centered = norm.add(Subtract(), x, norm.along(mean))
    variance = norm.mean(norm.add(Multiply(), centered, centered))
    normal = norm.add(Divide(), centered, norm.along(norm.deviation(variance)))
    result = norm.add(Add(), norm.add(Multiply(), normal, norm.along(scale)), norm.along(offset))
    return norm.narrowed(result, mean, variance)


def _gradient(writer: _Writer) -> Instruction:
    """With n elements a feature, c = x - mean, d = sqrt(variance + epsilon):

    grad_offset = sum(grad); grad_scale = sum(grad * c / d);
    grad_x = scale / d * (grad - grad_offset / n - c / d * grad_scale / n).
    """
    norm = _BatchNorm(writer)
    x, scale, mean, variance, grad = norm.widened()
    deviation = norm.deviation(variance)
    normal = norm.add(Divide(), norm.add(Subtract(), x, norm.along(mean)), norm.along(deviation))
    grad_offset = norm.total(grad)
    grad_scale = norm.total(norm.add(Multiply(), grad, normal))
    count = norm.filled(norm.count, grad_offset)
    shift = norm.along(norm.add(Divide(), grad_offset, count))
    slope = norm.along(norm.add(Divide(), grad_scale, count))
    rest = norm.add(Subtract(), norm.add(Subtract(), grad, shift), norm.add(Multiply(), normal, slope))
    grad_x = norm.add(Multiply(), norm.along(norm.add(Divide(), scale, deviation)), rest)
    return norm.narrowed(grad_x, grad_scale, grad_offset)


def _top_k(writer: _Writer) -> Instruction:
    """A stable sort from large to small, NaN first, of elements and their positions; then its first k."""
    op, x = writer.instruction.op, writer.operands[0]
    assert isinstance(op, TopK)
    shape, last = x.array_shape, x.array_shape.rank - 1
    positions = writer.add(Iota(Shape(S32, shape.dimensions), last))
    comparator = _larger_first(shape.element_type)
    ordered = writer.add(Sort(last, True, comparator), x, positions)
    limits = (*shape.sizes[:-1], op.k)
    first = Slice((0,) * shape.rank, limits, (1,) * shape.rank)
    return writer.add(Tuple(), *(writer.add(first, writer.add(GetTupleElement(i), ordered)) for i in range(2)))


def _larger_first(element_type: ElementType) -> Computation:
    """The comparator `a before b` of elements of this type, with s32 positions carried along."""
    b = Builder("larger_first")
    left, right = b.parameter(Shape(element_type), "left"), b.parameter(Shape(element_type), "right")
    b.parameter(Shape(S32), "left_position"), b.parameter(Shape(S32), "right_position")
    larger = b.emit(Compare("GT"), left, right)
    if not element_type.is_float:
        return b.build(larger)
    left_nan, right_nan = b.emit(Compare("NE"), left, left), b.emit(Compare("NE"), right, right)
    # NaN compares false with everything: before all numbers, level with other NaNs.
    return b.build(b.emit(Select(), left_nan, b.not_(right_nan), larger))


EXPANSIONS: dict[type[Op], Callable[[_Writer], Instruction]] = {
    BatchNormInference: _inference,
    BatchNormTraining: _training,
    BatchNormGrad: _gradient,
    TopK: _top_k,
}
"""How each composite op is written, by its class."""
