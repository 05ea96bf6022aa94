"""Decides what becomes one kernel: puts every instruction that does work into a Fusion.

Before::

    m = reduce(x, -inf), maximum over 1      e = exponential(x - broadcast(m))      s = reduce(e, 0), add      y = e / broadcast(s)

After: one `fusion(x), kind=loop`, which lowering writes row by row.

Instructions are visited users first. One joins the group of its users when all of them are in one group and the group
can still be written as one kernel (`_Group.admits`); cheap ones whose users are in several groups are copied into each.
Joining only where all users are keeps the graph of groups free of cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusile.base.shape import TupleShape
from fusile.hlo.ir import Computation, Instruction, Module
from fusile.hlo.opset import elementwise as ew
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Call, Conditional, CustomCall, Fusion, While
from fusile.hlo.opset.other import Cholesky, Fft, RngBitGenerator, TopK, TriangularSolve
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter, Sort
from fusile.hlo.opset.shape import (
    Broadcast,
    Concatenate,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Pad,
    Reshape,
    Reverse,
    Scatter,
    Slice,
    Transpose,
)
from fusile.hlo.opset.structure import AfterAll, Constant, GetTupleElement, Iota, OptimizationBarrier, Parameter, Tuple

NEVER = (Parameter, Tuple, While, Conditional, CustomCall, OptimizationBarrier, AfterAll, Fusion, Call)
ALONE = {Scatter: "scatter", Sort: "sort", SelectAndScatter: "select_and_scatter", Cholesky: "library", TriangularSolve: "library",
         Fft: "library", RngBitGenerator: "library", TopK: "library", DynamicUpdateSlice: "update"}  # fmt: skip
"""Ops with kernels of their own, and the kind of fusion."""
MOVES = (Broadcast, Reshape, Transpose, Slice, Reverse, Pad, Concatenate, DynamicSlice, Gather)
EXPENSIVE = (
    ew.Exponential, ew.ExponentialMinusOne, ew.Log, ew.LogPlusOne, ew.Logistic, ew.Tanh, ew.Sine, ew.Cosine, ew.Tan, ew.Erf, ew.Erfc, ew.ErfInv,
    ew.Power, ew.Atan2, ew.Cbrt, ew.Asin, ew.Acos, ew.Atan, ew.Sinh, ew.Cosh, ew.Asinh, ew.Acosh, ew.Atanh, ew.Lgamma, ew.Digamma, ew.BesselI0e,
    ew.BesselI1e, ew.Remainder,
)  # fmt: skip
MOST_MEMBERS = 200
MOST_OPERANDS = 40
LONG_ROW = 128 << 10


@dataclass(frozen=True)
class FusionDecision:
    """Why an instruction did or did not join a group."""

    instruction: str
    joined: bool
    reason: str


@dataclass
class Fuse:
    """The pass. `decisions` lists, after a run, what was decided and why."""

    name: str = "fusion"
    decisions: list[FusionDecision] = field(default_factory=list)

    def __call__(self, module: Module) -> bool:
        self.decisions = []
        changed = False
        for computation in module.computations():
            if not is_scalar_body(computation, module):
                changed |= _Planner(computation, self.decisions).run()
        return changed


def is_scalar_body(computation: Computation, module: Module) -> bool:
    """Whether a computation is a reduction's, a comparator's or a fusion's: those are never cut into kernels."""
    if computation is module.entry:
        return False
    for caller in module.computations():
        for i in caller.instructions:
            if computation in i.op.computations():
                return not isinstance(i.op, While | Conditional | Call)
    return True


