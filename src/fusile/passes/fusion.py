"""Decides what becomes one kernel: puts every instruction that does work into a Fusion.

Before::

    m = reduce(x, -inf), maximum over 1      e = exponential(x - broadcast(m))
    s = reduce(e, 0), add over 1             y = e / broadcast(s)

After: one `fusion(x), kind=loop`, which lowering writes row by row.

Instructions are visited users first. One joins the kernel of its users, when all are in one that admits it; it is
copied into each of its users' kernels, when it is cheap; else it starts a kernel. Then kernels become one with those
that read
their results, and with those that read the same array in the same loops, as long as none would wait for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fusile.base.shape import TupleShape
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset.control import Call, Conditional, Fusion, While
from fusile.hlo.opset.shape import Broadcast, Reshape
from fusile.hlo.opset.structure import (
    AfterAll,
    Constant,
    GetTupleElement,
    Iota,
    OptimizationBarrier,
    Parameter,
    Tuple,
)
from fusile.passes.fusion_group import EXPENSIVE, IN_PLACE, KINDS, WHOLE, Group, is_written_in
from fusile.passes.fusion_key import fusion_key
from fusile.rewrite.effects import has_effect

NEVER = (
    Parameter,
    Constant,
    Tuple,
    GetTupleElement,
    While,
    Conditional,
    OptimizationBarrier,
    AfterAll,
    Fusion,
    Call,
)
"""Ops that are no work, or not a kernel's."""
MOST_COPIES = 4
COPIED_ELEMENTS = 64
"""Elementwise work up to this size is rather done again than stored."""
MOST_SIBLINGS = 16
"""Users of an operand that are looked at as siblings."""
MOST_STEPS = 300
"""Kernels that are looked through for a cycle before giving up."""


@dataclass(frozen=True)
class FusionDecision:
    """Why an instruction did or did not join another's kernel."""

    instruction: str
    joined: bool
    reason: str

    def __str__(self) -> str:
        return f"{'fused' if self.joined else 'not fused'}: {self.instruction}, {self.reason}"


@dataclass
class Fuse:
    """The pass. `decisions` lists, after a run, what was decided and why."""

    name: str = "fusion"
    decisions: list[FusionDecision] = field(default_factory=list)

    def __call__(self, module: Module) -> bool:
        self.decisions = []
        changed = False
        for computation in scheduled_computations(module):
            changed |= _Planner(computation, self.decisions).run()
        return changed


def scheduled_computations(module: Module) -> list[Computation]:
    """The computations whose instructions run one after the other: the entry, loops and branches. Those of reductions,
    comparators and fusions are scalar code or kernels."""
    found = {module.entry: None}
    order = module.computations()
    for computation in reversed(order):
        if computation in found:
            for i in computation.instructions:
                if isinstance(i.op, While | Conditional | Call):
                    found.update(dict.fromkeys(i.op.computations()))
    return [c for c in order if c in found]


