"""Small programs that the compiler's tests share."""

from __future__ import annotations

import math

from fusile.base.element_type import F32, S32, ElementType
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction, Module


def shape(*sizes: int, of: ElementType = F32) -> Shape:
    return Shape(of, sizes)


def rows(b: Builder, x: Instruction, like: Instruction) -> Instruction:
    return b.broadcast(x, like.array_shape.sizes, range(x.array_shape.rank))


def columns(b: Builder, x: Instruction, like: Instruction) -> Instruction:
    return b.broadcast(x, like.array_shape.sizes, [like.array_shape.rank - 1])


def sum_of_squares(size: int) -> Module:
    b = Builder("sum_of_squares")
    x = b.parameter(shape(size), "x")
    return b.module(b.reduce_with("add", b.add(b.multiply(x, x), b.like(1, x)), (0,)))


def argmax_pair(b: Builder, x: Instruction) -> Instruction:
    """The index of each row's maximum, as s32."""
    c = Builder("argmax")
    v, i, w, j = (c.parameter(Shape(t)) for t in (F32, S32, F32, S32))
    first = c.or_(c.compare(v, w, "GT"), c.and_(c.compare(v, w, "EQ"), c.compare(i, j, "LT")))
    pair = c.build(c.tuple([c.select(first, v, w), c.select(first, i, j)]))
    index = b.iota(Shape(S32, x.array_shape.sizes), 1)
    return b.element(b.reduce([x, index], [b.constant(-math.inf, F32), b.constant(0, S32)], (1,), pair), 1)


def sum_and_argmax(r: int, c: int) -> Module:
    b = Builder("sum_and_argmax")
    x = b.parameter(shape(r, c), "x")
    return b.module(b.add(b.reduce_with("add", x, (1,)), b.convert(argmax_pair(b, x), F32)))


def softmax(r: int, c: int) -> Module:
    b = Builder("softmax")
    x = b.parameter(shape(r, c), "x")
    e = b.exponential(b.subtract(x, rows(b, b.reduce_with("maximum", x, (1,)), x)))
    return b.module(b.divide(e, rows(b, b.reduce_with("add", e, (1,)), e)))


def log_sum_exp(r: int, c: int) -> Module:
    b = Builder("log_sum_exp")
    x = b.parameter(shape(r, c), "x")
    m = b.reduce_with("maximum", x, (1,))
    s = b.reduce_with("add", b.exponential(b.subtract(x, rows(b, m, x))), (1,))
    return b.module(b.add(b.log(s), m))


def layer_norm_gelu(r: int, c: int) -> Module:
    b = Builder("layer_norm_gelu")
    x, g, o = b.parameter(shape(r, c), "x"), b.parameter(shape(c), "gain"), b.parameter(shape(c), "offset")
    mean = b.reduce_with("add", x, (1,))
    mean = b.multiply(mean, b.like(1 / c, mean))
    d = b.subtract(x, rows(b, mean, x))
    variance = b.reduce_with("add", b.multiply(d, d), (1,))
    scale = b.rsqrt(b.add(b.multiply(variance, b.like(1 / c, variance)), b.like(1e-5, variance)))
    y = b.add(b.multiply(b.multiply(d, rows(b, scale, d)), columns(b, g, d)), columns(b, o, d))
    half = b.multiply(y, b.like(0.5, y))
    return b.module(b.multiply(half, b.add(b.like(1, y), b.erf(b.multiply(y, b.like(2**-0.5, y))))))


def dense(m: int, n: int, k: int, of: ElementType = F32) -> Module:
    b = Builder("dense")
    x, w, bias = (
        b.parameter(shape(m, k, of=of), "x"),
        b.parameter(shape(k, n, of=of), "w"),
        b.parameter(shape(n, of=of), "bias"),
    )
    y = b.add(b.dot(x, w), b.broadcast(bias, (m, n), (1,)))
    return b.module(b.maximum(y, b.like(0, y)))


def column_sums(r: int, c: int) -> Module:
    b = Builder("column_sums")
    x = b.parameter(shape(r, c), "x")
    return b.module(b.tuple([b.reduce_with("add", x, (0,)), b.reduce_with("maximum", b.multiply(x, x), (0,))]))


def counted_loop(times: int, size: int) -> Module:
    """x = x * 1.5 + i, `times` times, the two halves of the state swapped each turn."""
    b = Builder("counted_loop")
    x, y = b.parameter(shape(size), "x"), b.parameter(shape(size), "y")
    state = [Shape(S32), shape(size), shape(size)]
    test, body = Builder("test"), Builder("body")
    i, *_ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(times, S32), "LT"))
    i, p, q = (body.parameter(s) for s in state)
    step = body.add(body.multiply(p, body.like(1.5, p)), body.broadcast(body.convert(i, F32), (size,), ()))
    loop = body.build(body.tuple([body.add(i, body.constant(1, S32)), q, step]))
    _, p, q = b.while_loop(condition, loop, [b.constant(0, S32), x, y])
    return b.module(b.tuple([p, q]))
