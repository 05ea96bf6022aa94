"""Elementwise ops on complex numbers, as pairs of real expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusile.base.element_type import PRED, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.ir import Instruction
from fusile.hlo.opset import elementwise as ew
from fusile.loops.ir import Apply, Const, Expr, compare, select
from fusile.loops.lowering.elemental import Pair


class _Real:
    """Real arithmetic in short names."""

    def __init__(self, element_type: ElementType) -> None:
        self.type = element_type

    def __getattr__(self, op: str) -> Callable[..., Expr]:
        return lambda *xs: Apply(op, tuple(self.c(x) if isinstance(x, float) else x for x in xs), self.type)

    def c(self, number: float) -> Const:
        return Const(number, self.type)


def complex_value(instruction: Instruction, operands: Sequence[Any]) -> Any:
    """An elementwise op with a complex operand or result."""
    op, result = instruction.op, instruction.array_shape.element_type
    if isinstance(op, ew.Complex):
        return Pair(operands[0], operands[1])
    if isinstance(op, ew.Convert):
        return _convert(operands[0], result)
    if isinstance(op, ew.Select):
        p, a, b = operands
        return Pair(select(p, a.real, b.real), select(p, a.imag, b.imag))
    if isinstance(op, ew.Compare):
        a, b = operands
        joined = "and" if op.direction == "EQ" else "or"
        return Apply(
            joined, (compare(op.direction.lower(), a.real, b.real), compare(op.direction.lower(), a.imag, b.imag)), PRED
        )
    function = _FUNCTIONS.get(type(op))
    if function is None:
        raise UnsupportedOpError(
            f"the CPU target has no code for {op.opcode} of complex numbers yet", source=instruction.source
        )
    return function(_Real(operands[0].real.element_type), *operands)


def _convert(x: Any, result: ElementType) -> Any:
    if not isinstance(x, Pair):
        real = x if x.element_type is result.real else Apply("convert", (x,), result.real)
        return Pair(real, Const(0.0, result.real))
    if not result.is_complex:
        return x.real if x.real.element_type is result else Apply("convert", (x.real,), result)
    if x.real.element_type is result.real:
        return x
    return Pair(Apply("convert", (x.real,), result.real), Apply("convert", (x.imag,), result.real))


def _multiply(r: _Real, a: Pair, b: Pair) -> Pair:
    real = r.subtract(r.multiply(a.real, b.real), r.multiply(a.imag, b.imag))
    return Pair(real, r.add(r.multiply(a.real, b.imag), r.multiply(a.imag, b.real)))


def _divide(r: _Real, a: Pair, b: Pair) -> Pair:
    """Smith's method: divides by the larger part first, so that squares do not overflow."""
    swap = compare("lt", r.abs(b.real), r.abs(b.imag))
    big, small = select(swap, b.imag, b.real), select(swap, b.real, b.imag)
    ratio = r.divide(small, big)
    scale = r.add(big, r.multiply(small, ratio))
    x, y = select(swap, a.imag, a.real), select(swap, a.real, a.imag)
    real = r.divide(r.add(x, r.multiply(y, ratio)), scale)
    plain = r.divide(r.subtract(y, r.multiply(x, ratio)), scale)
    return Pair(real, select(swap, r.negate(plain), plain))


def _abs(r: _Real, a: Pair) -> Expr:
    """The larger part times sqrt(1 + ratio**2)."""
    x, y = r.abs(a.real), r.abs(a.imag)
    big, small = r.maximum(x, y), r.minimum(x, y)
    ratio = r.divide(small, big)
    value = r.multiply(big, r.sqrt(r.add(1.0, r.multiply(ratio, ratio))))
    value = select(compare("eq", big, r.c(0.0)), big, value)
    return select(compare("eq", big, r.c(float("inf"))), big, value)


def _exponential(r: _Real, a: Pair) -> Pair:
    size = r.exponential(a.real)
    return Pair(
        r.multiply(size, r.cosine(a.imag)),
        select(compare("eq", a.imag, r.c(0.0)), a.imag, r.multiply(size, r.sine(a.imag))),
    )


def _expm1(r: _Real, a: Pair) -> Pair:
    """e**x cos y - 1 = expm1(x) cos y - 2 sin(y/2)**2."""
    half = r.sine(r.multiply(a.imag, 0.5))
    real = r.subtract(
        r.multiply(r.exponential_minus_one(a.real), r.cosine(a.imag)), r.multiply(2.0, r.multiply(half, half))
    )
    return Pair(real, r.multiply(r.exponential(a.real), r.sine(a.imag)))


def _log(r: _Real, a: Pair) -> Pair:
    return Pair(r.log(_abs(r, a)), r.atan2(a.imag, a.real))


def _log1p(r: _Real, a: Pair) -> Pair:
    """log|1 + z| = log1p(x (2 + x) + y**2) / 2."""
    square = r.add(r.multiply(a.real, r.add(2.0, a.real)), r.multiply(a.imag, a.imag))
    return Pair(r.multiply(0.5, r.log_plus_one(square)), r.atan2(a.imag, r.add(1.0, a.real)))


