"""Kernels around products give what the interpreter gives: staged operands, rows that are reduced, chains of two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fusile
from fusile.base.element_type import BF16, F32, F64, S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.contraction import Dot
from fusile.hlo.opset.control import Fusion
from fusile.hlo.opset.shape import Broadcast, Transpose
from fusile.loops.ir import Alloc, For, If, Kernel, Space, Stmt
from fusile.loops.lowering import lower_fusion, staging
from fusile.loops.machine import AVX512, NEON, Machine

sys.path.insert(0, str(Path(__file__).parent))
from fused import arguments_of, check, close, fused, run_fused


def matrices(lhs: Shape, rhs: Shape, op: Dot) -> tuple[Builder, Instruction]:
    b = Builder("product")
    return b, b.emit(op, b.parameter(lhs), b.parameter(rhs))


PLAIN = Dot((), (), (1,), (0,))
BATCHED = Dot((0,), (0,), (2,), (1,))
TRANSPOSED = Dot((0,), (0,), (2,), (2,))


def rows_of(b: Builder, x: Instruction, op: str) -> Instruction:
    """A reduction of the last dimension."""
    return b.reduce_with(op, x, [x.array_shape.rank - 1])


def along_rows(b: Builder, value: Instruction, x: Instruction) -> Instruction:
    return b.emit(Broadcast(x.array_shape.sizes, tuple(range(value.array_shape.rank))), value)


def softmax(b: Builder, x: Instruction) -> Instruction:
    e = b.exponential(b.subtract(x, along_rows(b, rows_of(b, x, "maximum"), x)))
    return b.divide(e, along_rows(b, rows_of(b, e, "add"), x))


def scratch(kernel: Kernel) -> list[str]:
    """The names, without numbers, of the kernel's scratch buffers."""
    found: list[str] = []

    def walk(body: tuple[Stmt, ...]) -> None:
        for s in body:
            if isinstance(s, Alloc) and s.buffer.space is Space.SCRATCH:
                found.append(s.buffer.name.rstrip("0123456789"))
            if isinstance(s, For):
                walk(s.body)
            if isinstance(s, If):
                walk((*s.then, *s.otherwise))

    walk(kernel.body)
    return found


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("kind", [F32, F64, BF16, S32], ids=repr)
@pytest.mark.parametrize("columns", [1, 5, 33])
def test_rows_are_reduced_where_they_are_made(kind: ElementType, columns: int, machine: Machine) -> None:
    b, x = matrices(Shape(kind, (67, 9)), Shape(kind, (9, columns)), PLAIN)
    y = b.add(x, b.emit(Broadcast((67, columns), (1,)), b.parameter(Shape(kind, (columns,)))))
    total = rows_of(b, y, "add")
    module = b.module(b.tuple([b.subtract(y, along_rows(b, total, y)), total]))
    kernels = check(module, machine=machine, tolerance=2e-2 if kind is BF16 else 1e-5)
    assert columns == 1 or "made" in scratch(*kernels)


def test_a_softmax_joins_its_product() -> None:
    b, x = matrices(Shape(F32, (3, 30, 8)), Shape(F32, (3, 20, 8)), TRANSPOSED)
    (kernel,) = check(b.module(softmax(b, x)))
    assert {"made", "panels"} <= set(scratch(kernel))


def test_few_rows_stay_cut_in_columns() -> None:
    b, x = matrices(Shape(F32, (4, 9)), Shape(F32, (9, 64)), PLAIN)
    assert len(check(b.module(softmax(b, x)))) == 2


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["avx512", "neon"])
@pytest.mark.parametrize("keys, depth, width", [(10, 4, 8), (17, 3, 18), (2, 1, 3)])
@pytest.mark.parametrize("kind", [F32, BF16], ids=repr)
def test_attention_is_one_kernel(kind: ElementType, keys: int, depth: int, width: int, machine: Machine) -> None:
    b, scores = matrices(Shape(kind, (2, 35, depth)), Shape(kind, (2, keys, depth)), TRANSPOSED)
    weights = softmax(b, b.add(scores, b.parameter(Shape(kind, (2, 35, keys)))))
    values = b.parameter(Shape(kind, (2, keys, width)))
    module = b.module(b.emit(BATCHED, weights, values))
    assert len(check(module, machine=machine, tolerance=2e-2 if kind is BF16 else 1e-5)) == 1


