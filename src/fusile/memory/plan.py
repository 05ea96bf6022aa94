"""From a fused module to a plan: what runs in which order, and where every value lies.

Values get virtual buffers with lifetimes on one timeline that runs through loop bodies and branches too; `assign` then
packs those of the arena, largest first, into the lowest place that is free for the whole lifetime. Reshapes, tuples and
their elements are the same buffer under another name. A loop's state has fixed buffers that its body updates; updates
in place (`Fusion.in_place`) share the operand's buffer when nothing reads it afterwards and copy it first otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusile.base.element_type import PRED
from fusile.base.errors import CompileError, UnsupportedOpError
from fusile.base.shape import Shape, TupleShape
from fusile.hlo.ir import Computation, Instruction, Literal, Module
from fusile.hlo.opset.control import Conditional, CustomCall, Fusion, While
from fusile.hlo.opset.shape import Reshape
from fusile.hlo.opset.structure import AfterAll, Constant, Copy, GetTupleElement, OptimizationBarrier, Parameter, Tuple

ALIGNMENT = 64


@dataclass(frozen=True)
class Slice:
    """Where an array lies: in `argument`, `result` or `constant` number `index`, or in the `arena`, from `offset` bytes on."""

    space: str
    index: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class Launch:
    """One kernel: the fusion, its operands' leaves, its results' leaves, and its workspace when it has one."""

    fusion: Instruction
    operands: tuple[Slice, ...]
    results: tuple[Slice, ...]
    workspace: Slice | None


@dataclass(frozen=True)
class CopyStep:
    source: Slice
    target: Slice


@dataclass(frozen=True)
class Loop:
    """Runs `condition`, then `body` and again, as long as the predicate is true."""

    condition: tuple[Step, ...]
    predicate: Slice
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Branch:
    """Runs one of `branches`: by a predicate (the first when true) or by an s32 index (the last when out of range)."""

    index: Slice
    is_predicate: bool
    branches: tuple[tuple[Step, ...], ...]


Step = Launch | CopyStep | Loop | Branch


@dataclass(frozen=True)
class Plan:
    """The steps, the constants they read, and the arena's size in bytes (`temp_unshared`: without sharing)."""

    steps: tuple[Step, ...]
    constants: tuple[Literal, ...]
    parameters: tuple[Shape, ...]
    results: tuple[Shape, ...]
    arena_bytes: int
    temp_unshared: int


@dataclass(eq=False)
class _Buffer:
    """A virtual buffer. `fixed`: it lies outside the arena. `owner`: the computation that may update it in place."""

    bytes: int
    start: int
    end: int
    fixed: Slice | None = None
    owner: Computation | None = None
    offset: int = -1

    def slice(self) -> Slice:
        return self.fixed if self.fixed is not None else Slice("arena", 0, self.offset, self.bytes)


@dataclass(frozen=True)
class _Draft:
    """A step whose places are still virtual."""

    kind: str
    buffers: tuple[_Buffer, ...] = ()
    results: tuple[_Buffer, ...] = ()
    fusion: Instruction | None = None
    workspace: _Buffer | None = None
    parts: tuple[tuple[_Draft, ...], ...] = ()
    is_predicate: bool = False


def plan(module: Module, workspace: Callable[[Instruction], int] = lambda fusion: 0) -> Plan:
    """The plan of a fused module. `workspace` gives the bytes that a fusion's kernel shares between its phases.

    Raises UnsupportedOpError for custom calls that have no kernel, CompileError when an instruction was left unfused.
    """
    planner = _Planner(module, workspace)
    drafts = planner.entry()
    arena = assign(planner.buffers)
    unshared = sum(_aligned(b.bytes) for b in planner.buffers)
    parameters = tuple(leaf for p in module.entry.parameters for leaf in p.shape.leaves())
    return Plan(
        tuple(map(_finished, drafts)),
        tuple(planner.constants),
        parameters,
        module.entry.root.shape.leaves(),
        arena,
        unshared,
    )


def _aligned(size: int) -> int:
    return -(-max(1, size) // ALIGNMENT) * ALIGNMENT


def assign(buffers: Sequence[_Buffer]) -> int:
    """Gives every buffer an offset so that no two that live at once overlap; the arena's size."""
    placed: list[_Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.bytes, b.start)):
        size = _aligned(buffer.bytes)
        busy = sorted(
            (p.offset, p.offset + _aligned(p.bytes)) for p in placed if p.start <= buffer.end and buffer.start <= p.end
        )
        offset = 0
        for low, high in busy:
            if low - offset >= size:
                break
            offset = max(offset, high)
        buffer.offset = offset
        placed.append(buffer)
        total = max(total, offset + size)
    return total


def _finished(draft: _Draft) -> Step:
    if draft.kind == "launch":
        assert draft.fusion is not None
        space = draft.workspace.slice() if draft.workspace else None
        return Launch(
            draft.fusion, tuple(b.slice() for b in draft.buffers), tuple(b.slice() for b in draft.results), space
        )
    if draft.kind == "copy":
        return CopyStep(draft.buffers[0].slice(), draft.results[0].slice())
    parts = tuple(tuple(map(_finished, part)) for part in draft.parts)
    if draft.kind == "loop":
        return Loop(parts[0], draft.buffers[0].slice(), parts[1])
    return Branch(draft.buffers[0].slice(), draft.is_predicate, parts)


