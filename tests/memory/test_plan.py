"""The memory plan: no two values that live at once overlap, loops move their state at once, updates share what dies."""

from __future__ import annotations

import numpy as np
import pytest

from fusile.base.element_type import F32, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import Interpreter, interpret, leaves_of
from fusile.hlo.ir import Module
from fusile.memory.plan import Branch, CopyStep, Launch, Loop, Plan, Slice, Step, plan
from fusile.passes.fusion import Fuse


class Machine:
    """Runs a plan's steps on bytes, kernels by the interpreter: what the native entry does, slowly."""

    def __init__(self, made: Plan, arguments: list[np.ndarray]) -> None:
        self.spaces = {
            "argument": [np.array(a).reshape(-1).view(np.uint8) for a in arguments],
            "result": [np.zeros(s.bytes, np.uint8) for s in made.results],
            "constant": [np.ascontiguousarray(c.array).reshape(-1).view(np.uint8) for c in made.constants],
            "arena": [np.full(made.arena_bytes, 0xA5, np.uint8)],
        }
        self.run(made.steps)

    def read(self, place: Slice) -> np.ndarray:
        return self.spaces[place.space][place.index][place.offset : place.offset + place.bytes]

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self.launch(step)
            elif isinstance(step, CopyStep):
                self.read(step.target)[:] = self.read(step.source).copy()
            elif isinstance(step, Loop):
                while self.condition(step):
                    self.run(step.body)
            else:
                assert isinstance(step, Branch)
                index = self.read(step.index)
                number = int(not index[0]) if step.is_predicate else int(index.view(np.int32)[0])
                self.run(step.branches[number if 0 <= number < len(step.branches) else -1])

    def condition(self, step: Loop) -> bool:
        self.run(step.condition)
        return bool(self.read(step.predicate)[0])

    def launch(self, step: Launch) -> None:
        shapes = [s for o in step.fusion.operands for s in o.shape.leaves()]
        operands = [
            self.read(p).copy().view(s.element_type.dtype).reshape(s.sizes)
            for p, s in zip(step.operands, shapes, strict=True)
        ]
        (body,) = step.fusion.op.computations()
        for place, value in zip(step.results, leaves_of(Interpreter().call(body, operands)), strict=True):
            self.read(place)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def check(module: Module, arguments: list[np.ndarray]) -> Plan:
    expected = interpret(module, arguments)
    fused = module.clone()
    Fuse()(fused)
    made = plan(fused)
    machine = Machine(made, arguments)
    for got, want in zip(machine.spaces["result"], expected, strict=True):
        assert got.tobytes() == np.ascontiguousarray(want).tobytes()
    return made


def test_a_chain_of_kernels_reuses_places() -> None:
    b = Builder("chain")
    x = b.parameter(Shape(F32, (64, 64)))
    y = x
    for _ in range(8):
        y = b.dot(b.tanh(y), x)
    made = check(b.module(y), [np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8])
    assert made.arena_bytes <= 3 * 64 * 64 * 4 < made.temp_unshared


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_a_loop_that_rotates_its_state(times: int) -> None:
    b = Builder("rotate")
    state = [Shape(S32), *(Shape(F32, (3,)) for _ in range(3))]
    test, body = Builder("test"), Builder("body")
    i, *_ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(times, S32), "LT"))
    i, p, q, r = (body.parameter(s) for s in state)
    turned = body.build(body.tuple([body.add(i, body.constant(1, S32)), q, r, body.add(p, body.like(1, p))]))
    xs = [b.parameter(s) for s in state[1:]]
    out = b.while_loop(condition, turned, [b.constant(0, S32), *xs])
    check(b.module(b.tuple(out)), [np.arange(3, dtype=np.float32) + 10 * k for k in range(3)])


def test_an_update_in_a_loop_is_in_place() -> None:
    b = Builder("fill")
    state = [Shape(S32), Shape(F32, (16, 4))]
    test, body = Builder("test"), Builder("body")
    i, _ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(16, S32), "LT"))
    i, x = (body.parameter(s) for s in state)
    row = body.full(1.5, Shape(F32, (1, 4)))
    new = body.dynamic_update_slice(x, row, [i, body.constant(0, S32)])
    done = body.build(body.tuple([body.add(i, body.constant(1, S32)), new]))
    x = b.parameter(state[1])
    _, out = b.while_loop(condition, done, [b.constant(0, S32), x])
    made = check(b.module(out), [np.zeros((16, 4), np.float32)])
    (loop,) = [s for s in made.steps if isinstance(s, Loop)]
    assert not [s for s in loop.body if isinstance(s, CopyStep) and s.source.bytes > 4]


def test_an_update_whose_operand_lives_on_copies_it() -> None:
    b = Builder("keep")
    x = b.parameter(Shape(F32, (8,)))
    y = b.add(x, x)
    z = b.dynamic_update_slice(y, b.full(7, Shape(F32, (2,))), [b.constant(3, S32)])
    check(b.module(b.tuple([y, z])), [np.arange(8, dtype=np.float32)])


def test_parameters_constants_and_doubles_as_results() -> None:
    b = Builder("plain")
    x = b.parameter(Shape(F32, (4,)))
    y = b.add(x, x)
    c = b.constant(np.arange(5, dtype=np.float32))
    check(b.module(b.tuple([x, y, y, c, x])), [np.arange(4, dtype=np.float32)])


@pytest.mark.parametrize("index", [-1, 0, 1, 2, 9])
def test_branches(index: int) -> None:
    b = Builder("branches")
    i, x = b.parameter(Shape(S32)), b.parameter(Shape(F32, (4,)))
    branches = []
    for k in range(3):
        c = Builder(f"case{k}")
        p = c.parameter(Shape(F32, (4,)))
        branches.append(c.build(c.tuple([c.multiply(p, c.like(k + 2, p)) if k else p])))
    check(b.module(b.element(b.conditional(i, branches, [x]), 0)), [np.int32(index), np.arange(4, dtype=np.float32)])
