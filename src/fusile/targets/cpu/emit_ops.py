"""The table of scalar ops: for each a function that emits it for f32, f64, integers and predicates.

Floats below 32 bits are computed in f32 and rounded; integers below 8 bits in bytes and wrapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fusile.base.element_type import BF16, F16, F32, F64, S2, S4, S8, U8, ElementType
from fusile.loops.math import expand, is_math
from fusile.loops.math.bits import next_after, reduce_precision
from fusile.loops.math.number import Number
from fusile.loops.math.rounding import ROUNDING
from fusile.targets.cpu.emit_convert import convert, wrapped_below_byte
from fusile.targets.cpu.emit_scalar import ScalarEmitter, unsupported
from fusile.targets.cpu.values import Value, typed, value_type

Emit = Callable[[ScalarEmitter, list[Value], ElementType], str]


def emit_op(e: ScalarEmitter, op: str, xs: list[Value], result: ElementType) -> str:
    """The text of an op's value; all arguments have as many lanes. Raises CompileError when there is no code for it."""
    kind = xs[-1].element_type
    if op in _OF_ANY_TYPE:
        return _OF_ANY_TYPE[op](e, xs, result)
    if kind.is_predicate:
        return _of_predicates(e, op, xs)
    if kind.is_float and kind.bits < 32:
        return _of_narrow_floats(e, op, xs, result)
    if kind.is_integer and kind.bits < 8:
        return _of_narrow_integers(e, op, xs, result)
    if is_math(op, kind):
        value: Value = expand(e, op, xs, kind)
        return value.text
    if op in ROUNDING and not e.machine.has_rounding:
        rounded: Value = ROUNDING[op](Number(e, xs[0], kind)).value
        return rounded.text
    table = _FLOAT if kind.is_float else _INTEGER
    if op not in table:
        raise unsupported(op, kind)
    return table[op](e, xs, result)


def _instruction(code: str) -> Emit:
    return lambda e, xs, result: e.define(f"{code} {xs[0]}, {xs[1].text}")


def _intrinsic(name: str, *more: tuple[str, str]) -> Emit:
    return lambda e, xs, result: e.intrinsic(name, xs, *more)


def _like(e: ScalarEmitter, number: float, x: Value) -> Value:
    return e.constant(number, x.element_type, x.lanes)


# -- any type


