"""Every op class in a fusion gives what the HLO interpreter gives, at odd sizes and with odd attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import (
    BF16,
    C64,
    C128,
    F16,
    F32,
    F64,
    PRED,
    S8,
    S16,
    S32,
    S64,
    U8,
    U32,
    U64,
    ElementType,
)
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import OPS, Instruction
from fusile.hlo.opset.contraction import Convolution
from fusile.hlo.opset.elementwise import Elementwise, ReducePrecision
from fusile.hlo.opset.reduction import ReduceWindow
from fusile.hlo.opset.shape import Gather
from fusile.hlo.opset.window import ConvolutionDimensions, Window
from fusile.loops.lowering.complex_numbers import complex_value
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check

Make = Callable[[Builder, Instruction], Instruction]


def check_op(make: Make, *sizes: int, of: ElementType = F32, tolerance: float = 1e-5, after: bool = True) -> None:
    """Checks `make(x)` for a parameter x, alone and between other ops."""
    b = Builder("alone")
    check(b.module(make(b, b.parameter(Shape(of, sizes)))), tolerance=tolerance, machine=SSE2)
    if not after or of.is_predicate:
        return
    b = Builder("between")
    x = b.parameter(Shape(of, sizes))
    y = make(b, b.add(x, x))
    kind = y.array_shape.element_type
    check(
        b.module(b.negate(y) if not kind.is_unsigned and not kind.is_predicate else y),
        tolerance=tolerance,
        machine=SSE2,
    )


ELEMENTWISE = [cls for cls in OPS.values() if issubclass(cls, Elementwise)]
TYPES = (PRED, S8, S32, U8, U64, BF16, F32, F64, C64)


@pytest.mark.parametrize("cls", ELEMENTWISE, ids=lambda cls: cls.opcode)
def test_elementwise_ops_of_all_types(cls: type[Elementwise]) -> None:
    op = cls()
    for of in TYPES:
        if of.kind not in cls.kinds or (op.opcode == "complex" and of not in (F32, F64)):
            continue
        if of.is_complex and op.opcode not in COMPLEX_OPS:
            continue
        b = Builder(op.opcode)
        operands = [b.parameter(Shape(of, (3, 7))) for _ in range(op.arity or 1)]
        module = b.module(b.emit(op, *operands))
        tolerance = {BF16: 2e-2, F64: 1e-9}.get(of, 1e-5)
        check(module, tolerance=tolerance)


def _complex_ops() -> list[str]:
    """Ops of complex numbers that have code."""
    from fusile.loops.lowering.complex_functions import FUNCTIONS
    from fusile.loops.lowering.complex_numbers import _ARITHMETIC

    return [cls.opcode for cls in (*_ARITHMETIC, *FUNCTIONS)]  # type: ignore[attr-defined]


COMPLEX_OPS = _complex_ops()
assert complex_value


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (7,), (33,), (100,), (3, 0, 2), (1, 1), (5, 1, 3), (2, 33), (33, 2)])
def test_sizes(sizes: tuple[int, ...]) -> None:
    check_op(lambda b, x: b.multiply(b.abs(x), b.like(3, x)), *sizes)


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("target", TYPES)
def test_convert(source: ElementType, target: ElementType) -> None:
    b = Builder("convert")
    check(b.module(b.convert(b.parameter(Shape(source, (2, 9))), target)))


BITCASTS: list[tuple[ElementType, ElementType, tuple[int, ...]]] = [
    (F32, S32, (3, 5)), (F32, U8, (3, 4)), (U8, F32, (3, 4)), (S16, S64, (2, 4)), (F64, F32, (5,)), (S8, U8, (7,)),
    (F16, BF16, (9,)), (U32, F64, (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("source, target, sizes", BITCASTS)
def test_bitcast_convert(source: ElementType, target: ElementType, sizes: tuple[int, ...]) -> None:
    b = Builder("bitcast")
    check(b.module(b.bitcast_convert(b.parameter(Shape(source, sizes)), target)))


@pytest.mark.parametrize("total_order", [False, True])
@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("of", [F32, F64, BF16])
def test_comparisons_of_special_values(direction: str, total_order: bool, of: ElementType) -> None:
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 1e-40], of.dtype)
    a, c = np.meshgrid(values, values)
    b = Builder("compare")
    x, y = b.parameter(Shape(of, a.shape)), b.parameter(Shape(of, a.shape))
    check(b.module(b.compare(x, y, direction, total_order)), [a, c])


@pytest.mark.parametrize("widths", [(5, 10), (8, 7), (8, 23), (4, 3), (11, 52), (8, 0), (2, 5)])
@pytest.mark.parametrize("of", [F32, F64, BF16])
def test_reduce_precision(widths: tuple[int, int], of: ElementType) -> None:
    b = Builder("reduce_precision")
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1 / 3, 65519.0, 1e-6, 3e38, 1e-40, -2.71], of.dtype)
    check(b.module(b.emit(ReducePrecision(*widths), b.parameter(Shape(of, x.shape)))), [x])


def test_select_and_clamp_take_scalars() -> None:
    b = Builder("scalars")
    p, x, y, low = (
        b.parameter(Shape(PRED)),
        b.parameter(Shape(F32, (3, 5))),
        b.parameter(Shape(F32, (3, 5))),
        b.parameter(Shape(F32)),
    )
    check(b.module(b.select(p, b.clamp(low, x, b.constant(1.0, F32)), y)))


def _first(b: Builder, x: Instruction) -> Instruction:
    """Element 0 as an s32."""
    return b.convert(b.reshape(b.slice(x, (0, 0), (1, 1)), ()), S32)


SHAPES: dict[str, tuple[tuple[int, ...], Make]] = {
    "broadcast_rows": ((4,), lambda b, x: b.broadcast(x, (4, 7), (0,))),
    "broadcast_columns": ((7,), lambda b, x: b.broadcast(x, (3, 7), (1,))),
    "broadcast_middle": ((3, 5), lambda b, x: b.broadcast(x, (2, 3, 4, 5), (1, 3))),
    "broadcast_to_nothing": ((3,), lambda b, x: b.broadcast(x, (0, 3), (1,))),
    "reshape_merge": ((2, 3, 5), lambda b, x: b.reshape(x, (6, 5))),
    "reshape_split": ((6, 5), lambda b, x: b.reshape(x, (2, 3, 5))),
    "reshape_mixed": ((4, 9), lambda b, x: b.reshape(x, (6, 6))),
    "reshape_ones": ((4, 1, 3, 1), lambda b, x: b.reshape(x, (1, 4, 3))),
    "reshape_to_scalar": ((1, 1), lambda b, x: b.reshape(x, ())),
    "reshape_of_transpose": ((4, 6), lambda b, x: b.reshape(b.transpose(x, (1, 0)), (3, 8))),
    "transpose": ((5, 7), lambda b, x: b.transpose(x, (1, 0))),
    "transpose_wide": ((20, 33), lambda b, x: b.transpose(x, (1, 0))),
    "transpose_inner": ((2, 3, 4, 5), lambda b, x: b.transpose(x, (0, 2, 1, 3))),
    "transpose_outer": ((2, 3, 4, 5), lambda b, x: b.transpose(x, (3, 1, 0, 2))),
    "slice": ((6, 9), lambda b, x: b.slice(x, (1, 2), (5, 9), (1, 3))),
    "slice_to_nothing": ((6, 9), lambda b, x: b.slice(x, (3, 2), (3, 9))),
    "pad": ((3, 4), lambda b, x: b.pad(x, b.constant(7.5, F32), (1, 2), (2, 0))),
    "pad_negative": ((5, 6), lambda b, x: b.pad(x, b.constant(7.5, F32), (-1, 2), (-2, -3))),
    "pad_interior": ((3, 4), lambda b, x: b.pad(x, b.constant(7.5, F32), (1, -1), (0, 2), (2, 1))),
    "pad_interior_negative": ((4, 4), lambda b, x: b.pad(x, b.constant(7.5, F32), (-3, -2), (-2, 3), (1, 2))),
    "pad_nothing": ((0, 3), lambda b, x: b.pad(x, b.constant(7.5, F32), (1, 0), (2, 1))),
    "concatenate": ((3, 4), lambda b, x: b.concatenate([x, b.negate(x), x], 1)),
    "concatenate_rows": ((3, 4), lambda b, x: b.concatenate([x, b.slice(x, (0, 0), (0, 4)), b.exponential(x)], 0)),
    "reverse": ((3, 9), lambda b, x: b.reverse(x, (1,))),
    "reverse_all": ((3, 9), lambda b, x: b.reverse(x, (0, 1))),
    "iota": ((3, 9), lambda b, x: b.add(x, b.iota(Shape(F32, (3, 9)), 0))),
    "dynamic_slice_clamped": ((5, 6), lambda b, x: b.dynamic_slice(x, [b.constant(-3, S32), _first(b, x)], (2, 4))),
    "dynamic_update_slice": (
        (5, 6),
        lambda b, x: b.dynamic_update_slice(x, b.slice(x, (0, 0), (2, 3)), [b.constant(9, S32), b.constant(1, S32)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_ops_that_move_elements(name: str) -> None:
    sizes, make = SHAPES[name]
    check_op(make, *sizes)
    if "constant(7.5" not in name and not name.startswith(("pad", "iota", "dynamic", "concatenate_rows")):
        check_op(make, *sizes, of=S8)
        check_op(make, *sizes, of=C64, after=False)


@pytest.mark.parametrize("of", [S8, S32, U64])
@pytest.mark.parametrize("batching", [False, True])
def test_gather_moves_indices_inside(of: ElementType, batching: bool) -> None:
    b = Builder("gather")
    if batching:
        x, i = b.parameter(Shape(F32, (4, 6, 5))), b.parameter(Shape(of, (3, 4, 1)))
        op = Gather((2,), (1,), (0,), (1,), (1,), 2, (1, 1, 5))
    else:
        x, i = b.parameter(Shape(F32, (4, 6, 5))), b.parameter(Shape(of, (2, 3, 2)))
        op = Gather((0, 2), (0,), (), (), (0, 2), 2, (1, 6, 2))
    module = b.module(b.emit(op, x, i))
    given = arguments_of(module)
    random = np.random.default_rng(1)
    given[1] = random.integers(0 if of.is_unsigned else -5, 12, i.array_shape.sizes).astype(of.dtype)
    given[1].flat[0] = np.iinfo(of.dtype).max
    given[1].flat[1] = np.iinfo(of.dtype).min
    check(module, given)


def test_gather_of_scalars_without_index_vectors() -> None:
    b = Builder("take")
    x, i = b.parameter(Shape(F32, (7,))), b.parameter(Shape(S32, (3, 5)))
    check(b.module(b.emit(Gather((), (0,), (), (), (0,), 2, (1,)), x, i)))


WINDOWS = {
    "pooling": Window((1, 2, 2, 1), (1, 2, 2, 1)),
    "same_padding": Window((1, 3, 3, 1), (1, 1, 1, 1), (0, 1, 1, 0), (0, 1, 1, 0)),
    "dilated": Window((1, 2, 3, 1), (1, 1, 2, 1), (0, 1, 0, 0), (0, 2, 1, 0), (1, 2, 1, 1), (1, 2, 1, 1)),
    "cumulative": Window((1, 5, 1, 1), (1, 1, 1, 1), (0, 4, 0, 0), (0, 0, 0, 0)),
    "cropped": Window((1, 2, 2, 1), (1, 1, 1, 1), (0, -1, 0, 0), (0, 0, -2, 0)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("opcode", ["add", "maximum"])
def test_reduce_window(name: str, opcode: str) -> None:
    for of in (F32, S32):
        b = Builder("window")
        x = b.parameter(Shape(of, (2, 5, 6, 3)))
        initial = b.constant(0 if opcode == "add" else -100, of)
        check(b.module(b.emit(ReduceWindow(WINDOWS[name], scalar_computation(opcode, of)), x, initial)))


@pytest.mark.parametrize("of", [F32, C64, C128, PRED, S32, BF16])
def test_products_inside_a_kernel(of: ElementType) -> None:
    b = Builder("dot")
    x, y = b.parameter(Shape(of, (2, 3, 5))), b.parameter(Shape(of, (2, 5, 4)))
    check(b.module(b.dot(x, y, (0,), (0,), (2,), (1,))), tolerance=2e-2 if of is BF16 else 1e-5)


@pytest.mark.parametrize("of", [F32, C64])
@pytest.mark.parametrize("groups", [1, 2, 32])
def test_convolutions(of: ElementType, groups: int) -> None:
    b = Builder("convolution")
    features = max(groups, 2)
    numbers = ConvolutionDimensions(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    x = b.parameter(Shape(of, (1, 4, 5, features)))
    w = b.parameter(Shape(of, (2, 3, features // groups, 32 if groups > 1 else 9)))
    check(b.module(b.emit(Convolution(Window((2, 3), (1, 2)), numbers, groups), x, w)))


def test_large_constants_are_operands_and_small_ones_inside() -> None:
    b = Builder("constants")
    x = b.parameter(Shape(F32, (3, 4)))
    (kernel,) = check(
        b.module(b.add(b.multiply(x, b.like(2, x)), b.constant(np.arange(12, dtype=np.float32).reshape(3, 4))))
    )
    assert len(kernel.parameters) == 3
