"""`dense<...>`: splats, nested lists, hexadecimal blobs, of every element type."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable

import numpy as np

from fusile.base.element_type import ElementType, Kind
from fusile.base.shape import Shape
from fusile.hlo.text.literal import parse_floats
from fusile.stablehlo.syntax import Dense

_COMPLEX = re.compile(r"\(([^,()]*),([^,()]*)\)")
_BOOLEANS = {"true": 1, "false": 0, "1": 1, "0": 0, "-1": 1}

Fail = Callable[[str], Exception]


def parse_dense(token: str, shape: Shape, fail: Fail) -> Dense:
    """The value of a `dense<...>` token. Raises `fail(message)`; allocates no more than the text warrants."""
    body = token[6:-1].strip() if len(token) < 4096 else token[6:-1]
    if not shape.is_static:
        raise fail(f"a constant of type {shape}")
    try:
        if body.startswith('"'):
            return _from_bytes(_hexadecimal(body, fail), shape, fail)
        if not body:
            return _checked(np.zeros(0, shape.element_type.dtype), shape, False, fail)
        values = _elements(body, shape.element_type)
    except (ValueError, OverflowError, KeyError) as error:
        raise fail(f"not a constant of type {shape}: {error}") from error
    return _checked(values, shape, not body.startswith("["), fail)


def _hexadecimal(body: str, fail: Fail) -> bytes:
    if not (body.startswith('"0x') and body.endswith('"')):
        raise fail("a constant in quotes is hexadecimal; strings are no element type")
    try:
        return binascii.unhexlify(body[3:-1])
    except binascii.Error as error:
        raise fail(f"not hexadecimal: {error}") from error


def _from_bytes(data: bytes, shape: Shape, fail: Fail) -> Dense:
    """MLIR's raw form: little endian, i1 packed eight to a byte, one element alone for a splat."""
    kind, elements = shape.element_type, shape.elements
    if kind.is_predicate and len(data) != elements and len(data) == (elements + 7) // 8:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=elements, bitorder="little")
        return Dense(shape, bits.astype(np.bool_).reshape(shape.sizes), False)
    if kind.is_predicate and len(data) == 1:
        return _checked(np.array([data[0] != 0]), shape, True, fail)
    if len(data) not in (shape.bytes, kind.bytes):
        raise fail(f"{shape} takes {shape.bytes} bytes, the constant gives {len(data)}")
    values = np.frombuffer(data, np.uint8 if kind.is_predicate else kind.dtype)
    if kind.is_predicate:
        values = values.astype(np.bool_)
    return _checked(values, shape, len(data) != shape.bytes, fail)


def from_resource(data: bytes, shape: Shape, fail: Fail) -> Dense:
    """The value of `dense_resource<...>`: bytes after four that give the alignment."""
    return _from_bytes(data[4:], shape, fail)


def _checked(values: np.ndarray, shape: Shape, is_splat: bool, fail: Fail) -> Dense:
    if is_splat and values.size == 1:
        return Dense(shape, np.broadcast_to(values.reshape(()), shape.sizes), shape.elements != 1)
    if values.size != shape.elements:
        raise fail(f"{shape} has {shape.elements} elements, the constant gives {values.size}")
    return Dense(shape, values.reshape(shape.sizes), False)


def _elements(body: str, kind: ElementType) -> np.ndarray:
    if kind.is_complex:
        pairs = _COMPLEX.findall(body)
        return _floats([p.strip() for pair in pairs for p in pair], kind.real).view(kind.dtype)
    words = [w.strip() for w in body.replace("[", " ").replace("]", " ").split(",")]
    if words == [""]:
        words = []
    if kind.is_predicate:
        return np.array([_BOOLEANS[w] for w in words], np.bool_)
    return _floats(words, kind) if kind.is_float else _integers(words, kind)


def _floats(words: list[str], kind: ElementType) -> np.ndarray:
    """Decimals, and bit patterns such as 0x7FC00000."""
    patterns = {i: int(w, 16) for i, w in enumerate(words) if w.startswith("0x")}
    array = parse_floats(["0" if i in patterns else w for i, w in enumerate(words)] if patterns else words, kind)
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    for i, pattern in patterns.items():
        bits[i] = pattern
    return array


def _integers(words: list[str], kind: ElementType) -> np.ndarray:
    """Signless types are signed here: a pattern with the top bit set is the negative number."""
    values = np.array([int(w, 0) if w.startswith("0x") else int(w) for w in words], object)
    limit = 1 << kind.bits
    low = -(limit >> 1) if kind.kind is Kind.SIGNED else 0
    if any(not low <= v < limit for v in values):
        raise ValueError(f"an integer that {kind} does not hold")
    if kind.is_signed:
        values = np.array([v - limit if v >= limit >> 1 else v for v in values], np.int64)
    return values.astype(np.int64 if kind.is_signed else np.uint64).astype(kind.dtype)