def _select(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    return e.pick(xs[0].text, xs[1], xs[2])


def _bitcast(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    source, target = xs[0].llvm_type, typed(value_type(result), xs[0].lanes)
    text = xs[0].text if source == target else e.define(f"bitcast {source} {xs[0].text} to {target}")
    return wrapped_below_byte(e, Value(text, result, xs[0].lanes))


def _convert(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    return convert(e, xs[0], result)


_OF_ANY_TYPE: dict[str, Emit] = {"select": _select, "bitcast": _bitcast, "convert": _convert}

# -- predicates

_PREDICATE_CODES = {
    "add": "or", "or": "or", "maximum": "or", "multiply": "and", "and": "and", "minimum": "and", "xor": "xor",
    "eq": "icmp eq", "ne": "icmp ne", "lt": "icmp ult", "le": "icmp ule", "gt": "icmp ugt", "ge": "icmp uge",
}  # fmt: skip


def _of_predicates(e: ScalarEmitter, op: str, xs: list[Value]) -> str:
    if op == "not":
        return e.define(f"xor {xs[0]}, {_like(e, True, xs[0]).text}")
    if op == "clamp":
        return e.define(f"and {xs[2]}, {e.define(f'or {xs[0]}, {xs[1].text}')}")
    if op not in _PREDICATE_CODES:
        raise unsupported(op, xs[0].element_type)
    return e.define(f"{_PREDICATE_CODES[op]} {xs[0]}, {xs[1].text}")


# -- narrow types


def _of_narrow_floats(e: ScalarEmitter, op: str, xs: list[Value], result: ElementType) -> str:
    kind = xs[0].element_type
    if op == "total_order_key":
        return _total_order_key(e, xs, result)
    if op == "next_after" and kind in (F16, BF16):
        stepped: Value = next_after(*(Number(e, x, kind) for x in xs)).value
        return stepped.text
    if op in ("negate", "abs") and kind in (F16, BF16):
        bits = 16
        integer = typed("i16", xs[0].lanes)
        mask = {"negate": 1 << (bits - 1), "abs": (1 << (bits - 1)) - 1}[op]
        splat = f"splat (i16 {mask})" if xs[0].lanes > 1 else str(mask)
        raw = xs[0].text if kind is BF16 else e.define(f"bitcast {xs[0]} to {integer}")
        changed = e.define(f"{'xor' if op == 'negate' else 'and'} {integer} {raw}, {splat}")
        return changed if kind is BF16 else e.define(f"bitcast {integer} {changed} to {xs[0].llvm_type}")
    wide = [Value(convert(e, x, F32), F32, x.lanes) if x.element_type is kind else x for x in xs]
    inner = F32 if result is kind else result
    text = emit_op(e, op, wide, inner)
    return convert(e, Value(text, inner, xs[0].lanes), result)


def _of_narrow_integers(e: ScalarEmitter, op: str, xs: list[Value], result: ElementType) -> str:
    kind = xs[0].element_type
    byte = S8 if kind.is_signed else U8
    mask = (1 << kind.bits) - 1
    bare = [Value(x.text, byte, x.lanes) for x in xs]
    if op in ("popcnt", "count_leading_zeros", "shift_right_logical"):
        bare[0] = Value(e.define(f"and {bare[0]}, {_like(e, mask, bare[0]).text}"), byte, xs[0].lanes)
    if op == "shift_right_arithmetic":
        signed = S2 if kind.bits == 2 else S4
        bare[0] = Value(wrapped_below_byte(e, Value(bare[0].text, signed, xs[0].lanes)), byte, xs[0].lanes)
    if op.startswith("shift_"):
        bare[1] = _shift_amount(e, bare[1], kind.bits)
    text = emit_op(e, op, bare, byte if result is kind else result)
    if result is not kind:
        return text
    if op == "count_leading_zeros":
        text = e.define(f"sub {bare[0].llvm_type} {text}, {_like(e, 8 - kind.bits, bare[0]).text}")
    return wrapped_below_byte(e, Value(text, kind, xs[0].lanes))


def _shift_amount(e: ScalarEmitter, amount: Value, bits: int) -> Value:
    """Amounts of `bits` and more, or below 0, as an amount past a byte's width."""
    inside = e.define(f"icmp ult {amount}, {_like(e, bits, amount).text}")
    return Value(e.pick(inside, amount, _like(e, 8, amount)), amount.element_type, amount.lanes)


# -- floats


def _compare_floats(code: str) -> Emit:
    return lambda e, xs, result: e.define(f"fcmp {code} {xs[0]}, {xs[1].text}")


def _sign_of_float(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    x = xs[0]
    signed = Value(e.intrinsic("copysign", [_like(e, 1.0, x), x]), x.element_type, x.lanes)
    return e.pick(e.define(f"fcmp one {x}, {_like(e, 0.0, x).text}"), signed, x)


def _is_finite(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    x = xs[0]
    size = e.intrinsic("fabs", [x])
    return e.define(f"fcmp one {x.llvm_type} {size}, {_like(e, math.inf, x).text}")


def _fma(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    """One instruction, or without it: f32 through f64 (whose product is exact), f64 with two roundings."""
    if e.machine.has_fma:
        return e.intrinsic("fma", xs)
    wide = [Value(convert(e, x, F64), F64, x.lanes) for x in xs]
    product = Value(e.define(f"fmul {wide[0]}, {wide[1].text}"), F64, xs[0].lanes)
    total = Value(e.define(f"fadd {product}, {wide[2].text}"), F64, xs[0].lanes)
    return convert(e, total, result)


def _extreme_of_floats(larger: bool) -> Emit:
    """With a constant one comparison does: `c > x ? c : x` keeps a NaN x. Zeros need care: -0 < +0."""
    name, code = ("maximum", "ogt") if larger else ("minimum", "olt")

    def emit(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
        x, c = (xs[1], xs[0]) if xs[0].number is not None else (xs[0], xs[1])
        if c.number is None or math.isnan(c.number) or (c.number == 0 and _is_minus(c) != larger and not larger):
            return e.intrinsic(name, xs)
        if c.number == 0 and larger and not _is_minus(c):
            x = Value(e.define(f"fadd {x}, {_like(e, 0.0, x).text}"), x.element_type, x.lanes)
        return e.pick(e.define(f"fcmp {code} {c}, {x.text}"), c, x)

    return emit


def _is_minus(c: Value) -> bool:
    return c.number is not None and math.copysign(1.0, c.number) < 0


def _total_order_key(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    bits = Value(_bitcast(e, xs, result), result, xs[0].lanes)
    sign = Value(e.define(f"ashr {bits}, {_like(e, result.bits - 1, bits).text}"), result, bits.lanes)
    mask = e.define(f"lshr {sign}, {_like(e, 1, bits).text}")
    return e.define(f"xor {bits}, {mask}")


def _reduce_precision(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    exponent_bits, mantissa_bits = (x.number for x in xs[1:])
    if exponent_bits is None or mantissa_bits is None:
        raise unsupported("reduce_precision to a width known at run time", result)
    wide = F32 if result.bits < 32 else result
    x = Value(convert(e, xs[0], wide), wide, xs[0].lanes)
    value: Value = reduce_precision(Number(e, x, wide), int(exponent_bits), int(mantissa_bits)).value
    return convert(e, value, result)


_FLOAT: dict[str, Emit] = {
    "add": _instruction("fadd"), "subtract": _instruction("fsub"), "multiply": _instruction("fmul"),
    "divide": _instruction("fdiv"), "negate": lambda e, xs, result: e.define(f"fneg {xs[0]}"),
    "abs": _intrinsic("fabs"), "sqrt": _intrinsic("sqrt"), "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"), "round_nearest_even": _intrinsic("rint"), "round_nearest_afz": _intrinsic("round"),
    "copysign": _intrinsic("copysign"), "fma": _fma, "maximum": _extreme_of_floats(True),
    "minimum": _extreme_of_floats(False), "sign": _sign_of_float, "is_finite": _is_finite,
    "total_order_key": _total_order_key, "eq": _compare_floats("oeq"), "ne": _compare_floats("une"),
    "lt": _compare_floats("olt"), "le": _compare_floats("ole"), "gt": _compare_floats("ogt"),
    "ge": _compare_floats("oge"),
}  # fmt: skip

# -- integers


def _compare_integers(direction: str) -> Emit:
    def emit(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
        prefix = "" if direction in ("eq", "ne") else "s" if xs[0].element_type.is_signed else "u"
        return e.define(f"icmp {prefix}{direction} {xs[0]}, {xs[1].text}")

    return emit


def _negate(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    return e.define(f"sub {_like(e, 0, xs[0])}, {xs[0].text}")


def _not(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    return e.define(f"xor {xs[0]}, {_like(e, -1, xs[0]).text}")


def _absolute(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    return e.intrinsic("abs", xs, ("i1", "false")) if result.is_signed else xs[0].text


def _sign_of_integer(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    x, one, zero = xs[0], _like(e, 1, xs[0]), _like(e, 0, xs[0])
    if not result.is_signed:
        return e.pick(e.define(f"icmp ne {x}, {zero.text}"), one, zero)
    up = Value(e.pick(e.define(f"icmp sgt {x}, {zero.text}"), one, zero), result, x.lanes)
    return e.pick(e.define(f"icmp slt {x}, {zero.text}"), _like(e, -1, x), up)


def _extreme_of_integers(name: str) -> Emit:
    return lambda e, xs, result: e.intrinsic(("s" if result.is_signed else "u") + name, xs)


def _safe_divisor(e: ScalarEmitter, b: Value) -> tuple[Value, str, str]:
    """The divisor with 0 (and -1, whose quotient may overflow) made 1, and which lanes these were."""
    one = _like(e, 1, b)
    zero = e.define(f"icmp eq {b}, {_like(e, 0, b).text}")
    safe = Value(e.pick(zero, one, b), b.element_type, b.lanes)
    if b.element_type.is_unsigned:
        return safe, zero, ""
    minus = e.define(f"icmp eq {b}, {_like(e, -1, b).text}")
    return Value(e.pick(minus, one, safe), b.element_type, b.lanes), zero, minus


def _divide(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    a, b = xs
    code = "sdiv" if result.is_signed else "udiv"
    if b.number not in (None, 0, -1):
        return e.define(f"{code} {a}, {b.text}")
    safe, zero, overflow = _safe_divisor(e, b)
    quotient = Value(e.define(f"{code} {a}, {safe.text}"), result, a.lanes)
    if overflow:
        wrapped = Value(_negate(e, [a], result), result, a.lanes)
        quotient = Value(e.pick(overflow, wrapped, quotient), result, a.lanes)
    return e.pick(zero, _like(e, -1, a), quotient)


def _remainder(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    a, b = xs
    code = "srem" if result.is_signed else "urem"
    if b.number not in (None, 0, -1):
        return e.define(f"{code} {a}, {b.text}")
    safe, zero, overflow = _safe_divisor(e, b)
    rest = Value(e.define(f"{code} {a}, {safe.text}"), result, a.lanes)
    if overflow:
        rest = Value(e.pick(overflow, _like(e, 0, a), rest), result, a.lanes)
    return e.pick(zero, a, rest)


def _power_of_two(b: Value) -> int | None:
    number = int(b.number) if b.number is not None else 0
    return number.bit_length() - 1 if number > 0 and number & (number - 1) == 0 else None


def _floor_divide(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    a, b = xs
    shift = _power_of_two(b)
    if shift is not None:
        return e.define(f"ashr {a}, {_like(e, shift, a).text}") if shift else a.text
    if a.at_least_zero:
        return e.define(f"udiv {a}, {b.text}")
    quotient = Value(e.define(f"sdiv {a}, {b.text}"), result, a.lanes)
    rest = e.define(f"srem {a}, {b.text}")
    below = e.define(f"icmp slt {a.llvm_type} {rest}, {_like(e, 0, a).text}")
    minus_one = e.define(f"sext {typed('i1', a.lanes)} {below} to {a.llvm_type}")
    return e.define(f"add {quotient}, {minus_one}")


def _modulo(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
    a, b = xs
    shift = _power_of_two(b)
    if shift is not None:
        return e.define(f"and {a}, {_like(e, (1 << shift) - 1, a).text}")
    if a.at_least_zero:
        return e.define(f"urem {a}, {b.text}")
    rest = Value(e.define(f"srem {a}, {b.text}"), result, a.lanes)
    below = e.define(f"icmp slt {rest}, {_like(e, 0, a).text}")
    return e.pick(below, Value(e.define(f"add {rest}, {b.text}"), result, a.lanes), rest)


def _shift(code: str) -> Emit:
    def emit(e: ScalarEmitter, xs: list[Value], result: ElementType) -> str:
        x, amount = xs
        if amount.number is not None and 0 <= amount.number < result.bits:
            return e.define(f"{code} {x}, {amount.text}")
        inside = e.define(f"icmp ult {amount}, {_like(e, result.bits, amount).text}")
        largest = _like(e, result.bits - 1 if code == "ashr" else 0, amount)
        moved = e.define(f"{code} {x}, {e.pick(inside, amount, largest)}")
        return moved if code == "ashr" else e.pick(inside, Value(moved, result, x.lanes), _like(e, 0, x))

    return emit


_INTEGER: dict[str, Emit] = {
    "add": _instruction("add"), "subtract": _instruction("sub"), "multiply": _instruction("mul"), "divide": _divide,
    "remainder": _remainder, "floor_divide": _floor_divide, "modulo": _modulo, "negate": _negate, "abs": _absolute,
    "sign": _sign_of_integer, "not": _not, "and": _instruction("and"), "or": _instruction("or"),
    "xor": _instruction("xor"),
    "shift_left": _shift("shl"), "shift_right_arithmetic": _shift("ashr"), "shift_right_logical": _shift("lshr"),
    "maximum": _extreme_of_integers("max"), "minimum": _extreme_of_integers("min"), "popcnt": _intrinsic("ctpop"),
    "count_leading_zeros": _intrinsic("ctlz", ("i1", "false")),
    **{direction: _compare_integers(direction) for direction in ("eq", "ne", "lt", "le", "gt", "ge")},
}  # fmt: skip
_OF_ANY_TYPE["reduce_precision"] = _reduce_precision
