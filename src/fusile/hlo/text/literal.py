"""Constants in HLO text: `{{1, 2.5}, {nan, -inf}}`, exact for every element type.

Literals of more than `HEX_FROM` elements are written as the hexadecimal of their little-endian bytes in quotes: XLA
does not read that, but decimal takes a hundred times longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from fusile.base.element_type import ElementType, Kind, element_type
from fusile.base.shape import Shape

HEX_FROM = 65_536
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_COMPLEX = re.compile(r"\(([^,()]*(?:\([^()]*\))?),([^,()]*(?:\([^()]*\))?)\)")
_NAN = re.compile(r"(-?)nan(?:\((0x[0-9a-fA-F]{1,16})\))?")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def format_literal(array: np.ndarray) -> str:
    """The array as text that `parse_literal` reads back to the same bytes."""
    if array.size > HEX_FROM:
        return f'"0x{array.tobytes().hex()}"'
    if array.size == 0:
        return "{}"
    parts = format_elements(array.reshape(-1))
    for size in reversed(array.shape):
        parts = ["{" + ", ".join(parts[i : i + size]) + "}" for i in range(0, len(parts), size)]
    return parts[0]


def format_elements(flat: np.ndarray) -> list[str]:
    """Each element of a flat array as text."""
    kind = element_type(flat.dtype).kind
    if kind is Kind.PREDICATE:
        return ["true" if v else "false" for v in flat.tolist()]
    if kind is Kind.COMPLEX:
        pairs = zip(_format_floats(flat.real), _format_floats(flat.imag), strict=True)
        return [f"({real}, {imag})" for real, imag in pairs]
    if kind is Kind.FLOAT:
        return _format_floats(np.ascontiguousarray(flat))
    return list(map(str, flat.astype(np.int64 if kind is Kind.SIGNED else np.uint64).tolist()))


def _format_floats(flat: np.ndarray) -> list[str]:
    """The shortest decimal that reads back exactly; narrow types are written as the f32 that they equal."""
    wide = flat if flat.dtype == np.float64 else flat.astype(np.float32)
    texts = list(map(repr, wide.tolist())) if wide.dtype == np.float64 else wide.astype("U32").tolist()
    texts = [t[:-2] if t.endswith(".0") else t for t in texts]
    for i in np.flatnonzero(np.isnan(wide)):
        texts[i] = _format_nan(flat[i : i + 1])
    return texts


def _bits(flat: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(flat).view(np.dtype(f"u{flat.dtype.itemsize}"))


def _mantissa_bits(dtype: np.dtype) -> int:
    return int(ml_dtypes.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


def _format_nan(one: np.ndarray) -> str:
    """`nan` for the default quiet NaN, else with its sign and the bits of its mantissa, as XLA writes them."""
    bits, plain = int(_bits(one)[0]), int(_bits(np.array([np.nan], one.dtype))[0])
    if bits == plain:
        return "nan"
    mantissa = _mantissa_bits(one.dtype)
    sign = "-" if bits >> (one.dtype.itemsize * 8 - 1) else ""
    payload = bits & ((1 << mantissa) - 1)
    return f"{sign}nan" if payload == plain & ((1 << mantissa) - 1) else f"{sign}nan({payload:#x})"


def parse_literal(text: str, shape: Shape, fail: Callable[[str, str], Exception]) -> np.ndarray:
    """The array that `text` writes; allocates no more than the text warrants. Raises `fail(message, hint)` for text
    that is not a literal of this shape."""
    text = text.strip()
    if text.startswith('"0x'):
        return _parse_hex(text, shape, fail)
    if "/*" in text:
        text = _COMMENT.sub("", text)
    if text.replace(" ", "") == "{...}":
        raise fail(
            "the constant's elements were left out when this text was printed",
            "print it whole: XLA_FLAGS=--xla_dump_large_constants=true",
        )
    if text.count("{") != text.count("}"):
        raise fail("the constant's braces do not match", "")
    try:
        array = _parse_elements(text, shape, fail)
    except (ValueError, OverflowError, KeyError) as error:
        raise fail(f"not a constant of type {shape}: {error}", "") from error
    return array.reshape(shape.sizes)


def _parse_hex(text: str, shape: Shape, fail: Callable[[str, str], Exception]) -> np.ndarray:
    try:
        data = bytes.fromhex(text[3:-1])
    except ValueError as error:
        raise fail(f"not hexadecimal: {error}", "") from error
    if len(data) != shape.bytes or not text.endswith('"'):
        raise fail(f"{shape} takes {shape.bytes} bytes, the text gives {len(data)}", "")
    return np.frombuffer(data, shape.element_type.dtype).reshape(shape.sizes)


def _parse_elements(text: str, shape: Shape, fail: Callable[[str, str], Exception]) -> np.ndarray:
    kind = shape.element_type.kind
    if kind is Kind.COMPLEX:
        pairs = _COMPLEX.findall(text)
        _check_count(len(pairs), shape, fail)
        parts = parse_floats([p.strip() for pair in pairs for p in pair], shape.element_type.real)
        return parts.view(shape.element_type.dtype)
    body = text.replace("{", " ").replace("}", " ").strip()
    words = [w.strip() for w in body.split(",")] if body else []
    _check_count(len(words), shape, fail)
    if kind is Kind.PREDICATE:
        return np.array([_BOOLEANS[w] for w in words], np.bool_)
    if kind is Kind.FLOAT:
        return parse_floats(words, shape.element_type)
    return parse_integers(words, shape.element_type)


def _check_count(count: int, shape: Shape, fail: Callable[[str, str], Exception]) -> None:
    if count != shape.elements:
        raise fail(f"{shape} has {shape.elements} elements, the constant gives {count}", "")


def parse_integers(words: list[str], kind: ElementType) -> np.ndarray:
    """Raises ValueError for words that are not integers or do not fit."""
    array = np.array(list(map(int, words)), np.int64 if kind.is_signed else np.uint64)
    low, high = (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
    if array.size and not (low <= int(array.min()) and int(array.max()) <= high):
        raise ValueError(f"an integer outside {low}..{high}")
    return array.astype(kind.dtype)


def parse_floats(words: list[str], kind: ElementType) -> np.ndarray:
    """Raises ValueError for words that are not numbers."""
    special = {i: w for i, w in enumerate(words) if "nan" in w}
    if special:
        words = ["0" if i in special else w for i, w in enumerate(words)]
    with np.errstate(over="ignore"):
        array = np.array(list(map(float, words)), np.float64).astype(kind.dtype)
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    for i, word in special.items():
        bits[i] = _nan_bits(word, array.dtype)
    return array


def _nan_bits(word: str, dtype: np.dtype) -> int:
    match = _NAN.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is not a number")
    plain = int(_bits(np.array([np.nan], dtype))[0])
    mantissa, width = _mantissa_bits(dtype), dtype.itemsize * 8
    if match[2]:
        plain = (plain >> mantissa << mantissa) | (int(match[2], 16) & ((1 << mantissa) - 1))
    return plain | (1 << (width - 1)) if match[1] else plain
