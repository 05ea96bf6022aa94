"""Elementwise ops on complex numbers, as pairs of real expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusile.base.element_type import F64, PRED, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.hlo.ir import Instruction
from fusile.hlo.opset import elementwise as ew
from fusile.loops.ir import Apply, Const, Expr, compare, select
from fusile.loops.lowering import complex_functions
from fusile.loops.lowering.complex_arithmetic import Real, divide, magnitude, multiply
from fusile.loops.lowering.elemental import Pair


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
    function = _ARITHMETIC.get(type(op))
    if function is None and type(op) in complex_functions.FUNCTIONS:
        return _in_double(complex_functions.FUNCTIONS[type(op)], operands)
    if function is None:
        raise UnsupportedOpError(
            f"the CPU target has no code for {op.opcode} of complex numbers yet", source=instruction.source
        )
    return function(Real(operands[0].real.element_type), *operands)


def _convert(x: Any, result: ElementType) -> Any:
    if not isinstance(x, Pair):
        real = x if x.element_type is result.real else Apply("convert", (x,), result.real)
        return Pair(real, Const(0.0, result.real))
    if not result.is_complex:
        return x.real if x.real.element_type is result else Apply("convert", (x.real,), result)
    if x.real.element_type is result.real:
        return x
    return Pair(Apply("convert", (x.real,), result.real), Apply("convert", (x.imag,), result.real))


def _in_double(function: Callable[..., Pair], operands: Sequence[Pair]) -> Pair:
    """A function of f64 pairs. Of f32 pairs it is computed in f64: cancellation and overflow inside do no harm."""
    kind = operands[0].real.element_type
    value = function(Real(F64), *(_converted(x, F64) for x in operands))
    return _converted(value, kind)


def _converted(x: Pair, kind: ElementType) -> Pair:
    if x.real.element_type is kind:
        return x
    return Pair(Apply("convert", (x.real,), kind), Apply("convert", (x.imag,), kind))


def _sign(r: Real, a: Pair) -> Pair:
    size = magnitude(r, a)
    zero = compare("eq", size, r.c(0.0))
    return Pair(select(zero, a.real, r.divide(a.real, size)), select(zero, a.imag, r.divide(a.imag, size)))


_ARITHMETIC: dict[type, Callable[..., Any]] = {
    ew.Add: lambda r, a, b: Pair(r.add(a.real, b.real), r.add(a.imag, b.imag)),
    ew.Subtract: lambda r, a, b: Pair(r.subtract(a.real, b.real), r.subtract(a.imag, b.imag)),
    ew.Multiply: multiply,
    ew.Divide: divide,
    ew.Negate: lambda r, a: Pair(r.negate(a.real), r.negate(a.imag)),
    ew.Abs: magnitude,
    ew.Sign: _sign,
    ew.Real: lambda r, a: a.real,
    ew.Imag: lambda r, a: a.imag,
}


class Field:
    """Arithmetic on elements of one floating-point type: expressions, or pairs when it is complex."""

    def __init__(self, element_type: ElementType, has_fma: bool) -> None:
        self.is_complex, self.has_fma = element_type.is_complex, has_fma
        self.real = Real(element_type.real)

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
        return divide(self.real, a, b) if self.is_complex else self.real.divide(a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        return multiply(self.real, a, b) if self.is_complex else self.real.multiply(a, b)

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """total + a * b, with fused multiply-adds where the machine has them."""
        if not self.is_complex:
            return self._fused(a, b, total)
        real = self._fused(self.real.negate(a.imag), b.imag, self._fused(a.real, b.real, total.real))
        return Pair(real, self._fused(a.imag, b.real, self._fused(a.real, b.imag, total.imag)))

    def _fused(self, a: Expr, b: Expr, c: Expr) -> Expr:
        return self.real.fma(a, b, c) if self.has_fma else self.real.add(c, self.real.multiply(a, b))
