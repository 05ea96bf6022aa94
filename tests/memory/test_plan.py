"""The memory plan: no two values that live at once overlap, loops move their state at once, updates share what dies."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fusile
from fusile.base.element_type import F32, S32
from fusile.base.settings import Settings
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder, scalar_computation
from fusile.hlo.interpreter import Interpreter, interpret, leaves_of
from fusile.hlo.ir import Module
from fusile.memory.places import aligned
from fusile.memory.plan import Branch, CopyStep, Launch, Loop, Plan, Slice, Step, plan, share_buffers
from fusile.passes.fusion import Fuse

sys.path.insert(0, str(Path(__file__).parents[1] / "passes"))
import itertools

from pass_cases import argument
from random_modules import RandomModule


class Machine:
    """Runs a plan's steps on bytes, kernels by the interpreter: what the native entry does, slowly."""

    def __init__(self, made: Plan, arguments: list[np.ndarray], donated: dict[int, int] | None = None) -> None:
        given = [np.array(a).reshape(-1).view(np.uint8) for a in arguments]
        donated = donated or {}
        self.copied = 0
        """Bytes that were really copied."""
        self.spaces = {
            "argument": given,
            "result": [
                given[donated[n]] if n in donated else np.zeros(s.bytes, np.uint8) for n, s in enumerate(made.results)
            ],
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
                source, target = self.read(step.source), self.read(step.target)
                self.copied += len(source) * (source.ctypes.data != target.ctypes.data)
                target[:] = source.copy()
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
        spans = sorted((p.space, p.index, p.offset, p.offset + p.bytes) for p in step.results if p.bytes)
        assert all(a[:2] != b[:2] or a[3] <= b[2] for a, b in itertools.pairwise(spans)), "results overlap"
        for place, value in zip(step.results, leaves_of(Interpreter().call(body, operands)), strict=True):
            self.read(place)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def check_lives(made: Plan) -> None:
    """What the plan says lies where and when fits its sizes, and no two values lie in one place at once."""
    inside = [life for life in made.lives if life.space == "arena"]
    assert made.arena_bytes == max((life.offset + aligned(life.bytes) for life in inside), default=0)
    assert made.temp_unshared == sum(aligned(life.bytes) for life in made.lives)
    for life in made.lives:
        assert 0 < life.start <= life.end < len(made.timeline) and life.name
    for a, b in itertools.combinations(made.lives, 2):
        apart = a.space != b.space or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
        assert apart or a.end < b.start or b.end < a.start, f"{a} and {b} lie in one place"


def check(module: Module, arguments: list[np.ndarray]) -> Plan:
    return run(module, arguments)[0]


def run(module: Module, arguments: list[np.ndarray], copied: int | None = None) -> tuple[Plan, Machine]:
    """The plan, having run it with results apart from the parameters that they alias, and in their place. With
    `copied`, that many bytes are copied then."""
    expected = interpret(module, arguments)
    fused = module.clone()
    Fuse()(fused)
    share_buffers(fused)
    made = plan(fused)
    check_lives(made)
    for donated in ({}, module.aliases):
        machine = Machine(made, arguments, donated)
        for got, want in zip(machine.spaces["result"], expected, strict=True):
            assert got.tobytes() == np.ascontiguousarray(want).tobytes()
    if copied is not None:
        assert machine.copied == copied
    return made, machine


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


# -- results in the place of parameters --------------------------------------------------------------------------------


def test_an_elementwise_update_is_written_in_its_parameter() -> None:
    b = Builder("update")
    w, g = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    module = b.module(b.subtract(w, b.multiply(g, b.like(0.5, g))))
    module.aliases = {0: 0}
    made, _ = run(module, [np.full((64, 64), 2, np.float32), np.ones((64, 64), np.float32)], copied=0)
    assert made.arena_bytes == 0 and not [s for s in made.steps if isinstance(s, CopyStep)]


def test_an_update_waits_for_the_other_readers() -> None:
    b = Builder("waits")
    w, g = b.parameter(Shape(F32, (32, 32))), b.parameter(Shape(F32, (32, 32)))
    new = b.add(w, g)
    module = b.module(b.tuple([new, b.dot(g, w), b.dot(new, g)]))
    module.aliases = {0: 0}
    values = np.random.default_rng(0).integers(-4, 4, (2, 32, 32)).astype(np.float32)
    run(module, list(values), copied=0)


def test_a_parameter_that_is_read_crosswise_is_not_overwritten_early() -> None:
    b = Builder("crosswise")
    w = b.parameter(Shape(F32, (8, 8)))
    module = b.module(b.add(b.transpose(w, (1, 0)), w))
    module.aliases = {0: 0}
    run(module, [np.arange(64, dtype=np.float32).reshape(8, 8)])


def test_results_that_swap_their_parameters() -> None:
    b = Builder("swap")
    x, y, z = (b.parameter(Shape(F32, (4,))) for _ in range(3))
    module = b.module(b.tuple([y, x, b.add(z, x)]))
    module.aliases = {0: 0, 1: 1, 2: 2}
    run(module, [np.full(4, n, np.float32) for n in range(3)])


def test_kernels_whose_results_swap_their_parameters() -> None:
    b = Builder("swap_sums")
    x, y = b.parameter(Shape(F32, (4,))), b.parameter(Shape(F32, (4,)))
    module = b.module(b.tuple([b.add(y, b.like(1, y)), b.subtract(x, b.like(1, x))]))
    module.aliases = {0: 0, 1: 1}
    run(module, [np.full(4, n, np.float32) for n in (1, 7)])


def test_a_cache_is_updated_without_copying_it() -> None:
    b = Builder("cache")
    cache, row, at = b.parameter(Shape(F32, (128, 16))), b.parameter(Shape(F32, (1, 16))), b.parameter(Shape(S32))
    new = b.dynamic_update_slice(cache, row, [at, b.constant(0, S32)])
    again = b.dynamic_update_slice(new, b.add(row, row), [b.add(at, b.constant(1, S32)), b.constant(0, S32)])
    module = b.module(b.tuple([again, b.dot(again, b.reshape(row, (16,)))]))
    module.aliases = {0: 0}
    run(module, [np.zeros((128, 16), np.float32), np.ones((1, 16), np.float32), np.int32(5)], copied=0)


def test_a_branch_updates_a_cache_without_copying_it() -> None:
    b = Builder("maybe")
    cache, row, at = b.parameter(Shape(F32, (128, 16))), b.parameter(Shape(F32, (1, 16))), b.parameter(Shape(S32))
    branches = []
    for update in (True, False):
        c = Builder("update" if update else "keep")
        p, r, i = (c.parameter(s.array_shape) for s in (cache, row, at))
        branches.append(c.build(c.tuple([c.dynamic_update_slice(p, r, [i, c.constant(0, S32)]) if update else p])))
    chosen = b.compare(at, b.constant(5, S32), "LT")
    module = b.module(b.element(b.conditional(chosen, branches, [cache, row, at]), 0))
    module.aliases = {0: 0}
    for place in (3, 7):
        run(module, [np.zeros((128, 16), np.float32), np.ones((1, 16), np.float32), np.int32(place)], copied=0)


def test_a_loop_works_in_the_place_of_its_parameter() -> None:
    b = Builder("loop")
    state = [Shape(S32), Shape(F32, (16, 4)), Shape(F32, (4,))]
    test, body = Builder("test"), Builder("body")
    i, *_ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(16, S32), "LT"))
    i, x, row = (body.parameter(s) for s in state)
    new = body.dynamic_update_slice(x, body.reshape(row, (1, 4)), [i, body.constant(0, S32)])
    done = body.build(body.tuple([body.add(i, body.constant(1, S32)), new, row]))
    x, row = b.parameter(state[1]), b.parameter(state[2])
    _, out, _ = b.while_loop(condition, done, [b.constant(0, S32), x, row])
    module = b.module(out)
    module.aliases = {0: 0}
    _, machine = run(module, [np.zeros((16, 4), np.float32), np.arange(4, dtype=np.float32)])
    # The counter's start is the only copy: the row is handed through, the array stays where it is.
    assert machine.copied == 4


