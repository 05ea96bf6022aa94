"""What a TensorFlow tensor becomes while its graph is converted: an array, a variable's handle, or a list."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fusile.base.element_type import ElementType, element_type
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction


class Value:
    """An array. `known` holds it when it is known at compile time (shape arithmetic), and then the HLO constant is made
    only when something asks for `instruction`."""

    __slots__ = ("_builder", "_instruction", "known")

    def __init__(
        self, builder: Builder, instruction: Instruction | None = None, known: np.ndarray | None = None
    ) -> None:
        assert (instruction is None) != (known is None)
        self._builder, self._instruction, self.known = builder, instruction, known

    @property
    def instruction(self) -> Instruction:
        if self._instruction is None:
            assert self.known is not None
            self._instruction = self._builder.constant(self.known)
        return self._instruction

    @property
    def shape(self) -> Shape:
        if self.known is not None:
            return Shape(element_type(self.known.dtype), self.known.shape)
        assert self._instruction is not None
        return self._instruction.array_shape

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.shape.sizes

    @property
    def rank(self) -> int:
        return self.shape.rank

    @property
    def element_type(self) -> ElementType:
        return self.shape.element_type

    def within(self, builder: Builder) -> Value:
        """This known value for use in another computation."""
        assert self.known is not None
        return Value(builder, known=self.known)

    def __repr__(self) -> str:
        return f"Value({self.shape}{', known' if self.known is not None else ''})"


@dataclass(frozen=True, slots=True)
class Resource:
    """A variable's handle. `key` names the variable in `Context.variables`, which holds its current array."""

    key: str
    shape: Shape


GENERATOR_PREFIX = "generator "
"""How keys of random ops' states begin: they are no input of any function, and cross into all."""


EMPTY = np.zeros(0)
"""What every element of an empty list equals: anything."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A TensorList: a buffer [capacity, ...] and how many of its elements are in use (s32).

    Lists are immutable values: each op gives a new one. `buffer` is None until the shape of the elements is known.
    `change` is by how much the length has changed in this computation, None when that varies. `uniform` is what every
    element in use is known to equal: gradients of loops keep shapes in such lists.
    """

    element_type: ElementType
    capacity: int
    element_shape: tuple[int, ...] | None
    length: Value
    buffer: Value | None = None
    change: int | None = 0
    uniform: np.ndarray | None = None

    def with_uniform(self, uniform: np.ndarray | None) -> TensorList:
        return replace(self, uniform=uniform)

    @property
    def growing(self) -> bool:
        """True when elements may still be added without a known end: it began empty with no room."""
        return self.capacity == 0 or (self.length.known is not None and int(self.length.known) < self.capacity)


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """Values that one branch has and another lacks; gradients of branches pass intermediate values so.

    Branches share places between values of different shapes: `alternatives` has each, zeros from other branches.
    """

    alternatives: tuple[tuple[Value, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CompositeList:
    """A list of lists or of optionals: one list for each array that an element consists of.

    `element` says how those arrays make an element (its own arrays mean nothing); None until an element was added.
    """

    capacity: int
    element: TensorList | Optional | None = None
    columns: tuple[TensorList, ...] = ()


AnyValue = Value | Resource | TensorList | CompositeList | Optional | None


def merged_uniform(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """What all elements equal that equal `a` or `b`."""
    if a is EMPTY or a is b:
        return b
    if b is EMPTY:
        return a
    same = a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b)
    return a if same else None