ALIASES = (Reshape, Tuple, GetTupleElement, OptimizationBarrier, AfterAll, Copy)
Values = dict[Instruction, list[_Buffer]]


class _Planner:
    def __init__(self, module: Module, workspace: Callable[[Instruction], int]) -> None:
        self.module, self.workspace = module, workspace
        self.time = 0
        self.buffers: list[_Buffer] = []
        self.constants: list[Literal] = []
        self.constant_buffers: dict[int, _Buffer] = {}

    def new(self, size: int, owner: Computation | None = None) -> _Buffer:
        buffer = _Buffer(size, self.time, self.time, owner=owner)
        self.buffers.append(buffer)
        return buffer

    def tick(self, *used: _Buffer) -> None:
        """One step of the timeline, in which these are used."""
        self.time += 1
        for buffer in used:
            buffer.end = max(buffer.end, self.time)

    def entry(self) -> list[_Draft]:
        entry = self.module.entry
        values: Values = {}
        number = 0
        for parameter in entry.parameters:
            values[parameter] = []
            for leaf in parameter.shape.leaves():
                values[parameter].append(_Buffer(leaf.bytes, 0, 0, Slice("argument", number, 0, leaf.bytes)))
                number += 1
        results = [
            _Buffer(s.bytes, 0, 0, Slice("result", i, 0, s.bytes), owner=entry)
            for i, s in enumerate(entry.root.shape.leaves())
        ]
        wanted: dict[tuple[Instruction, int], _Buffer] = {}
        for place, buffer in zip(_origins(entry.root), results, strict=True):
            if isinstance(place[0].op, Fusion):
                wanted.setdefault(place, buffer)
        drafts = self.computation(entry, values, wanted)
        for source, target in zip(values[entry.root], results, strict=True):
            if source is not target:
                drafts.append(self.copy(source, target))
        return drafts

    def copy(self, source: _Buffer, target: _Buffer) -> _Draft:
        self.tick(source, target)
        return _Draft("copy", (source,), (target,))

    def computation(
        self, computation: Computation, values: Values, wanted: dict[tuple[Instruction, int], _Buffer]
    ) -> list[_Draft]:
        """Plans one computation's instructions; fills `values`. `wanted` gives results a place."""
        drafts: list[_Draft] = []
        order = computation.post_order()
        readers = _last_readers(order, computation)
        for position, i in enumerate(order):
            if isinstance(i.op, Parameter):
                continue
            if isinstance(i.op, Constant):
                values[i] = [self.constant(i.op.literal)]
            elif isinstance(i.op, ALIASES):
                values[i] = _alias(i, values)
            elif isinstance(i.op, Fusion):
                drafts += self.launch(i, values, wanted, readers, position, computation)
            elif isinstance(i.op, While):
                drafts += self.loop(i, values, readers, position, computation)
            elif isinstance(i.op, Conditional):
                drafts += self.branch(i, values, computation)
            elif isinstance(i.op, CustomCall):
                raise UnsupportedOpError(
                    f"no kernel is registered for the custom call to {i.op.target!r}", source=i.source
                )
            else:
                raise CompileError(f"{i.name} was left out of every kernel", source=i.source)
        return drafts

    def constant(self, literal: Literal) -> _Buffer:
        key = id(literal)
        if key not in self.constant_buffers:
            size = literal.array.nbytes
            self.constant_buffers[key] = _Buffer(size, 0, 0, Slice("constant", len(self.constants), 0, size))
            self.constants.append(literal)
        return self.constant_buffers[key]

    def launch(self, i: Instruction, values: Values, wanted: dict[tuple[Instruction, int], _Buffer],
               readers: dict[tuple[Instruction, int], int], position: int, computation: Computation) -> list[_Draft]:  # fmt: skip
        operands = [b for o in i.operands for b in values[o]]
        leaf_of = [(o, n) for o in i.operands for n in range(len(values[o]))]
        shared = dict(i.op.in_place)  # type: ignore[attr-defined]
        drafts, results = [], []
        for number, shape in enumerate(i.shape.leaves()):
            target = wanted.get((i, number))
            if number not in shared:
                results.append(target or self.new(shape.bytes, computation))
                continue
            source = operands[shared[number]]
            last = readers[_origin(*leaf_of[shared[number]])] <= position and operands.count(source) == 1
            if last and source.owner is computation and target is None:
                results.append(source)
            else:
                target = target or self.new(shape.bytes, computation)
                drafts.append(self.copy(source, target))
                operands[shared[number]] = target
                results.append(target)
        size = self.workspace(i)
        space = self.new(size) if size else None
        values[i] = results
        self.tick(*operands, *results, *([space] if space else []))
        return [*drafts, _Draft("launch", tuple(operands), tuple(results), i, space)]

    def loop(self, i: Instruction, values: Values, readers: dict[tuple[Instruction, int], int], position: int,
             computation: Computation) -> list[_Draft]:  # fmt: skip
        op = i.op
        assert isinstance(op, While)
        drafts: list[_Draft] = []
        state: list[_Buffer] = []
        initial = [(o, n) for o in i.operands for n in range(len(values[o]))]
        for o, n in initial:
            source = values[o][n]
            last = readers[_origin(o, n)] <= position
            if last and source.owner is computation and source.fixed is None and source not in state:
                state.append(source)
                continue
            target = self.new(source.bytes, op.body)
            drafts.append(self.copy(source, target))
            state.append(target)
        for buffer in state:
            buffer.owner = op.body
        start = self.time
        condition_values = _bound(op.condition, state)
        condition = self.computation(op.condition, condition_values, {})
        predicate = condition_values[op.condition.root][0]
        self.tick(predicate)
        body_values = _bound(op.body, state)
        body = self.computation(op.body, body_values, {})
        body += self._moves(body_values[op.body.root], state)
        self.tick(*state, predicate)
        for buffer in state:
            buffer.start, buffer.end = min(buffer.start, start), max(buffer.end, self.time)
            buffer.owner = computation
        values[i] = state
        return [*drafts, _Draft("loop", (predicate,), parts=(tuple(condition), tuple(body)))]

    def _moves(self, new: Sequence[_Buffer], state: Sequence[_Buffer]) -> list[_Draft]:
        """The body's results into the state, all at once: what is itself state goes through a copy first."""
        drafts, sources = [], []
        for source, target in zip(new, state, strict=True):
            if source is not target and source in state:
                aside = self.new(source.bytes)
                drafts.append(self.copy(source, aside))
                source = aside
            sources.append(source)
        for source, target in zip(sources, state, strict=True):
            if source is not target:
                drafts.append(self.copy(source, target))
        return drafts

    def branch(self, i: Instruction, values: Values, computation: Computation) -> list[_Draft]:
        op = i.op
        assert isinstance(op, Conditional)
        results = [self.new(s.bytes, computation) for s in i.shape.leaves()]
        arguments = [b for o in i.operands[1:] for b in values[o]]
        index = values[i.operands[0]][0]
        self.tick(index, *arguments)
        parts = []
        for branch in op.branches:
            inside = _bound(branch, arguments)
            drafts = self.computation(branch, inside, {})
            drafts += [self.copy(s, t) for s, t in zip(inside[branch.root], results, strict=True)]
            parts.append(tuple(drafts))
        self.tick(index, *arguments, *results)
        values[i] = results
        is_predicate = i.operands[0].array_shape.element_type is PRED
        return [_Draft("branch", (index,), parts=tuple(parts), is_predicate=is_predicate)]


