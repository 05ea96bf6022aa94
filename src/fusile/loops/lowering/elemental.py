"""The value of any instruction of a fusion at any index, as expressions: the pull-based half of lowering.

`Elemental.value(instruction, indices, block)` asks operands at the indices that the op maps to, down to the fusion's
parameters. One function an op class, in a registry; elementwise ops need only their scalar op. Complex values are
pairs. What needs loops of its own (a reduction inside) emits them into the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fusile.base.element_type import ElementType
from fusile.base.errors import CompileError, UnsupportedOpError
from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset import structure as st
from fusile.loops.ir import Apply, Buffer, Const, Expr, Kernel, Load, Stmt, Store, const, select
from fusile.loops.lowering.block import Block, Names
from fusile.loops.machine import Machine
from fusile.loops.math import is_transcendental
from fusile.loops.simplify import IndexMath

Indices = tuple[Expr, ...]


@dataclass(frozen=True)
class Pair:
    """A complex value: two real expressions."""

    real: Expr
    imag: Expr


Value = Expr | Pair
Rule = Callable[["Elemental", Instruction, Indices, Block], Any]
RULES: dict[type[Op], Rule] = {}


def rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        for cls in classes:
            RULES[cls] = function
        return function

    return enter


class Elemental:
    """The elements of one fusion's instructions. Buffers are flat: parameters, then results, as the kernel has them."""

    def __init__(self, fusion: Instruction, machine: Machine) -> None:
        (self.computation,) = fusion.op.computations()
        self.machine = machine
        self.names = Names()
        self.math = IndexMath()
        self.parameters = [_buffer(f"p{i}", p) for i, p in enumerate(self.computation.parameters)]
        root = self.computation.root
        self.roots = list(root.operands) if isinstance(root.op, st.Tuple) else [root]
        self.results = [(r, _buffer(f"r{i}", r)) for i, r in enumerate(self.roots)]
        self.overrides: dict[Instruction, Callable[[Indices], Any]] = {}
        self.in_place = bool(getattr(fusion.op, "in_place", ()) or getattr(fusion.op, "shared", ()))
        """Whether a result may lie where an operand does."""

    def kernel(self, name: str, *phases: Stmt) -> Kernel:
        outputs = tuple(b for _, b in self.results)
        return Kernel(name, (*self.parameters, *outputs), outputs, phases, no_alias=not self.in_place)

    def block(self) -> Block:
        return Block(self.names)

    def override(self, instruction: Instruction, value: Expr | Callable[[Indices], Any]) -> None:
        """From now on the instruction's value is this, whatever leads to it."""
        self.overrides[instruction] = value if callable(value) else lambda _: value

    def value(self, instruction: Instruction, indices: Sequence[Expr], block: Block) -> Any:
        """The element at `indices`: an Expr, or a Pair when complex. Emits what it needs into `block`."""
        key = (instruction, tuple(indices))
        found = block.look_up(key)
        if found is not None:
            return found
        if instruction in self.overrides:
            return self.overrides[instruction](key[1])
        function = RULES.get(type(instruction.op))
        if function is None:
            raise UnsupportedOpError(
                f"the CPU target has no kernel for {instruction.opcode}", source=instruction.source
            )
        value = function(self, instruction, key[1], block)
        if isinstance(value, Pair):
            value = Pair(block.let(value.real), block.let(value.imag))
        elif len(instruction.users) > 1 or _weight(value) > 24:
            value = block.let(value)
        block.known[key] = value
        return value

    def load(self, buffer: Buffer, instruction: Instruction, indices: Sequence[Expr]) -> Any:
        """An element of a parameter."""
        flat = self.math.flatten(indices, instruction.array_shape.sizes)
        return self.read(buffer, flat, instruction.array_shape.element_type.is_complex)

    def read(self, buffer: Buffer, flat: Expr, is_complex: bool) -> Any:
        """An element of a flat buffer; a complex one is two neighbours."""
        if not is_complex:
            return Load(buffer, (flat,))
        twice = self.math.scale(flat, 2)
        return Pair(Load(buffer, (twice,)), Load(buffer, (self.math.add(twice, const(1)),)))

    def store(
        self, buffer: Buffer, instruction: Instruction, indices: Sequence[Expr], value: Any, block: Block
    ) -> None:
        """Stores an element of a result."""
        self.write(buffer, self.math.flatten(indices, instruction.array_shape.sizes), value, block)

    def write(self, buffer: Buffer, flat: Expr, value: Any, block: Block) -> None:
        """Stores an element of a flat buffer."""
        if isinstance(value, Pair):
            twice = self.math.scale(flat, 2)
            block.emit(Store(buffer, (twice,), value.real))
            block.emit(Store(buffer, (self.math.add(twice, const(1)),), value.imag))
        else:
            block.emit(Store(buffer, (flat,), value))


