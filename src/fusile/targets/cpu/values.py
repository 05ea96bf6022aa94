"""LLVM values: an operand's text with its element type and lanes, and how element types are spelled in LLVM."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from fusile.base.element_type import F16, F32, F64, ElementType


@dataclass(frozen=True, slots=True)
class Value:
    """An LLVM operand: its text, element type and lanes (1 for a scalar). `depth`: how many loops enclose its
    definition. `number` is set for constants; `at_least_zero` says that an integer is known to be so."""

    text: str
    element_type: ElementType
    lanes: int = 1
    depth: int = 0
    number: float | int | bool | None = None
    at_least_zero: bool = False

    @property
    def llvm_type(self) -> str:
        return typed(value_type(self.element_type), self.lanes)

    def __str__(self) -> str:
        return f"{self.llvm_type} {self.text}"


def value_type(element_type: ElementType) -> str:
    """The LLVM type of a value in a register: predicates are i1; integers below a byte are a byte, extended; floats
    below 32 bits are their bits, but for f16."""
    if element_type.is_predicate:
        return "i1"
    if element_type is F32:
        return "float"
    if element_type is F64:
        return "double"
    return "half" if element_type is F16 else f"i{max(8, element_type.bits)}"


def memory_type(element_type: ElementType) -> str:
    """The LLVM type of an element in memory: predicates take a byte."""
    return "i8" if element_type.is_predicate else value_type(element_type)


def typed(base: str, lanes: int) -> str:
    return base if lanes == 1 else f"<{lanes} x {base}>"


def mangled(element_type: ElementType, lanes: int, in_memory: bool = False) -> str:
    """The suffix of an intrinsic's name for this type."""
    base = memory_type(element_type) if in_memory else value_type(element_type)
    base = {"half": "f16", "float": "f32", "double": "f64"}.get(base, base)
    return f"v{lanes}{base}" if lanes > 1 else base


def literal(value: float | int | bool, element_type: ElementType) -> str:
    """A number as LLVM text; floats as their exact bits."""
    if element_type.is_predicate:
        return "true" if value else "false"
    if element_type.is_integer:
        return str(_wrapped(int(value), element_type))
    if element_type is F16:
        return f"0xH{int(np.asarray(value, np.float16).view(np.uint16)):04X}"
    if element_type.bits < 32:
        code = np.asarray(value).astype(element_type.dtype).view(np.dtype(f"i{element_type.bytes}"))
        return str(int(code))
    with np.errstate(over="ignore"):
        number = float(np.float32(value)) if element_type is F32 else float(value)
    if math.isnan(number):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def _wrapped(value: int, element_type: ElementType) -> int:
    """As a signed number of the register's width; below a byte, extended as the type says."""
    bits = element_type.bits
    value &= (1 << bits) - 1
    if element_type.is_unsigned and bits < 8:
        return value
    return value - (1 << bits) if value >> (bits - 1) else value
