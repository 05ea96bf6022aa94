"""Products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.base.shape import AnyShape, Shape
from fusile.hlo.ir import Instruction, Op, op
from fusile.hlo.opset.numerics import convert
from fusile.hlo.opset.shape import array_operand, padded, require
from fusile.hlo.opset.window import ConvolutionDimensions, Window


def _accumulate(function: Any, lhs: Any, rhs: Any, result: ElementType) -> Any:
    """`function` of both operands in a type wide enough to accumulate, then rounded once to `result`."""
    wide: Any = {"c": np.complex128, "b": np.int64}.get(result.dtype.kind, np.float64)
    if result.is_integer:
        wide = np.uint64 if result.bits == 64 and result.is_unsigned else np.int64
    with np.errstate(all="ignore"):
        total = function(lhs.astype(wide), rhs.astype(wide))
    return convert(np.asarray(total), result) if not result.is_complex else total.astype(result.dtype)


@op
class Dot(Op):
    """Sums of products over the contracting dimensions (`dot_general`). The result has the batch dimensions, the
    left-hand
    side's others, then the right-hand side's others. `element_type`: the result's, when it isn't the operands'."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    element_type: ElementType | None = None

    opcode = "dot"
    arity = 2

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        a, b = (array_operand("dot", s) for s in operands)
        require(
            self.element_type is not None or a.element_type is b.element_type, f"dot of {a} and {b} needs a result type"
        )
        for left, right in ((self.lhs_batch, self.rhs_batch), (self.lhs_contracting, self.rhs_contracting)):
            require(len(left) == len(right), f"dot pairs dimensions {left} and {right}")
            require(
                all(0 <= d < a.rank for d in left) and all(0 <= d < b.rank for d in right),
                f"dot dimensions {left}, {right} of {a}, {b}",
            )
            require(
                all(a.dimensions[i] == b.dimensions[j] for i, j in zip(left, right, strict=True)),
                f"dot of {a} and {b} over {left} and {right}: sizes differ",
            )
        used_a, used_b = (*self.lhs_batch, *self.lhs_contracting), (*self.rhs_batch, *self.rhs_contracting)
        require(len(set(used_a)) == len(used_a) and len(set(used_b)) == len(used_b), "a dot dimension is named twice")
        sizes = [a.dimensions[d] for d in self.lhs_batch]
        sizes += [s for d, s in enumerate(a.dimensions) if d not in used_a] + [
            s for d, s in enumerate(b.dimensions) if d not in used_b
        ]
        return Shape(self.element_type or a.element_type, tuple(sizes))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        shape = instruction.array_shape
        return _accumulate(self._product, operands[0], operands[1], shape.element_type).reshape(shape.sizes)

    def _product(self, a: Any, b: Any) -> Any:
        a_free = [d for d in range(a.ndim) if d not in self.lhs_batch and d not in self.lhs_contracting]
        b_free = [d for d in range(b.ndim) if d not in self.rhs_batch and d not in self.rhs_contracting]
        batch = [a.shape[d] for d in self.lhs_batch]
        depth = math.prod(a.shape[d] for d in self.lhs_contracting)
        rows, columns = [a.shape[d] for d in a_free], [b.shape[d] for d in b_free]
        left = a.transpose(*self.lhs_batch, *a_free, *self.lhs_contracting).reshape(
            math.prod(batch), math.prod(rows), depth
        )
        right = b.transpose(*self.rhs_batch, *self.rhs_contracting, *b_free).reshape(
            math.prod(batch), depth, math.prod(columns)
        )
        return np.matmul(left, right).reshape((*batch, *rows, *columns))


