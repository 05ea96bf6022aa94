"""What a converter works with: the builder, compile-time values, variables, and errors that say where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusile.base.element_type import ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.elementwise import Maximum, Minimum
from fusile.hlo.opset.structure import Constant
from fusile.tf.value import AnyValue, Resource, Value

if TYPE_CHECKING:
    from fusile.tf.node import Node


class Context:
    """The conversion of one computation.

    `builder` writes it; `variables` maps each variable's key to its current array; `node` is the operation at work.
    """

    def __init__(self, builder: Builder, library: Any = None) -> None:
        self.builder = builder
        self.library = library
        """The TensorFlow graph in which called functions are looked up by name."""
        self.variables: dict[str, Value] = {}
        self.node: Node | None = None

    # -- values
    def value(self, instruction: Instruction) -> Value:
        return Value(self.builder, instruction)

    def known(self, array: Any, of: ElementType | None = None) -> Value:
        """A value known at compile time."""
        array = np.asarray(array)
        return Value(self.builder, known=array if of is None else array.astype(of.dtype))

    def constant(self, value: Value, what: str = "") -> np.ndarray:
        """The array of a value known at compile time. Raises UnsupportedOpError for one known only at run time."""
        if value.known is None:
            low, high = _bounds(value.instruction)
            if low == high and math.isfinite(low):
                return np.asarray(low, value.element_type.dtype)
            hint = "make it a Python number or a constant, or compute it from static shapes"
            raise self.unsupported(f"{what or 'an argument'} must be known at compile time", hint)
        return value.known

    def scalar(self, value: Value, what: str = "") -> Any:
        """A compile-time scalar as a Python number."""
        return self.constant(value, what).item()

    def integers(self, value: Value, what: str = "") -> list[int]:
        """A compile-time vector (or scalar) of integers."""
        return [int(v) for v in self.constant(value, what).reshape(-1)]

    def broadcast(self, *values: Value) -> list[Instruction]:
        """The operands broadcast to their common shape by NumPy's rules. Raises UnsupportedOpError if there is none."""
        try:
            sizes = np.broadcast_shapes(*(v.sizes for v in values))
        except ValueError as error:
            raise self.unsupported(f"shapes {[v.shape for v in values]} do not broadcast") from error
        return [self.builder.broadcast_to(v.instruction, sizes) for v in values]

    # -- variables
    def read(self, resource: Resource) -> Value:
        """The variable's array at this point of the program."""
        return self.variables[resource.key]

    def assign(self, resource: Resource, value: Value | Instruction) -> None:
        """From here on the variable holds `value`. Raises UnsupportedOpError when the shape or element type changes."""
        new = value if isinstance(value, Value) else self.value(value)
        if new.shape != resource.shape:
            raise self.unsupported(
                f"a variable of shape {resource.shape} is assigned {new.shape}", "keep the variable's shape and type"
            )
        self.variables[resource.key] = new

    # -- errors
    def unsupported(self, message: str, hint: str = "") -> UnsupportedOpError:
        """The error to raise when this node can't be converted."""
        if self.node is None:
            return UnsupportedOpError(message, hint=hint)
        return UnsupportedOpError(f"{self.node.type} '{self.node.name}': {message}", source=self.node.source, hint=hint)

    def wrap(self, results: Instruction | AnyValue | Sequence[Instruction | AnyValue]) -> list[AnyValue]:
        """A converter's answer as a list of values."""
        if isinstance(results, (list, tuple)):
            return [self.value(r) if isinstance(r, Instruction) else r for r in results]
        return [self.value(results) if isinstance(results, Instruction) else results]  # type: ignore[list-item]


def _bounds(i: Instruction) -> tuple[float, float]:
    """Between which numbers a scalar lies, as far as constants that clamp it say."""
    if i.shape.is_tuple or i.array_shape.rank or i.array_shape.element_type.is_complex:
        return -math.inf, math.inf
    if isinstance(i.op, Constant):
        number = i.op.literal.array.item()
        return number, number
    if isinstance(i.op, Maximum | Minimum):
        (low, high), (other_low, other_high) = map(_bounds, i.operands)
        choose = max if isinstance(i.op, Maximum) else min
        return choose(low, other_low), choose(high, other_high)
    return -math.inf, math.inf


def shape_of(element_type: ElementType, sizes: Sequence[int]) -> Shape:
    return Shape(element_type, tuple(int(s) for s in sizes))
