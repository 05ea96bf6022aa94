"""The whole IR on one page: Op (attributes and meaning), Instruction, Computation, Module.

An instruction applies one `Op` record to operands. The record is frozen and holds the op's attributes; its class,
in `hlo/opset/`, holds the op's shape rule, its meaning in NumPy and its text. Identity of an instruction for
common subexpressions is (op, operands, shape): never its name or source position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import numpy as np

from fusile.base.errors import VerificationError
from fusile.base.shape import AnyShape, Shape
from fusile.base.source import Source

if TYPE_CHECKING:
    from fusile.hlo.interpreter import Interpreter

OPS: dict[str, type[Op]] = {}
"""Every op of the op set, by opcode. `hlo/opset/` fills it; `op` is the decorator that adds one."""


@dataclass(frozen=True, eq=True)
class Op:
    """One op with its attributes. Subclasses are frozen dataclasses whose fields are the attributes.

    A subclass states `opcode`, `infer` (the shape rule: the builder and the verifier both call it) and `evaluate`
    (its meaning, on NumPy arrays), and algebraic facts where they hold.
    """

    opcode: ClassVar[str] = ""
    elementwise: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    has_side_effect: ClassVar[bool] = False
    arity: ClassVar[int | None] = None

    def infer(self, operands: Sequence[AnyShape]) -> AnyShape:
        """The result's shape. Raises ShapeError, saying which constraint of the specification is broken."""
        raise NotImplementedError(self.opcode)

    def evaluate(self, instruction: Instruction, operands: Sequence[Any], interpreter: Interpreter) -> Any:
        """The result on NumPy arrays (tuples of arrays for tuple shapes). `interpreter.call` runs a computation."""
        raise NotImplementedError(f"the interpreter has no meaning for {self.opcode}")

    def computations(self) -> tuple[Computation, ...]:
        """The computations among the attributes, in field order."""
        found: list[Computation] = []
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Computation):
                found.append(value)
            elif isinstance(value, tuple):
                found += [v for v in value if isinstance(v, Computation)]
        return tuple(found)

    def with_computations(self, change: Callable[[Computation], Computation]) -> Op:
        """This op with each computation among its attributes replaced by `change(computation)`."""
        new: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Computation):
                new[f.name] = change(value)
            elif isinstance(value, tuple) and any(isinstance(v, Computation) for v in value):
                new[f.name] = tuple(change(v) if isinstance(v, Computation) else v for v in value)
        return dataclasses.replace(self, **new) if new else self


T = TypeVar("T", bound=type[Op])


@dataclass_transform(frozen_default=True)
def op(cls: T) -> T:
    """Class decorator: makes `cls` a frozen dataclass and enters it in OPS under its opcode."""
    cls = dataclass(frozen=True, repr=False)(cls)  # type: ignore[assignment]
    if not cls.opcode or cls.opcode in OPS:
        raise ValueError(f"opcode {cls.opcode!r} of {cls.__name__} is missing or taken")
    OPS[cls.opcode] = cls
    return cls


class Literal:
    """A constant's array: read-only, compared and hashed by type and bytes (NaN equals NaN, 0.0 is not -0.0)."""

    __slots__ = ("_hash", "array")

    def __init__(self, array: np.ndarray) -> None:
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array).reshape(array.shape)
        self.array = array.view()
        self.array.flags.writeable = False
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Literal):
            return NotImplemented
        a, b = self.array, other.array
        if a is b or (a.ctypes.data == b.ctypes.data and a.dtype == b.dtype and a.shape == b.shape):
            return True
        return a.dtype == b.dtype and a.shape == b.shape and hash(self) == hash(other) and a.tobytes() == b.tobytes()

    def __hash__(self) -> int:
        if self._hash is None:
            data = self.array.reshape(-1).view(np.uint8) if self.array.size else self.array
            self._hash = hash((self.array.dtype.str, self.array.shape, data.tobytes()))
        return self._hash


