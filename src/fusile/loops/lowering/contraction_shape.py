"""What a contraction computes, whether it came from a Dot or a Convolution: four groups of dimensions and index maps.

`output[batch, row, column] = sum over depth of lhs[batch, row, column, depth] * rhs[batch, column, depth]`

Rows are what only the left-hand side has, columns what the right-hand side has and lanes run along. A depthwise
convolution's channels are columns too: there the left-hand side depends on the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusile.base.element_type import S64
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.loops.ir import Apply, Const, Expr, const

Coordinates = Sequence[Expr]
IndexMap = Callable[[Coordinates, Coordinates, Coordinates, Coordinates], tuple[Expr, ...]]
"""(batch, row, column, depth coordinates) -> indices into an array."""


@dataclass(frozen=True)
class ContractionShape:
    """Sizes of the four groups of dimensions, and where the three arrays have the element of given coordinates."""

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    lhs: IndexMap
    rhs: IndexMap
    output: IndexMap

    @property
    def row_count(self) -> int:
        return math.prod(self.rows)

    @property
    def column_count(self) -> int:
        return math.prod(self.columns)

    @property
    def depth_count(self) -> int:
        return math.prod(self.depth)


def contraction_shape(instruction: Instruction) -> ContractionShape:
    """The contraction that a Dot or a Convolution (no padding, no base dilation, no reversal) computes."""
    if isinstance(instruction.op, Dot):
        return _of_dot(instruction, instruction.op)
    assert isinstance(instruction.op, Convolution)
    return _of_convolution(instruction, instruction.op)


def _of_dot(instruction: Instruction, op: Dot) -> ContractionShape:
    lhs, rhs = (o.array_shape.sizes for o in instruction.operands)
    lhs_free = [d for d in range(len(lhs)) if d not in op.lhs_batch and d not in op.lhs_contracting]
    rhs_free = [d for d in range(len(rhs)) if d not in op.rhs_batch and d not in op.rhs_contracting]

    def placed(rank: int, *groups: tuple[Sequence[int], Coordinates]) -> tuple[Expr, ...]:
        found: dict[int, Expr] = {}
        for dimensions, coordinates in groups:
            found.update(zip(dimensions, coordinates, strict=True))
        return tuple(found[d] for d in range(rank))

    return ContractionShape(
        batch=tuple(lhs[d] for d in op.lhs_batch),
        rows=tuple(lhs[d] for d in lhs_free),
        columns=tuple(rhs[d] for d in rhs_free),
        depth=tuple(lhs[d] for d in op.lhs_contracting),
        lhs=lambda b, m, n, k: placed(len(lhs), (op.lhs_batch, b), (lhs_free, m), (op.lhs_contracting, k)),
        rhs=lambda b, m, n, k: placed(len(rhs), (op.rhs_batch, b), (rhs_free, n), (op.rhs_contracting, k)),
        output=lambda b, m, n, k: (*b, *m, *n),
    )


def _of_convolution(instruction: Instruction, op: Convolution) -> ContractionShape:
    lhs, rhs = (o.array_shape.sizes for o in instruction.operands)
    output = instruction.array_shape.sizes
    numbers, window = op.dimension_numbers, op.window
    feature_groups, batch_groups = op.feature_group_count, op.batch_group_count
    groups = feature_groups * batch_groups
    depth_features, out_features = rhs[numbers.kernel_input_feature], rhs[numbers.kernel_output_feature]
    group_columns = out_features // groups
    group_batch = lhs[numbers.input_batch] // batch_groups
    wide = groups == 1 or group_columns >= 16
    """Narrow groups (depthwise) run their lanes across groups."""

    def group(b: Coordinates, n: Coordinates) -> Expr:
        if groups == 1:
            return const(0)
        return b[0] if wide else floor_divide(n[0], group_columns)

    def lhs_index(b: Coordinates, m: Coordinates, n: Coordinates, k: Coordinates) -> tuple[Expr, ...]:
        index: list[Expr] = [const(0)] * len(lhs)
        g = group(b, n)
        index[numbers.input_batch] = add(m[0], multiply(g, group_batch)) if batch_groups > 1 else m[0]
        index[numbers.input_feature] = add(multiply(g, depth_features), k[-1]) if feature_groups > 1 else k[-1]
        for i, d in enumerate(numbers.input_spatial):
            index[d] = add(multiply(m[1 + i], window.stride[i]), multiply(k[i], window.window_dilation[i]))
        return tuple(index)

    def out_feature(b: Coordinates, n: Coordinates) -> Expr:
        return add(multiply(b[0], group_columns), n[0]) if groups > 1 and wide else n[0]

    def rhs_index(b: Coordinates, m: Coordinates, n: Coordinates, k: Coordinates) -> tuple[Expr, ...]:
        index: list[Expr] = [const(0)] * len(rhs)
        index[numbers.kernel_input_feature] = k[-1]
        index[numbers.kernel_output_feature] = out_feature(b, n)
        for i, d in enumerate(numbers.kernel_spatial):
            index[d] = k[i]
        return tuple(index)

    def output_index(b: Coordinates, m: Coordinates, n: Coordinates, k: Coordinates) -> tuple[Expr, ...]:
        index: list[Expr] = [const(0)] * len(output)
        index[numbers.output_batch], index[numbers.output_feature] = m[0], out_feature(b, n)
        for i, d in enumerate(numbers.output_spatial):
            index[d] = m[1 + i]
        return tuple(index)

    return ContractionShape(
        batch=(groups,) if groups > 1 and wide else (),
        rows=(group_batch, *(output[d] for d in numbers.output_spatial)),
        columns=(group_columns if wide else out_features,),
        depth=(*(rhs[d] for d in numbers.kernel_spatial), depth_features),
        lhs=lhs_index,
        rhs=rhs_index,
        output=output_index,
    )


def add(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and a.value == 0:
        return b
    return a if isinstance(b, Const) and b.value == 0 else Apply("add", (a, b), S64)


def multiply(a: Expr, factor: int) -> Expr:
    if isinstance(a, Const):
        return const(int(a.value) * factor)
    return a if factor == 1 else Apply("multiply", (a, const(factor)), S64)


def floor_divide(a: Expr, divisor: int) -> Expr:
    return a if divisor == 1 else Apply("floor_divide", (a, const(divisor)), S64)
