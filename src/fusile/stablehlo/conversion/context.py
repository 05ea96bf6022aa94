"""What a conversion sees of the operation that it turns into HLO, and the registry of conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusile.base.errors import ParseError, UnsupportedOpError
from fusile.base.shape import AnyShape, Shape
from fusile.base.source import Source
from fusile.hlo.builder import Builder
from fusile.hlo.ir import OPS, Computation, Instruction, Literal
from fusile.stablehlo.quantization import Quantization, quantizations
from fusile.stablehlo.syntax import Dense, DialectAttribute, Operation, Region

if TYPE_CHECKING:
    from fusile.stablehlo.conversion.program import Program

_MAX_ATTRIBUTE_ELEMENTS = 1 << 20

Quantizations = tuple[Quantization | None, ...]
Conversion = Callable[["Context"], "Instruction | Sequence[Instruction]"]

CONVERSIONS: dict[str, Conversion] = {}
"""How each operation becomes HLO, by its name; the files of this folder fill it."""


def converts(*names: str) -> Callable[[Conversion], Conversion]:
    """Enters the conversion of these operations."""

    def enter(conversion: Conversion) -> Conversion:
        for name in names:
            CONVERSIONS[name] = conversion
        return conversion

    return enter


class Scope:
    """One computation being built and its values by name."""

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.values: dict[str, Instruction] = {}
        self.quantized: dict[str, Quantizations] = {}
        """The types of values that are, or hold, quantized tensors."""

    def find(self, name: str) -> Instruction | None:
        found = self.values.get(name)
        return found if found is not None else self.values.get(_other_name(name))

    def note_type(self, name: str, shape: AnyShape | None) -> None:
        """Remembers a quantized type, which instructions do not have."""
        found = quantizations(shape)
        if any(found):
            self.quantized[name] = found

    def quantization(self, name: str) -> Quantizations:
        """The quantized types of the arrays in a value; empty where none is quantized."""
        return (self.quantized.get(name) or self.quantized.get(_other_name(name)) or ()) if self.quantized else ()


def _other_name(name: str) -> str:
    """The first of several results has two names, `%0#0` and `%0`."""
    base, _, number = name.partition("#")
    return base if number == "0" else name if number else f"{base}#0"


class Context:
    """One operation, its operands as instructions, and typed access to its attributes.

    Accessors raise ValueError for attributes that are missing or of another kind; the caller makes it a ParseError with
    the operation's place.
    """

    def __init__(self, program: Program, scope: Scope, operation: Operation) -> None:
        self.program, self.scope, self.operation = program, scope, operation
        self.source: Source | None = program.source(operation.location)
        self.operands = [self._operand(name) for name in operation.operands]

    def _operand(self, name: str) -> Instruction:
        found = self.scope.find(name)
        if found is None:
            raise self.error(f"{name} is not defined")
        return found

    def error(self, message: str, hint: str = "") -> ParseError:
        return self.program.error(f"{self.operation.name}: {message}", self.operation, hint)

    def unsupported(self, what: str, hint: str = "") -> UnsupportedOpError:
        line = self.program.line(self.operation)
        return UnsupportedOpError(f"{self.operation.name} at line {line}: {what}", source=self.source, hint=hint)

    # Instructions

    def add(self, opcode: str, operands: Sequence[Instruction] = (), **fields: Any) -> Instruction:
        """Adds an instruction to the computation being built."""
        if opcode not in OPS:
            raise self.unsupported(f"there is no HLO op {opcode}")
        return self.scope.computation.add(OPS[opcode](**fields), operands, source=self.source)

    @property
    def builder(self) -> Builder:
        """Adds to the same computation, for meanings of many instructions."""
        return Builder.on(self.scope.computation, self.source)

    def constant(self, array: np.ndarray) -> Instruction:
        return self.add("constant", literal=Literal(array))

    def broadcast(self, operand: Instruction, dimensions: Sequence[Any], positions: Sequence[int] = ()) -> Instruction:
        """The operand along `positions` of a larger shape; unchanged when that is its shape."""
        if operand.array_shape.dimensions == tuple(dimensions):
            return operand
        return self.add("broadcast", [operand], dimensions=tuple(dimensions), broadcast_dimensions=tuple(positions))

    def reshape(self, operand: Instruction, dimensions: Sequence[Any]) -> Instruction:
        """The operand with other dimensions; unchanged when it has them."""
        if operand.array_shape.dimensions == tuple(dimensions):
            return operand
        return self.add("reshape", [operand], dimensions=tuple(dimensions))

    def parts(self, result: Instruction, count: int) -> list[Instruction]:
        """The `count` values of an instruction that gives a tuple of them, or the only one itself."""
        if not result.shape.is_tuple:
            return [result]
        return [self.add("get-tuple-element", [result], index=i) for i in range(count)]

    def result_shape(self, number: int = 0) -> Shape:
        """The type that the text gives a result, known to be an array's."""
        shape = self.operation.result_types[number] if number < len(self.operation.result_types) else None
        if not isinstance(shape, Shape):
            raise ValueError(f"result {number} has no tensor type")
        return shape

    def result_shapes(self) -> list[AnyShape]:
        return [self.result_shape(i) for i in range(len(self.operation.result_types))]

    def region(self, number: int, tuple_root: bool = False) -> Computation:
        """A region as a computation of its arguments; it may use constants from outside, nothing else."""
        return self.program.region(self, self._region(number), [], tuple_root)

    def _region(self, number: int) -> Region:
        if number >= len(self.operation.regions):
            raise ValueError(f"it has {len(self.operation.regions)} regions")
        return self.operation.regions[number]

    # Attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.operation.attributes.get(name, default)

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """An attribute that lists integers, flattened."""
        value = self.attribute(name)
        return tuple(default) if value is None and default is not None else integers_of(name, value)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.attribute(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} is not an integer")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        return bool(self.attribute(name, default))

    def word(self, name: str, default: str | None = None) -> str:
        """An enumeration's word: `EQ`, or `#stablehlo<comparison_direction EQ>`."""
        value = self.attribute(name, default)
        if isinstance(value, DialectAttribute) and value.words:
            return value.words[-1]
        if not isinstance(value, str):
            raise ValueError(f"{name} is missing")
        return value

    def fields(self, name: str) -> dict[str, Any]:
        """The fields of `#stablehlo.name<field = value, ...>`; none when the attribute is missing."""
        value = self.attribute(name)
        return value.fields if isinstance(value, DialectAttribute) else {}


def integers_of(name: str, value: Any) -> tuple[int, ...]:
    """The integers in a list, nested list, or dense constant. Raises ValueError."""
    if isinstance(value, Dense):
        if value.array.size > _MAX_ATTRIBUTE_ELEMENTS:
            raise ValueError(f"{name} has {value.array.size} elements")
        value = value.array.reshape(-1).tolist()
    if not isinstance(value, list):
        raise ValueError(f"{name} is missing or does not list integers")
    flat = [v for item in value for v in (item if isinstance(item, list) else [item])]
    if not all(isinstance(v, int) for v in flat):
        raise ValueError(f"{name} does not list integers")
    return tuple(int(v) for v in flat)
