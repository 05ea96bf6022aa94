"""Computations of scalars (a reduction's, a scatter's, a comparator) as expressions and combiners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fusile.base.element_type import F32, ElementType
from fusile.hlo.ir import Computation, Instruction
from fusile.hlo.opset import elementwise as ew
from fusile.hlo.opset.structure import Constant, Parameter, Tuple
from fusile.loops.ir import Apply, Combiner, Expr, Var
from fusile.loops.lowering.block import Names
from fusile.loops.lowering.elemental import Pair, constant_value, converted
from fusile.loops.lowering.elementwise import scalar_value

EXACT_WHEN_WIDE = (
    Parameter, Constant, Tuple, ew.Add, ew.Multiply, ew.Maximum, ew.Minimum, ew.Compare, ew.Select, ew.And, ew.Or,
    ew.Not, ew.Xor,
)  # fmt: skip
"""What a reduction of narrow floats may compute in f32 throughout, rounding its result alone."""


def accumulator_types(instruction: Instruction) -> list[ElementType]:
    """The types that a reduction's results are accumulated in: f32 for narrower floats."""
    types = [s.element_type for s in instruction.shape.leaves()]
    return [F32 if t.is_float and t.bits < 32 else t for t in types]


def parts_of(values: Iterable[Any]) -> list[Expr]:
    """Values with the complex ones as two real ones each."""
    return [part for v in values for part in ((v.real, v.imag) if isinstance(v, Pair) else (v,))]


def part_types(types: Iterable[ElementType]) -> list[ElementType]:
    """The types of `parts_of` values of these types."""
    return [t.real for t in types for _ in range(2 if t.is_complex else 1)]


def from_parts(parts: Iterable[Expr], types: Iterable[ElementType]) -> list[Any]:
    """The inverse of `parts_of`."""
    rest: Iterator[Expr] = iter(parts)
    return [Pair(next(rest), next(rest)) if t.is_complex else next(rest) for t in types]


def combiner_of(computation: Computation, types: Sequence[ElementType], names: Names) -> Combiner:
    """A reduction's computation on accumulators of these types, complex ones in two parts."""
    kinds = part_types(types)
    left, right = (tuple(names.var("c", t) for t in kinds) for _ in range(2))
    keep_wide = all(isinstance(i.op, EXACT_WHEN_WIDE) for i in computation.instructions)
    results = scalar_results(computation, [*from_parts(left, types), *from_parts(right, types)], keep_wide)
    return Combiner(left, right, tuple(parts_of(converted(r, t) for r, t in zip(results, types, strict=True))))


def scalar_results(computation: Computation, arguments: Sequence[Any], keep_wide: bool = False) -> list[Any]:
    """The results of a computation of scalars, as expressions of its arguments. `keep_wide`: arguments of narrow floats
    may be f32, and what is computed from them is not rounded."""
    found: dict[Instruction, Any] = {}
    for parameter, argument in zip(computation.parameters, arguments, strict=True):
        found[parameter] = argument if keep_wide else converted(argument, parameter.array_shape.element_type)
    for i in computation.post_order():
        if isinstance(i.op, Constant):
            value = constant_value(i, i.op.literal.array.item())
            found[i] = converted(value, F32) if keep_wide and _is_narrow(value) else value
        elif not isinstance(i.op, Parameter | Tuple):
            found[i] = scalar_value(i, [found[o] for o in i.operands], keep_wide)
    root = computation.root
    return [found[r] for r in (root.operands if isinstance(root.op, Tuple) else [root])]


def _is_narrow(value: Any) -> bool:
    return not isinstance(value, Pair) and value.element_type.is_float and value.element_type.bits < 32


def substituted(results: Sequence[Expr], values: dict[Var, Expr]) -> list[Expr]:
    """Expressions with variables replaced, all at once."""
    known: dict[Expr, Expr] = {v: e for v, e in values.items()}

    def replace(e: Expr) -> Expr:
        found = known.get(e)
        if found is None:
            found = e
            if isinstance(e, Apply):
                found = Apply(e.op, tuple(map(replace, e.arguments)), e.element_type)
            known[e] = found
        return found

    return list(map(replace, results))