def test_a_loop_whose_state_is_elementwise_copies_nothing() -> None:
    b = Builder("decay")
    state = [Shape(S32), Shape(F32, (64,)), Shape(F32, (64,))]
    test, body = Builder("test"), Builder("body")
    i, *_ = (test.parameter(s) for s in state)
    condition = test.build(test.compare(i, test.constant(5, S32), "LT"))
    i, x, y = (body.parameter(s) for s in state)
    new = body.multiply(x, body.like(0.5, x))
    done = body.build(body.tuple([body.add(i, body.constant(1, S32)), new, body.add(y, new)]))
    x = b.parameter(state[1])
    _, _, out = b.while_loop(condition, done, [b.constant(0, S32), b.add(x, x), b.full(0, state[1])])
    _, machine = run(b.module(out), [np.arange(64, dtype=np.float32)])
    assert machine.copied == 4


def test_a_chain_of_elementwise_kernels_stays_in_place() -> None:
    b = Builder("chain")
    x, w = b.parameter(Shape(F32, (64, 64))), b.parameter(Shape(F32, (64, 64)))
    y = b.dot(x, w)
    total = b.reduce([y], [b.constant(0.0, F32)], (0,), scalar_computation("add", F32))
    y = b.subtract(y, b.broadcast(total, (64, 64), (1,)))
    made, _ = run(b.module(b.dot(y, w)), [np.eye(64, dtype=np.float32)] * 2)
    assert made.arena_bytes <= 64 * 64 * 4 + 64 * 4


def test_random_modules_with_results_in_parameters() -> None:
    random = np.random.default_rng(7)
    aliased = 0
    for seed in range(150):
        module = RandomModule(seed).module()
        parameters = [p.array_shape for p in module.entry.parameters]
        for number, leaf in enumerate(module.entry.root.shape.leaves()):
            fitting = [p for p, s in enumerate(parameters) if s == leaf and p not in module.aliases.values()]
            if fitting:
                module.aliases[number] = int(random.choice(fitting))
        aliased += len(module.aliases)
        run(module, [np.asarray(argument(p, random, edges=False)) for p in parameters])
    assert aliased > 20