class _Planner:
    """Plans and makes the fusions of one computation."""

    def __init__(self, computation: Computation, decisions: list[FusionDecision]) -> None:
        self.computation, self.decisions = computation, decisions
        self.order = computation.post_order()
        self.position = {i: n for n, i in enumerate(self.order)}
        self.groups: dict[Instruction, list[Group]] = {}
        self.made: dict[Group, None] = {}
        self.apart: dict[Group, set[Group]] = {}
        """For groups, those that can't become one with them as they are."""

    def run(self) -> bool:
        for i in reversed(self.order):
            if not self._is_outside(i):
                self._place(i)
        self._join_readers()
        self._join_siblings()
        for group in reversed(self.made):
            self._make(group)
        self._sweep()
        return bool(self.made)

    def _is_outside(self, i: Instruction) -> bool:
        """What is never in a kernel, and reshapes that are free where they stand. Constants of one element are written
        into the kernels that read them (`_body`)."""
        if isinstance(i.op, Reshape):
            return i.is_root or not i.users or not self._user_groups(i)
        return isinstance(i.op, NEVER)

    # -- users ---------------------------------------------------------------------------------------------------------

    def _real_users(self, i: Instruction) -> list[Instruction]:
        """Users, with the users of a tuple's elements in the elements' place."""
        if not isinstance(i.shape, TupleShape):
            return list(i.users)
        users: list[Instruction] = []
        for user in i.users:
            users += list(user.users) or [user] if isinstance(user.op, GetTupleElement) else [user]
        return users

    def _is_result(self, i: Instruction) -> bool:
        return i.is_root or any(isinstance(u.op, GetTupleElement) and u.is_root for u in i.users)

    def _user_groups(self, i: Instruction) -> list[Group]:
        """The groups that all users are in; empty when a user is outside of every group."""
        found: dict[int, Group] = {}
        for user in self._real_users(i):
            groups = self.groups.get(user)
            if not groups:
                return []
            found.update((id(g), g) for g in groups)
        return list(found.values())

    # -- placing -------------------------------------------------------------------------------------------------------

    def _place(self, i: Instruction) -> None:
        joined = self._producer_of(i)
        if joined:
            for group in joined:
                self._add(group, i)
            return
        if isinstance(i.op, Reshape):
            return
        group = Group(KINDS.get(type(i.op), "loop"))
        self.made[group] = None
        self._add(group, i)
        self._add_roots(group, i)

    def _note(self, i: Instruction, joined: bool, reason: str) -> None:
        self.decisions.append(FusionDecision(i.name, joined, reason))

    def _producer_of(self, i: Instruction) -> list[Group]:
        """The kernels that `i` is computed in for their use alone."""
        groups = [] if self._is_result(i) else self._user_groups(i)
        if not groups:
            return []
        if len(groups) > 1 and not _is_cheap(i, len(groups)):
            self._note(i, False, f"{len(groups)} kernels use it")
            return []
        for group in groups:
            if reason := group.refuses(i):
                self._note(i, False, reason)
                return []
        self._note(i, True, f"into the kernel of {groups[0].roots[0].name}")
        return groups

    # -- groups --------------------------------------------------------------------------------------------------------

    def _add(self, group: Group, i: Instruction) -> None:
        times = group.times(i)
        group.add(i, times)
        self.groups.setdefault(i, []).append(group)
        for element in _elements_of(i) if group.kind not in WHOLE else ():
            group.add(element, times)
            self.groups.setdefault(element, []).append(group)

    def _add_roots(self, group: Group, i: Instruction) -> None:
        """Makes `i`, or those of its elements that someone outside reads, results of the group."""
        elements = _elements_of(i)
        if not elements or group.kind in WHOLE:
            group.roots.append(i)
            return
        for element in elements:
            if not element.users or self._is_read_outside(element, group):
                group.roots.append(element)

    def _is_read_outside(self, i: Instruction, group: Group) -> bool:
        return i.is_root or any(self.groups.get(u) != [group] for u in i.users)

    # -- joining kernels ----------------------------------------------------------------------------------------------

    def _join_readers(self) -> None:
        """Makes a kernel one with those that read its results, so that they are read from registers."""
        for i in reversed(self.order):
            groups = self.groups.get(i, ())
            if len(groups) == 1 and any(i is r for r in groups[0].roots):
                for user in list(i.users):
                    for reader in list(self.groups.get(user, ())):
                        (group,) = self.groups[i]
                        self._try_merge(group, reader)

    def _join_siblings(self) -> None:
        """Makes kernels one that read the same array in the same loops, so that it is read once."""
        for i in self.order:
            if len(i.users) < 2 or i.shape.is_tuple or is_written_in(i):
                continue
            readers: dict[Group, None] = {}
            for user in list(i.users)[:MOST_SIBLINGS]:
                readers |= dict.fromkeys(g for g in self.groups.get(user, ()) if g.reads_in_its_loops(i))
            kept: list[Group] = []
            for reader in readers:
                if not any(self._try_merge(k, reader) for k in kept):
                    kept.append(reader)

    def _try_merge(self, a: Group, b: Group) -> bool:
        """Makes the members of `b` members of `a`, if one kernel can do both and would not wait for itself."""
        if a is b or b in self.apart.get(a, ()):
            return False
        reason = a.refuses_group(b)
        if not reason and (self._waits_through(a, b) or self._waits_through(b, a)):
            reason = "a kernel would wait for itself"
        self.decisions.append(FusionDecision(b.roots[0].name, not reason, reason or f"beside {a.roots[0].name}"))
        if reason:
            self.apart.setdefault(a, set()).add(b)
            return False
        self._merge(a, b)
        return True

    def _merge(self, a: Group, b: Group) -> None:
        for i, times in b.members.items():
            a.add(i, max(times, a.members.get(i, 1)))
            self.groups[i] = [g for g in self.groups[i] if g is not b and g is not a] + [a]
        a.roots = [r for r in (*a.roots, *b.roots) if self._is_read_outside(r, a) or not r.users]
        del self.made[b]
        self.apart.pop(a, None)

    def _waits_through(self, a: Group, b: Group) -> bool:
        """Whether `b` reads something that another kernel computes from what `a` computes. True too when that takes
        long to find out."""
        last = max(self.position[m] for m in b.members)
        seen: set[int] = {id(a), id(b)}
        stack = [n for n in self._readers(a.roots) if n[0] not in seen]
        while stack:
            key, roots = stack.pop()
            if key in seen or min(self.position[r] for r in roots) > last:
                continue
            seen.add(key)
            following = list(self._readers(roots))
            if len(seen) > MOST_STEPS or any(k == id(b) for k, _ in following):
                return True
            stack += following
        return False

    def _readers(self, roots: Sequence[Instruction]) -> Iterator[tuple[int, Sequence[Instruction]]]:
        """What reads these, by identity and results: kernels, and instructions that are in none."""
        for user in dict.fromkeys(u for r in roots for u in r.users):
            groups = self.groups.get(user)
            if groups:
                yield from ((id(g), g.roots) for g in groups)
            else:
                yield id(user), [user]

    # -- making fusions ------------------------------------------------------------------------------------------------

    def _make(self, group: Group) -> None:
        """Replaces a group by a Fusion of the same meaning."""
        group.roots.sort(key=lambda r: self.position[r])
        body, operands, inside = self._body(group)
        roots = [inside[r] for r in group.roots]
        (first, *_) = group.roots
        whole = isinstance(first.shape, TupleShape)
        if whole:
            roots = [body.add(GetTupleElement(n), [roots[0]]) for n in range(len(first.shape.leaves()))]
        body.root = roots[0] if len(roots) == 1 and not whole else body.add(Tuple(), roots)
        op = Fusion(body, group.kind, tuple(enumerate(map(operands.index, _written_in_place(group)))))
        fusion = self.computation.add(op, operands, name=f"{group.kind}.{first.name}", source=first.source)
        if len(group.roots) == 1:
            first.replace_all_uses(fusion)
            return
        for number, root in enumerate(group.roots):
            root.replace_all_uses(self.computation.add(GetTupleElement(number), [fusion], source=root.source))

    def _body(self, group: Group) -> tuple[Computation, list[Instruction], dict[Instruction, Instruction]]:
        """The fusion's computation, its operands in the order of first use, and the members inside it. Members come in
        an order that their structure alone decides, so that equal kernels are equal."""
        body = Computation(f"fused_{group.roots[0].name}")
        inside: dict[Instruction, Instruction] = {}
        operands: list[Instruction] = []
        written = _written_in_place(group)
        for i in _depth_first(group):
            for o in i.operands:
                if o in inside:
                    continue
                if is_written_in(o) and o not in written and group.kind != "host":
                    inside[o] = body.add(o.op, name=o.name, source=o.source)
                else:
                    inside[o] = body.parameter(o.shape, f"p{len(operands)}", o.source)
                    operands.append(o)
            shape = i.shape
            inside[i] = body.add(i.op, [inside[o] for o in i.operands], name=i.name, source=i.source, shape=shape)
        return body, operands, inside

    def _sweep(self) -> None:
        """Erases what the fusions have replaced."""
        for i in reversed(self.order):
            if (
                not i.users
                and not i.is_root
                and not isinstance(i.op, Parameter)
                and (i in self.groups or not has_effect(i.op))
            ):
                self.computation.erase(i)


