"""From a fused module to a plan: what runs in which order, and where every value lies.

Values get virtual buffers with lifetimes on one timeline that runs through loop bodies and branches too;
`places.assign` then packs those of the arena. A kernel's result lies where an operand does that nothing reads
afterwards: when the kernel writes it in place (`Fusion.in_place`, with a copy first when the operand lives on), and
when it reads each element before it writes it (`Fusion.shared`, which `share_buffers` sets). A loop's state has fixed
buffers which its body writes; a state that the body hands through lies where it lay before the loop.

`Module.aliases` says which results the caller may want in which parameters' buffers. The plan holds for both: with the
result in a buffer of its own, and in the parameter's. So such a result is written when nothing reads the parameter any
more, or by the kernel that reads it last, if it may share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fusile.base.element_type import PRED
from fusile.base.errors import CompileError, UnsupportedOpError
from fusile.base.records import Life
from fusile.base.shape import Shape
from fusile.hlo.ir import Computation, Instruction, Literal, Module
from fusile.hlo.opset.control import Conditional, CustomCall, Fusion, While
from fusile.hlo.opset.structure import AfterAll, Constant, GetTupleElement, Parameter, Tuple
from fusile.memory.fills import separate_fills
from fusile.memory.order import schedule
from fusile.memory.places import Buffer, Slice, aligned, assign
from fusile.memory.share import Pairs, shareable
from fusile.memory.values import (
    ALIASES,
    ValueName,
    first_leaf,
    invariant,
    last_readers,
    leaf_operands,
    origin,
    origins,
    parameter_leaves,
    reads,
)


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
    """The steps, the constants they read, and the arena's size in bytes (`temp_unshared`: without sharing).

    `lives`: what lies where in the arena, and when, on a timeline whose steps `timeline` names: launches and copies in
    order, those of loops and branches once, and where loops and branches look at their predicates."""

    steps: tuple[Step, ...]
    constants: tuple[Literal, ...]
    parameters: tuple[Shape, ...]
    results: tuple[Shape, ...]
    arena_bytes: int
    temp_unshared: int
    lives: tuple[Life, ...] = ()
    timeline: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Draft:
    """A step whose places are still virtual."""

    kind: str
    buffers: tuple[Buffer, ...] = ()
    results: tuple[Buffer, ...] = ()
    fusion: Instruction | None = None
    workspace: Buffer | None = None
    parts: tuple[tuple[_Draft, ...], ...] = ()
    is_predicate: bool = False


def plan(module: Module, workspace: Callable[[Instruction], int] = lambda fusion: 0) -> Plan:
    """The plan of a fused module. `workspace` gives the bytes that a fusion's kernel shares between its phases.

    Raises UnsupportedOpError for custom calls that have no kernel, CompileError when an instruction was left unfused.
    """
    planner = _Planner(module, workspace, lambda fusion: fusion.op.shared)  # type: ignore[attr-defined]
    drafts = planner.entry()
    arena = assign(planner.buffers)
    unshared = sum(aligned(value.bytes) for value in planner.placed)
    parameters = tuple(leaf for p in module.entry.parameters for leaf in p.shape.leaves())
    return Plan(
        tuple(map(_finished, drafts)),
        tuple(planner.constants),
        parameters,
        module.entry.root.shape.leaves(),
        arena,
        unshared,
        _lives(planner.placed),
        tuple(planner.timeline),
    )


def share_buffers(module: Module) -> None:
    """Notes in each fusion which results lie where an operand does; their kernels are then made without the promise
    that they lie apart. `plan` follows it. Fills become one for each place."""
    separate_fills(module)
    planner = _Planner(module, lambda fusion: 0, shareable)
    planner.entry()
    for fusion, pairs in planner.shared.items():
        assert isinstance(fusion.op, Fusion)
        fusion.op = replace(fusion.op, shared=tuple(sorted(pairs)))


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


@dataclass(frozen=True)
class _Placed:
    """A value in a buffer of the arena, from a step on."""

    name: str
    buffer: Buffer
    bytes: int
    start: int


def _lives(placed: Sequence[_Placed]) -> tuple[Life, ...]:
    """What lies where and when. A value ends where another takes its place, or with its buffer."""
    later: dict[Buffer, int] = {}
    lives = []
    for value in reversed(placed):
        end = max(value.start, later.get(value.buffer, value.buffer.end + 1) - 1)
        later[value.buffer] = value.start
        place = value.buffer.slice()
        space = place.space if place.space == "arena" else f"{place.space} {place.index}"
        lives.append(Life(value.name, space, place.offset, value.bytes, value.start, end))
    return tuple(reversed(lives))


Values = dict[Instruction, list[Buffer]]


class _Planner:
    """Plans a module. `pairs` gives the results of a fusion that may lie in an operand's place."""

    def __init__(
        self, module: Module, workspace: Callable[[Instruction], int], pairs: Callable[[Instruction], Pairs]
    ) -> None:
        self.module, self.workspace, self.pairs = module, workspace, pairs
        self.time = 0
        self.buffers: list[Buffer] = []
        self.constants: list[Literal] = []
        self.constant_buffers: dict[int, Buffer] = {}
        self.orders: dict[Computation, tuple[list[Instruction], int]] = {}
        self.shared: dict[Instruction, list[tuple[int, int]]] = {}
        self.placed: list[_Placed] = []
        """Every value that has a buffer of its own, or takes over that of one which nothing needs any more."""
        self.timeline: list[str] = ["start"]

    def new(self, size: int, name: str, owner: Computation | None = None) -> Buffer:
        """A buffer for a value, which lives from the next step on."""
        buffer = Buffer(size, self.time + 1, self.time + 1, owner=owner)
        self.buffers.append(buffer)
        self.take_over(buffer, size, name)
        return buffer

    def take_over(self, buffer: Buffer, size: int, name: str) -> None:
        """Notes that the next step puts a value into a buffer."""
        self.placed.append(_Placed(name, buffer, size, self.time + 1))

    def tick(self, name: str, *used: Buffer) -> None:
        """One step of the timeline, in which these are used."""
        self.time += 1
        self.timeline.append(name)
        for buffer in used:
            buffer.end = max(buffer.end, self.time)

    def entry(self) -> list[_Draft]:
        entry = self.module.entry
        places = [
            Buffer(p.shape.leaves()[n].bytes, 0, 0, Slice("argument", i, 0, p.shape.leaves()[n].bytes))
            for i, (p, n) in enumerate(parameter_leaves(entry))
        ]
        results = [
            Buffer(s.bytes, 0, 0, Slice("result", i, 0, s.bytes), owner=entry)
            for i, s in enumerate(entry.root.shape.leaves())
        ]
        scope = _Scope(self, entry, _bound(entry, places), self.module.aliases)
        own = parameter_leaves(entry)
        scope.content = {results[k]: own[p] for k, p in self.module.aliases.items()}
        drafts = scope.run(results)
        # Where each source may be overwritten by another result.
        taken = {places[p]: k for k, p in self.module.aliases.items()}
        return drafts + self.moves(scope.root(), results, taken)

    def schedule(self, computation: Computation, aliases: Mapping[int, int]) -> tuple[list[Instruction], int]:
        """A computation's order and the bytes that it takes."""
        if computation not in self.orders:
            self.orders[computation] = schedule(computation, aliases, self._inside)
        return self.orders[computation]

    def _inside(self, i: Instruction) -> int:
        if isinstance(i.op, While):
            return max(self.schedule(i.op.condition, {})[1], self.schedule(i.op.body, _state_aliases(i.op))[1])
        if isinstance(i.op, Conditional):
            return max(self.schedule(branch, _branch_aliases(i.op))[1] for branch in i.op.branches)
        return 0

    def moves(self, sources: Sequence[Buffer], targets: Sequence[Buffer], taken: Mapping[Buffer, int]) -> list[_Draft]:
        """Copies a computation's results into their places, as if all at once. `taken`: the number of the target that
        may overwrite a source; such a source goes aside first when it is for another target."""
        drafts, aside = [], list(sources)
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if source is not target and taken.get(source, number) != number:
                aside[number] = self.new(source.bytes, "moved aside")
                drafts.append(self.copy(source, aside[number]))
        for source, target in zip(aside, targets, strict=True):
            if source is not target:
                drafts.append(self.copy(source, target))
        return drafts

    def copy(self, source: Buffer, target: Buffer) -> _Draft:
        self.tick("copy", source, target)
        return _Draft("copy", (source,), (target,))

    def constant(self, literal: Literal) -> Buffer:
        key = id(literal)
        if key not in self.constant_buffers:
            size = literal.array.nbytes
            self.constant_buffers[key] = Buffer(size, 0, 0, Slice("constant", len(self.constants), 0, size))
            self.constants.append(literal)
        return self.constant_buffers[key]


