"""The order of a computation's instructions: the one, of a few, whose values take the least memory at once.

Tried are the order of the operands' depth-first walk, the same with the operand that takes the most first, and list
scheduling: of what may run, always what frees the most more than it takes; and each of these with everything that takes
more than it frees moved to where it is first read. What writes a value in place waits, if it can, until everything else
that reads the value has run, so that no copy is needed. What has effects keeps its order.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence

from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset.control import CustomCall, Fusion
from fusile.hlo.opset.structure import Constant, Parameter
from fusile.memory.share import shareable
from fusile.memory.values import ALIASES, ValueName, leaf_operands, origin, origins, parameter_leaves, reads

WAITING = -(1 << 60)
"""The priority of what would need a copy now."""


def schedule(
    computation: Computation,
    aliases: Mapping[int, int],
    inside: Callable[[Instruction], int] = lambda instruction: 0,
) -> tuple[list[Instruction], int]:
    """All instructions, operands before users, and the bytes they take at once. `aliases`: the leaves of the result
    that are to lie where a parameter's leaf lies. `inside`: bytes that an instruction (a loop, a branch) takes while
    it runs."""
    facts = _Facts(computation, aliases, inside)
    candidates = [facts.work, facts.depth_first(), facts.list_schedule()]
    best = min([*candidates, *map(facts.late, candidates)], key=facts.peak)
    return _with_aliases(computation, best), facts.peak(best)[0]


class _Facts:
    """What each instruction that does work reads, writes and frees."""

    def __init__(
        self, computation: Computation, aliases: Mapping[int, int], inside: Callable[[Instruction], int]
    ) -> None:
        self.computation = computation
        order = computation.post_order()
        self.work = [i for i in order if not isinstance(i.op, (*ALIASES, Parameter, Constant))]
        self.position = {i: n for n, i in enumerate(self.work)}
        self.inside = {i: inside(i) for i in self.work}
        self.reads = {i: list(dict.fromkeys(reads(i))) for i in self.work}
        self.results = set(origins(computation.root))
        self.readers: dict[ValueName, set[Instruction]] = {}
        for i, values in self.reads.items():
            for value in values:
                self.readers.setdefault(value, set()).add(i)
        self.bytes = {
            (i, n): 0 if (i, n) in self.results else leaf.bytes
            for i in self.work
            for n, leaf in enumerate(i.shape.leaves())
        }
        self.before = {i: {v[0] for v in self.reads[i] if v[0] in self.position} for i in self.work}
        effects = [i for i in self.work if _has_effect(i)]
        for first, second in itertools.pairwise(effects):
            self.before[second].add(first)
        self.overwrites = {i: self._overwritten(i) for i in self.work}
        self.takes_over = {i: self._taken_over(i) for i in self.work}
        self._note_aliases(aliases)

    def _overwritten(self, i: Instruction) -> list[ValueName]:
        """What an instruction writes in place."""
        if not isinstance(i.op, Fusion):
            return []
        leaves = leaf_operands(i)
        return [origin(*leaves[operand]) for _, operand in i.op.in_place]

    def _taken_over(self, i: Instruction) -> list[tuple[ValueName, ValueName]]:
        """Its values, each with an operand in whose place it may lie."""
        if not isinstance(i.op, Fusion):
            return []
        leaves, taken, found = leaf_operands(i), set(), []
        for leaf, operand in (*i.op.in_place, *shareable(i)):
            value = origin(*leaves[operand])
            if leaf not in taken and value not in taken and value[0] in self.position:
                taken |= {leaf, value}
                found.append(((i, leaf), value))
        return found

    def _note_aliases(self, aliases: Mapping[int, int]) -> None:
        own = parameter_leaves(self.computation)
        places = origins(self.computation.root)
        for result, parameter in aliases.items():
            writer = places[result][0]
            if writer in self.overwrites and own[parameter] != places[result]:
                self.overwrites[writer].append(own[parameter])
        self.writers: dict[ValueName, list[Instruction]] = {}
        for i, values in self.overwrites.items():
            for value in values:
                self.writers.setdefault(value, []).append(i)

    # -- orders --------------------------------------------------------------------------------------------------------

    def depth_first(self) -> list[Instruction]:
        """Operands before users, those whose own operands take the most first."""
        need: dict[Instruction, int] = {}
        for i in self.work:
            need[i] = self._size(i) + max((need[o] for o in self.before[i]), default=0)
        order: dict[Instruction, None] = {}
        for start in self.work:
            stack = [(start, False)]
            while stack:
                i, done = stack.pop()
                if done:
                    order[i] = None
                elif i not in order:
                    stack.append((i, True))
                    first = sorted(self.before[i], key=lambda o: (need[o], -self.position[o]))
                    stack += [(o, False) for o in first if o not in order]
        return list(order)

    def _size(self, i: Instruction) -> int:
        return sum(self.bytes[i, n] for n in range(len(i.shape.leaves())))

    def list_schedule(self) -> list[Instruction]:
        """Of what may run, always what frees the most more than it takes."""
        left = {value: len(readers) for value, readers in self.readers.items()}
        waiting = {i: len(self.before[i]) for i in self.work}
        users: dict[Instruction, list[Instruction]] = {}
        for i in self.work:
            for o in self.before[i]:
                users.setdefault(o, []).append(i)
        heap = [self._entry(i, left) for i in self.work if not waiting[i]]
        heapq.heapify(heap)
        order: dict[Instruction, None] = {}
        while heap:
            priority, number = heapq.heappop(heap)
            i = self.work[number]
            if i in order or priority != self._entry(i, left)[0]:
                continue
            order[i] = None
            for value in self.reads[i]:
                left[value] -= 1
                if left[value] == 1:
                    # Whoever reads it last frees it, or may now write it in place.
                    for reader in self.readers[value]:
                        if reader not in order and not waiting[reader]:
                            heapq.heappush(heap, self._entry(reader, left))
                for writer in self.writers.get(value, ()):
                    if writer not in order and not waiting[writer]:
                        heapq.heappush(heap, self._entry(writer, left))
            for user in users.get(i, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(heap, self._entry(user, left))
        return list(order)

    def _entry(self, i: Instruction, left: Mapping[ValueName, int]) -> tuple[int, int]:
        """A heap's entry: the smallest comes first."""
        if any(left.get(v, 0) > (i in self.readers.get(v, ())) for v in self.overwrites[i]):
            return -WAITING, self.position[i]
        frees = sum(self.bytes.get(v, 0) for v in self.reads[i] if left[v] == 1)
        return self._size(i) - frees, self.position[i]

    def late(self, order: Sequence[Instruction]) -> list[Instruction]:
        """The order with what takes more than it frees moved to just before its first reader."""
        left = {value: len(readers) for value, readers in self.readers.items()}
        moved = set()
        for i in order:
            for value in self.reads[i]:
                left[value] -= 1
            frees = sum(self.bytes.get(v, 0) for v in self.reads[i] if not left[v])
            read = any((i, n) in self.readers for n in range(len(i.shape.leaves())))
            if read and frees < self._size(i):
                moved.add(i)
        rank = {i: n for n, i in enumerate(order)}
        new: dict[Instruction, None] = {}
        for start in (*(i for i in order if i not in moved), *order):
            stack = [(start, False)]
            while stack:
                i, done = stack.pop()
                if done:
                    new[i] = None
                elif i not in new:
                    stack.append((i, True))
                    # What reads a value stays before what overwrites it.
                    readers = {r for v in self.overwrites[i] for r in self.readers.get(v, ()) if rank[r] < rank[i]}
                    first = sorted((self.before[i] | readers) - new.keys(), key=rank.__getitem__, reverse=True)
                    stack += [(o, False) for o in first]
        return list(new)

    # -- what an order takes -------------------------------------------------------------------------------------------

    def peak(self, order: Sequence[Instruction]) -> tuple[int, int]:
        """The most bytes that live at once, and the bytes that have to be copied first."""
        left = {value: len(readers) for value, readers in self.readers.items()}
        live = most = copied = 0
        for i in order:
            for value in self.overwrites[i]:
                if left.get(value, 0) > (i in self.readers.get(value, ())):
                    copied += value[0].shape.leaves()[value[1]].bytes
            for value in self.reads[i]:
                left[value] -= 1
            taken = {
                leaf: value
                for leaf, value in self.takes_over[i]
                if self.bytes[leaf] and not left[value] and value not in self.results
            }
            kept = set(taken.values())
            own = [(i, n) for n in range(len(i.shape.leaves()))]
            live += sum(self.bytes[leaf] for leaf in own if leaf not in taken)
            most = max(most, live + self.inside[i])
            live -= sum(self.bytes.get(v, 0) for v in self.reads[i] if not left[v] and v not in kept)
            live -= sum(self.bytes[leaf] for leaf in own if leaf not in self.readers)
        return most + copied, copied


def _has_effect(i: Instruction) -> bool:
    """Whether an instruction, or one inside of it, does more than give a result: those keep their order."""
    if isinstance(i.op, CustomCall):
        return i.op.has_effect
    return any(_has_effect(x) for c in i.op.computations() for x in c.instructions)


def _with_aliases(computation: Computation, work: Sequence[Instruction]) -> list[Instruction]:
    """The order with the instructions that are no work, each before its first user."""
    order: dict[Instruction, None] = {}
    for start in (*work, *computation.post_order()):
        stack = [(start, False)]
        while stack:
            i, done = stack.pop()
            if done:
                order[i] = None
            elif i not in order:
                stack.append((i, True))
                stack += [(o, False) for o in reversed(i.operands) if o not in order]
    return list(order)
