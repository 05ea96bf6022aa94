"""Algebraic simplification, by the rule tables in `simplification/`, and the canonical form of contractions.

Before::

    a = reshape(reshape(x)); b = multiply(a, broadcast(constant(1))); c = negate(negate(b))

After::

    a = reshape(x)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fusile.hlo.ir import Module
from fusile.passes.simplification import arithmetic, contractions, logic, reductions, shapes, slices
from fusile.rewrite.rules import RuleSet, apply_rules

SIMPLIFICATION = RuleSet(
    arithmetic.RULES + logic.RULES + shapes.RULES + slices.RULES + reductions.RULES + contractions.RULES
)
CANONICALIZATION = RuleSet(contractions.CANONICAL)


@dataclass(frozen=True)
class Simplify:
    """The pass. `numerics`: "exact", or "fast" for rules that change roundings or special values. `fired` counts."""

    numerics: str = "exact"
    name: str = "simplify"
    fired: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __call__(self, module: Module) -> bool:
        return apply_rules(module, SIMPLIFICATION, self.numerics, self.fired)


@dataclass(frozen=True)
class CanonicalizeContractions:
    """The pass: products without sums become multiplications, 1x1 convolutions products, batches of one vanish."""

    numerics: str = "exact"
    name: str = "canonicalize-contractions"
    fired: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __call__(self, module: Module) -> bool:
        return apply_rules(module, CANONICALIZATION, self.numerics, self.fired)
