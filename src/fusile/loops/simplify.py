"""Index arithmetic with known ranges: every index is kept as a linear form, and divisions cancel where ranges allow.

`(i*16 + j) / 16` is `i` and `(i*16 + j) % 16` is `j` for 0 <= j < 16; `8*(x/8) + x%8` is `x`. This is what makes
reshapes, packing and flattened loops free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fusile.base.element_type import S64
from fusile.loops.ir import Apply, Const, Expr, Var, const

Linear = tuple[int, dict[Expr, int]]
Range = tuple[int, int]
"""The least and the greatest value, both included."""
UNKNOWN: Range = (-(1 << 62), 1 << 62)


class IndexMath:
    """Builds simplified index expressions. `ranges` gives the range of each variable by name."""

    def __init__(self) -> None:
        self.ranges: dict[str, Range] = {}
        self._linear: dict[Expr, Linear] = {}

    def bound(self, var: Var, extent: int) -> Var:
        """Says that `var` counts from 0 to `extent` - 1."""
        self.ranges[var.name] = (0, max(0, extent - 1))
        return var

    # -- linear forms
    def linear(self, e: Expr) -> Linear:
        """A constant and a coefficient for each atom (variable, or what isn't linear)."""
        if isinstance(e, Const):
            return int(e.value), {}
        found = self._linear.get(e)
        if found is None:
            found = self._linear[e] = self._linear_of(e)
        return found

    def _linear_of(self, e: Expr) -> Linear:
        if isinstance(e, Apply) and e.op in ("add", "subtract"):
            (c1, t1), (c2, t2) = (self.linear(a) for a in e.arguments)
            sign = 1 if e.op == "add" else -1
            return c1 + sign * c2, _merged(t1, t2, sign)
        if isinstance(e, Apply) and e.op == "multiply":
            (c1, t1), (c2, t2) = (self.linear(a) for a in e.arguments)
            if not t1:
                return c1 * c2, {a: f * c1 for a, f in t2.items() if c1}
            if not t2:
                return c1 * c2, {a: f * c2 for a, f in t1.items() if c2}
        return 0, {e: 1}

    def expression(self, form: Linear) -> Expr:
        """The expression of a linear form, in a canonical order."""
        constant, terms = form[0], _joined(form[1])
        total: Expr | None = None
        for atom, factor in terms.items():
            term: Expr = atom if factor == 1 else Apply("multiply", (atom, const(factor)), S64)
            total = term if total is None else Apply("add", (total, term), S64)
        if total is None:
            return const(constant)
        result = total if constant == 0 else Apply("add", (total, const(constant)), S64)
        self._linear[result] = (constant, terms)
        return result

    # -- building
    def add(self, a: Expr, b: Expr) -> Expr:
        (c1, t1), (c2, t2) = self.linear(a), self.linear(b)
        return self.expression((c1 + c2, _merged(t1, t2, 1)))

    def subtract(self, a: Expr, b: Expr) -> Expr:
        (c1, t1), (c2, t2) = self.linear(a), self.linear(b)
        return self.expression((c1 - c2, _merged(t1, t2, -1)))

    def scale(self, a: Expr, factor: int) -> Expr:
        c, t = self.linear(a)
        return self.expression((c * factor, {x: f * factor for x, f in t.items() if factor}))

    def flatten(self, indices: Sequence[Expr], sizes: Sequence[int]) -> Expr:
        """The flat row-major index."""
        constant, terms, stride = 0, dict[Expr, int](), 1
        for index, size in zip(reversed(indices), reversed(sizes), strict=True):
            c, t = self.linear(index)
            constant += c * stride
            terms = _merged(terms, {a: f * stride for a, f in t.items()}, 1)
            stride *= size
        return self.expression((constant, terms))

    def unflatten(self, flat: Expr, sizes: Sequence[int]) -> tuple[Expr, ...]:
        """The coordinates of a flat row-major index that is in range."""
        result: list[Expr] = []
        for number, size in enumerate(reversed(sizes)):
            if size <= 1:
                result.append(const(0))
                continue
            last = number == len(sizes) - 1
            result.append(flat if last else self.modulo(flat, size))
            flat = self.floor_divide(flat, size)
        return tuple(reversed(result))

    def minimum(self, a: Expr, b: Expr) -> Expr:
        """The lesser; one of the two where ranges decide."""
        low, high = self.range_of(self.subtract(a, b))
        if high <= 0 or low >= 0:
            return a if high <= 0 else b
        return Apply("minimum", (a, b), S64)

    def maximum(self, a: Expr, b: Expr) -> Expr:
        """The greater; one of the two where ranges decide."""
        least = self.minimum(a, b)
        if isinstance(least, Apply) and least.op == "minimum" and least.arguments == (a, b):
            return Apply("maximum", (a, b), S64)
        return b if least == a else a

    def clamp(self, e: Expr, low: int, high: int) -> Expr:
        """e moved into [low, high]."""
        return self.maximum(self.minimum(e, const(high)), const(low))

    # -- ranges
    def range_of(self, e: Expr) -> Range:
        constant, terms = self.linear(e)
        return self._range(constant, terms)

    def _range(self, constant: int, terms: Mapping[Expr, int]) -> Range:
        low = high = constant
        for atom, factor in terms.items():
            a, b = self._atom_range(atom)
            low += min(a * factor, b * factor)
            high += max(a * factor, b * factor)
        return max(low, UNKNOWN[0]), min(high, UNKNOWN[1])

    def _atom_range(self, atom: Expr) -> Range:
        if isinstance(atom, Var):
            return self.ranges.get(atom.name, UNKNOWN)
        if isinstance(atom, Apply) and isinstance(atom.arguments[-1], Const):
            size = int(atom.arguments[-1].value)
            if atom.op == "modulo":
                return 0, size - 1
            if atom.op == "floor_divide":
                low, high = self.range_of(atom.arguments[0])
                return low // size, high // size
        if isinstance(atom, Apply) and atom.op in ("minimum", "maximum"):
            (a, b), (c, d) = (self.range_of(x) for x in atom.arguments)
            return (min(a, c), min(b, d)) if atom.op == "minimum" else (max(a, c), max(b, d))
        return UNKNOWN

    # -- division
    def floor_divide(self, e: Expr, size: int) -> Expr:
        """e / size, rounded down."""
        if size == 1:
            return e
        whole, rest = self._split(e, size)
        low, high = self._range(*rest)
        if low >= 0 and high < size:
            return self.expression(whole)
        rest, size = self._without_small(rest, size)
        quotient = Apply("floor_divide", (self.expression(rest), const(size)), S64)
        if not rest[1]:
            return self.expression((whole[0] + rest[0] // size, whole[1]))
        return self.expression((whole[0], _merged(whole[1], {quotient: 1}, 1)))

    def modulo(self, e: Expr, size: int) -> Expr:
        """e - size * floor(e / size)."""
        if size == 1:
            return const(0)
        _, rest = self._split(e, size)
        low, high = self._range(*rest)
        if low >= 0 and high < size:
            return self.expression(rest)
        if not rest[1]:
            return const(rest[0] % size)
        large, reduced = self._without_small(rest, size)
        step = size // reduced
        if step > 1:
            small = (rest[0] - large[0] * step, {a: f for a, f in rest[1].items() if f % step})
            inner = self.modulo(self.expression(large), reduced)
            return self.add(self.scale(inner, step), self.expression(small))
        return Apply("modulo", (self.expression(rest), const(size)), S64)

    def _split(self, e: Expr, size: int) -> tuple[Linear, Linear]:
        """e = size * whole + rest."""
        constant, terms = self.linear(e)
        whole = {a: f // size for a, f in terms.items() if f % size == 0}
        rest = {a: f for a, f in terms.items() if f % size}
        return (constant // size, whole), (constant % size, rest)

    def _without_small(self, rest: Linear, size: int) -> tuple[Linear, int]:
        """(g*a + b) / (g*n) is a / n when 0 <= b < g: drops such a b."""
        constant, terms = rest
        for g in sorted({math.gcd(f, size) for f in terms.values()}, reverse=True):
            if g <= 1:
                break
            small = {a: f for a, f in terms.items() if f % g}
            low, high = self._range(constant % g, small)
            if low >= 0 and high < g:
                return (constant // g, {a: f // g for a, f in terms.items() if f % g == 0}), size // g
        return rest, size


def _merged(a: Mapping[Expr, int], b: Mapping[Expr, int], sign: int) -> dict[Expr, int]:
    result = dict(a)
    for atom, factor in b.items():
        total = result.get(atom, 0) + sign * factor
        if total:
            result[atom] = total
        else:
            result.pop(atom, None)
    return result


def _joined(terms: Mapping[Expr, int]) -> dict[Expr, int]:
    """Joins c*k*(x/c) + k*(x%c) to k*x, as often as it goes."""
    for atom, factor in terms.items():
        if not (isinstance(atom, Apply) and atom.op == "modulo" and isinstance(atom.arguments[1], Const)):
            continue
        x, size = atom.arguments[0], int(atom.arguments[1].value)
        partner = Apply("floor_divide", (x, const(size)), S64)
        if terms.get(partner) == factor * size:
            rest = {a: f for a, f in terms.items() if a not in (atom, partner)}
            inner = IndexMath().linear(x)
            merged = _merged(rest, {a: f * factor for a, f in inner[1].items()}, 1)
            return _joined(merged) if inner[0] == 0 else dict(terms)
    return {a: f for a, f in terms.items() if f}
