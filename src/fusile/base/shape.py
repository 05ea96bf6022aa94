"""Shapes: an element type and dimensions, or a tuple of shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fusile.base.element_type import TOKEN, ElementType, Kind


@dataclass(frozen=True, slots=True)
class SymbolicDimension:
    """A dimension whose size is known only when the program runs; equal names are equal sizes."""

    name: str
    bound: int | None = None

    def __repr__(self) -> str:
        return f"{self.name}<={self.bound}" if self.bound is not None else self.name


Dimension = int | SymbolicDimension


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's element type and dimensions. `layout` lists dimensions from minor to major, None until assigned
    (which means row-major)."""

    element_type: ElementType
    dimensions: tuple[Dimension, ...] = ()
    layout: tuple[int, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.dimensions)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.dimensions)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dimensions as ints. Raises ValueError when one is symbolic."""
        if not self.is_static:
            raise ValueError(f"{self} has a dimension known only at run time")
        return self.dimensions  # type: ignore[return-value]

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        return self.elements * self.element_type.bytes

    @property
    def is_tuple(self) -> bool:
        return False

    @property
    def is_token(self) -> bool:
        return self.element_type.kind is Kind.TOKEN

    @property
    def is_scalar(self) -> bool:
        return not self.dimensions

    def with_dimensions(self, dimensions: Iterable[Dimension]) -> Shape:
        return Shape(self.element_type, tuple(dimensions))

    def with_element_type(self, element_type: ElementType) -> Shape:
        return Shape(element_type, self.dimensions, self.layout)

    def leaves(self) -> tuple[Shape, ...]:
        """The array shapes in it, in order: itself."""
        return (self,)

    def __repr__(self) -> str:
        if self.is_token:
            return "token[]"
        layout = "" if self.layout is None else "{" + ",".join(map(str, self.layout)) + "}"
        return f"{self.element_type.name}[{','.join(map(str, self.dimensions))}]{layout}"


@dataclass(frozen=True, slots=True)
class TupleShape:
    """The shape of a tuple; tuples stand only at module boundaries and around control flow."""

    shapes: tuple[AnyShape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        return True

    @property
    def is_token(self) -> bool:
        return False

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.shapes)

    def leaves(self) -> tuple[Shape, ...]:
        """The array shapes in it, depth first."""
        return tuple(leaf for shape in self.shapes for leaf in shape.leaves())

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.shapes))})"


AnyShape = Shape | TupleShape
TOKEN_SHAPE = Shape(TOKEN)
