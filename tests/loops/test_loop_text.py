"""Kernels as text."""

import math

from fusile.base.element_type import F32, PRED, S32, S64
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Space,
    Store,
    Var,
    While,
    compare,
    const,
    select,
)
from fusile.loops.text import print_expr, print_kernel

i, j = Var("i"), Var("j")


def test_a_kernel_reads_like_the_design():
    x, y, m = Buffer("x", F32, (8, 100)), Buffer("y", F32, (8, 100)), Buffer("m", F32, (), Space.REGISTER)
    lane, total = Var("lane"), Var("total", F32)
    at = Apply("add", (Apply("multiply", (j, const(8)), S64), lane), S64)
    peak = Accumulate(((m, ()),), (Load(x, (i, at)),), Combiner.of("maximum", F32), (const(-math.inf, F32),))
    rest = Apply("subtract", (const(100), Apply("multiply", (j, const(8)), S64)), S64)
    body = (
        Alloc(m),
        Store(m, (), const(-math.inf, F32)),
        For(j, const(13), (For(lane, const(8), (peak,), LoopKind.VECTOR, rest),)),
        Let(total, Load(m, ())),
        If(compare("gt", total, const(0.0, F32)), (Store(y, (i, const(0)), total),), (Store(y, (i, const(1)), total),)),
        While(compare("lt", Load(m, ()), const(1.0, F32)), (Store(m, (), const(2.0, F32)),)),
    )
    kernel = Kernel("peak.1", (x, y), (y,), (For(i, const(8), body, LoopKind.PARALLEL),), notes={"fuses": "reduce"})
    assert (
        print_kernel(kernel)
        == """\
kernel peak.1(x: f32[8,100]) -> (y: f32[8,100])  # fuses: reduce
  parallel i in 8:
    alloc m: f32[] register
    m[] = f32(-inf)
    serial j in 13:
      vector lane in 8 (active 100 - j * 8):
        m[] maximum= x[i, j * 8 + lane] (from f32(-inf))
    total = m[]
    if total > f32(0.0):
      y[i, 0] = total
    else:
      y[i, 1] = total
    while m[] < f32(1.0):
      m[] = f32(2.0)
"""
    )


def test_operators_keep_their_grouping():
    a, b, c = Var("a"), Var("b"), Var("c")

    def add(x, y):
        return Apply("add", (x, y), S64)

    def subtract(x, y):
        return Apply("subtract", (x, y), S64)

    assert print_expr(Apply("multiply", (add(a, b), c), S64)) == "(a + b) * c"
    assert print_expr(add(Apply("multiply", (a, b), S64), c)) == "a * b + c"
    assert print_expr(subtract(a, subtract(b, c))) == "a - (b - c)"
    assert print_expr(subtract(subtract(a, b), c)) == "a - b - c"
    assert print_expr(Apply("convert", (add(a, b),), F32)) == "f32(a + b)"
    assert print_expr(Apply("bitcast", (Var("f", F32),), S32)) == "s32.bits(f)"
    assert print_expr(select(const(True, PRED), a, b)) == "select(true, a, b)"


def test_combiners_of_several_values_are_spelled_out():
    m, p = Buffer("m", F32, ()), Buffer("p", S32, ())
    a, q, b, r = Var("a", F32), Var("q", S32), Var("b", F32), Var("r", S32)
    better = compare("ge", a, b)
    combiner = Combiner((a, q), (b, r), (select(better, a, b), select(better, q, r)))
    step = Accumulate(((m, ()), (p, ())), (const(1.0, F32), const(2, S32)), combiner, (const(0.0, F32), const(-1, S32)))
    text = print_kernel(Kernel("k", (m, p), (m, p), (step,), no_alias=False))
    assert "# may alias" in text
    assert "m[], p[] [a, q, b, r -> select(a >= b, a, b), select(a >= b, q, r)]= f32(1.0), s32(2)" in text