@op
class Convolution(Op):
    """Dot products of a kernel with a window at each position (`convolution`)."""

    window: Window
    dimension_numbers: ConvolutionDimensions
    feature_group_count: int = 1
    batch_group_count: int = 1
    element_type: ElementType | None = None

    opcode = "convolution"
    arity = 2

    def infer(self, operands: Sequence[AnyShape]) -> Shape:
        a, k = (array_operand("convolution", s) for s in operands)
        numbers, groups, batch_groups = self.dimension_numbers, self.feature_group_count, self.batch_group_count
        rank = len(numbers.input_spatial)
        require(
            a.rank == k.rank == rank + 2 == self.window.rank + 2,
            f"convolution of {a} with {k} over {rank} spatial dimensions",
        )
        require(
            groups >= 1 and batch_groups >= 1 and 1 in (groups, batch_groups),
            f"convolution with {groups} feature and {batch_groups} batch groups",
        )
        require(
            self.element_type is not None or a.element_type is k.element_type,
            f"convolution of {a} and {k} needs a result type",
        )
        require(
            a.sizes[numbers.input_feature] == k.sizes[numbers.kernel_input_feature] * groups,
            f"convolution: {a} and {k} do not share their features in {groups} groups",
        )
        features = k.sizes[numbers.kernel_output_feature]
        require(
            features % (groups * batch_groups) == 0, f"{features} output features in {groups * batch_groups} groups"
        )
        require(a.sizes[numbers.input_batch] % batch_groups == 0, f"batch of {a} in {batch_groups} groups")
        require(
            all(k.sizes[d] == s for d, s in zip(numbers.kernel_spatial, self.window.size, strict=True)),
            f"window {self.window.size} is not the size of the kernel {k}",
        )
        sizes = [0] * a.rank
        sizes[numbers.output_batch], sizes[numbers.output_feature] = (
            a.sizes[numbers.input_batch] // batch_groups,
            features,
        )
        for i, d in enumerate(numbers.output_spatial):
            sizes[d] = self.window.output_size(i, a.sizes[numbers.input_spatial[i]])
        return Shape(self.element_type or a.element_type, tuple(sizes))

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Any) -> Any:
        return _accumulate(self._convolve, operands[0], operands[1], instruction.array_shape.element_type)

    def _convolve(self, a: Any, k: Any) -> Any:
        numbers, window = self.dimension_numbers, self.window
        a = a.transpose(numbers.input_batch, numbers.input_feature, *numbers.input_spatial)
        k = k.transpose(numbers.kernel_output_feature, numbers.kernel_input_feature, *numbers.kernel_spatial)
        if any(window.reversal):
            k = np.flip(k, tuple(2 + i for i, r in enumerate(window.reversal) if r))
        interior = [0, 0, *(d - 1 for d in window.base_dilation)]
        a = padded(a, 0, [0, 0, *window.padding_low], [0, 0, *window.padding_high], interior)
        groups = self.feature_group_count * self.batch_group_count
        axis = 1 if self.feature_group_count > 1 else 0
        parts = [
            _plain_convolution(x, w, window)
            for x, w in zip(np.split(a, groups, axis), np.split(k, groups, 0), strict=True)
        ]
        result = np.concatenate(parts, 1)
        order = [0] * result.ndim
        order[numbers.output_batch], order[numbers.output_feature] = 0, 1
        for i, d in enumerate(numbers.output_spatial):
            order[d] = 2 + i
        return result.transpose(order)


def _plain_convolution(a: Any, k: Any, window: Window) -> Any:
    """NC... with OI..., already padded: one product for each element of the window."""
    sizes = []
    for i, size in enumerate(a.shape[2:]):
        extent = (window.size[i] - 1) * window.window_dilation[i] + 1
        sizes.append(0 if size < extent else (size - extent) // window.stride[i] + 1)
    total = np.zeros((a.shape[0], k.shape[0], *sizes), a.dtype)
    if total.size == 0:
        return total
    for place in np.ndindex(*window.size):
        at = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(place, window.window_dilation, sizes, window.stride, strict=True)
        )
        piece = a[(slice(None), slice(None), *at)]
        total += np.moveaxis(np.tensordot(k[(slice(None), slice(None), *place)], piece, axes=(1, 1)), 0, 1)
    return total
