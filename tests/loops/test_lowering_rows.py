"""Fusions across reductions give what the HLO interpreter gives; the programs of the design are one kernel each."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import BF16, C64, F16, F32, F64, PRED, S8, S32, S64, U8, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.loops.ir import For, LoopKind
from fusile.loops.lowering import rows, split_reductions
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import check

SIZES = (0, 1, 7, 33, 100)
Program = Callable[[int, int], Module]


def row(b: Builder, x: Instruction, like: Instruction) -> Instruction:
    """A value a row, repeated along the rows."""
    return b.broadcast(x, like.array_shape.sizes, range(x.array_shape.rank))


def column(b: Builder, x: Instruction, like: Instruction) -> Instruction:
    return b.broadcast(x, like.array_shape.sizes, [like.array_shape.rank - 1])


def mean(b: Builder, x: Instruction) -> Instruction:
    total = b.reduce_with("add", x, (1,))
    return b.multiply(total, b.like(1 / max(1, x.array_shape.sizes[1]), total))


def argmax(b: Builder, x: Instruction) -> Instruction:
    c = Builder("argmax")
    v, i, w, j = (c.parameter(Shape(t)) for t in (F32, S32, F32, S32))
    first = c.or_(c.compare(v, w, "GT"), c.and_(c.compare(v, w, "EQ"), c.compare(i, j, "LT")))
    pair = c.build(c.tuple([c.select(first, v, w), c.select(first, i, j)]))
    index = b.iota(Shape(S32, x.array_shape.sizes), 1)
    return b.reduce([x, index], [b.constant(-math.inf, F32), b.constant(0, S32)], (1,), pair)


def softmax(r: int, c: int) -> Module:
    b = Builder("softmax")
    x = b.parameter(Shape(F32, (r, c)))
    e = b.exponential(b.subtract(x, row(b, b.reduce_with("maximum", x, (1,)), x)))
    return b.module(b.divide(e, row(b, b.reduce_with("add", e, (1,)), e)))


def log_softmax(r: int, c: int) -> Module:
    b = Builder("log_softmax")
    x = b.parameter(Shape(F32, (r, c)))
    d = b.subtract(x, row(b, b.reduce_with("maximum", x, (1,)), x))
    return b.module(b.subtract(d, row(b, b.log(b.reduce_with("add", b.exponential(d), (1,))), d)))


def log_sum_exp(r: int, c: int) -> Module:
    b = Builder("log_sum_exp")
    x = b.parameter(Shape(F32, (r, c)))
    m = b.reduce_with("maximum", x, (1,))
    return b.module(b.add(m, b.log(b.reduce_with("add", b.exponential(b.subtract(x, row(b, m, x))), (1,)))))


def layer_norm_gelu(r: int, c: int) -> Module:
    b = Builder("layer_norm_gelu")
    x, gain, offset = b.parameter(Shape(F32, (r, c))), b.parameter(Shape(F32, (c,))), b.parameter(Shape(F32, (c,)))
    d = b.subtract(x, row(b, mean(b, x), x))
    variance = mean(b, b.multiply(d, d))
    y = b.multiply(d, row(b, b.rsqrt(b.add(variance, b.like(1e-5, variance))), d))
    y = b.add(b.multiply(y, column(b, gain, y)), column(b, offset, y))
    erf = b.erf(b.multiply(y, b.like(2**-0.5, y)))
    return b.module(b.multiply(b.multiply(y, b.like(0.5, y)), b.add(b.like(1, y), erf)))


def rms_norm(r: int, c: int) -> Module:
    b = Builder("rms_norm")
    x, gain = b.parameter(Shape(F32, (r, c))), b.parameter(Shape(F32, (c,)))
    square = mean(b, b.multiply(x, x))
    scale = b.rsqrt(b.add(square, b.like(1e-6, square)))
    return b.module(b.multiply(b.multiply(x, row(b, scale, x)), column(b, gain, x)))


def sum_and_argmax(r: int, c: int) -> Module:
    b = Builder("sum_and_argmax")
    x = b.parameter(Shape(F32, (r, c)))
    return b.module(b.add(b.reduce_with("add", x, (1,)), b.convert(b.element(argmax(b, x), 1), F32)))


def cross_entropy(r: int, c: int) -> Module:
    """The loss of every row and the gradient of the logits, labels as indices."""
    b = Builder("cross_entropy")
    x, labels = b.parameter(Shape(F32, (r, c))), b.parameter(Shape(S32, (r,)))
    d = b.subtract(x, row(b, b.reduce_with("maximum", x, (1,)), x))
    e = b.exponential(d)
    total = b.reduce_with("add", e, (1,))
    hit = b.compare(b.iota(Shape(S32, (r, c)), 1), row(b, labels, x), "EQ")
    chosen = b.reduce_with("add", b.select(hit, d, b.like(0, d)), (1,))
    gradient = b.subtract(b.divide(e, row(b, total, e)), b.select(hit, b.like(1, e), b.like(0, e)))
    return b.module(b.tuple([b.subtract(b.log(total), chosen), gradient]))


PROGRAMS: list[Program] = [
    softmax, log_softmax, log_sum_exp, layer_norm_gelu, rms_norm, sum_and_argmax, cross_entropy,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("r, c", [(3, 7), (1, 33), (5, 100), (0, 5), (4, 0), (2, 8)])
def test_row_programs_are_one_kernel(program: Program, r: int, c: int) -> None:
    kernels = check(program(r, c), machine=SSE2)
    if r and c:
        assert len(kernels) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_of_one_element(program: Program) -> None:
    check(program(5, 1), machine=SSE2)


@pytest.mark.parametrize("size", [*SIZES, 257])
@pytest.mark.parametrize("of", [F32, S32, C64, BF16, PRED])
def test_full_reductions(size: int, of: ElementType) -> None:
    b = Builder("sum")
    x = b.parameter(Shape(of, (size,)))
    opcode = "or" if of is PRED else "add"
    check(b.module(b.reduce_with(opcode, x, (0,))), tolerance=0.1 if of is BF16 else 1e-5)


def test_long_rows_are_cut_and_joined_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reductions, "PIECE", 32)
    for shape in ((257,), (3, 100), (256,)):
        b = Builder("sums")
        x = b.parameter(Shape(F32, shape))
        last = (len(shape) - 1,)
        total = b.reduce_with("add", b.exponential(x), last)
        (kernel,) = check(b.module(b.tuple([b.sqrt(total), b.reduce_with("maximum", x, last)])))
        phases = [s for s in kernel.body if isinstance(s, For)]
        assert [p.kind for p in phases] == [LoopKind.PARALLEL, LoopKind.SERIAL]


def test_tall_columns_are_cut_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_reductions, "LEAST_ELEMENTS", 64)
    for sizes, dimensions in (((100, 5), (0,)), ((9, 12, 3), (0, 1)), ((70, 2, 3), (0,))):
        b = Builder("columns")
        x = b.parameter(Shape(F32, sizes))
        total, most = b.reduce_with("add", b.multiply(x, x), dimensions), b.reduce_with("maximum", x, dimensions)
        (kernel,) = check(b.module(b.tuple([b.negate(total), most])))
        assert len([s for s in kernel.body if isinstance(s, For)]) == 2


@pytest.mark.parametrize(
    "sizes, dimensions", [((4, 5, 6), d) for d in [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2), ()]]
)
@pytest.mark.parametrize("opcode", ["add", "minimum"])
def test_reductions_over_any_dimensions(sizes: tuple[int, ...], dimensions: tuple[int, ...], opcode: str) -> None:
    for of in (F32, S32):
        b = Builder("reduce")
        x = b.parameter(Shape(of, sizes))
        check(b.module(b.reduce_with(opcode, b.add(x, x), dimensions)), machine=SSE2)


@pytest.mark.parametrize("initial", [0.0, 3.5, -2.0, math.inf, math.nan])
@pytest.mark.parametrize("opcode", ["add", "multiply", "maximum", "minimum"])
def test_initial_values_join_once(opcode: str, initial: float) -> None:
    for sizes in ((2, 9), (2, 0), (1, 1)):
        b = Builder("initial")
        x = b.parameter(Shape(F32, sizes))
        start = b.constant(initial, F32)
        check(b.module(b.reduce([x], [start], (1,), scalar_computation(opcode, F32))))


@pytest.mark.parametrize("of", [S8, U8, S32, S64, F16, BF16, F64, PRED, C64])
@pytest.mark.parametrize("opcode", ["add", "multiply", "maximum", "and", "xor"])
def test_reductions_of_every_type(of: ElementType, opcode: str) -> None:
    if (opcode in ("and", "xor") and not (of.is_integer or of.is_predicate)) or (opcode == "maximum" and of.is_complex):
        return
    b = Builder("reduce")
    x = b.parameter(Shape(of, (3, 20)))
    tolerance = 3e-2 if of.is_float and of.bits < 32 else 1e-5
    check(b.module(b.reduce_with(opcode, x, (1,))), tolerance=tolerance)


def test_argmax_finds_the_first_of_equals_and_of_nans() -> None:
    b = Builder("argmax")
    x = b.parameter(Shape(F32, (4, 40)))
    module = b.module(argmax(b, x))
    given = np.zeros((4, 40), np.float32)
    given[1, [3, 30]] = 5
    given[2, :] = -np.inf
    given[3, 39] = np.inf
    check(module, [given])


def test_a_reduction_of_two_arrays_with_its_own_combiner() -> None:
    """Sum and sum of products together, a combiner that is no single op."""
    b = Builder("moments")
    x, y = b.parameter(Shape(F32, (3, 25))), b.parameter(Shape(F32, (3, 25)))
    c = Builder("both")
    p, q, s, t = (c.parameter(Shape(F32)) for _ in range(4))
    computation = c.build(c.tuple([c.add(p, s), c.add(q, t)]))
    zero = b.constant(0.0, F32)
    check(b.module(b.reduce([x, b.multiply(x, y)], [zero, zero], (1,), computation)))


def complex_product() -> Computation:
    c = Builder("product")
    x, y = c.parameter(Shape(C64)), c.parameter(Shape(C64))
    return c.build(c.multiply(x, y))


def test_products_of_complex_numbers() -> None:
    b = Builder("product")
    x = b.parameter(Shape(C64, (3, 11)))
    check(b.module(b.reduce([x], [b.constant(1 + 2j, C64)], (1,), complex_product())))


def test_several_roots_of_different_shapes() -> None:
    b = Builder("roots")
    x = b.parameter(Shape(F32, (5, 17)))
    e = b.exponential(x)
    total = b.reduce_with("add", e, (1,))
    kernels = check(b.module(b.tuple([e, total, b.divide(e, row(b, total, e)), b.convert(e, S32)])))
    assert len(kernels) == 1


def test_rows_reduced_at_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group and instance norms: inner dimensions with others between them, and sums of several dimensions."""
    for dimensions in ((0, 2, 3), (1, 3), (2, 3)):
        b = Builder("norm")
        x = b.parameter(Shape(F32, (3, 2, 5, 7)))
        kept = [d for d in range(4) if d not in dimensions]
        total = b.reduce_with("add", x, dimensions)
        check(b.module(b.subtract(x, b.broadcast(total, (3, 2, 5, 7), kept))))


def test_tasks_do_rows_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "TASK_ELEMENTS", 30)
    for r, c in ((7, 9), (3, 100), (20, 2)):
        check(softmax(r, c))
        check(rms_norm(r, c))
    b = Builder("map")
    x = b.parameter(Shape(F32, (3, 200)))
    check(b.module(b.negate(x)))


def test_narrow_sums_accumulate_in_single_precision() -> None:
    """256 ones more than bf16 can count up to."""
    b = Builder("sum")
    x = b.parameter(Shape(BF16, (1024,)))
    check(b.module(b.reduce_with("add", x, (0,))), [np.ones(1024, BF16.dtype)], tolerance=1e-6)
