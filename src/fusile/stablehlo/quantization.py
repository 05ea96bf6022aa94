"""Uniform quantized types: `!quant.uniform<i8<-127:127>:f32:1, {0.5:3, 0.25}>` (StableHLO, "Types").

HLO has none of them. A value of such a type is the array of its storage integers `i`, which stand for the numbers
`(i - zero_point) * scale`; `conversion/quantized.py` writes out what ops do with those numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fusile.base.element_type import BF16, F16, F32, F64, ElementType, Kind
from fusile.base.shape import AnyShape, Dimension, Shape, TupleShape
from fusile.stablehlo.types import mlir_element_name, mlir_element_type

_EXPRESSED = (BF16, F16, F32, F64)
_MAX_STORAGE_BITS = 32
_MAX_TRIED = 1 << 20

_NUMBER = r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_PARAMETER = re.compile(rf"\s*({_NUMBER})\s*(?::\s*(-?\d+)\s*)?")
_UNIFORM = re.compile(
    r"!quant\.uniform<\s*(\w+)\s*(?:<\s*(-?\d+)\s*:\s*(-?\d+)\s*>)?\s*:\s*(\w+)\s*(?::\s*(\d+)\s*)?,\s*"
    r"(\{[^{}]*\}|[^{}<>]*)>"
)


@dataclass(frozen=True, slots=True)
class Quantization:
    """A quantized element type. `dimension` is the one that has a scale and a zero point for each index; None where the
    whole array has one of each."""

    storage: ElementType
    storage_min: int
    storage_max: int
    expressed: ElementType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    dimension: int | None = None

    @property
    def is_per_axis(self) -> bool:
        return self.dimension is not None

    @property
    def baseline(self) -> tuple[object, ...]:
        """All but the scales and zero points: the specification's `baseline_type`."""
        return self.storage, self.storage_min, self.storage_max, self.expressed, self.dimension

    @property
    def text(self) -> str:
        """The type as MLIR writes it."""
        pairs = [f"{s!r}:{z}" for s, z in zip(self.scales, self.zero_points, strict=True)]
        if len(pairs) > 8:
            pairs[8:] = ["..."]
        parameters = "{" + ", ".join(pairs) + "}" if self.is_per_axis else pairs[0]
        full = (self.storage_min, self.storage_max) == _limits(self.storage)
        bounds = "" if full else f"<{self.storage_min}:{self.storage_max}>"
        axis = f":{self.dimension}" if self.is_per_axis else ""
        kinds = f"{mlir_element_name(self.storage)}{bounds}:{mlir_element_name(self.expressed)}{axis}"
        return f"!quant.uniform<{kinds}, {parameters}>"

    def rounds_out_of_range(self) -> bool:
        """Whether a number clamped to the range as the expressed type has it can become an integer outside: NaN, which
        becomes 0, or a bound that the expressed type rounds outward (511 is 512 in bf16)."""
        with np.errstate(over="ignore"):
            bounds = np.array([self.storage_min, self.storage_max]).astype(self.expressed.dtype).astype(np.float64)
        low, high = np.clip(bounds, *_limits(self.storage))
        return not (self.storage_min <= 0 <= self.storage_max and self.storage_min <= low and high <= self.storage_max)

    def largest_distance(self) -> int:
        """The largest `abs(i - zero_point)` of a storage integer."""
        return max(self.storage_max - min(self.zero_points), max(self.zero_points) - self.storage_min)


@dataclass(frozen=True, slots=True)
class QuantizedShape(Shape):
    """The type of a quantized tensor. `element_type` is that of the storage; the text's types only: instructions have
    plain shapes (`storage_shape`)."""

    quantization: Quantization | None = None

    def __repr__(self) -> str:
        assert self.quantization is not None
        return f"tensor<{''.join(f'{d}x' for d in self.dimensions)}{self.quantization.text}>"


