"""The specification's formulas of uniform quantized types in NumPy, and programs that use such types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fusile
from fusile.base.errors import ParseError

TARGETS = ("interpreter", "cpu")
STORAGE = {
    "i2": ml_dtypes.int2, "u2": ml_dtypes.uint2, "i4": ml_dtypes.int4, "ui4": ml_dtypes.uint4, "i8": np.int8,
    "u8": np.uint8, "ui8": np.uint8, "i16": np.int16, "ui16": np.uint16, "i32": np.int32, "ui32": np.uint32,
}  # fmt: skip
EXPRESSED = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class Type:
    """A quantized type of the tests and the specification's functions on it."""

    storage: str = "i8"
    expressed: str = "f32"
    scales: tuple[float, ...] = (0.5,)
    zero_points: tuple[int, ...] = (3,)
    dimension: int | None = None
    limits: tuple[int, int] | None = None

    def __str__(self) -> str:
        pairs = ", ".join(f"{s}:{z}" for s, z in zip(self.scales, self.zero_points, strict=True))
        limits = f"<{self.limits[0]}:{self.limits[1]}>" if self.limits else ""
        axis, pairs = ("", pairs) if self.dimension is None else (f":{self.dimension}", "{" + pairs + "}")
        return f"!quant.uniform<{self.storage}{limits}:{self.expressed}{axis}, {pairs}>"

    @property
    def range(self) -> tuple[int, int]:
        bits = int(self.storage.lstrip("ui"))
        return self.limits or ((0, 2**bits - 1) if "u" in self.storage else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))

    def parameters(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        shape = [1] * rank
        if self.dimension is not None:
            shape[self.dimension] = -1
        kind = EXPRESSED[self.expressed]
        scales, zero_points = np.array(self.scales).astype(kind), np.array(self.zero_points, np.int64)
        return scales.reshape(shape), zero_points.reshape(shape)

    def dequantize(self, x: np.ndarray) -> np.ndarray:
        scales, zero_points = self.parameters(x.ndim)
        return (x.astype(np.int64) - zero_points).astype(EXPRESSED[self.expressed]) * scales

    def quantize(self, x: Any) -> np.ndarray:
        """NaN, of which the specification says nothing, is 0 here, or the storage's integer nearest to it."""
        kind, x = EXPRESSED[self.expressed], np.asarray(x)
        assert x.dtype == kind, x.dtype
        scales, zero_points = self.parameters(x.ndim)
        low, high = self.range
        with np.errstate(all="ignore"):
            scaled = x / scales + zero_points.astype(kind)
            clamped = np.minimum(np.maximum(scaled, np.array(low).astype(kind)), np.array(high).astype(kind))
            rounded = np.rint(clamped).astype(np.float64)
        nearest_to_nan = float(np.clip(0, low, high))
        return np.clip(np.where(np.isnan(rounded), nearest_to_nan, rounded), low, high).astype(STORAGE[self.storage])

    def edges(self) -> np.ndarray:
        """Storage integers: both ends, the zero point and its neighbours, and some between."""
        low, high = self.range
        near = [z + d for z in self.zero_points for d in (-1, 0, 1)]
        some = np.linspace(low, high, 9).astype(np.int64).tolist()
        return np.unique(np.clip([low, low + 1, high - 1, high, *near, *some], low, high)).astype(STORAGE[self.storage])

    def random(self, *shape: int, seed: int = 0) -> np.ndarray:
        low, high = self.range
        return np.random.default_rng(seed).integers(low, high + 1, shape).astype(STORAGE[self.storage])


def tensor(kind: Type | str, *sizes: int) -> str:
    return f"tensor<{''.join(f'{s}x' for s in sizes)}{kind}>"


def run(target: str, text: str, *arguments: np.ndarray) -> Any:
    return fusile.compile(text, target=target)(*arguments)


def program(body: str, arguments: Sequence[str], results: Sequence[str]) -> str:
    """@main with arguments %a, %b, ... and this body, whose last lines name %r0, %r1, ..."""
    names = ", ".join(f"%{'abcdefgh'[i]}: {t}" for i, t in enumerate(arguments))
    values = ", ".join(f"%r{i}" for i in range(len(results)))
    ends = f"return {values} : {', '.join(results)}"
    return f"func.func @main({names}) -> ({', '.join(results)}) {{\n{body}\n{ends}\n}}"


def refused(text: str) -> ParseError:
    with pytest.raises(ParseError) as info:
        fusile.compile(text, target="interpreter")
    assert info.value.line >= 1 and info.value.column >= 1
    return info.value


def region(op: str, kind: str) -> str:
    return (
        f"({{ ^bb0(%x: {kind}, %y: {kind}):\n%z = stablehlo.{op} %x, %y : {kind}\n"
        f'"stablehlo.return"(%z) : ({kind}) -> () }})'
    )