class RandomLoop:
    """A loop whose body reads, writes in place, rotates, doubles and drops its state at random."""

    OPS = ("add", "multiply", "update", "reverse", "center", "two", "branch", "branch_update", "inner")

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.count = int(self.random.integers(2, 6))
        self.shape = Shape(F32, (6, 4))
        self.b = Builder(f"loop_{seed}")
        parameters = [self.b.parameter(self.shape) for _ in range(self.count)]
        state = [p if self.random.random() < 0.6 else self.b.add(p, self.pick(parameters)) for p in parameters]
        if self.random.random() < 0.5:
            state[0] = self.b.full(0.5, self.shape)
        out = self.loop(self.b, state, depth=0)
        extra = [self.b.add(self.pick(parameters), self.pick(out))] if self.random.random() < 0.5 else []
        self.module = self.b.module(self.b.tuple([*out[: int(self.random.integers(1, self.count + 1))], *extra]))
        results = self.module.entry.root.shape.leaves()
        for number in range(len(results)):
            if self.random.random() < 0.5 and number < self.count:
                self.module.aliases[number] = int(self.random.permutation(self.count)[0])
        taken = list(self.module.aliases.values())
        self.module.aliases = {r: p for r, p in self.module.aliases.items() if taken.count(p) == 1}

    def pick(self, of):
        return of[int(self.random.integers(len(of)))]

    def loop(self, b: Builder, state: list, depth: int) -> list:
        shapes = [Shape(S32), *(self.shape for _ in state)]
        test, body = Builder("test"), Builder("body")
        i, *_ = (test.parameter(s) for s in shapes)
        condition = test.build(test.compare(i, test.constant(int(self.random.integers(0, 4)), S32), "LT"))
        i, *values = (body.parameter(s) for s in shapes)
        own = list(values)
        for _ in range(int(self.random.integers(1, 6))):
            values.append(self.grow(body, i, values, depth))
        new = [self.pick(values[-4:] + own) if self.random.random() < 0.7 else own[n] for n in range(len(own))]
        step = body.add(i, body.constant(1, S32))
        done = body.build(body.tuple([step, *new]))
        return b.while_loop(condition, done, [b.constant(0, S32), *state])[1:]

    def grow(self, b: Builder, i, values: list, depth: int):
        x, y, kind = self.pick(values), self.pick(values), self.pick(self.OPS)
        if kind == "update":
            row = b.slice(y, (0, 0), (1, 4), (1, 1))
            return b.dynamic_update_slice(x, row, [i, b.constant(0, S32)])
        if kind == "reverse":
            return b.reverse(x, (0,))
        if kind == "center":
            total = b.reduce([x], [b.constant(0.0, F32)], (1,), scalar_computation("add", F32))
            return b.subtract(x, b.broadcast(total, (6, 4), (0,)))
        if kind == "two":
            values.append(b.subtract(x, y))
            return b.add(values[-1], b.convert(b.broadcast(i, (6, 4), ()), F32))
        if kind == "branch":
            made = []
            for name in ("add", "subtract"):
                c = Builder(name)
                p, q = c.parameter(self.shape), c.parameter(self.shape)
                made.append(c.build(c.tuple([getattr(c, name)(p, q)])))
            return b.element(b.conditional(i, made, [x, y]), 0)
        if kind == "branch_update":
            made = []
            for name in ("row", "both", "none"):
                c = Builder(name)
                p, q, at = c.parameter(self.shape), c.parameter(self.shape), c.parameter(Shape(S32))
                row = c.slice(q, (1, 0), (2, 4), (1, 1))
                new = c.dynamic_update_slice(p, row, [at, c.constant(0, S32)])
                made.append(c.build(c.tuple({"row": [new, q], "both": [new, new], "none": [q, p]}[name])))
            values.append(b.element(b.conditional(i, made, [x, y, i]), 0))
            return b.element(values[-1].operands[0], 1)
        if kind == "inner" and depth == 0:
            return self.loop(b, [x, y], depth=1)[int(self.random.integers(2))]
        if kind == "multiply":
            return b.multiply(x, b.like(0.5, x))
        return b.add(x, b.multiply(y, b.like(0.25, y)))


@pytest.mark.parametrize("seed", range(150))
def test_random_loops(seed: int) -> None:
    made = RandomLoop(seed)
    given = [np.arange(24, dtype=np.float32).reshape(6, 4) * (n + 1) / 8 for n in range(made.count)]
    run(made.module, given)
    expected = interpret(made.module, given)
    for donate in ((), tuple(made.module.aliases.values())):
        copies = [a.copy() for a in given]
        exe = fusile.compile(made.module, donate=donate, settings=replace(Settings(), cache=False))
        for got, want in zip(exe.call_flat(copies), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
