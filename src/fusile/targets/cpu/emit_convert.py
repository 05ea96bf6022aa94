"""Conversions between element types, as StableHLO's `convert`: without calls into a runtime library."""

from __future__ import annotations

from fusile.base.element_type import BF16, F8E8M0FNU, F16, F32, F64, S32, U32, ElementType
from fusile.loops.math.minifloat import narrowed, odd_rounded, widened
from fusile.targets.cpu.emit_scalar import ScalarEmitter
from fusile.targets.cpu.values import Value, mangled, typed, value_type


def convert(e: ScalarEmitter, x: Value, result: ElementType) -> str:
    """The text of x converted. Float to integer saturates and NaN gives 0; integers wrap; to predicate is `!= 0`."""
    source = x.element_type
    if source is result:
        return x.text
    if source.is_float and source.bits < 32:
        return convert(e, Value(_widened(e, x), F32, x.lanes), result)
    if result.is_float and result.bits < 32:
        return _narrowed(e, _as_single(e, x, result), result)
    target = typed(value_type(result), x.lanes)
    if result.is_predicate:
        zero = e.constant(0, source, x.lanes).text
        return e.define(f"{'fcmp une' if source.is_float else 'icmp ne'} {x}, {zero}")
    if source.is_float:
        if not result.is_float:
            return _saturated(e, x, result)
        return e.define(f"{'fpext' if result is F64 else 'fptrunc'} {x} to {target}")
    if result.is_float:
        return e.define(f"{'sitofp' if source.is_signed else 'uitofp'} {x} to {target}")
    return _between_integers(e, x, result)


def _between_integers(e: ScalarEmitter, x: Value, result: ElementType) -> str:
    source = x.element_type
    old, new = (1 if source.is_predicate else max(8, source.bits)), max(8, result.bits)
    text = x.text
    if new != old:
        code = "trunc" if new < old else "sext" if source.is_signed else "zext"
        text = e.define(f"{code} {x} to {typed(value_type(result), x.lanes)}")
    return wrapped_below_byte(e, Value(text, result, x.lanes))


def wrapped_below_byte(e: ScalarEmitter, x: Value) -> str:
    """An integer of fewer than 8 bits extended from its own bits; others as they are."""
    kind = x.element_type
    if not kind.is_integer or kind.bits >= 8:
        return x.text
    if kind.is_unsigned:
        return e.define(f"and {x}, {e.constant((1 << kind.bits) - 1, kind, x.lanes).text}")
    amount = typed("i8", x.lanes), (f"splat (i8 {8 - kind.bits})" if x.lanes > 1 else str(8 - kind.bits))
    moved = e.define(f"shl {x}, {amount[1]}")
    return e.define(f"ashr {amount[0]} {moved}, {amount[1]}")


def _saturated(e: ScalarEmitter, x: Value, result: ElementType) -> str:
    kind = result if result.bits >= 8 else S32 if result.is_signed else U32
    sign = "s" if kind.is_signed else "u"
    target = typed(value_type(kind), x.lanes)
    name = f"llvm.fpto{sign}i.sat.{mangled(kind, x.lanes)}.{mangled(x.element_type, x.lanes)}"
    text = e.call(name, target, [(x.llvm_type, x.text)])
    if kind is result:
        return text
    high = (1 << (result.bits - int(result.is_signed))) - 1
    inside = e.intrinsic(f"{sign}min", [Value(text, kind, x.lanes), e.constant(high, kind, x.lanes)])
    if result.is_signed:
        inside = e.intrinsic("smax", [Value(inside, kind, x.lanes), e.constant(-high - 1, kind, x.lanes)])
    return _between_integers(e, Value(inside, kind, x.lanes), result)


# -- floats of 16 bits and fewer


def _as_single(e: ScalarEmitter, x: Value, result: ElementType) -> Value:
    """f32 on the way to a narrow float. To f16 and f8e8m0fnu f64 rounds once; else it rounds twice, as ml_dtypes
    does."""
    if x.element_type is F64 and result in (F16, F8E8M0FNU):
        value: Value = odd_rounded(e, x)
        return value
    return Value(convert(e, x, F32), F32, x.lanes)


def _widened(e: ScalarEmitter, x: Value) -> str:
    kind, lanes = x.element_type, x.lanes
    single = typed("float", lanes)
    if kind is F16 and e.machine.native_float16:
        return e.define(f"fpext {x} to {single}")
    text, base = x.text, f"i{max(8, kind.bits)}"
    if kind is F16:
        text = e.define(f"bitcast {x} to {typed(base, lanes)}")
    code = e.define(f"zext {typed(base, lanes)} {text} to {typed('i32', lanes)}")
    if kind is BF16:
        moved = e.define(f"shl {typed('i32', lanes)} {code}, {e.constant(16, S32, lanes).text}")
        return e.define(f"bitcast {typed('i32', lanes)} {moved} to {single}")
    value: Value = widened(e, Value(code, S32, lanes), kind)
    return value.text


def _narrowed(e: ScalarEmitter, x: Value, result: ElementType) -> str:
    lanes = x.lanes
    if result is F16 and e.machine.native_float16:
        return e.define(f"fptrunc {x} to {typed('half', lanes)}")
    code: Value = narrowed(e, x, result)
    base = typed(f"i{max(8, result.bits)}", lanes)
    text = e.define(f"trunc {code} to {base}")
    return e.define(f"bitcast {base} {text} to {typed('half', lanes)}") if result is F16 else text