class _Scope:
    """Plans one computation. `values` holds its parameters' buffers; `content` what value lies, or may lie, in a
    buffer."""

    def __init__(self, planner: _Planner, computation: Computation, values: Values, aliases: Mapping[int, int]) -> None:
        self.planner, self.computation, self.values = planner, computation, values
        self.order, _ = planner.schedule(computation, aliases)
        self.readers = last_readers(self.order, computation)
        self.content: dict[Buffer, ValueName] = {}
        self.wanted: dict[ValueName, Buffer] = {}

    def root(self) -> list[Buffer]:
        """Where the root's leaves lie."""
        return self.values[self.computation.root]

    def run(self, targets: Sequence[Buffer | None]) -> list[_Draft]:
        """Plans the instructions; fills `values`. `targets` are the places where the root's leaves should lie."""
        for value, target in zip(origins(self.computation.root), targets, strict=True):
            if target is not None:
                self._want(value, target)
        drafts: list[_Draft] = []
        for position, i in enumerate(self.order):
            if isinstance(i.op, Parameter):
                continue
            if isinstance(i.op, Constant):
                self.values[i] = [self.planner.constant(i.op.literal)]
            elif isinstance(i.op, ALIASES):
                self.values[i] = _alias(i, self.values)
            elif isinstance(i.op, Fusion):
                drafts += self._launch(i, position)
            elif isinstance(i.op, While):
                drafts += self._loop(i, position)
            elif isinstance(i.op, Conditional):
                drafts += self._branch(i, position)
            elif isinstance(i.op, CustomCall):
                raise UnsupportedOpError(
                    f"no kernel is registered for the custom call to {i.op.target!r}", source=i.source
                )
            else:
                raise CompileError(f"{i.name} was left out of every kernel", source=i.source)
        return drafts

    # -- where values may lie ------------------------------------------------------------------------------------------

    def _want(self, value: ValueName, target: Buffer) -> None:
        """Asks for a value in a place; and for what it overwrites, if nobody else reads that."""
        while isinstance(value[0].op, Fusion | While | Conditional) and value not in self.wanted:
            self.wanted[value] = target
            i, leaf = value
            if isinstance(i.op, Fusion) and leaf in dict(i.op.in_place):
                operand = dict(i.op.in_place)[leaf]
            elif isinstance(i.op, While):
                operand = leaf
            elif isinstance(i.op, Conditional) and leaf in _branch_aliases(i.op):
                operand = 1 + _branch_aliases(i.op)[leaf]
            else:
                return
            value = origin(*leaf_operands(i)[operand])
            readers = {u for u in self.order if value in self._reads(u)}
            if readers != {i} or self._reads(i).count(value) > 1 or value in origins(self.computation.root):
                return

    def _reads(self, i: Instruction) -> list[ValueName]:
        return [] if isinstance(i.op, ALIASES) else reads(i)

    def _dies(self, value: ValueName, position: int, read: Sequence[ValueName]) -> bool:
        """Whether the instruction at this position is the last to read a value, and reads it once."""
        return self.readers[value] <= position and read.count(value) == 1

    def _writable(self, target: Buffer, position: int, read: Sequence[ValueName], over: Sequence[ValueName]) -> bool:
        """Whether the instruction at this position, which reads the values `read`, may write to a place: nobody needs
        any more what lies there, unless it is one of the values `over`, read just before."""
        there = self.content.get(target)
        if there is None or self.readers.get(there, -1) < position:
            return True
        return there in over and self._dies(there, position, read)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _launch(self, i: Instruction, position: int) -> list[_Draft]:
        launch = _Launching(self, i, position)
        for number, shape in enumerate(i.shape.leaves()):
            launch.place(number, shape.bytes)
        planner = self.planner
        size = planner.workspace(i)
        space = planner.new(size, f"{i.name} workspace") if size else None
        self.values[i] = launch.results
        self.content.update({b: (i, n) for n, b in enumerate(launch.results)})
        planner.tick(i.name, *launch.operands, *launch.results, *([space] if space else []))
        return [*launch.drafts, _Draft("launch", tuple(launch.operands), tuple(launch.results), i, space)]

    def _loop(self, i: Instruction, position: int) -> list[_Draft]:
        op, planner = i.op, self.planner
        assert isinstance(op, While)
        drafts, state = self._state(i, position)
        changing = [b for b, constant in zip(state, invariant(op), strict=True) if not constant]
        for buffer in changing:
            buffer.owner = op.body
        start = planner.time
        condition = _Scope(planner, op.condition, _bound(op.condition, state), {})
        before = condition.run([None])
        (predicate,) = condition.root()
        planner.tick(f"{i.name}: once more?", predicate)
        body = _Scope(planner, op.body, _bound(op.body, state), _state_aliases(op))
        own = parameter_leaves(op.body)
        body.content = {b: own[n] for n, b in enumerate(state) if b in changing}
        inside = body.run([b if b in changing else None for b in state])
        inside += planner.moves(body.root(), state, {b: n for n, b in enumerate(state) if b in changing})
        planner.tick(f"{i.name}: end", *state, predicate)
        for buffer in state:
            buffer.start, buffer.end = min(buffer.start, start), max(buffer.end, planner.time)
        for buffer in changing:
            buffer.owner = self.computation
        self.content.update({b: (i, n) for n, b in enumerate(state) if b in changing})
        self.values[i] = state
        return [*drafts, _Draft("loop", (predicate,), parts=(tuple(before), tuple(inside)))]

    def _state(self, i: Instruction, position: int) -> tuple[list[_Draft], list[Buffer]]:
        """The places of a loop's state, with the copies that fill them."""
        assert isinstance(i.op, While)
        planner, read = self.planner, reads(i)
        drafts: list[_Draft] = []
        state: list[Buffer] = []
        unchanged = invariant(i.op)
        for n, (o, m) in enumerate(leaf_operands(i)):
            source, target = self.values[o][m], self.wanted.get((i, n))
            dies = self._dies(read[n], position, read)
            if unchanged[n] or (source is target and dies):
                state.append(source)
                continue
            if target is None or not self._writable(target, position, read, [read[n]]):
                if dies and source.owner is self.computation and source.fixed is None and source not in state:
                    planner.take_over(source, source.bytes, _leaf_name(i, n))
                    state.append(source)
                    continue
                target = planner.new(source.bytes, _leaf_name(i, n))
            drafts.append(planner.copy(source, target))
            state.append(target)
        return drafts, state

    def _branch(self, i: Instruction, position: int) -> list[_Draft]:
        op, planner = i.op, self.planner
        assert isinstance(op, Conditional)
        arguments = [self.values[o][n] for o, n in leaf_operands(i)[1:]]
        before, results, taken = self._branch_results(i, position, arguments)
        index = self.values[i.operands[0]][0]
        planner.tick(f"{i.name}: which branch?", index, *arguments)
        parts = []
        for branch in op.branches:
            inside = _Scope(planner, branch, _bound(branch, arguments), _branch_aliases(op))
            own = parameter_leaves(branch)
            for argument, number in taken.items():
                results[number].owner = branch
                inside.content[results[number]] = own[argument]
            drafts = inside.run(results)
            moves = planner.moves(inside.root(), results, {results[n]: n for n in taken.values()})
            parts.append((*drafts, *moves))
        for number in taken.values():
            results[number].owner = self.computation
        planner.tick(f"{i.name}: end", index, *arguments, *results)
        self.values[i] = results
        self.content.update({b: (i, n) for n, b in enumerate(results)})
        is_predicate = i.operands[0].array_shape.element_type is PRED
        return [*before, _Draft("branch", (index,), parts=tuple(parts), is_predicate=is_predicate)]

    def _branch_results(
        self, i: Instruction, position: int, arguments: list[Buffer]
    ) -> tuple[list[_Draft], list[Buffer], dict[int, int]]:
        """The places of a conditional's results, the copies that come first, and which arguments' places results take.
        An argument that is copied to its result's place is there from then on."""
        assert isinstance(i.op, Conditional)
        planner, read = self.planner, reads(i)
        updated = _branch_aliases(i.op)
        drafts: list[_Draft] = []
        results: list[Buffer] = []
        taken: dict[int, int] = {}
        for n, shape in enumerate(i.shape.leaves()):
            target, a = self.wanted.get((i, n)), updated.get(n)
            if target in results:
                target = None
            if a is not None and self._dies(read[1 + a], position, read):
                source = arguments[a]
                free = source.owner is self.computation and source not in results
                if (
                    target is not None
                    and source is not target
                    and self._writable(target, position, read, [read[1 + a]])
                ):
                    drafts.append(planner.copy(source, target))
                    arguments[a] = source = target
                if source is target or (free and target is None):
                    taken[a] = n
                    results.append(source)
                    continue
            fits = target is not None and self._writable(target, position, read, [])
            if target is None or not fits:
                target = planner.new(shape.bytes, _leaf_name(i, n), self.computation)
            results.append(target)
        return drafts, results, taken


