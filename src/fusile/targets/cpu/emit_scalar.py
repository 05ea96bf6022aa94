"""Scalar ops as LLVM instructions, on scalars or on whole vectors of lanes."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fusile.base.element_type import BF16, F16, F32, ElementType
from fusile.base.errors import CompileError


@dataclass(frozen=True)
class Value:
    """An LLVM operand: its text, element type and lanes (1 for a scalar). `depth`: how many loops enclose its definition."""

    text: str
    element_type: ElementType
    lanes: int = 1
    depth: int = 0


def value_type(element_type: ElementType) -> str:
    """The LLVM type of a value in a register."""
    if element_type.is_predicate:
        return "i1"
    if element_type.is_integer:
        return f"i{element_type.bits}"
    names = {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double"}
    if element_type.name not in names:
        raise CompileError(f"the CPU target has no code for {element_type}", hint="convert to f32 first")
    return names[element_type.name]


def memory_type(element_type: ElementType) -> str:
    """The LLVM type of an element in memory: predicates and 4-bit integers take a byte."""
    return "i8" if element_type.bits < 8 else value_type(element_type)


def typed(base: str, lanes: int) -> str:
    return base if lanes == 1 else f"<{lanes} x {base}>"


def literal(value: float | int | bool, element_type: ElementType) -> str:
    """A number as LLVM text; floats as their exact bits."""
    if element_type.is_predicate:
        return "true" if value else "false"
    if element_type.is_integer:
        bits = element_type.bits
        wrapped = int(value) & ((1 << bits) - 1)
        return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    if element_type is BF16:
        return str(int(np.asarray(value, BF16.dtype).view(np.int16)))
    if element_type is F16:
        return f"0xH{int(np.asarray(value, np.float16).view(np.uint16)):04X}"
    number = float(np.float32(value)) if element_type is F32 else float(value)
    if math.isnan(number):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


class ScalarEmitter:
    """Appends instructions for scalar ops to `lines`; `fresh()` names their results."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def define(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in all lanes."""
        if value.lanes == lanes:
            return value
        base = value_type(value.element_type)
        one = self.define(f"insertelement <{lanes} x {base}> poison, {base} {value.text}, i64 0")
        text = self.define(f"shufflevector <{lanes} x {base}> {one}, <{lanes} x {base}> poison, <{lanes} x i32> zeroinitializer")
        return Value(text, value.element_type, lanes)

    def constant(self, number: float | int | bool, element_type: ElementType, lanes: int = 1) -> Value:
        text = literal(number, element_type)
        if lanes > 1:
            text = f"splat ({value_type(element_type)} {text})"
        return Value(text, element_type, lanes)

    def call(self, name: str, result: str, arguments: list[tuple[str, str]]) -> str:
        """Calls an LLVM intrinsic, declaring it once."""
        self.declarations.add(f"declare {result} @{name}({', '.join(t for t, _ in arguments)})")
        return self.define(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    # -- ops ----------------------------------------------------------------------------------------------------------

    def apply(self, op: str, arguments: list[Value], result: ElementType) -> Value:
        """One native scalar op. Raises CompileError when there is no code for it."""
        lanes = max(a.lanes for a in arguments)
        arguments = [self.splat(a, lanes) for a in arguments]
        method: Callable[..., str] | None = getattr(self, f"_{op}", None)
        if method is not None:
            return Value(method(arguments, result, lanes), result, lanes)
        kind = arguments[0].element_type
        table = _FLOAT if kind.is_float else _INTEGER
        if op not in table:
            raise CompileError(f"the CPU target has no code for {op} of {kind}")
        template = table[op]
        base = typed(value_type(kind), lanes)
        if template.startswith("@"):
            name = f"llvm.{template[1:]}.{_mangled(kind, lanes)}"
            extra = [("i1", "false")] if template in ("@ctlz", "@abs") else []
            return Value(self.call(name, base, [(base, a.text) for a in arguments] + extra), result, lanes)
        return Value(self.define(f"{template} {base} {', '.join(a.text for a in arguments)}"), result, lanes)

    def _negate(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        if result.is_float:
            return self.define(f"fneg {base} {xs[0].text}")
        return self.define(f"sub {base} {self.constant(0, result, lanes).text}, {xs[0].text}")

    def _not(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        ones = self.constant(True if result.is_predicate else -1, result, lanes)
        return self.define(f"xor {typed(value_type(result), lanes)} {xs[0].text}, {ones.text}")

    def _abs(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        if result.is_unsigned:
            return xs[0].text
        name = "fabs" if result.is_float else "abs"
        extra = [] if result.is_float else [("i1", "false")]
        return self.call(f"llvm.{name}.{_mangled(result, lanes)}", base, [(base, xs[0].text), *extra])

    def _sign(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        x, base = xs[0], typed(value_type(result), lanes)
        one, zero, minus = (self.constant(v, result, lanes).text for v in (1, 0, -1))
        flags = typed("i1", lanes)
        if not result.is_float:
            positive = self.define(f"icmp {'ugt' if result.is_unsigned else 'sgt'} {base} {x.text}, {zero}")
            value = self.define(f"select {flags} {positive}, {base} {one}, {base} {zero}")
            if result.is_unsigned:
                return value
            negative = self.define(f"icmp slt {base} {x.text}, {zero}")
            return self.define(f"select {flags} {negative}, {base} {minus}, {base} {value}")
        signed = self.call(f"llvm.copysign.{_mangled(result, lanes)}", base, [(base, one), (base, x.text)])
        whole = self.define(f"fcmp one {base} {x.text}, {zero}")
        return self.define(f"select {flags} {whole}, {base} {signed}, {base} {x.text}")

    def _select(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        return self.define(f"select {typed('i1', lanes)} {xs[0].text}, {base} {xs[1].text}, {base} {xs[2].text}")

    def _compare(self, direction: str, xs: list[Value], lanes: int) -> str:
        kind = xs[0].element_type
        base = typed(value_type(kind), lanes)
        if kind.is_float:
            code = "fcmp " + {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}[direction]
        else:
            prefix = "" if direction in ("eq", "ne") else "s" if kind.is_signed else "u"
            code = f"icmp {prefix}{direction}"
        return self.define(f"{code} {base} {xs[0].text}, {xs[1].text}")

    def _eq(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("eq", xs, lanes)

    def _ne(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("ne", xs, lanes)

    def _lt(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("lt", xs, lanes)

    def _le(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("le", xs, lanes)

    def _gt(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("gt", xs, lanes)

    def _ge(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._compare("ge", xs, lanes)

    def _maximum(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._extreme("gt", "max", xs, result, lanes)

    def _minimum(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._extreme("lt", "min", xs, result, lanes)

    def _extreme(self, direction: str, name: str, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        if result.is_predicate:
            return self.define(f"{'or' if name == 'max' else 'and'} {base} {xs[0].text}, {xs[1].text}")
        if result.is_integer:
            intrinsic = f"llvm.{'u' if result.is_unsigned else 's'}{name}.{_mangled(result, lanes)}"
        else:
            intrinsic = f"llvm.{name}imum.{_mangled(result, lanes)}"
        return self.call(intrinsic, base, [(base, x.text) for x in xs])

    def _divide(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        if result.is_float:
            return self.define(f"fdiv {base} {xs[0].text}, {xs[1].text}")
        safe, zero, overflow = self._safe_divisor(xs, result, lanes)
        quotient = self.define(f"{'sdiv' if result.is_signed else 'udiv'} {base} {xs[0].text}, {safe}")
        flags = typed("i1", lanes)
        if overflow:
            wrapped = self.define(f"sub {base} {self.constant(0, result, lanes).text}, {xs[0].text}")
            quotient = self.define(f"select {flags} {overflow}, {base} {wrapped}, {base} {quotient}")
        return self.define(f"select {flags} {zero}, {base} {self.constant(-1, result, lanes).text}, {base} {quotient}")

    def _remainder(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        if result.is_float:
            raise CompileError("float remainder is expanded before code generation")
        base, flags = typed(value_type(result), lanes), typed("i1", lanes)
        safe, zero, overflow = self._safe_divisor(xs, result, lanes)
        rest = self.define(f"{'srem' if result.is_signed else 'urem'} {base} {xs[0].text}, {safe}")
        if overflow:
            rest = self.define(f"select {flags} {overflow}, {base} {self.constant(0, result, lanes).text}, {base} {rest}")
        return self.define(f"select {flags} {zero}, {base} {xs[0].text}, {base} {rest}")

    def _safe_divisor(self, xs: list[Value], result: ElementType, lanes: int) -> tuple[str, str, str]:
        """The divisor with 0 (and -1, whose quotient may overflow) made 1, and which lanes these were."""
        base, flags = typed(value_type(result), lanes), typed("i1", lanes)
        one = self.constant(1, result, lanes).text
        zero = self.define(f"icmp eq {base} {xs[1].text}, {self.constant(0, result, lanes).text}")
        safe = self.define(f"select {flags} {zero}, {base} {one}, {base} {xs[1].text}")
        if result.is_unsigned:
            return safe, zero, ""
        minus = self.define(f"icmp eq {base} {xs[1].text}, {self.constant(-1, result, lanes).text}")
        return self.define(f"select {flags} {minus}, {base} {one}, {base} {safe}"), zero, minus

    def _floor_divide(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        """Index arithmetic: both are known to be at least 0."""
        return self.define(f"udiv {typed(value_type(result), lanes)} {xs[0].text}, {xs[1].text}")

    def _modulo(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self.define(f"urem {typed(value_type(result), lanes)} {xs[0].text}, {xs[1].text}")

    def _shift(self, code: str, xs: list[Value], result: ElementType, lanes: int) -> str:
        base, flags = typed(value_type(result), lanes), typed("i1", lanes)
        inside = self.define(f"icmp ult {base} {xs[1].text}, {self.constant(result.bits, result, lanes).text}")
        largest = self.constant(result.bits - 1 if code == "ashr" else 0, result, lanes).text
        amount = self.define(f"select {flags} {inside}, {base} {xs[1].text}, {base} {largest}")
        moved = self.define(f"{code} {base} {xs[0].text}, {amount}")
        if code == "ashr":
            return moved
        return self.define(f"select {flags} {inside}, {base} {moved}, {base} {self.constant(0, result, lanes).text}")

    def _shift_left(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._shift("shl", xs, result, lanes)

    def _shift_right_arithmetic(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._shift("ashr", xs, result, lanes)

    def _shift_right_logical(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        return self._shift("lshr", xs, result, lanes)

    def _is_finite(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        x = xs[0]
        base = typed(value_type(x.element_type), lanes)
        size = self._abs([x], x.element_type, lanes)
        return self.define(f"fcmp one {base} {size}, {self.constant(math.inf, x.element_type, lanes).text}")

    def _bitcast(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        source, target = typed(value_type(xs[0].element_type), lanes), typed(value_type(result), lanes)
        return xs[0].text if source == target else self.define(f"bitcast {source} {xs[0].text} to {target}")

    def _convert(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        x, source = xs[0], xs[0].element_type
        if source is result:
            return x.text
        if source is BF16:
            wide = self._widen_bf16(x, lanes)
            return wide if result is F32 else self._convert([Value(wide, F32, lanes)], result, lanes)
        if result is BF16:
            single = x if source is F32 else Value(self._convert(xs, F32, lanes), F32, lanes)
            return self._round_bf16(single, lanes)
        a, b = typed(value_type(source), lanes), typed(value_type(result), lanes)
        if result.is_predicate:
            return self._compare("ne", [x, self.constant(0, source, lanes)], lanes)
        if source.is_float and result.is_float:
            code = "fpext" if result.bits > source.bits else "fptrunc"
            return self.define(f"{code} {a} {x.text} to {b}")
        if source.is_float:
            intrinsic = f"llvm.fpto{'s' if result.is_signed else 'u'}i.sat.{_mangled(result, lanes)}.{_mangled(source, lanes)}"
            return self.call(intrinsic, b, [(a, x.text)])
        if result.is_float:
            return self.define(f"{'sitofp' if source.is_signed else 'uitofp'} {a} {x.text} to {b}")
        if result.bits == source.bits:
            return x.text
        code = "trunc" if result.bits < source.bits else "sext" if source.is_signed else "zext"
        return self.define(f"{code} {a} {x.text} to {b}")

    def _widen_bf16(self, x: Value, lanes: int) -> str:
        wide = self.define(f"zext {typed('i16', lanes)} {x.text} to {typed('i32', lanes)}")
        moved = self.define(f"shl {typed('i32', lanes)} {wide}, {self._int32(16, lanes)}")
        return self.define(f"bitcast {typed('i32', lanes)} {moved} to {typed('float', lanes)}")

    def _round_bf16(self, x: Value, lanes: int) -> str:
        """To nearest, ties to even; a NaN stays one."""
        i32 = typed("i32", lanes)
        bits = self.define(f"bitcast {typed('float', lanes)} {x.text} to {i32}")
        high = self.define(f"lshr {i32} {bits}, {self._int32(16, lanes)}")
        odd = self.define(f"and {i32} {high}, {self._int32(1, lanes)}")
        bias = self.define(f"add {i32} {odd}, {self._int32(0x7FFF, lanes)}")
        rounded = self.define(f"lshr {i32} {self.define(f'add {i32} {bits}, {bias}')}, {self._int32(16, lanes)}")
        quiet = self.define(f"or {i32} {high}, {self._int32(64, lanes)}")
        nan = self.define(f"fcmp uno {typed('float', lanes)} {x.text}, {x.text}")
        chosen = self.define(f"select {typed('i1', lanes)} {nan}, {i32} {quiet}, {i32} {rounded}")
        return self.define(f"trunc {i32} {chosen} to {typed('i16', lanes)}")

    def _int32(self, value: int, lanes: int) -> str:
        return f"splat (i32 {value})" if lanes > 1 else str(value)

    def _total_order_key(self, xs: list[Value], result: ElementType, lanes: int) -> str:
        base = typed(value_type(result), lanes)
        bits = self._bitcast(xs, result, lanes)
        sign = self.define(f"ashr {base} {bits}, {self.constant(result.bits - 1, result, lanes).text}")
        mask = self.define(f"lshr {base} {sign}, {self.constant(1, result, lanes).text}")
        return self.define(f"xor {base} {bits}, {mask}")


_FLOAT = {
    "add": "fadd", "subtract": "fsub", "multiply": "fmul", "floor": "@floor", "ceil": "@ceil", "sqrt": "@sqrt",
    "round_nearest_even": "@rint", "round_nearest_afz": "@round", "fma": "@fma", "trunc": "@trunc", "copysign": "@copysign",
}  # fmt: skip
_INTEGER = {
    "add": "add", "subtract": "sub", "multiply": "mul", "and": "and", "or": "or", "xor": "xor", "popcnt": "@ctpop",
    "count_leading_zeros": "@ctlz",
}  # fmt: skip


def _mangled(element_type: ElementType, lanes: int) -> str:
    base = {"half": "f16", "float": "f32", "double": "f64"}.get(value_type(element_type), value_type(element_type))
    return f"v{lanes}{base}" if lanes > 1 else base


def mangled(element_type: ElementType, lanes: int) -> str:
    """The suffix of an intrinsic's name for this type."""
    return _mangled(element_type, lanes)