def converted(value: Any, element_type: ElementType) -> Any:
    """The value in this real type; pairs stay as they are."""
    if isinstance(value, Pair) or value.element_type is element_type:
        return value
    return Apply("convert", (value,), element_type)


def chosen(test: Expr, a: Any, b: Any, block: Block) -> Any:
    """`select` for values that may be pairs."""
    if isinstance(a, Pair):
        test = block.let(test)
        return Pair(select(test, a.real, b.real), select(test, a.imag, b.imag))
    return select(test, a, b)


def constant_value(i: Instruction, value: Any) -> Any:
    """A Python number as an element of the instruction's type."""
    t = i.array_shape.element_type
    if t.is_complex:
        return Pair(Const(float(value.real), t.real), Const(float(value.imag), t.real))
    if t.is_float:
        return Const(float(value), t)
    return Const(bool(value) if t.is_predicate else int(value), t)


def reshaped(math: IndexMath, at: Sequence[Expr], sizes: Sequence[int], wanted: Sequence[int]) -> Indices:
    """Indices of the same element under other dimensions; groups of dimensions that line up are kept apart."""
    result: list[Expr] = []
    i = j = 0
    while i < len(sizes) or j < len(wanted):
        a, b, first, start = 1, 1, i, j
        if i < len(sizes):
            a, i = sizes[i], i + 1
        if j < len(wanted):
            b, j = wanted[j], j + 1
        while a != b or (i < len(sizes) and sizes[i] == 1) or (j < len(wanted) and wanted[j] == 1 and i >= len(sizes)):
            if a < b or (a == b and i < len(sizes) and sizes[i] == 1):
                if i >= len(sizes):
                    break
                a, i = a * sizes[i], i + 1
            else:
                if j >= len(wanted):
                    break
                b, j = b * wanted[j], j + 1
        flat = math.flatten(at[first:i], sizes[first:i])
        result += math.unflatten(flat, wanted[start:j])
    return tuple(result)


def _buffer(name: str, instruction: Instruction) -> Buffer:
    shape = instruction.array_shape
    t = shape.element_type
    return Buffer(name, t.real, ((2 if t.is_complex else 1) * shape.elements,))


def _weight(value: Expr) -> int:
    """Roughly how many ops an expression has, counted up to a bound."""
    total, stack = 0, [value]
    while stack and total < 64:
        e = stack.pop()
        total += 1
        if isinstance(e, Apply):
            stack.extend(e.arguments)
    return total


def transcendental(instruction: Instruction) -> bool:
    """Whether one element costs many instructions."""
    return is_transcendental(instruction.opcode.replace("-", "_"))


# -- leaves ------------------------------------------------------------------------------------------------------------


@rule(st.Parameter)
def _parameter(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Parameter)
    return e.load(e.parameters[i.op.number], i, at)


@rule(st.Constant)
def _constant_rule(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Constant)
    array = i.op.literal.array
    if array.size != 1:
        raise CompileError(f"constant {i.name} of {i.shape} is inside a fusion; it must be an operand", source=i.source)
    return constant_value(i, array.reshape(()).item())


@rule(st.Iota)
def _iota(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    assert isinstance(i.op, st.Iota)
    t = i.array_shape.element_type
    count = at[i.op.dimension]
    if t.is_complex:
        return Pair(Apply("convert", (count,), t.real), Const(0.0, t.real))
    return converted(count, t)


@rule(st.Copy, st.OptimizationBarrier)
def _same(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    return e.value(i.operands[0], at, block)