def parse_uniform(text: str) -> Quantization:
    """The type that `!quant.uniform<...>` names. Raises ValueError that says which rule it breaks."""
    found = _UNIFORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text[:80]} is not a quantized type such as !quant.uniform<i8:f32, 0.5:3> or "
            "!quant.uniform<i8<-127:127>:f32:1, {0.5:3, 0.25:0}>"
        )
    storage, expressed = _element_type(found[1]), _element_type(found[4])
    if not storage.is_integer or storage.bits > _MAX_STORAGE_BITS:
        raise ValueError(f"quantized types are stored as integers of at most {_MAX_STORAGE_BITS} bits, not {found[1]}")
    if expressed not in _EXPRESSED:
        raise ValueError(f"quantized types express {', '.join(k.name for k in _EXPRESSED)}, not {found[4]}")
    low, high = _limits(storage)
    if found[2] is not None:
        if not low <= int(found[2]) < int(found[3]) <= high:
            raise ValueError(f"{found[2]}:{found[3]} is no range of {found[1]}, whose values are {low} to {high}")
        low, high = int(found[2]), int(found[3])
    dimension = None if found[5] is None else int(found[5])
    scales, zero_points = _parameters(found[6], expressed, dimension is not None)
    for zero_point in zero_points:
        if not low <= zero_point <= high:
            raise ValueError(f"zero point {zero_point} is not within the storage's {low} to {high}")
    return Quantization(storage, low, high, expressed, scales, zero_points, dimension)


def _element_type(name: str) -> ElementType:
    """The quant dialect spells unsigned integers `u8`, StableHLO `ui8`."""
    try:
        return mlir_element_type("ui" + name[1:] if re.fullmatch(r"u\d+", name) else name)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _limits(storage: ElementType) -> tuple[int, int]:
    half = 1 << (storage.bits - 1)
    return (-half, half - 1) if storage.kind is Kind.SIGNED else (0, 2 * half - 1)


def _parameters(text: str, expressed: ElementType, per_axis: bool) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The scales, rounded to the expressed type, and the zero points, which are 0 where none is written."""
    if text.startswith("{") is not per_axis:
        raise ValueError("a dimension after the expressed type goes with a list {scale:zero_point, ...}, none with one")
    scales, zero_points = [], []
    for word in text.strip("{}").split(","):
        found = _PARAMETER.fullmatch(word)
        if found is None:
            raise ValueError(f"{word.strip()[:40]!r} is not a scale and zero point such as 0.5:3")
        with np.errstate(all="ignore"):
            scale = float(np.array(float(found[1])).astype(expressed.dtype))
        if not 0 < scale < np.inf:
            raise ValueError(f"scale {found[1]} is not a positive finite {expressed.name}")
        scales.append(scale)
        zero_points.append(int(found[2] or 0))
    return tuple(scales), tuple(zero_points)


def quantized_shape(dimensions: Sequence[Dimension], quantization: Quantization) -> QuantizedShape:
    """The tensor type. Raises ValueError where the quantized dimension is none of its own or has another size."""
    q = quantization
    if q.dimension is not None:
        if q.dimension >= len(dimensions):
            raise ValueError(f"the quantized dimension is {q.dimension}, the tensor has {len(dimensions)}")
        size = dimensions[q.dimension]
        if isinstance(size, int) and size != len(q.scales):
            raise ValueError(f"{len(q.scales)} scales for dimension {q.dimension} of size {size}")
    return QuantizedShape(q.storage, tuple(dimensions), quantization=q)


def quantizations(shape: object) -> tuple[Quantization | None, ...]:
    """The quantized type of each array in a type; None for those that have none. Empty for what is no value's type."""
    leaves = shape.leaves() if isinstance(shape, Shape | TupleShape) else ()
    return tuple(leaf.quantization if isinstance(leaf, QuantizedShape) else None for leaf in leaves)


def storage_shape(shape: AnyShape) -> AnyShape:
    """The type of the arrays that hold a value of this type."""
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(map(storage_shape, shape.shapes))) if any(quantizations(shape)) else shape
    return Shape(shape.element_type, shape.dimensions) if isinstance(shape, QuantizedShape) else shape


@functools.cache
def keeps_every_value(quantization: Quantization) -> bool:
    """Whether dequantizing and quantizing again gives back every storage integer, found by trying each. Where it does,
    different integers express different numbers in the same order, so that choosing among numbers is choosing among
    integers."""
    q = quantization
    parameters = set(zip(q.scales, q.zero_points, strict=True))
    if (q.storage_max - q.storage_min) * len(parameters) > _MAX_TRIED:
        return False
    kind = q.expressed.dtype
    integers = np.arange(q.storage_min, q.storage_max + 1)
    low, high = np.array([q.storage_min, q.storage_max]).astype(kind)
    for scale, zero_point in parameters:
        with np.errstate(all="ignore"):
            factor = np.array(scale).astype(kind)
            numbers = (integers - zero_point).astype(kind) * factor
            again = numbers / factor + np.array(zero_point).astype(kind)
            kept = np.array_equal(np.rint(np.clip(again, low, high)).astype(np.int64), integers)
        if not kept:
            return False
    return True
