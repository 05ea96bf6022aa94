"""Floats of 4 to 16 bits: their formats, and conversion from and to f32 in integer arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusile.base.element_type import F32, F64, S32, ElementType
from fusile.loops.math.number import Number, Val, Writer


@dataclass(frozen=True, slots=True)
class Format:
    """A binary float: sign, exponent, mantissa. `largest` is the code of the largest finite magnitude; `infinity` and
    `nan` are codes, None when the format has none (overflow then gives NaN, or the largest number without NaN)."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    infinity: int | None = None
    nan: int | None = None

    @property
    def sign_bit(self) -> int:
        return self.exponent_bits + self.mantissa_bits

    @property
    def is_unsigned_zero(self) -> bool:
        """Whether the code of -0 means NaN."""
        return self.nan == 1 << self.sign_bit


FORMATS = {
    "bf16": Format(8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
    "f16": Format(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "f8e5m2": Format(5, 2, 15, 0x7B, 0x7C, 0x7E),
    "f8e4m3": Format(4, 3, 7, 0x77, 0x78, 0x7C),
    "f8e3m4": Format(3, 4, 3, 0x6F, 0x70, 0x78),
    "f8e4m3fn": Format(4, 3, 7, 0x7E, nan=0x7F),
    "f8e4m3fnuz": Format(4, 3, 8, 0x7F, nan=0x80),
    "f8e4m3b11fnuz": Format(4, 3, 11, 0x7F, nan=0x80),
    "f8e5m2fnuz": Format(5, 2, 16, 0x7F, nan=0x80),
    "f6e2m3fn": Format(2, 3, 1, 0x1F),
    "f6e3m2fn": Format(3, 2, 3, 0x1F),
    "f4e2m1fn": Format(2, 1, 1, 0x7),
}
"""Every narrow float but f8e8m0fnu, which is only an exponent."""


def widened(writer: Writer, code: Val, element_type: ElementType) -> Val:
    """The f32 of a code (an s32 value, zero-extended). Exact."""
    bits = Number(writer, code, S32)
    if element_type.name == "f8e8m0fnu":
        return _exponent_only(bits).value
    form = FORMATS[element_type.name]
    magnitude = bits & ((1 << form.sign_bit) - 1)
    value = (magnitude << (23 - form.mantissa_bits)).bitcast(F32) * 2.0 ** (127 - form.bias)
    if form.infinity is not None:
        special = (value.bits() | 0x7F800000).bitcast(F32)
        value = (magnitude >= form.infinity).pick(special, value)
    elif form.nan is not None:
        value = (bits if form.is_unsigned_zero else magnitude).equals(form.nan).pick(value.constant(math.nan), value)
    sign = (bits & (1 << form.sign_bit)) << (31 - form.sign_bit)
    return (value.bits() | sign).bitcast(F32).value


def _exponent_only(bits: Number) -> Number:
    value = bits.equals(0).pick(bits.constant(1 << 22), bits << 23).bitcast(F32)
    return bits.equals(255).pick(value.constant(math.nan), value)


def narrowed(writer: Writer, value: Val, element_type: ElementType) -> Val:
    """The code (an s32 value) of an f32 rounded to a narrow type, ties to even, as ml_dtypes does."""
    x = Number(writer, value, F32)
    if element_type.name == "f8e8m0fnu":
        return _rounded_exponent(x).value
    form = FORMATS[element_type.name]
    size = x.bits() & 0x7FFFFFFF
    code = _rounded_code(size, form)
    over = form.infinity if form.infinity is not None else form.nan if form.nan is not None else form.largest
    code = (code > form.largest).pick(code.constant(over), code)
    sign = x.bits().apply("shift_right_logical", 31) << form.sign_bit
    if form.nan is None:
        return x.is_nan().pick(sign ^ (1 << form.sign_bit), code | sign).value
    code = x.is_nan().pick(code.constant(form.nan), code)
    if form.is_unsigned_zero:
        return code.equals(0).pick(code, code | sign).value
    return (code | sign).value


def _rounded_code(size: Number, form: Format) -> Number:
    """The code of a magnitude: in the format's normal range by integer rounding, below by f32's own on addition."""
    drop = 23 - form.mantissa_bits
    odd = (size >> drop) & 1
    normal = (size + odd + ((1 << (drop - 1)) - 1 - ((127 - form.bias) << 23))) >> drop
    if form.bias == 127:
        return normal
    anchor = size.constant(0).bitcast(F32).constant(2.0 ** (24 - form.bias - form.mantissa_bits))
    denormal = (size.bitcast(F32) + anchor).bits() - anchor.bits()
    return (size < ((128 - form.bias) << 23)).pick(denormal, normal)


def _rounded_exponent(x: Number) -> Number:
    """Nearest power of two, ties up; what is not positive has none."""
    bits = x.bits()
    code = (bits + (1 << 22)) >> 23
    code = (bits < (1 << 23)).pick((bits >= 0x600000).pick(code.constant(1), 0), code)
    return ((x > 0.0) & (x < math.inf)).pick(code, 255)


def odd_rounded(writer: Writer, value: Val) -> Val:
    """An f64 as f32, inexact results with an odd last bit: rounding the result once more is rounding once."""
    x = Number(writer, value, F64)
    near = x.convert(F32)
    back = near.convert(F64)
    bits = near.bits() - (abs(back) > abs(x)).pick(near.bits().constant(1), 0)
    inexact = back.differs(x) & ~x.is_nan()
    return inexact.pick(bits | 1, bits).bitcast(F32).value