def _bound(computation: Computation, buffers: Sequence[_Buffer]) -> Values:
    rest = iter(buffers)
    return {p: [next(rest) for _ in p.shape.leaves()] for p in computation.parameters}


def _alias(i: Instruction, values: Values) -> list[_Buffer]:
    if isinstance(i.op, Tuple):
        return [b for o in i.operands for b in values[o]]
    if isinstance(i.op, GetTupleElement):
        shape = i.operands[0].shape
        assert isinstance(shape, TupleShape)
        start = sum(len(s.leaves()) for s in shape.shapes[: i.op.index])
        return values[i.operands[0]][start : start + len(i.shape.leaves())]
    if isinstance(i.op, AfterAll):
        return []
    return values[i.operands[0]]


def _origin(i: Instruction, leaf: int) -> tuple[Instruction, int]:
    """The instruction and leaf that a leaf is another name of."""
    while isinstance(i.op, ALIASES) and i.operands:
        if isinstance(i.op, Tuple):
            for operand in i.operands:
                count = len(operand.shape.leaves())
                if leaf < count:
                    i = operand
                    break
                leaf -= count
        elif isinstance(i.op, GetTupleElement):
            shape = i.operands[0].shape
            assert isinstance(shape, TupleShape)
            leaf += sum(len(s.leaves()) for s in shape.shapes[: i.op.index])
            i = i.operands[0]
        else:
            i = i.operands[0]
    return i, leaf


def _origins(i: Instruction) -> list[tuple[Instruction, int]]:
    return [_origin(i, n) for n in range(len(i.shape.leaves()))]


def _last_readers(order: Sequence[Instruction], computation: Computation) -> dict[tuple[Instruction, int], int]:
    """For each value, the position of the last instruction that reads it; past the end for the root's."""
    last: dict[tuple[Instruction, int], int] = {}
    for position, i in enumerate(order):
        if isinstance(i.op, ALIASES):
            continue
        for operand in i.operands:
            for place in _origins(operand):
                last[place] = position
    for place in _origins(computation.root):
        last[place] = len(order)
    return last


__all__ = ["Branch", "CopyStep", "Launch", "Loop", "Plan", "Slice", "Step", "plan"]