class Instruction:
    """One op applied to operands. Make them with `Computation.add`, which infers and checks the shape."""

    __slots__ = ("computation", "name", "op", "operands", "shape", "source", "users")

    def __init__(
        self, op: Op, operands: Sequence[Instruction], shape: AnyShape, name: str, source: Source | None
    ) -> None:
        self.op, self.operands, self.shape, self.name, self.source = op, list(operands), shape, name, source
        self.users: dict[Instruction, int] = {}
        """Users, with how many of their operands this instruction is; in order of first use."""
        self.computation: Computation | None = None

    @property
    def opcode(self) -> str:
        return self.op.opcode

    @property
    def array_shape(self) -> Shape:
        """The shape, known to be an array's. Raises VerificationError for a tuple."""
        if not isinstance(self.shape, Shape):
            raise VerificationError(f"{self.name} is a tuple {self.shape}, not an array", source=self.source)
        return self.shape

    @property
    def is_root(self) -> bool:
        return self.computation is not None and self.computation.root is self

    def replace_operand(self, index: int, new: Instruction) -> None:
        """Makes `new` the operand at `index`; both instructions' users follow."""
        old = self.operands[index]
        if old is new:
            return
        self.operands[index] = new
        _drop_user(old, self)
        new.users[self] = new.users.get(self, 0) + 1

    def replace_all_uses(self, new: Instruction) -> None:
        """Every user takes `new` instead; if this was the root, `new` becomes it. This instruction stays, unused."""
        assert self.computation is not None and new.computation is self.computation
        for user in list(self.users):
            if user is new:
                continue
            for i, operand in enumerate(user.operands):
                if operand is self:
                    user.replace_operand(i, new)
        if self.computation.root is self:
            self.computation.root = new

    def __repr__(self) -> str:
        return f"{self.name} = {self.shape} {self.opcode}({', '.join(o.name for o in self.operands)})"


def _drop_user(operand: Instruction, user: Instruction) -> None:
    left = operand.users[user] - 1
    if left:
        operand.users[user] = left
    else:
        del operand.users[user]