def test_attention_over_heads_of_one_array() -> None:
    """Queries, keys and values as slices of one array of heads: index arithmetic only."""
    b = Builder("heads")
    x = b.parameter(Shape(F32, (40, 24)))
    q, k, v = (b.reshape(b.slice(x, [0, 8 * n], [40, 8 * n + 8]), (40, 2, 4)) for n in range(3))
    scores = b.emit(Dot((1,), (1,), (2,), (2,)), q, k)
    out = b.emit(Dot((0,), (1,), (2,), (0,)), softmax(b, scores), v)
    assert len(check(b.module(b.tanh(out)))) == 1


def test_weights_that_are_results_are_stored() -> None:
    b, scores = matrices(Shape(F32, (2, 35, 8)), Shape(F32, (2, 20, 8)), TRANSPOSED)
    weights = softmax(b, scores)
    out = b.emit(BATCHED, weights, b.parameter(Shape(F32, (2, 20, 6))))
    assert len(check(b.module(b.tuple([out, weights])))) == 2


def crossed() -> Module:
    """A square of rows, in which a column asks for a row's sum."""
    b = Builder("crossed")
    x = b.parameter(Shape(F32, (70, 70)))
    return b.module(b.subtract(x, b.emit(Broadcast((70, 70), (1,)), rows_of(b, x, "add"))))


def test_a_row_value_asked_for_by_other_rows_is_stored_first() -> None:
    assert len(check(crossed())) == 2


def lowered(module: Module, machine: Machine) -> Kernel:
    """The one kernel of a module too large for the loop interpreter; machine code gives what the interpreter gives."""
    arguments = arguments_of(module)
    result = fusile.compile(module.clone()).call_flat(arguments)
    assert close(result[0], interpret(module, arguments)[0])
    (fusion,) = (i for i in fused(module).entry.post_order() if isinstance(i.op, Fusion))
    return lower_fusion(fusion, "k", machine)


@pytest.mark.parametrize("machine", [AVX512, NEON], ids=["avx512", "neon"])
def test_rows_that_collide_in_the_cache_are_staged(machine: Machine) -> None:
    b, x = matrices(Shape(F32, (16, 1024)), Shape(F32, (1024, 80)), PLAIN)
    assert "rows" in scratch(lowered(b.module(x), machine))


def test_rows_that_do_not_collide_are_read_where_they_lie() -> None:
    b, x = matrices(Shape(F32, (16, 1040)), Shape(F32, (1040, 40)), PLAIN)
    assert "rows" not in scratch(lowered(b.module(x), AVX512))


def test_rows_from_a_transposed_array_are_staged() -> None:
    b = Builder("heads")
    x = b.reshape(b.emit(Transpose((1, 0, 2)), b.parameter(Shape(F32, (6, 9, 8)))), (9, 48))
    module = b.module(b.emit(PLAIN, x, b.parameter(Shape(F32, (48, 70)))))
    assert "rows" in scratch(lowered(module, AVX512))


def test_colliding_places() -> None:
    assert staging.collide([n * 1024 for n in range(14)], 4)
    assert staging.collide([n * 2048 for n in range(14)], 4)
    assert not staging.collide([n * 768 for n in range(14)], 4)
    assert not staging.collide([n * 16 for n in range(14)], 4)
    assert not staging.collide([None] * 14, 4)


def test_staged_rows_lie_an_odd_number_of_lines_apart() -> None:
    for count in (1, 16, 17, 1024, 3072):
        assert staging.row_bytes((count,), F32) // staging.LINE % 2 == 1
        assert staging.row_bytes((count,), F32) >= count * 4


def test_values_do_not_depend_on_the_machine() -> None:
    """Rows' sums differ by the number of lanes; products don't."""
    b, x = matrices(Shape(F32, (70, 9)), Shape(F32, (9, 33)), PLAIN)
    module = b.module(rows_of(b, x, "maximum"))
    arguments = arguments_of(module)
    (wide,), _ = run_fused(module, arguments, AVX512)
    (narrow,), _ = run_fused(module, arguments, NEON)
    assert close(wide, narrow, 0)
