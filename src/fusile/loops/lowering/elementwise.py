"""Elements of elementwise ops: the scalar op of the same name on the operands' elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusile.base.element_type import F32, PRED, S32, S64, ElementType, element_type
from fusile.hlo.ir import Instruction, Op
from fusile.hlo.opset import elementwise as ew
from fusile.loops.ir import Apply, Const, Expr, compare, const, select
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.complex_numbers import complex_value
from fusile.loops.lowering.elemental import RULES, Elemental, Indices, Pair, converted, rule


def scalar_value(instruction: Instruction, operands: Sequence[Any], keep_wide: bool = False) -> Any:
    """An elementwise op on elements. Narrow floats are computed in f32 and rounded after each, unless `keep_wide`."""
    op, result = instruction.op, instruction.array_shape.element_type
    if result.is_complex or any(isinstance(o, Pair) for o in operands):
        return complex_value(instruction, operands)
    if isinstance(op, ew.Convert):
        return converted(operands[0], result)
    if isinstance(op, ew.BitcastConvert):
        return Apply("bitcast", tuple(operands), result)
    if isinstance(op, ew.Select):
        return select(operands[0], operands[1], operands[2])
    if isinstance(op, ew.Real):
        return operands[0]
    if isinstance(op, ew.Imag):
        return Const(0.0, result)
    if isinstance(op, ew.NextAfter) and result.bits < 32:
        return _next_narrow(converted(operands[0], result), converted(operands[1], result))
    wide = [_widened(o) for o in operands]
    if isinstance(op, ew.Compare):
        return _comparison(op, wide)
    if isinstance(op, ew.IsFinite):
        return Apply("is_finite", tuple(wide), PRED)
    computed = F32 if result.is_float and result.bits < 32 else result
    value = _native(op, wide, computed, result)
    return value if keep_wide else converted(value, result)


def _next_narrow(x: Expr, toward: Expr) -> Expr:
    """The next number of a narrow type, in its own bits: f32 has numbers between."""
    result = x.element_type
    whole = element_type(f"s{result.dtype.itemsize * 8}")
    bits, a, b = Apply("bitcast", (x,), whole), _widened(x), _widened(toward)
    away = compare("eq", compare("gt", b, a), compare("gt", a, Const(0.0, F32)))
    step = select(away, Const(1, whole), Const(-1, whole))
    stepped = Apply("bitcast", (Apply("add", (bits, step), whole),), result)
    sign = Apply("and", (Apply("bitcast", (toward,), whole), Const(-1 << (whole.bits - 1), whole)), whole)
    least = Apply("bitcast", (Apply("or", (sign, Const(1, whole)), whole),), result)
    moved = select(compare("eq", a, Const(0.0, F32)), least, stepped)
    nan = Apply("or", (compare("ne", a, a), compare("ne", b, b)), PRED)
    sum_of_both = converted(Apply("add", (a, b), F32), result)
    return select(compare("eq", a, b), toward, select(nan, sum_of_both, moved))


def _widened(value: Expr) -> Expr:
    t = value.element_type
    return Apply("convert", (value,), F32) if t.is_float and t.bits < 32 else value


def _native(op: Op, xs: Sequence[Expr], computed: ElementType, result: ElementType) -> Expr:
    if isinstance(op, ew.Clamp):
        return Apply("minimum", (Apply("maximum", (xs[0], xs[1]), computed), xs[2]), computed)
    if isinstance(op, ew.ReducePrecision):
        widths = (const(op.exponent_bits), const(op.mantissa_bits))
        return Apply("reduce_precision", (xs[0], *widths), computed)
    name = op.opcode.replace("-", "_")
    if computed.is_predicate and name in ("add", "multiply"):
        name = "or" if name == "add" else "and"
    return Apply(name, tuple(xs), computed)


def _comparison(op: ew.Compare, xs: Sequence[Expr]) -> Expr:
    t = xs[0].element_type
    if op.total_order and t.is_float:
        keys = tuple(Apply("total_order_key", (x,), S32 if t.bits == 32 else S64) for x in xs)
        return compare(op.direction.lower(), keys[0], keys[1])
    return compare(op.direction.lower(), xs[0], xs[1])


def _elementwise(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    operands = []
    for operand in i.operands:
        scalar = operand.array_shape.is_scalar and not i.array_shape.is_scalar
        operands.append(e.value(operand, () if scalar else at, block))
    return scalar_value(i, operands)


for _cls in [c for c in vars(ew).values() if isinstance(c, type) and issubclass(c, Op) and c.opcode and c.elementwise]:
    RULES[_cls] = _elementwise


@rule(ew.BitcastConvert)
def _bitcast(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    (x,) = i.operands
    if x.array_shape.element_type.bits == i.array_shape.element_type.bits:
        return scalar_value(i, [e.value(x, at, block)])
    return _bitcast_width(e, i, at, block)


def _bitcast_width(e: Elemental, i: Instruction, at: Indices, block: Block) -> Any:
    """To narrower: shift and truncate; to wider: put the parts together."""
    (x,), new, old = i.operands, i.array_shape.element_type, i.operands[0].array_shape.element_type
    if new.bits < old.bits:
        wide, narrow = element_type(f"u{old.bits}"), element_type(f"u{new.bits}")
        bits = Apply("bitcast", (e.value(x, at[:-1], block),), wide)
        amount = Apply("convert", (e.math.scale(at[-1], new.bits),), wide)
        part = Apply("convert", (Apply("shift_right_logical", (bits, amount), wide),), narrow)
        return Apply("bitcast", (part,), new)
    wide, narrow = element_type(f"u{new.bits}"), element_type(f"u{old.bits}")
    total: Expr = Const(0, wide)
    for number in range(new.bits // old.bits):
        bits = Apply("convert", (Apply("bitcast", (e.value(x, (*at, const(number)), block),), narrow),), wide)
        total = Apply("or", (total, Apply("shift_left", (bits, Const(number * old.bits, wide)), wide)), wide)
    return Apply("bitcast", (total,), new)
