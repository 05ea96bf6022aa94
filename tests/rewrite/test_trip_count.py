"""Trip counts agree with running the loop."""

import numpy as np
import pytest

from fusile.base.element_type import S8, S32, element_type
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.rewrite.trip_count import trip_count


def counted(kind, start, limit, step, direction, mirrored=False, subtract=False):
    """A loop that counts its runs in a second state element."""
    condition = Builder("condition")
    i, _ = condition.parameter(Shape(kind)), condition.parameter(Shape(S32))
    bound = condition.constant(limit, kind)
    operands = (bound, i) if mirrored else (i, bound)
    condition.build(condition.compare(*operands, direction))
    body = Builder("body")
    i, n = body.parameter(Shape(kind)), body.parameter(Shape(S32))
    by = body.constant(step, kind)
    new = body.subtract(i, by) if subtract else body.add(by, i)
    body.build(body.tuple([new, body.add(n, body.constant(1, S32))]))
    b = Builder("main")
    state = [b.constant(start, kind), b.constant(0, S32)]
    return b.module(b.while_loop(condition.computation, body.computation, state)[1])


def loop_of(module):
    (loop,) = [i for i in module.entry.instructions if i.opcode == "while"]
    return loop


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE", "EQ"])
@pytest.mark.parametrize(
    ("start", "limit", "step"), [(0, 10, 1), (0, 10, 3), (10, 0, -3), (5, 5, 1), (-4, 8, 4), (9, -1, -2)]
)
def test_known_counts_are_those_of_the_interpreter(direction, start, limit, step):
    for mirrored, subtract in [(False, False), (True, False), (False, True)]:
        module = counted(S32, start, limit, -step if subtract else step, direction, mirrored, subtract)
        count = trip_count(loop_of(module))
        if count is not None:
            (runs,) = interpret(module, [])
            assert int(runs) == count


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction", "count"),
    [
        (0, 10, 3, "LT", 4),
        (0, 9, 3, "LE", 4),
        (10, 0, -3, "GT", 4),
        (0, 12, 3, "NE", 4),
        (0, 0, 1, "LT", 0),
        (3, 3, 1, "EQ", 1),
    ],
)
def test_counts(start, limit, step, direction, count):
    assert trip_count(loop_of(counted(S32, start, limit, step, direction))) == count


@pytest.mark.parametrize(
    ("start", "limit", "step", "direction"),
    [(0, 10, -1, "LT"), (0, 10, 3, "NE"), (0, 10, 0, "LT"), (0, -1, 1, "GE"), (0, 10, -1, "NE")],
)
def test_loops_that_end_by_wrapping_or_never_are_not_counted(start, limit, step, direction):
    assert trip_count(loop_of(counted(S32, start, limit, step, direction))) is None


def test_wrapping_of_narrow_counters():
    assert trip_count(loop_of(counted(S8, 100, 127, 20, "LT"))) is None
    assert trip_count(loop_of(counted(element_type("u8"), 0, 255, 1, "LT"))) == 255
    assert trip_count(loop_of(counted(element_type("u8"), 0, 255, 1, "LE"))) is None


def test_a_start_from_outside_is_not_known():
    b = Builder("main")
    module = counted(S32, 0, 3, 1, "LT")
    op = loop_of(module).op
    loop = b.emit(op, b.parameter(Shape(S32)), b.constant(np.int32(0)))
    b.build(loop)
    assert trip_count(loop) is None
