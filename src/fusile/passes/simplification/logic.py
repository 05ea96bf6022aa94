"""Bits, predicates, comparisons and conversions. Before/after: ``not(x < y) => x >= y`` (integers),
``select(true, x, y) => x``, ``convert(convert(x, s64), s32) => x`` for an s32 x."""

from __future__ import annotations

from fusile.base.element_type import ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.elementwise import (
    And,
    BitcastConvert,
    Compare,
    Convert,
    Not,
    Or,
    Select,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
)
from fusile.hlo.opset.shape import Broadcast
from fusile.passes.simplification.values import (
    applied,
    captured,
    filled,
    full,
    is_all_ones,
    is_computed,
    is_false,
    is_true,
    is_unsigned,
    is_zero,
)
from fusile.rewrite.constants import is_constant
from fusile.rewrite.patterns import anything, of
from fusile.rewrite.rules import Match, Rule, exact, integers, moves

p, x, y = anything("p"), anything("x"), anything("y")
zero, ones = anything("", is_zero), anything("", is_all_ones)
true, false = anything("", is_true), anything("", is_false)

OPPOSITE = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
BITS = "takes no floats"


def _opposite(m: Match) -> Instruction | str:
    op = m.comparison.op
    assert isinstance(op, Compare)
    floats = not m.x.array_shape.element_type.is_integer and not m.x.array_shape.element_type.is_predicate
    if floats and op.direction not in ("EQ", "NE") and not op.total_order:
        return "not(x < y) is true of NaN, x >= y is false"
    return m.add(Compare(OPPOSITE[op.direction], op.total_order), m.x, m.y)


def _mirrored(m: Match) -> Instruction:
    op = m.root.op
    assert isinstance(op, Compare)
    return m.add(Compare(MIRRORED[op.direction], op.total_order), m.y, m.x)


def _compared_with_itself(m: Match) -> Instruction:
    assert isinstance(m.root.op, Compare)
    return full(m, m.root.op.direction in ("EQ", "LE", "GE"))


def _compared_with_zero(m: Match) -> Instruction | str:
    assert isinstance(m.root.op, Compare)
    known = {"LT": False, "GE": True}.get(m.root.op.direction)
    return full(m, known) if known is not None else "only x < 0 and x >= 0 are known of an unsigned x"


def _predicate(m: Match) -> Instruction:
    """p as an array of the root's shape."""
    if m.p.array_shape.is_scalar and not m.root.array_shape.is_scalar:
        return m.add(Broadcast(m.root.array_shape.sizes, ()), m.p)
    return m.p


def _not_predicate(m: Match) -> Instruction:
    inverse = m.add(Not(), m.p)
    if m.p.array_shape.is_scalar and not m.root.array_shape.is_scalar:
        return m.add(Broadcast(m.root.array_shape.sizes, ()), inverse)
    return inverse


def holds_all(wide: ElementType, narrow: ElementType) -> bool:
    """True when every value of `narrow` is a value of `wide`, NaN, infinities and signed zeros too."""
    if wide is narrow or narrow.is_predicate:
        return not wide.is_complex
    if narrow.is_integer and wide.is_integer:
        return wide.bits > narrow.bits and (wide.is_signed or narrow.is_unsigned)
    if narrow.is_integer and wide.is_float:
        return narrow.bits - int(narrow.is_signed) <= {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}.get(wide.name, 0)
    if narrow.is_float and wide.is_float:
        return (narrow.name, wide.name) in (
            ("f16", "f32"),
            ("f16", "f64"),
            ("bf16", "f32"),
            ("bf16", "f64"),
            ("f32", "f64"),
        )
    return False


def _convert_twice(m: Match) -> Instruction | str:
    source, middle = m.x.array_shape.element_type, m.middle.array_shape.element_type
    target = m.root.array_shape.element_type
    if not holds_all(middle, source):
        return f"{middle} does not hold all values of {source}"
    if target is source:
        return m.x
    if not source.is_float and middle.is_float and (target.is_integer or target.bits < 32):
        return f"{middle} saturates or rounds where {source} wraps or rounds otherwise"
    return m.add(Convert(target), m.x)


def _bitcast_twice(m: Match) -> Instruction:
    target = m.root.array_shape
    if m.x.array_shape == target:
        return m.x
    return m.add(BitcastConvert(target.element_type), m.x)


def _same_width(instruction: Instruction) -> bool:
    kinds = [instruction.array_shape.element_type, instruction.operands[0].array_shape.element_type]
    return kinds[0].bits == kinds[1].bits


def _keeps_type(instruction: Instruction) -> bool:
    return instruction.array_shape.element_type is instruction.operands[0].array_shape.element_type


BITWISE = (
    Rule("and-itself", of(And, x, x), captured(), moves(BITS)),
    Rule("or-itself", of(Or, x, x), captured(), moves(BITS)),
    Rule("xor-itself", of(Xor, x, x), filled(0), moves(BITS)),
    Rule("and-zero", of(And, x, zero), filled(0), moves(BITS)),
    Rule("and-ones", of(And, x, ones), captured(), moves(BITS)),
    Rule("or-zero", of(Or, x, zero), captured(), moves(BITS)),
    Rule("or-ones", of(Or, x, anything("y", is_all_ones)), captured("y"), moves(BITS)),
    Rule("xor-zero", of(Xor, x, zero), captured(), moves(BITS)),
    Rule("xor-ones", of(Xor, x, ones), applied(Not(), "x"), moves(BITS)),
    Rule("double-not", of(Not, of(Not, x)), captured(), moves(BITS)),
    Rule("shift-zero", of((ShiftLeft, ShiftRightArithmetic, ShiftRightLogical), x, zero), captured(), moves(BITS)),
)

COMPARISON = (
    Rule(
        "not-compare",
        of(Not, of(Compare, x, y, name="comparison")),
        _opposite,
        moves("checked: < and >= are both false of NaN"),
    ),
    Rule("compare-itself", of(Compare, x, x), _compared_with_itself, integers("NaN does not equal itself")),
    Rule(
        "compare-unsigned-zero",
        of(Compare, anything("x", is_unsigned), zero),
        _compared_with_zero,
        integers("unsigned only"),
    ),
    Rule(
        "constant-to-the-right",
        of(Compare, anything("x", is_constant), anything("y", is_computed)),
        _mirrored,
        moves("x < y and y > x are one predicate, of NaN too"),
    ),
)

SELECTION = (
    Rule("select-same", of(Select, p, x, x), captured(), moves()),
    Rule("select-true", of(Select, true, x, y), captured("x"), moves()),
    Rule("select-false", of(Select, false, x, y), captured("y"), moves()),
    Rule("select-not", of(Select, of(Not, p), x, y), applied(Select(), "p", "y", "x"), moves()),
    Rule("select-predicate", of(Select, p, true, false), _predicate, moves()),
    Rule("select-not-predicate", of(Select, p, false, true), _not_predicate, moves()),
)

CONVERSION = (
    Rule("convert-nothing", of(Convert, x, where=(_keeps_type,)), captured(), moves()),
    Rule("convert-twice", of(Convert, of(Convert, x, name="middle")), _convert_twice, exact("the first loses nothing")),
    Rule("bitcast-nothing", of(BitcastConvert, x, where=(_keeps_type,)), captured(), moves()),
    Rule(
        "bitcast-twice",
        of(BitcastConvert, of(BitcastConvert, x, where=(_same_width,)), where=(_same_width,)),
        _bitcast_twice,
        moves("the bits stay"),
    ),
)

RULES = BITWISE + COMPARISON + SELECTION + CONVERSION
