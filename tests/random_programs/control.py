"""Loops, conditionals and calls. Their parts are grown by the same families."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.base import element_type as e
from fusile.base.shape import Shape
from fusile.hlo.ir import Computation, Instruction
from random_programs.generator import Generator, family

DEEPEST = 2


def body(
    g: Generator, name: str, operands: Sequence[Instruction], results: Sequence[Shape], exact: bool
) -> Computation:
    """A computation on these operands that gives such results."""
    shapes = [o.array_shape for o in operands]
    with g.inside(name, shapes, [g.rough(o) for o in operands], exact):
        for _ in range(g.integer(0, 4)):
            g.grow()
        made = [g.of(s, rough=not exact) for s in results]
        return g.finish(made)


@family(3)
def conditional(g: Generator) -> Instruction | None:
    if g.depth >= DEEPEST:
        return None
    operands = [v for v in (g.value() for _ in range(g.integer(1, 2))) if v is not None]
    results = [g.pick(operands).array_shape for _ in range(g.integer(1, 2))]
    exact = g.exact_only
    if g.chance(0.5):
        index, count = g.of(Shape(e.PRED), rough=False), 2
    else:
        there = g.value(lambda s: s == Shape(e.S32), rough=False)
        index, count = there if there is not None else g.b.constant(g.integer(-1, 4), e.S32), g.integer(1, 3)
    branches = [body(g, f"branch_{n}", operands, results, exact) for n in range(count)]
    return g.b.element(g.b.conditional(index, branches, operands), g.integer(0, len(results) - 1))


@family(1)
def call(g: Generator) -> Instruction | None:
    if g.depth >= DEEPEST:
        return None
    x = g.value()
    if x is None:
        return None
    return g.b.element(g.b.call(body(g, "called", [x], [x.array_shape], g.exact_only), [x]), 0)


@family(4)
def loop(g: Generator) -> Instruction | None:
    """Counts, over exact state; its test may read the state too."""
    if g.depth >= DEEPEST:
        return None
    count = g.integer(1, 3)
    state = [v for v in (g.value(rough=False) for _ in range(count)) if v is not None]
    if not state:
        return None
    operands = [g.b.constant(g.pick((0, 0, 1, 5)), e.S32), *state]
    g.note()
    shapes = [o.array_shape for o in operands]
    limit, step = g.integer(0, 4), g.pick((1, 1, 2))
    with g.inside("test", shapes, [0] * len(shapes), True) as parameters:
        more = g.b.compare(parameters[0], g.b.constant(limit, e.S32), g.pick(("LT", "LE")))
        flag = next((p for p in parameters if p.array_shape == Shape(e.PRED)), None)
        test = g.b.build(g.b.and_(more, flag) if flag is not None and g.chance(0.5) else more)
    with g.inside("body", shapes, [0] * len(shapes), True) as parameters:
        for _ in range(g.integer(0, 5)):
            g.grow()
        new = [p if g.chance(0.2) else g.of(p.array_shape, rough=False) for p in parameters[1:]]
        done = g.finish([g.b.add(parameters[0], g.b.constant(step, e.S32)), *new])
    return g.pick(g.b.while_loop(test, done, operands))
