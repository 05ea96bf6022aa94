"""Finds the first instruction whose value differs between the interpreter and a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusile.base.settings import Settings
from fusile.hlo.interpreter import Interpreter
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.structure import Constant, Parameter, Tuple
from fusile.rewrite.effects import has_effect

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-3
"""Of floats, relative to the largest value; f16 and narrower get 32 times as much."""


@dataclass(frozen=True)
class Difference:
    """An instruction, the first element that differs, what the interpreter and the target give there."""

    instruction: Instruction
    index: tuple[int, ...]
    expected: Any
    found: Any

    def __str__(self) -> str:
        i = self.instruction
        where = f" ({i.source})" if i.source is not None else ""
        return (
            f"{i.name} = {i.shape} {i.opcode}{where} differs first at {list(self.index)}: "
            f"{self.expected} by the interpreter, {self.found} by the target"
        )


def first_difference(module: Module, target: str, arguments: Sequence[Array], settings: Settings) -> Difference | None:
    """The first instruction of the entry, in order, that differs when every instruction is a result; None if none does:
    a difference that fusion hides so is not found."""
    from fusile.compiler.pipeline import compile

    shown = module.clone()
    kept = [i for i in shown.entry.post_order() if _is_shown(i)]
    values = _interpreted(shown, arguments, kept)
    shown.aliases = {}
    shown.entry.root = shown.entry.add(Tuple(), kept)
    results = compile(shown, target, settings).call_flat(list(arguments))  # type: ignore[arg-type]
    for i, expected, found in zip(kept, values, results, strict=True):
        place = difference(np.asarray(expected), np.asarray(found))
        if place is not None:
            return Difference(i, place, expected[place], found[place])
    return None


def _is_shown(i: Instruction) -> bool:
    return not (i.shape.is_tuple or isinstance(i.op, Parameter | Constant) or has_effect(i.op))


def _interpreted(module: Module, arguments: Sequence[Array], kept: Sequence[Instruction]) -> list[Array]:
    interpreter, values = Interpreter(), dict[Instruction, Any]()
    for i in module.entry.post_order():
        if isinstance(i.op, Parameter):
            values[i] = arguments[i.op.number]
        else:
            values[i] = i.op.evaluate(i, [values[o] for o in i.operands], interpreter)
    return [np.asarray(values[i]) for i in kept]


def difference(expected: Array, found: Array) -> tuple[int, ...] | None:
    """The first index at which two arrays differ: integers at all, floats by more than the tolerance."""
    if expected.dtype.kind in "biu":
        wrong = expected != found
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        a, b = expected.astype(wide), found.astype(wide)
        sizes = np.abs(a[np.isfinite(a)])
        allowed = TOLERANCE * (32 if expected.dtype.itemsize < 4 else 1) * float(np.max(sizes, initial=1e-30))
        with np.errstate(all="ignore"):
            same = (a == b) | (np.abs(a - b) <= allowed) | (np.isnan(a) & np.isnan(b))
        wrong = ~same
    places = np.argwhere(wrong)
    return tuple(int(n) for n in places[0]) if len(places) else None
