"""What a module's values are, and by how much another engine's may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.hlo.interpreter import Interpreter, leaves_of
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset import elementwise as el
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Call, Conditional
from fusile.hlo.opset.other import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTraining,
    Cholesky,
    Fft,
    TriangularSolve,
)
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter, combiner_opcode
from fusile.hlo.opset.shape import Scatter

EXACT_FUNCTIONS = {
    "abs", "negate", "sign", "floor", "ceil", "round-nearest-even", "round-nearest-afz", "is-finite", "not", "popcnt",
    "count-leading-zeros", "real", "imag", "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum",
    "and", "or", "xor", "shift-left", "shift-right-arithmetic", "shift-right-logical", "complex", "next-after", "sqrt",
}  # fmt: skip
"""Functions that IEEE 754 or StableHLO define to the last bit, of real numbers."""
ALWAYS_ROUGH = (BatchNormGrad, BatchNormInference, BatchNormTraining, Cholesky, Fft, TriangularSolve)
SLACK = 400.0
"""How many units in the last place of the largest value on the way rough values may differ by."""


def is_rough(i: Instruction) -> bool:
    """Whether engines may round this instruction differently."""
    if isinstance(i.op, ALWAYS_ROUGH):
        return True
    kinds = [s.element_type for o in i.operands for s in o.shape.leaves()]
    inexact = any(k.is_float or k.is_complex for k in kinds)
    if isinstance(i.op, Dot | Convolution):
        return inexact
    if isinstance(i.op, Reduce | ReduceWindow | Scatter):
        return inexact and combiner_opcode(i.op.computation) in ("add", "multiply")
    if isinstance(i.op, SelectAndScatter):
        return inexact
    if isinstance(i.op, el.Elementwise):
        if any(k.is_complex for k in kinds):
            return i.opcode not in ("negate", "add", "subtract", "real", "imag")
        return inexact and i.opcode not in EXACT_FUNCTIONS
    return False


def roughness(i: Instruction, levels: dict[Instruction, int]) -> int:
    """How many rough steps led to a value, from those of its operands."""
    level = max((levels[o] for o in i.operands), default=0)
    if isinstance(i.op, Call | Conditional):
        level = max(level, *(levels[c.root] for c in i.op.computations()))
    return level + is_rough(i)


def unit(kind: ElementType) -> float:
    """The distance between 1 and the next number."""
    kind = kind.real
    if not kind.is_float:
        return 0.0
    return {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}.get(kind.name, 0.5)


class Meaning:
    """A module's results on arguments, and what each may differ by: nothing for exact ones."""

    def __init__(self, module: Module, levels: dict[Instruction, int], arguments: Sequence[Any]) -> None:
        self.levels = levels
        entry = module.entry
        order = [i for i in entry.post_order() if i is not entry.root]
        entry.root, root = entry.add(entry.root.op, order), entry.root
        try:
            self.values = dict(zip(order, Interpreter().call(entry, list(arguments)), strict=True))
        finally:
            everything, entry.root = entry.root, root
            entry.erase(everything)
        self.scales: dict[Instruction, tuple[float, float]] = {}
        for i in order:
            self.scales[i] = self._scale(i)
        self.results = [np.asarray(leaf) for o in root.operands for leaf in leaves_of(self.values[o])]
        self.allowed = [self._allowed(o) for o in root.operands]

    def _scale(self, i: Instruction) -> tuple[float, float]:
        """The largest value on the way to a rough one, and the coarsest unit."""
        own = max((_largest(v) for v in leaves_of(self.values[i])), default=0.0)
        rough = [o for o in i.operands if self.levels[o]]
        scale = max([own, *(self.scales[o][0] for o in rough)])
        units = [unit(s.element_type) for s in i.shape.leaves()] if self.levels[i] else [0.0]
        units += [self.scales[o][1] for o in rough]
        if is_rough(i) or i.opcode in ("multiply", "divide", "clamp"):
            near = [max(_largest(v) for v in leaves_of(self.values[o])) for o in i.operands]
            scales = [self.scales[o][0] if self.levels[o] else n for o, n in zip(i.operands, near, strict=True)]
            if i.opcode in ("multiply", "dot", "convolution", "fft"):
                terms = max((o.array_shape.elements for o in i.operands), default=1) if i.opcode != "multiply" else 1
                scale = max(scale, math.prod(max(1.0, s) for s in scales) * max(1, terms))
            elif is_rough(i):
                scale = max(scale, *scales)
        return scale, max(units, default=0.0)

    def _allowed(self, i: Instruction) -> float:
        scale, coarsest = self.scales[i]
        return SLACK * coarsest * max(scale, 1.0) if self.levels[i] else 0.0

    def difference(self, results: Sequence[Any]) -> str:
        """What is wrong with another engine's results; empty when nothing is."""
        if len(results) != len(self.results):
            return f"{len(results)} results, not {len(self.results)}"
        for number, (a, e) in enumerate(zip(results, self.results, strict=True)):
            a = np.asarray(a)
            if a.shape != e.shape or a.dtype != e.dtype:
                return f"result {number} is {a.dtype}{a.shape}, not {e.dtype}{e.shape}"
            allowed = self.allowed[number]
            if not (near(a, e, allowed) if allowed else same_bits(a, e)):
                return f"result {number} (may differ by {allowed:.3g}) is\n{a}\nnot\n{e}"
        return ""


def _largest(v: Any) -> float:
    """The largest finite magnitude of an inexact array; 0 of others."""
    v = np.asarray(v)
    if v.dtype.kind in "biu" or not v.size:
        return 0.0
    with np.errstate(all="ignore"):
        size = np.abs(v.astype(np.complex128 if v.dtype.kind == "c" else np.float64))
    size = size[np.isfinite(size)]
    return float(size.max()) if size.size else 0.0


def near(a: np.ndarray, e: np.ndarray, allowed: float) -> bool:
    """Equal, both NaN, or closer than allowed; a value at the end of the range may be infinite."""
    if a.dtype.kind == "c":
        return near(a.real, e.real, allowed) and near(a.imag, e.imag, allowed)
    if a.dtype.kind in "biu":
        return bool(np.array_equal(a, e))
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), e.astype(np.float64)
        return bool(np.all((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= allowed)))


def same_bits(a: np.ndarray, e: np.ndarray) -> bool:
    """Equal bits; any NaN equals any other."""
    if a.dtype.kind == "c":
        return same_bits(np.ascontiguousarray(a.real), np.ascontiguousarray(e.real)) and same_bits(
            np.ascontiguousarray(a.imag), np.ascontiguousarray(e.imag)
        )
    if not a.size:
        return True
    a, e = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(e).reshape(-1)
    equal = (a.view(np.uint8) == e.view(np.uint8)).reshape(a.size, -1).all(1)
    return bool(np.all(equal | ((a != a) & (e != e))))