class _Launching:
    """Finds the places of one kernel's results."""

    def __init__(self, scope: _Scope, i: Instruction, position: int) -> None:
        assert isinstance(i.op, Fusion)
        self.scope, self.i, self.position, self.planner = scope, i, position, scope.planner
        self.operands = [b for o in i.operands for b in scope.values[o]]
        self.read = reads(i)
        self.in_place = dict(i.op.in_place)
        self.pairs = [pair for pair in scope.planner.pairs(i) if pair[0] not in self.in_place]
        wanted = (scope.wanted.get((i, n)) for n in range(len(i.shape.leaves())))
        self.targets = [b for b in wanted if b is not None]
        self.drafts: list[_Draft] = []
        self.results: list[Buffer] = []

    def place(self, number: int, size: int) -> None:
        """Decides where result `number` lies."""
        if number in self.in_place:
            self.results.append(self._written_in_place(number, size))
        else:
            self.results.append(self._in_target(number) or self._shared(number) or self._new(number, size))

    def _new(self, number: int, size: int) -> Buffer:
        return self.planner.new(size, _leaf_name(self.i, number), self.scope.computation)

    def _dies(self, operand: int) -> bool:
        return self.scope._dies(self.read[operand], self.position, self.read)

    def _written_in_place(self, number: int, size: int) -> Buffer:
        operand, target = self.in_place[number], self.scope.wanted.get((self.i, number))
        source = self.operands[operand]
        if source is target and self._dies(operand) and source not in self.results:
            return source
        fits = target is not None and target not in self.results
        if not fits or not self.scope._writable(target, self.position, self.read, [self.read[operand]]):  # type: ignore[arg-type]
            free = source.owner is self.scope.computation and source not in (*self.results, *self.targets)
            if self._dies(operand) and free:
                self.planner.take_over(source, size, _leaf_name(self.i, number))
                return source
            target = self._new(number, size)
        assert target is not None
        self.drafts.append(self.planner.copy(source, target))
        self.operands[operand] = target
        return target

    def _in_target(self, number: int) -> Buffer | None:
        """The place that the result is wanted in, if it may be written now."""
        target = self.scope.wanted.get((self.i, number))
        operands = [operand for leaf, operand in self.pairs if leaf == number]
        over = [self.read[o] for o in operands]
        if target is None or target in self.results:
            return None
        if not self.scope._writable(target, self.position, self.read, over):
            return None
        there = self.scope.content.get(target)
        self._note(number, [o for o in operands if self.read[o] == there])
        return target

    def _shared(self, number: int) -> Buffer | None:
        """The place of an operand that nothing reads afterwards."""
        for leaf, operand in self.pairs:
            source = self.operands[operand]
            free = source.owner is self.scope.computation and source not in (*self.results, *self.targets)
            if leaf == number and free and self._dies(operand):
                self._note(number, [operand])
                self.planner.take_over(source, source.bytes, _leaf_name(self.i, number))
                return source
        return None

    def _note(self, number: int, operands: Sequence[int]) -> None:
        self.planner.shared.setdefault(self.i, []).extend((number, operand) for operand in operands)