def _sqrt(r: _Real, a: Pair) -> Pair:
    size = _abs(r, a)
    t = r.sqrt(r.multiply(0.5, r.add(size, r.abs(a.real))))
    other = r.divide(r.abs(a.imag), r.multiply(2.0, t))
    other = select(compare("eq", t, r.c(0.0)), r.c(0.0), other)
    negative = compare("lt", a.real, r.c(0.0))
    return Pair(select(negative, other, t), r.copysign(select(negative, t, other), a.imag))


def _sine(r: _Real, a: Pair) -> Pair:
    return Pair(r.multiply(r.sine(a.real), r.cosh(a.imag)), r.multiply(r.cosine(a.real), r.sinh(a.imag)))


def _cosine(r: _Real, a: Pair) -> Pair:
    return Pair(r.multiply(r.cosine(a.real), r.cosh(a.imag)), r.negate(r.multiply(r.sine(a.real), r.sinh(a.imag))))


def _tanh(r: _Real, a: Pair) -> Pair:
    """(sinh 2x + i sin 2y) / (cosh 2x + cos 2y), with x bounded so that cosh stays finite."""
    x = r.maximum(r.minimum(a.real, 20.0), -20.0)
    twice, angle = r.multiply(2.0, x), r.multiply(2.0, a.imag)
    below = r.add(r.cosh(twice), r.cosine(angle))
    return Pair(r.divide(r.sinh(twice), below), r.divide(r.sine(angle), below))


def _sign(r: _Real, a: Pair) -> Pair:
    size = _abs(r, a)
    zero = compare("eq", size, r.c(0.0))
    return Pair(select(zero, a.real, r.divide(a.real, size)), select(zero, a.imag, r.divide(a.imag, size)))


def _power(r: _Real, a: Pair, b: Pair) -> Pair:
    zero = compare("eq", _abs(r, a), r.c(0.0))
    value = _exponential(r, _multiply(r, b, _log(r, a)))
    none = Apply("and", (compare("eq", b.real, r.c(0.0)), compare("eq", b.imag, r.c(0.0))), PRED)
    at_zero = select(none, r.c(1.0), r.c(0.0))
    return Pair(select(zero, at_zero, value.real), select(zero, r.c(0.0), value.imag))


_FUNCTIONS: dict[type, Callable[..., Any]] = {
    ew.Add: lambda r, a, b: Pair(r.add(a.real, b.real), r.add(a.imag, b.imag)),
    ew.Subtract: lambda r, a, b: Pair(r.subtract(a.real, b.real), r.subtract(a.imag, b.imag)),
    ew.Multiply: _multiply,
    ew.Divide: _divide,
    ew.Power: _power,
    ew.Negate: lambda r, a: Pair(r.negate(a.real), r.negate(a.imag)),
    ew.Abs: _abs,
    ew.Sign: _sign,
    ew.Real: lambda r, a: a.real,
    ew.Imag: lambda r, a: a.imag,
    ew.Exponential: _exponential,
    ew.ExponentialMinusOne: _expm1,
    ew.Log: _log,
    ew.LogPlusOne: _log1p,
    ew.Sqrt: _sqrt,
    ew.Rsqrt: lambda r, a: _divide(r, Pair(r.c(1.0), r.c(0.0)), _sqrt(r, a)),
    ew.Sine: _sine,
    ew.Cosine: _cosine,
    ew.Tanh: _tanh,
    ew.Logistic: lambda r, a: _divide(
        r, Pair(r.c(1.0), r.c(0.0)), _plus_one(r, _exponential(r, Pair(r.negate(a.real), r.negate(a.imag))))
    ),
}


def _plus_one(r: _Real, a: Pair) -> Pair:
    return Pair(r.add(1.0, a.real), a.imag)


class Field:
    """Arithmetic on elements of one floating-point type: expressions, or pairs when it is complex."""

    def __init__(self, element_type: ElementType, has_fma: bool) -> None:
        self.is_complex, self.has_fma = element_type.is_complex, has_fma
        self.real = _Real(element_type.real)

    def number(self, real: Expr | float, imag: Expr | float = 0.0) -> Any:
        parts = [self.real.c(x) if isinstance(x, float) else x for x in (real, imag)]
        return Pair(*parts) if self.is_complex else parts[0]

    def add(self, a: Any, b: Any) -> Any:
        return (
            Pair(self.real.add(a.real, b.real), self.real.add(a.imag, b.imag))
            if self.is_complex
            else self.real.add(a, b)
        )

    def subtract(self, a: Any, b: Any) -> Any:
        return self.add(a, self.negate(b))

    def negate(self, a: Any) -> Any:
        return Pair(self.real.negate(a.real), self.real.negate(a.imag)) if self.is_complex else self.real.negate(a)

    def conjugate(self, a: Any) -> Any:
        return Pair(a.real, self.real.negate(a.imag)) if self.is_complex else a

    def divide(self, a: Any, b: Any) -> Any:
        return _divide(self.real, a, b) if self.is_complex else self.real.divide(a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return _multiply(self.real, a, b) if self.is_complex else self.real.multiply(a, b)

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """total + a * b, with fused multiply-adds where the machine has them."""
        if not self.is_complex:
            return self._fused(a, b, total)
        real = self._fused(self.real.negate(a.imag), b.imag, self._fused(a.real, b.real, total.real))
        return Pair(real, self._fused(a.imag, b.real, self._fused(a.real, b.imag, total.imag)))

    def _fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        return self.real.fma(a, b, c) if self.has_fma else self.real.add(c, self.real.multiply(a, b))