class Computation:
    """Parameters, instructions and a root. Instructions are an unordered set that remembers insertion;
    `post_order()` gives operands before users."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: list[Instruction] = []
        self.instructions: dict[Instruction, None] = {}
        self._root: Instruction | None = None
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}

    @property
    def root(self) -> Instruction:
        if self._root is None:
            raise VerificationError(f"computation {self.name} has no root")
        return self._root

    @root.setter
    def root(self, instruction: Instruction) -> None:
        self._root = instruction

    def add(self, op: Op, operands: Sequence[Instruction] = (), *, name: str = "", source: Source | None = None,
            shape: AnyShape | None = None) -> Instruction:  # fmt: skip
        """Adds an instruction; its shape is inferred (ShapeError when operands do not fit).

        `shape` is for ops whose shape isn't inferred (parameters) and for refinements such as a layout.
        """
        for operand in operands:
            if operand.computation is not self:
                raise VerificationError(
                    f"operand {operand.name} of {op.opcode} is of another computation", source=source
                )
        inferred = shape if shape is not None else op.infer([o.shape for o in operands])
        instruction = Instruction(op, operands, inferred, self._unique(name or op.opcode), source)
        instruction.computation = self
        for operand in operands:
            operand.users[instruction] = operand.users.get(instruction, 0) + 1
        self.instructions[instruction] = None
        return instruction

    def parameter(self, shape: AnyShape, name: str = "", source: Source | None = None) -> Instruction:
        """Adds the next parameter."""
        op = OPS["parameter"](len(self.parameters))  # type: ignore[call-arg]
        instruction = self.add(op, name=name or f"parameter.{len(self.parameters)}", source=source, shape=shape)
        self.parameters.append(instruction)
        return instruction

    def erase(self, instruction: Instruction) -> None:
        """Removes an instruction that nothing uses. Parameters go through `remove_parameters`."""
        if instruction.users or instruction is self._root:
            raise VerificationError(f"{instruction.name} is still used")
        for operand in instruction.operands:
            _drop_user(operand, instruction)
        instruction.operands = []
        instruction.computation = None
        del self.instructions[instruction]
        self._names.discard(instruction.name)

    def remove_parameters(self, numbers: set[int]) -> None:
        """Removes the parameters with these numbers (unused ones) and renumbers the rest."""
        kept: list[Instruction] = []
        for number, parameter in enumerate(self.parameters):
            if number in numbers:
                self.erase(parameter)
                continue
            parameter.op = OPS["parameter"](len(kept))  # type: ignore[call-arg]
            kept.append(parameter)
        self.parameters = kept

    def post_order(self) -> list[Instruction]:
        """All instructions, operands before users, deterministic. Iterative: graphs are deep."""
        order: list[Instruction] = []
        seen: set[Instruction] = set()
        for start in self.instructions:
            if start in seen:
                continue
            seen.add(start)
            stack: list[tuple[Instruction, Iterator[Instruction]]] = [(start, iter(start.operands))]
            while stack:
                instruction, rest = stack[-1]
                for operand in rest:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append((operand, iter(operand.operands)))
                        break
                else:
                    order.append(instruction)
                    stack.pop()
        return order

    def _unique(self, name: str) -> str:
        if name not in self._names:
            self._names.add(name)
            return name
        base, count = name, self._counts.get(name, 0)
        while True:
            count += 1
            name = f"{base}.{count}"
            if name not in self._names:
                self._counts[base] = count
                self._names.add(name)
                return name

    def clone(self, name: str = "", computations: dict[Computation, Computation] | None = None) -> Computation:
        """A copy of it, with the computations it calls copied too (each once: `computations` maps old to new)."""
        return clone_into(Computation(name or self.name), self, {} if computations is None else computations)

    def __repr__(self) -> str:
        return f"Computation({self.name}, {len(self.instructions)} instructions)"


def clone_into(target: Computation, source: Computation, computations: dict[Computation, Computation]) -> Computation:
    """Copies every instruction of `source`, parameters included, into the empty `target`."""

    def called(computation: Computation) -> Computation:
        if computation not in computations:
            computations[computation] = computation.clone(computations=computations)
        return computations[computation]

    new: dict[Instruction, Instruction] = {}
    for parameter in source.parameters:
        new[parameter] = target.parameter(parameter.shape, parameter.name, parameter.source)
    for instruction in source.post_order():
        if instruction not in new:
            op = instruction.op.with_computations(called)
            new[instruction] = target.add(op, [new[o] for o in instruction.operands], name=instruction.name,
                                          source=instruction.source, shape=instruction.shape)  # fmt: skip
    target.root = new[source.root]
    return target


class Module:
    """A program: an entry computation and those it reaches.

    `aliases` maps an output leaf's number to the number of the parameter whose buffer it may take (donation, and
    variables updated in place).
    """

    def __init__(self, name: str, entry: Computation) -> None:
        self.name, self.entry = name, entry
        self.aliases: dict[int, int] = {}
        self.result_names: list[str] = []

    def computations(self) -> list[Computation]:
        """Every computation reachable from the entry, callees before callers, the entry last. Raises
        VerificationError on recursion."""
        order: list[Computation] = []
        state: dict[Computation, bool] = {}
        stack: list[tuple[Computation, Iterator[Computation]]] = []

        def push(computation: Computation) -> None:
            state[computation] = False
            stack.append((computation, iter([c for i in computation.instructions for c in i.op.computations()])))

        push(self.entry)
        while stack:
            computation, rest = stack[-1]
            for callee in rest:
                if callee not in state:
                    push(callee)
                    break
                if not state[callee]:
                    raise VerificationError(f"computation {callee.name} calls itself")
            else:
                state[computation] = True
                order.append(computation)
                stack.pop()
        return order

    def size(self) -> int:
        """The number of instructions in all computations."""
        return sum(len(c.instructions) for c in self.computations())

    def clone(self) -> Module:
        copy = Module(self.name, self.entry.clone())
        copy.aliases, copy.result_names = dict(self.aliases), list(self.result_names)
        return copy

    def __repr__(self) -> str:
        return f"Module({self.name})"