def _leaf_name(i: Instruction, number: int) -> str:
    """What a result of an instruction is called on the timeline."""
    return i.name if isinstance(i.shape, Shape) else f"{i.name}.{number}"


def _bound(computation: Computation, buffers: Sequence[Buffer]) -> Values:
    rest = iter(buffers)
    return {p: [next(rest) for _ in p.shape.leaves()] for p in computation.parameters}


def _branch_aliases(op: Conditional) -> dict[int, int]:
    """The results of a conditional that some branch makes by writing into a parameter, and its number; each once."""
    found: dict[int, int] = {}
    for branch in op.branches:
        own = parameter_leaves(branch)
        for number, value in enumerate(origins(branch.root)):
            while isinstance(value[0].op, Fusion) and value[1] in dict(value[0].op.in_place):
                i, leaf = value
                value = origin(*leaf_operands(i)[dict(value[0].op.in_place)[leaf]])
            if value in own and value != origins(branch.root)[number]:
                argument = own.index(value)
                if number not in found and argument not in found.values():
                    found[number] = argument
    return found


def _state_aliases(loop: While) -> dict[int, int]:
    """A body's results lie where the state does."""
    return {n: n for n, constant in enumerate(invariant(loop)) if not constant}


def _alias(i: Instruction, values: Values) -> list[Buffer]:
    if isinstance(i.op, Tuple):
        return [b for o in i.operands for b in values[o]]
    if isinstance(i.op, GetTupleElement):
        start = first_leaf(i)
        return values[i.operands[0]][start : start + len(i.shape.leaves())]
    return [] if isinstance(i.op, AfterAll) else values[i.operands[0]]


__all__ = ["Branch", "CopyStep", "Launch", "Loop", "Plan", "Slice", "Step", "plan", "share_buffers"]
