"""Rules as data, and the one driver that applies them. The law that rules keep is in docs/rules.md.

Before/after of the rule ``Rule("double-negate", of(Negate, of(Negate, anything("x"))), lambda m: m.x, exact("..."))``::

    b = negate(a); c = negate(b); d = add(c, e)   =>   d = add(a, e)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.base.errors import CompileError
from fusile.hlo.ir import Computation, Instruction, Literal, Module, Op
from fusile.hlo.opset.structure import Constant
from fusile.rewrite.effects import erase_unused, is_removable
from fusile.rewrite.patterns import Captures, Mismatch, Pattern, match

REWRITES_OF_ONE = 100
"""A rewrite of the outcome of a rewrite of ... this many times is a fight between rules."""


class Elements(Enum):
    """On which element types a rule holds."""

    ANY = "all element types"
    EXACT = "all but complex numbers, bit for bit; complex numbers with numerics='fast'"
    FAST = "integers and predicates; floats and complex numbers with numerics='fast'"
    INTEGERS = "integers and predicates only"


@dataclass(frozen=True)
class FloatCondition:
    """A rule's IEEE condition and the reason for it (NaN, infinities, signed zeros, rounding)."""

    elements: Elements
    why: str

    def __post_init__(self) -> None:
        if not self.why:
            raise ValueError("a rule must say why its float condition is what it is")

    def allows(self, element_types: Iterable[ElementType], numerics: str) -> bool:
        """Whether the rule may be applied to values of these types."""
        if self.elements is Elements.ANY or (numerics == "fast" and self.elements is not Elements.INTEGERS):
            return True
        floats_too = self.elements is Elements.EXACT
        return not any(t.is_complex or (t.is_float and not floats_too) for t in element_types)


def moves(why: str = "moves elements, computes none") -> FloatCondition:
    return FloatCondition(Elements.ANY, why)


def exact(why: str) -> FloatCondition:
    return FloatCondition(Elements.EXACT, why)


def fast(why: str) -> FloatCondition:
    return FloatCondition(Elements.FAST, why)


def integers(why: str) -> FloatCondition:
    return FloatCondition(Elements.INTEGERS, why)


class Match:
    """A matched rule: `m.root` is what is to be replaced, `m.x` what the pattern calls x; `add` writes instructions."""

    def __init__(self, root: Instruction, captures: Captures) -> None:
        assert root.computation is not None
        self.root, self._captures = root, captures
        self._computation: Computation = root.computation
        self.added: list[Instruction] = []
        self.replacement: Instruction | None = None

    def __getattr__(self, name: str) -> Instruction:
        try:
            return self._captures.named[name]
        except KeyError:
            raise AttributeError(name) from None

    def add(self, op: Op, *operands: Instruction) -> Instruction:
        """Adds an instruction at the root's source position."""
        self.added.append(self._computation.add(op, operands, source=self.root.source))
        return self.added[-1]

    def constant(self, array: Any, element_type: ElementType) -> Instruction:
        return self.add(Constant(Literal(np.asarray(array).astype(element_type.dtype))))

    def take_back(self) -> None:
        """Erases what was added."""
        for instruction in reversed(self.added):
            self._computation.erase(instruction)
        self.added.clear()


Replacement = Callable[[Match], Instruction | str]
"""Writes what stands for the root and returns it, or returns why the rule does not apply."""


@dataclass(frozen=True)
class Rule:
    """Replaces what `pattern` matches by what `replace` makes, where `floats` allows it."""

    name: str
    pattern: Pattern
    replace: Replacement
    floats: FloatCondition

    def __post_init__(self) -> None:
        if not isinstance(self.floats, FloatCondition):
            raise TypeError(f"rule {self.name} states no float condition")
        if not self.pattern.ops:
            raise ValueError(f"rule {self.name} names no root op")

    def attempt(self, root: Instruction, numerics: str) -> Match | Mismatch | str:
        """The match with its replacement written, or why there is none."""
        captures = Captures()
        mismatch = match(self.pattern, root, captures)
        if mismatch is not None:
            return mismatch
        if not self.floats.allows(_element_types(root), numerics):
            return f"it holds for {self.floats.elements.value}: {self.floats.why}"
        found = Match(root, captures)
        new = self.replace(found)
        if isinstance(new, str):
            found.take_back()
            return new
        if new.shape != root.shape:
            raise CompileError(f"the rule {self.name} replaces {root} by {new}", source=root.source)
        found.replacement = new
        return found

    def explain(self, root: Instruction, numerics: str = "exact") -> str:
        """Why the rule does not apply to `root`; empty when it does. The computation stays as it is."""
        found = self.attempt(root, numerics)
        if isinstance(found, Match):
            found.take_back()
            return ""
        return f"{self.name}: {found}"


