"""MLIR's generic form as records: what every pretty form is read into and what conversion starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusile.base.shape import AnyShape, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """`dense<...> : tensor<...>`. `array` has the shape's dimensions; a splat's is a view of one element, whatever its
    size."""

    shape: Shape
    array: np.ndarray
    is_splat: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """`@name`."""

    name: str


@dataclass(frozen=True, slots=True)
class DialectAttribute:
    """`#dialect.name<...>`: its words in order, and the `field = value` pairs where it is made of those."""

    name: str
    words: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class FunctionType:
    """`(inputs) -> results`."""

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OtherType:
    """A type that no value of ours has (`i32` outside a tensor, `index`, `none`), by its text."""

    text: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where an op came from: an alias `#loc3` until it is resolved, or a name, file and line."""

    alias: str = ""
    name: str = ""
    file: str = ""
    line: int = 0
    children: tuple[Location, ...] = ()


@dataclass(slots=True)
class Region:
    """One block: its arguments (name, shape, location) and operations, the last of them the terminator."""

    arguments: list[tuple[str, AnyShape, Location | None]] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class Operation:
    """One operation. `results` are the names of its values, `%0` or `%1#0`, `%1#1`."""

    name: str
    position: int
    results: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    result_types: list[Any] = field(default_factory=list)
    operand_types: list[Any] = field(default_factory=list)
    location: Location | None = None
