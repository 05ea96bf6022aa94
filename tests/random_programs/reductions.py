"""Reductions, windows, sorts."""

from __future__ import annotations

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, neutral, scalar_computation
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.other import TopK
from fusile.hlo.opset.reduction import ReduceWindow, SelectAndScatter
from fusile.hlo.opset.window import Window
from random_programs.generator import Generator, family


def combiner(g: Generator, x: Instruction) -> tuple[str, Instruction] | None:
    """A combining op for x's elements, and x made fit for it."""
    kind = x.array_shape.element_type
    if kind.is_predicate:
        return g.pick(("and", "or")), x
    if kind.is_integer:
        return g.pick(("add", "multiply", "maximum", "minimum", "and", "or", "xor")), x
    if kind.is_complex:
        return None
    name = g.pick(("maximum", "minimum", "add", "add"))
    if name == "add":
        return None if g.exact_only or g.rough(x) > 1 else ("add", g.small(x))
    return name, x


def start(g: Generator, name: str, x: Instruction) -> Instruction:
    """The neutral element or another."""
    kind = x.array_shape.element_type
    value = neutral(name, kind)
    if g.chance(0.3):
        value = g.pick((0.0, 1.0, -2.5)) if kind.is_float and name == "add" else g.edge(kind)
    return g.b.constant(value, kind)


@family(6)
def reduce(g: Generator) -> Instruction | None:
    x = g.value()
    made = None if x is None else combiner(g, x)
    if made is None:
        return None
    name, x = made
    dimensions = g.some(range(x.array_shape.rank))
    return g.b.reduce([x], [start(g, name, x)], dimensions, scalar_computation(name, x.array_shape.element_type))


@family(2)
def arg_reduce(g: Generator) -> Instruction | None:
    """The largest or smallest element and where it is; one of the two."""
    x = g.value(lambda s: s.rank > 0 and not s.element_type.is_complex and not s.element_type.is_predicate, rough=False)
    if x is None:
        return None
    kind, largest = x.array_shape.element_type, g.chance(0.5)
    x = g.numbers(x)
    c = Builder("arg")
    v, i, w, j = (c.parameter(Shape(t)) for t in (kind, e.S32, kind, e.S32))
    first = c.or_(c.compare(v, w, "GT" if largest else "LT"), c.and_(c.compare(v, w, "EQ"), c.compare(i, j, "LT")))
    pair = c.build(c.tuple([c.select(first, v, w), c.select(first, i, j)]))
    at = g.b.iota(Shape(e.S32, x.array_shape.sizes), g.integer(0, x.array_shape.rank - 1))
    begin = [g.b.constant(neutral("maximum" if largest else "minimum", kind), kind), g.b.constant(2**31 - 1, e.S32)]
    return g.b.element(g.b.reduce([x, at], begin, g.some(range(x.array_shape.rank), 0.7), pair), g.integer(0, 1))


def window_of(g: Generator, sizes: tuple[int, ...]) -> Window:
    rank = range(len(sizes))
    return Window(
        size=tuple(g.integer(1, 3) for _ in rank),
        stride=tuple(g.integer(1, 2) for _ in rank),
        padding_low=tuple(g.pick((0, 1, 2, -1)) for _ in rank),
        padding_high=tuple(g.pick((0, 1, 2, -1)) for _ in rank),
        base_dilation=tuple(g.pick((1, 1, 2)) for _ in rank),
        window_dilation=tuple(g.pick((1, 1, 2)) for _ in rank),
    )


@family(3)
def reduce_window(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0)
    made = None if x is None else combiner(g, x)
    if made is None:
        return None
    name, x = made
    op = ReduceWindow(window_of(g, x.array_shape.sizes), scalar_computation(name, x.array_shape.element_type))
    # StableHLO puts the initial value into the padding, XLA leaves the padding out: the same for neutral elements and
    # for functions that take a value twice as once.
    kind = x.array_shape.element_type
    once = name in ("maximum", "minimum", "and", "or")
    return g.b.emit(op, x, start(g, name, x) if once else g.b.constant(neutral(name, kind), kind))


@family(1)
def select_and_scatter(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0 and s.element_type in (e.F32, e.S32, e.F64), rough=False)
    if x is None or (x.array_shape.element_type.is_float and g.exact_only):
        return None
    kind, sizes = x.array_shape.element_type, x.array_shape.sizes
    window = Window(size=tuple(g.integer(1, 3) for _ in sizes), stride=tuple(g.integer(1, 3) for _ in sizes))
    out = tuple(window.output_size(d, s) for d, s in enumerate(sizes))
    c = Builder("select")
    a, b = c.parameter(Shape(kind)), c.parameter(Shape(kind))
    choose = c.build(c.compare(a, b, g.pick(("GE", "LE"))))
    source = g.small(g.of(Shape(kind, out), rough=False))
    op = SelectAndScatter(window, choose, scalar_computation("add", kind))
    return g.b.emit(op, g.numbers(x), source, g.b.constant(0, kind))


def order(g: Generator, kinds: list) -> Computation:
    """A strict order of the first pair."""
    c = Builder("order")
    pairs = [(c.parameter(Shape(k)), c.parameter(Shape(k))) for k in kinds]
    return c.build(c.compare(*pairs[0], g.pick(("LT", "GT")), kinds[0].is_float))


@family(3)
def sort(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0 and not s.element_type.is_complex and not s.element_type.is_predicate, rough=False)
    if x is None:
        return None
    x = g.numbers(x)
    dimension = g.integer(0, x.array_shape.rank - 1)
    keys = [x]
    if g.chance(0.5):
        keys.append(g.b.iota(Shape(e.S32, x.array_shape.sizes), dimension))
    if g.chance(0.2):
        keys.append(g.of(x.array_shape, rough=False))
    made = g.b.sort(keys, dimension, order(g, [k.array_shape.element_type for k in keys]))
    return made if len(keys) == 1 else g.b.element(made, g.integer(0, len(keys) - 1))


@family(1)
def top(g: Generator) -> Instruction | None:
    x = g.value(lambda s: s.rank > 0 and not s.element_type.is_complex and not s.element_type.is_predicate, rough=False)
    if x is None:
        return None
    return g.b.element(g.b.emit(TopK(g.integer(0, x.array_shape.sizes[-1])), g.numbers(x)), g.integer(0, 1))
