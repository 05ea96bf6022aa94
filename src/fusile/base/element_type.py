"""Element types: what one element of an array is. Names are those of XLA's HLO text (`pred`, `s32`, `bf16`, `c64`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import ml_dtypes
import numpy as np


class Kind(Enum):
    """The families of element types that ops constrain themselves to."""

    PREDICATE = "predicate"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    COMPLEX = "complex"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type: its HLO name, its family, its width in bits, and the NumPy dtype that stores it.

    Types narrower than 8 bits take one byte an element in memory, as ml_dtypes stores them.
    """

    name: str
    kind: Kind
    bits: int
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        """Bytes that one element takes in memory."""
        return int(self.dtype.itemsize) if self.kind is not Kind.TOKEN else 0

    @property
    def is_predicate(self) -> bool:
        return self.kind is Kind.PREDICATE

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers, not for predicates."""
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_signed(self) -> bool:
        return self.kind is Kind.SIGNED

    @property
    def is_unsigned(self) -> bool:
        return self.kind is Kind.UNSIGNED

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_complex(self) -> bool:
        return self.kind is Kind.COMPLEX

    @property
    def real(self) -> ElementType:
        """The type of a complex type's parts; the type itself when it is not complex."""
        return {"c64": F32, "c128": F64}.get(self.name, self)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return element_type, (self.name,)


def _define(name: str, kind: Kind, bits: int, scalar: object) -> ElementType:
    return ElementType(name, kind, bits, np.dtype(scalar))  # type: ignore[call-overload]


PRED = _define("pred", Kind.PREDICATE, 1, np.bool_)
S2 = _define("s2", Kind.SIGNED, 2, ml_dtypes.int2)
S4 = _define("s4", Kind.SIGNED, 4, ml_dtypes.int4)
S8 = _define("s8", Kind.SIGNED, 8, np.int8)
S16 = _define("s16", Kind.SIGNED, 16, np.int16)
S32 = _define("s32", Kind.SIGNED, 32, np.int32)
S64 = _define("s64", Kind.SIGNED, 64, np.int64)
U2 = _define("u2", Kind.UNSIGNED, 2, ml_dtypes.uint2)
U4 = _define("u4", Kind.UNSIGNED, 4, ml_dtypes.uint4)
U8 = _define("u8", Kind.UNSIGNED, 8, np.uint8)
U16 = _define("u16", Kind.UNSIGNED, 16, np.uint16)
U32 = _define("u32", Kind.UNSIGNED, 32, np.uint32)
U64 = _define("u64", Kind.UNSIGNED, 64, np.uint64)
F4E2M1FN = _define("f4e2m1fn", Kind.FLOAT, 4, ml_dtypes.float4_e2m1fn)
F6E2M3FN = _define("f6e2m3fn", Kind.FLOAT, 6, ml_dtypes.float6_e2m3fn)
F6E3M2FN = _define("f6e3m2fn", Kind.FLOAT, 6, ml_dtypes.float6_e3m2fn)
F8E3M4 = _define("f8e3m4", Kind.FLOAT, 8, ml_dtypes.float8_e3m4)
F8E4M3 = _define("f8e4m3", Kind.FLOAT, 8, ml_dtypes.float8_e4m3)
F8E4M3FN = _define("f8e4m3fn", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fn)
F8E4M3FNUZ = _define("f8e4m3fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e4m3fnuz)
F8E4M3B11FNUZ = _define("f8e4m3b11fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e4m3b11fnuz)
F8E5M2 = _define("f8e5m2", Kind.FLOAT, 8, ml_dtypes.float8_e5m2)
F8E5M2FNUZ = _define("f8e5m2fnuz", Kind.FLOAT, 8, ml_dtypes.float8_e5m2fnuz)
F8E8M0FNU = _define("f8e8m0fnu", Kind.FLOAT, 8, ml_dtypes.float8_e8m0fnu)
BF16 = _define("bf16", Kind.FLOAT, 16, ml_dtypes.bfloat16)
F16 = _define("f16", Kind.FLOAT, 16, np.float16)
F32 = _define("f32", Kind.FLOAT, 32, np.float32)
F64 = _define("f64", Kind.FLOAT, 64, np.float64)
C64 = _define("c64", Kind.COMPLEX, 64, np.complex64)
C128 = _define("c128", Kind.COMPLEX, 128, np.complex128)
TOKEN = _define("token", Kind.TOKEN, 0, np.bool_)

ALL: tuple[ElementType, ...] = tuple(v for v in list(globals().values()) if isinstance(v, ElementType))
_BY_NAME = {t.name: t for t in ALL}
_BY_DTYPE = {t.dtype: t for t in ALL if t.kind is not Kind.TOKEN}


def element_type(what: object) -> ElementType:
    """The element type named `what`: an ElementType, its HLO name, or anything `np.dtype` takes.

    Raises TypeError when there is none (strings, objects, dates).
    """
    if isinstance(what, ElementType):
        return what
    if isinstance(what, str) and what in _BY_NAME:
        return _BY_NAME[what]
    found = _BY_DTYPE.get(np.dtype(what))  # type: ignore[call-overload]
    if found is None:
        raise TypeError(f"no element type holds {what!r}; the element types are: {', '.join(_BY_NAME)}")
    return found