def _is_cheap(i: Instruction, groups: int) -> bool:
    """Whether computing `i` in each of several kernels costs less than storing and reading it."""
    if isinstance(i.op, Iota | Reshape):
        return True
    if isinstance(i.op, Broadcast) and i.operands[0].array_shape.elements * 4 <= i.array_shape.elements:
        return True
    if groups > MOST_COPIES or isinstance(i.op, EXPENSIVE) or not i.op.elementwise:
        return False
    return all(o.array_shape.elements <= COPIED_ELEMENTS for o in (i, *i.operands))


def _written_in_place(group: Group) -> list[Instruction]:
    """The operands whose buffers the results take, in the results' order."""
    (first, *_) = group.roots
    return first.operands[: len(first.shape.leaves())] if group.kind in IN_PLACE else []


def _elements_of(i: Instruction) -> list[Instruction]:
    """A tuple's elements, in order."""
    if not isinstance(i.shape, TupleShape):
        return []
    found = [(u.op.index, u) for u in i.users if isinstance(u.op, GetTupleElement)]
    return [u for _, u in sorted(found, key=lambda pair: pair[0])]


def _depth_first(group: Group) -> list[Instruction]:
    """The members that the roots need, operands first."""
    order: list[Instruction] = []
    seen: set[Instruction] = set()
    stack = [(r, False) for r in reversed(group.roots)]
    while stack:
        i, done = stack.pop()
        if done:
            order.append(i)
        elif i in group.members and i not in seen:
            seen.add(i)
            stack.append((i, True))
            stack += [(o, False) for o in reversed(i.operands)]
    return order


__all__ = ["Fuse", "FusionDecision", "fusion_key", "scheduled_computations"]