class _Group:
    """Instructions that become one kernel."""

    def __init__(self, root: Instruction, kind: str) -> None:
        self.kind = kind
        self.roots = [root]
        self.members: dict[Instruction, int] = {}
        """Each with how often one of its elements is computed, at least."""
        self.reduction: Instruction | None = None
        self.hero: Instruction | None = None
        self.add(root, 1)

    def add(self, i: Instruction, times: int) -> None:
        # A row's reduction is computed once a row, whatever reads it.
        self.members[i] = 1 if isinstance(i.op, Reduce) and _minor(i) else times
        if isinstance(i.op, Reduce) and _minor(i):
            self.reduction = self.reduction or i
        if isinstance(i.op, Dot | Convolution):
            self.hero, self.kind = i, "contraction"

    def times(self, i: Instruction) -> int:
        """How often an element of `i` would be computed for the members that use it."""
        most = 1
        for user in i.users:
            if user in self.members:
                most = max(most, self.members[user] * _repeats(user, i))
        return most

    def admits(self, i: Instruction) -> str:
        """Why `i`, all whose users are in the group, can't join; empty when it can."""
        if len(self.members) >= MOST_MEMBERS:
            return "the group has enough members"
        if type(i.op) in ALONE:
            return f"{i.opcode} has a kernel of its own"
        if self.kind not in ("loop", "contraction"):
            return f"a {self.kind} kernel takes nothing in"
        if isinstance(i.op, Dot | Convolution):
            return self._admits_hero(i)
        if isinstance(i.op, Reduce):
            return self._admits_reduce(i)
        if isinstance(i.op, ReduceWindow):
            return "" if self.kind == "loop" and self.reduction is None and self._same_shape_users(i) else "its users are not elementwise on its shape"
        if self.hero is not None and self._before_hero(i):
            return "" if isinstance(i.op, Transpose | Reshape | Slice | Broadcast | Reverse | Constant) else "only index ops join before a contraction"
        return self._admits_map(i)

    def _admits_map(self, i: Instruction) -> str:
        times = self.times(i)
        if isinstance(i.op, EXPENSIVE) and times > 1:
            return f"each element would be computed {times} times"
        if isinstance(i.op, Gather | Concatenate | DynamicSlice) and times > 1:
            return "an indirect access would be repeated"
        if self.reduction is not None and isinstance(i.op, Transpose | Gather | Concatenate | Pad | Reverse):
            return f"{i.opcode} would break the rows' runs of neighbours"
        if times > 16 and not isinstance(i.op, Broadcast | Constant | Iota) and not _small(i):
            return f"each element would be computed {times} times"
        if isinstance(i.op, Transpose) and self.hero is not None:
            return "a transpose in an epilogue reads badly"
        return ""

    def _admits_hero(self, i: Instruction) -> str:
        if self.hero is not None:
            return "the kernel has a contraction already"
        if self.reduction is not None or any(isinstance(m.op, Reduce | ReduceWindow) for m in self.members):
            return "the kernel reduces"
        if len(i.users) != 1:
            return "its result has several users"
        (root,) = self.roots if len(self.roots) == 1 else (None,)
        if root is None or root.shape.is_tuple or root.array_shape.elements != i.array_shape.elements:
            return "its users have another number of elements"
        step: Instruction = i
        while step is not root:
            users = [u for u in step.users if u in self.members]
            if len(users) != 1 and not all(u.array_shape.dimensions == step.array_shape.dimensions and u.op.elementwise for u in users):
                return "its result is used in several ways"
            if not (users[0].op.elementwise or isinstance(users[0].op, Reshape)):
                return f"{users[0].opcode} is no epilogue"
            step = users[0]
        return ""

    def _admits_reduce(self, i: Instruction) -> str:
        if self.hero is not None:
            return "a reduction does not join an epilogue"
        if any(s.element_type.is_complex for s in i.shape.leaves()):
            return "complex sums stand alone"
        if not _minor(i):
            same = self.reduction is None and self._same_shape_users(i) and not any(isinstance(m.op, Reduce) for m in self.members)
            return "" if same else "a reduction over columns joins only ops on its own result"
        space = i.operands[0].array_shape.dimensions
        if self.reduction is not None and (self.reduction.operands[0].array_shape.dimensions, self.reduction.op.dimensions) != (space, i.op.dimensions):  # type: ignore[attr-defined]
            return "the kernel has rows of another shape"
        rows = math.prod(i.shape.leaves()[0].sizes)
        columns = math.prod(i.operands[0].array_shape.sizes) // max(1, rows)
        for member in self.members:
            if reason := self._misaligned(member, space, rows):
                return reason
        if rows < 8 and columns > LONG_ROW and any(r.array_shape.elements != rows for r in self.roots):
            return "rows this long are reduced in pieces"
        return ""

    def _misaligned(self, member: Instruction, space: tuple[object, ...], rows: int) -> str:
        if isinstance(member.op, Reduce | GetTupleElement | Constant | Iota):
            return ""
        shape = member.array_shape
        if isinstance(member.op, Reshape):
            same = _without_ones(shape.sizes) == _without_ones(member.operands[0].array_shape.sizes)
            return "" if same or shape.elements == rows else f"{member.name} reshapes"
        if isinstance(member.op, Broadcast):
            return "" if shape.dimensions == space or shape.elements == rows or shape.elements == 1 else f"{member.name} has another shape"
        if not member.op.elementwise:
            return f"{member.name} moves elements"
        return "" if shape.dimensions == space or shape.elements == rows else f"{member.name} has another shape"

    def _same_shape_users(self, i: Instruction) -> bool:
        leaf = i.shape.leaves()[0].dimensions
        for member in self.members:
            if isinstance(member.op, Constant | Broadcast | GetTupleElement):
                continue
            if not member.op.elementwise or member.array_shape.dimensions != leaf:
                return False
        return True

    def _before_hero(self, i: Instruction) -> bool:
        """Whether `i` is on the hero's side of the group: all its users lead to the hero."""
        assert self.hero is not None
        stack, seen = list(i.users), set[Instruction]()
        while stack:
            user = stack.pop()
            if user is self.hero:
                return True
            if user in seen or user not in self.members:
                continue
            seen.add(user)
            stack += user.users
        return False


