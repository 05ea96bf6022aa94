"""Computes when compiling what depends on constants only, through the interpreter.

Before::

    w = constant({...}); t = transpose(w); s = multiply(t, broadcast(c)); y = dot(x, s)

After::

    s = constant({...}); y = dot(x, s)

Broadcasts and iota stay. What is cheap to make again where it is used (elementwise arithmetic of broadcasts and iota)
is written out only while small; all else while the program's constants do not grow by more than `growth_bytes` and the
work stays under `work` operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusile.base.shape import Shape
from fusile.hlo.interpreter import Interpreter
from fusile.hlo.ir import Computation, Instruction, Literal, Module, Op
from fusile.hlo.opset import elementwise as e
from fusile.hlo.opset.contraction import Convolution, Dot
from fusile.hlo.opset.control import Conditional, While
from fusile.hlo.opset.other import RngBitGenerator
from fusile.hlo.opset.reduction import Reduce, ReduceWindow, SelectAndScatter, Sort
from fusile.hlo.opset.shape import Broadcast, Reshape, Scatter, Transpose
from fusile.hlo.opset.structure import AfterAll, Constant, GetTupleElement, Iota, OptimizationBarrier, Parameter, Tuple
from fusile.rewrite.effects import erase_unused, has_effect

SMALL_BYTES = 16 << 10
"""A value of at most so many bytes is written out whatever it is computed from."""

NEVER = (Parameter, OptimizationBarrier, AfterAll, While, Conditional, RngBitGenerator, Tuple)
"""Ops that aren't folded: their value isn't known, mustn't be looked through, or may take any time to find."""

MOVES = (Reshape, Transpose, GetTupleElement, Constant)
"""Ops that cost the interpreter nothing: it makes a view."""

SLOW = {SelectAndScatter: 2000, Scatter: 2000, Sort: 200, ReduceWindow: 20, Reduce: 4}
"""Operations that an element counts for, as the interpreter runs these ops; 8 for an elementwise op."""

TRANSCENDENTAL = frozenset(
    op.opcode
    for op in (
        e.Exponential, e.ExponentialMinusOne, e.Log, e.LogPlusOne, e.Logistic, e.Tanh, e.Sine, e.Cosine, e.Tan,
        e.Cbrt, e.Power, e.Atan2, e.Erf, e.Erfc, e.ErfInv, e.Asin, e.Acos, e.Atan, e.Sinh, e.Cosh, e.Asinh, e.Acosh,
        e.Atanh, e.Lgamma, e.Digamma, e.BesselI0e, e.BesselI1e,
    )
)  # fmt: skip
"""Elementwise ops that are worth a load instead."""


@dataclass(frozen=True)
class FoldConstants:
    """The pass. `growth_bytes`: how much larger the constants may become. `work`: multiplications, or their like."""

    growth_bytes: int = 64 << 20
    work: int = 1 << 30
    name: str = "fold-constants"

    def __call__(self, module: Module) -> bool:
        budget = _Budget(self.growth_bytes, self.work)
        changed = False
        for computation in module.computations():
            changed |= _Folding(computation, budget).run()
        return changed


@dataclass
class _Budget:
    growth_bytes: int
    work: int


def _is_foldable(op: Op) -> bool:
    if isinstance(op, NEVER) or has_effect(op):
        return False
    return type(op).evaluate is not Op.evaluate


def _work(instruction: Instruction) -> int:
    """Operations to evaluate one instruction."""
    op = instruction.op
    if isinstance(op, MOVES):
        return 0
    elements = sum(s.elements for s in instruction.shape.leaves())
    if isinstance(op, Dot):
        depth = math.prod(instruction.operands[0].array_shape.sizes[d] for d in op.lhs_contracting)
        return elements * max(1, depth)
    if isinstance(op, Convolution):
        kernel = instruction.operands[1].array_shape
        return elements * math.prod(op.window.size) * kernel.sizes[op.dimension_numbers.kernel_input_feature]
    operands = sum(o.array_shape.elements for o in instruction.operands if isinstance(o.shape, Shape))
    window = math.prod(op.window.size) if isinstance(op, ReduceWindow) else 1
    return max(elements * window, operands) * SLOW.get(type(op), 8)