def _element_types(root: Instruction) -> list[ElementType]:
    shapes = [root.shape, *(o.shape for o in root.operands)]
    return [leaf.element_type for shape in shapes for leaf in shape.leaves()]


def _operand_ops(pattern: Pattern) -> frozenset[type[Op]]:
    """The ops of one of which some operand must be for the pattern to match; empty when operands may be any."""
    for operand in pattern.operands or ():
        if operand.ops:
            return frozenset(operand.ops)
    return frozenset()


class RuleSet:
    """Rules by the class of their root op, in the order in which they are tried."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        repeated = [name for name, count in Counter(r.name for r in rules).items() if count > 1]
        if repeated:
            raise ValueError(f"several rules are named {', '.join(repeated)}")
        self.by_root: dict[type[Op], list[tuple[Rule, frozenset[type[Op]]]]] = {}
        """For each root op the rules, each with the ops of which an operand must be one (empty: any)."""
        for rule in rules:
            for op in rule.pattern.ops:
                self.by_root.setdefault(op, []).append((rule, _operand_ops(rule.pattern)))


def apply_rules(module: Module, rules: RuleSet, numerics: str = "exact", fired: Counter[str] | None = None) -> bool:
    """Applies the rules in every computation until none applies, and erases what that leaves unused; says whether
    anything changed. `fired` counts applications by rule. Raises CompileError naming rules that undo each other's work.
    """
    changed = False
    for computation in module.computations():
        driver = _Driver(computation, rules, numerics, fired if fired is not None else Counter())
        changed |= driver.run()
    return changed


class _Driver:
    """The worklist of one computation."""

    def __init__(self, computation: Computation, rules: RuleSet, numerics: str, fired: Counter[str]) -> None:
        self.rules, self.numerics, self.fired = rules, numerics, fired
        self.queue: deque[Instruction] = deque(computation.post_order())
        self.queued: set[Instruction] = set(self.queue)
        self.origin: dict[Instruction, tuple[int, str, Instruction]] = {}
        """Of an instruction that a rule wrote: how many rewrites led to it, the last rule, and what it replaced."""

    def run(self) -> bool:
        changed = False
        while self.queue:
            instruction = self.queue.popleft()
            self.queued.discard(instruction)
            if instruction.computation is None:
                continue
            changed |= self._erase(instruction) or self._rewrite(instruction)
        return changed

    def _erase(self, instruction: Instruction) -> bool:
        """Erases an instruction that nothing uses; its operands have fewer users then, which rules may look at."""
        if not is_removable(instruction):
            return False
        for operand in erase_unused(instruction):
            self._enqueue([operand, *operand.users])
        return True

    def _rewrite(self, instruction: Instruction) -> bool:
        operand_ops = {type(o.op) for o in instruction.operands}
        for rule, needed in self.rules.by_root.get(type(instruction.op), ()):
            if needed and operand_ops.isdisjoint(needed):
                continue
            found = rule.attempt(instruction, self.numerics)
            if isinstance(found, Match):
                self.fired[rule.name] += 1
                self._replace(found, rule)
                return True
        return False

    def _replace(self, found: Match, rule: Rule) -> None:
        root, new = found.root, found.replacement
        assert new is not None
        depth = self.origin[root][0] + 1 if root in self.origin else 1
        for written in found.added:
            self.origin[written] = (depth, rule.name, root)
        if depth > REWRITES_OF_ONE:
            raise CompileError(
                f"the rules {', '.join(self._fighters(root))} undo each other's work on {root}", source=root.source
            )
        users = list(root.users)
        root.replace_all_uses(new)
        self._enqueue([*found.added, new, *users])
        self._erase(root)

    def _fighters(self, instruction: Instruction) -> list[str]:
        names: dict[str, None] = {}
        while instruction in self.origin and len(names) < 20:
            _, name, instruction = self.origin[instruction]
            names[name] = None
        return sorted(names)

    def _enqueue(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if instruction not in self.queued:
                self.queued.add(instruction)
                self.queue.append(instruction)