def _minor(i: Instruction) -> bool:
    """Whether a reduction runs along memory."""
    real = [d for d, s in enumerate(i.operands[0].array_shape.sizes) if s != 1]
    return bool(real) and real[-1] in i.op.dimensions  # type: ignore[attr-defined]


def _without_ones(sizes: Iterable[int]) -> list[int]:
    return [s for s in sizes if s != 1]


def _small(i: Instruction) -> bool:
    return i.array_shape.elements <= 4096


def _repeats(user: Instruction, operand: Instruction) -> int:
    """How often `user` asks for one element of `operand`."""
    if isinstance(user.op, Broadcast):
        if user.op.broadcast_dimensions == tuple(range(operand.array_shape.rank)) and operand.array_shape.rank:
            # One value a row, which moves out of the loop over the row.
            return 1
        return max(1, user.array_shape.elements // max(1, operand.array_shape.elements))
    if isinstance(user.op, ReduceWindow):
        window = user.op.window
        return max(1, math.prod(window.size) // math.prod(window.stride))
    if isinstance(user.op, Dot | Convolution):
        return 8
    if isinstance(user.op, Gather):
        return max(1, user.array_shape.elements // max(1, operand.array_shape.elements))
    return 1


class _Planner:
    """Plans and makes the fusions of one computation."""

    def __init__(self, computation: Computation, decisions: list[FusionDecision]) -> None:
        self.computation, self.decisions = computation, decisions
        self.groups: dict[Instruction, list[_Group]] = {}
        self.order = computation.post_order()

    def run(self) -> bool:
        made: list[_Group] = []
        for i in reversed(self.order):
            if self._outside(i):
                continue
            joined = self._groups_for(i)
            if joined:
                for group in joined:
                    self._join(group, i)
                continue
            group = self._new_group(i)
            made.append(group)
        for group in reversed(made):
            self._make(group)
        self._sweep()
        return bool(made)

    def _outside(self, i: Instruction) -> bool:
        """What never is in a kernel, and what only follows its operand or users."""
        if isinstance(i.op, NEVER) or (isinstance(i.op, Constant) and i.array_shape.elements != 1):
            return True
        if isinstance(i.op, GetTupleElement):
            return True
        if i.is_root or not i.users:
            return isinstance(i.op, Reshape | Constant)
        if isinstance(i.op, Reshape | Constant):
            return not self._user_groups(i)
        return False

    def _real_users(self, i: Instruction) -> list[Instruction]:
        """Users, with a tuple's elements' users in the place of the elements."""
        users: list[Instruction] = []
        for user in i.users:
            if isinstance(user.op, GetTupleElement) and isinstance(i.shape, TupleShape):
                users += list(user.users) or [user]
                if user.is_root:
                    users.append(user)
            else:
                users.append(user)
        return users

    def _user_groups(self, i: Instruction) -> list[_Group]:
        """The groups that all users are in; empty when a user is outside of every group."""
        found: dict[int, _Group] = {}
        for user in self._real_users(i):
            groups = self.groups.get(user)
            if not groups:
                return []
            for group in groups:
                found[id(group)] = group
        return list(found.values())

    def _groups_for(self, i: Instruction) -> list[_Group]:
        if self._is_result(i):
            return []
        groups = self._user_groups(i)
        if not groups:
            return []
        if len(groups) > 1 and not self._cheap(i, len(groups)):
            self.decisions.append(FusionDecision(i.name, False, f"{len(groups)} kernels use it"))
            return []
        for group in groups:
            reason = group.admits(i) if len(group.members) else ""
            if not reason and self._operands(group, i) > MOST_OPERANDS:
                reason = "the kernel has enough operands"
            if reason:
                self.decisions.append(FusionDecision(i.name, False, reason))
                return []
        self.decisions.append(FusionDecision(i.name, True, f"into the kernel of {groups[0].roots[0].name}"))
        return groups

    def _is_result(self, i: Instruction) -> bool:
        return i.is_root or any(isinstance(u.op, GetTupleElement) and u.is_root for u in i.users)

    def _operands(self, group: _Group, i: Instruction) -> int:
        outside = {o for m in (*group.members, i) for o in m.operands if o not in group.members}
        return len(outside)

    def _cheap(self, i: Instruction, groups: int) -> bool:
        """Whether computing `i` in each of several kernels costs less than storing and reading it."""
        if isinstance(i.op, Constant | Iota) or (isinstance(i.op, Broadcast) and i.operands[0].array_shape.elements * 4 <= i.array_shape.elements):
            return True
        if isinstance(i.op, Reshape):
            return True
        if groups > 4 or isinstance(i.op, EXPENSIVE) or isinstance(i.shape, TupleShape):
            return False
        return i.op.elementwise and i.array_shape.elements <= 64 and all(o.array_shape.elements <= 64 for o in i.operands)

    def _join(self, group: _Group, i: Instruction) -> None:
        times = group.times(i)
        group.add(i, times)
        self.groups.setdefault(i, []).append(group)
        for user in i.users:
            if isinstance(user.op, GetTupleElement) and isinstance(i.shape, TupleShape):
                group.add(user, times)
                self.groups.setdefault(user, []).append(group)

    def _new_group(self, i: Instruction) -> _Group:
        kind = ALONE.get(type(i.op), "loop")
        elements = [u for u in i.users if isinstance(u.op, GetTupleElement)] if isinstance(i.shape, TupleShape) else []
        group = _Group(i, kind)
        if elements:
            group.roots = sorted(elements, key=lambda u: u.op.index)  # type: ignore[attr-defined]
            for element in elements:
                group.add(element, 1)
        self.groups[i] = [group]
        for element in elements:
            self.groups[element] = [group]
        return group

    # -- making fusions -----------------------------------------------------------------------------------------------

    def _make(self, group: _Group) -> None:
        """Replaces a group by a Fusion of the same meaning."""
        members = [i for i in self.order if i in group.members]
        body = Computation(f"fused_{group.roots[0].name}")
        inside: dict[Instruction, Instruction] = {}
        operands: list[Instruction] = []

        def get(o: Instruction) -> Instruction:
            if o not in inside:
                if isinstance(o.op, Constant) and o.array_shape.elements == 1:
                    inside[o] = body.add(o.op, name=o.name, source=o.source)
                else:
                    inside[o] = body.parameter(o.shape, f"p{len(operands)}", o.source)
                    operands.append(o)
            return inside[o]

        for i in members:
            inside[i] = body.add(i.op, [get(o) for o in i.operands], name=i.name, source=i.source, shape=i.shape)
        roots = [inside[r] for r in group.roots]
        tuple_root = len(roots) == 1 and isinstance(group.roots[0].shape, TupleShape)
        if tuple_root:
            roots = [body.add(GetTupleElement(n), [roots[0]]) for n in range(len(group.roots[0].shape.shapes))]  # type: ignore[union-attr]
        body.root = roots[0] if len(roots) == 1 and not tuple_root else body.add(Tuple(), roots)
        leaves = len(group.roots[0].shape.leaves()) if group.kind in ("update", "scatter") else 0
        in_place = tuple((n, n) for n in range(leaves))
        fusion = self.computation.add(Fusion(body, group.kind, in_place), operands, name=f"{group.kind}.{group.roots[0].name}", source=group.roots[0].source)
        if len(group.roots) == 1 and not tuple_root:
            group.roots[0].replace_all_uses(fusion)
        elif tuple_root:
            group.roots[0].replace_all_uses(fusion)
        else:
            for number, root in enumerate(group.roots):
                root.replace_all_uses(self.computation.add(GetTupleElement(number), [fusion], source=root.source))

    def _sweep(self) -> None:
        """Erases what the fusions have replaced."""
        for i in reversed(self.order):
            if not i.users and not i.is_root and not isinstance(i.op, Parameter) and not i.op.has_side_effect:
                self.computation.erase(i)


def fusion_key(fusion: Instruction) -> str:
    """Equal for fusions that are one kernel: structure and shapes, without names and source positions."""
    (body,) = fusion.op.computations()
    return f"{fusion.op.kind} {getattr(fusion.op, 'in_place', ())}\n" + _structure(body)  # type: ignore[attr-defined]


def _structure(computation: Computation) -> str:
    numbers: dict[Instruction, int] = {}
    lines = [f"p {p.shape}" for p in computation.parameters]
    for p in computation.parameters:
        numbers[p] = len(numbers)
    for i in computation.post_order():
        if i in numbers:
            continue
        numbers[i] = len(numbers)
        lines.append(f"{i.opcode}{_attributes(i)} {[numbers[o] for o in i.operands]} {i.shape}")
    lines.append(f"root {numbers[computation.root]}")
    return "\n".join(lines)


def _attributes(i: Instruction) -> str:
    import dataclasses

    parts = []
    for f in dataclasses.fields(i.op):
        value = getattr(i.op, f.name)
        if isinstance(value, Computation):
            value = f"({_structure(value)})"
        elif isinstance(i.op, Constant):
            value = (i.op.literal.array.dtype.str, i.op.literal.array.shape, i.op.literal.array.tobytes())
        parts.append(f"{f.name}={value}")
    return ",".join(parts)


def explain(decisions: Iterable[FusionDecision]) -> list[str]:
    """The decisions as text."""
    return [f"{'fused' if d.joined else 'not fused'}: {d.instruction}, {d.reason}" for d in decisions]