class _Folding:
    """One computation's constants."""

    def __init__(self, computation: Computation, budget: _Budget) -> None:
        self.computation, self.budget = computation, budget
        self.order = computation.post_order()
        self.costly: set[Instruction] = set()
        """Known values that aren't cheap to make again where they are used."""
        self.source_bytes: dict[Instruction, int] = {}
        """Of each known value, the bytes of the constants that writing it out makes unnecessary."""
        self.counted: set[Instruction] = set()
        """Known values whose work is taken from the budget."""

    def run(self) -> bool:
        for instruction in self.order:
            self._classify(instruction)
        chosen = self._choose()
        if not chosen:
            return False
        values = _evaluate(self.order, chosen)
        for instruction in self.order:
            if instruction in chosen:
                self._write(instruction, values[instruction])
        return True

    def _classify(self, instruction: Instruction) -> None:
        op = instruction.op
        if isinstance(op, Constant):
            self.source_bytes[instruction] = instruction.array_shape.bytes if len(instruction.users) == 1 else 0
            return
        if not _is_foldable(op) or not all(o in self.source_bytes for o in instruction.operands):
            return
        self.source_bytes[instruction] = sum(self.source_bytes[o] for o in dict.fromkeys(instruction.operands))
        cheap = isinstance(op, Broadcast | Iota | Reshape | GetTupleElement) or op.elementwise
        cheap = cheap and instruction.opcode not in TRANSCENDENTAL
        if not cheap or any(o in self.costly for o in instruction.operands):
            self.costly.add(instruction)

    def _choose(self) -> set[Instruction]:
        """The known values to write out. Users come first: what only chosen values need is not needed any more."""
        chosen: set[Instruction] = set()
        stays: set[Instruction] = set()
        for instruction in reversed(self.order):
            if instruction not in self.source_bytes:
                stays.add(instruction)
            elif instruction.is_root or any(u in stays for u in instruction.users):
                if not isinstance(instruction.op, Constant) and self._take(instruction):
                    chosen.add(instruction)
                else:
                    stays.add(instruction)
        return chosen

    def _take(self, instruction: Instruction) -> bool:
        """Whether to write `instruction` out; if so, takes its cost from the budget."""
        shape = instruction.shape
        if not isinstance(shape, Shape) or shape.is_token or isinstance(instruction.op, Broadcast | Iota):
            return False
        growth = max(0, shape.bytes - self.source_bytes[instruction])
        if shape.bytes > SMALL_BYTES and growth > (self.budget.growth_bytes if instruction in self.costly else 0):
            return False
        below = _below([instruction], self.counted)
        work = sum(map(_work, below))
        if work > self.budget.work:
            return False
        self.budget.work -= work
        self.budget.growth_bytes -= growth
        self.counted |= below
        return True

    def _write(self, instruction: Instruction, value: Any) -> None:
        shape = instruction.array_shape
        array = np.asarray(value, shape.element_type.dtype)
        assert array.shape == shape.sizes, (instruction, array.shape)
        constant = self.computation.add(Constant(Literal(array)), name=instruction.name, source=instruction.source)
        instruction.replace_all_uses(constant)
        erase_unused(instruction)


def _below(start: Iterable[Instruction], without: set[Instruction]) -> set[Instruction]:
    """`start` and all that it is computed from, but for what is in `without`."""
    found: set[Instruction] = set()
    stack = [i for i in start if i not in without]
    while stack:
        instruction = stack.pop()
        if instruction not in found:
            found.add(instruction)
            stack += [o for o in instruction.operands if o not in without]
    return found


def _evaluate(order: list[Instruction], chosen: set[Instruction]) -> dict[Instruction, Any]:
    """The values of `chosen`. What they are computed from is dropped after its last use."""
    needed = _below(chosen, set())
    uses = {i: sum(u in needed for u in i.users) for i in needed}
    values: dict[Instruction, Any] = {}
    interpreter = Interpreter()
    for instruction in order:
        if instruction not in needed:
            continue
        values[instruction] = instruction.op.evaluate(
            instruction, [values[o] for o in instruction.operands], interpreter
        )
        for operand in dict.fromkeys(instruction.operands):
            uses[operand] -= 1
            if not uses[operand] and operand not in chosen:
                del values[operand]
    return values
