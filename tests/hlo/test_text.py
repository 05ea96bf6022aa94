"""HLO text: every op prints and reads back as itself, XLA's dumps read, wrong text is an error with a place."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusile.base.element_type import ALL, F32, Kind
from fusile.base.errors import FusileError, ParseError, UnsupportedOpError
from fusile.base.shape import Shape, SymbolicDimension
from fusile.base.source import Source
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import OPS, Computation, Literal, Module
from fusile.hlo.text import parse_module, print_computation, print_module
from fusile.hlo.text.literal import format_literal, parse_literal
from fusile.hlo.verifier import verify

sys.path.insert(0, str(Path(__file__).parent))
from op_instances import VECTOR, module_of


@pytest.mark.parametrize("opcode", sorted(set(OPS) - {"parameter"}))
def test_every_op_round_trips(opcode: str) -> None:
    module = module_of(opcode)
    text = print_module(module)
    again = parse_module(text)
    verify(again)
    assert print_module(again) == text
    before, after = module.entry.root, again.entry.root
    assert after.shape == before.shape and after.source == before.source
    if not before.op.computations():
        assert after.op == before.op


def test_every_element_type_round_trips_in_constants() -> None:
    for kind in ALL:
        if kind.kind is Kind.TOKEN:
            continue
        array = np.arange(4).astype(kind.dtype)
        text = format_literal(array)
        assert parse_literal(text, Shape(kind, (4,)), _fail).tobytes() == array.tobytes(), kind


def _fail(message: str, hint: str) -> Exception:
    return ValueError(message + hint)


WHOLE_BYTES = [t for t in ALL if t.bits == 8 * t.bytes and t.kind not in (Kind.PREDICATE, Kind.TOKEN)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(WHOLE_BYTES), st.binary(min_size=64, max_size=64))
def test_any_bits_round_trip_in_constants(kind, data: bytes) -> None:
    array = np.frombuffer(data, kind.dtype)
    text = format_literal(array)
    assert parse_literal(text, Shape(kind, array.shape), _fail).tobytes() == data


def test_large_constants_round_trip_in_hexadecimal() -> None:
    array = np.random.default_rng(0).standard_normal((300, 301)).astype(np.float32)
    computation = Computation("main")
    computation.root = computation.add(OPS["constant"](Literal(array)))
    text = print_module(Module("large", computation))
    assert 'constant("0x' in text
    assert np.array_equal(parse_module(text).entry.root.op.literal.array, array)


def test_elided_constants_are_for_people() -> None:
    computation = Computation("main")
    computation.root = computation.add(OPS["constant"](Literal(np.zeros(17, np.float32))))
    module = Module("m", computation)
    assert "constant({...})" in print_module(module, elide=16) and "{...}" not in print_module(module, elide=17)
    with pytest.raises(ParseError, match="left out"):
        parse_module(print_module(module, elide=16))
    assert "ROOT %constant = f32[17] constant({...})" in print_computation(computation)


def test_aliases_result_names_and_odd_names_round_trip() -> None:
    computation = Computation("main")
    x = computation.parameter(VECTOR, "model/dense:0")
    y = computation.parameter(VECTOR, "model_dense_0")
    computation.root = computation.add(OPS["tuple"](), [x, y], name="1st")
    module = Module("my model", computation)
    module.aliases, module.result_names = {0: 1, 1: 0}, ['a "quoted" name', "b"]
    again = parse_module(print_module(module))
    assert again.aliases == {0: 1, 1: 0} and again.result_names == module.result_names
    assert [p.name for p in again.entry.parameters] == ["model_dense_0", "model_dense_0.1"]


def test_symbolic_dimensions_round_trip() -> None:
    computation = Computation("main")
    shape = Shape(F32, (SymbolicDimension("batch", 128), SymbolicDimension("time"), 3))
    computation.root = computation.parameter(shape)
    assert parse_module(print_module(Module("m", computation))).entry.root.shape == shape


DUMP = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[3]{0}, s32[])->(f32[3]{0}, f32[])}

FileNames
1 "/home/user/model.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=6 end_line=6 column=2 end_column=34}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%region_0.1 (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y), metadata={op_name="reduce_sum"}
}

%doubled (p: f32[3]) -> f32[3] {
  %p = f32[3]{0} parameter(0)
  ROOT %twice = f32[3]{0} add(%p, %p)
}

%body (state: (s32[], f32[3])) -> (s32[], f32[3]) {
  %state = (s32[], /*index=1*/f32[3]{0}) parameter(0)
  %i = s32[] get-tuple-element((s32[], f32[3]{0}) %state), index=0
  %v = f32[3]{0} get-tuple-element(%state), index=1, sharding={replicated}
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %fused = f32[3]{0} fusion(%v), kind=kLoop, calls=%doubled, backend_config={"outer":{"inner":"}"}}
  ROOT %t = (s32[], f32[3]{0}) tuple(%next, %fused), control-predecessors={%one}
}

%condition (state.1: (s32[], f32[3])) -> pred[] {
  %state.1 = (s32[], f32[3]{0}) parameter(0)
  %bound = s32[] constant(3)
  %get-tuple-element.5 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(s32[] get-tuple-element.5, %bound), direction=LT, type=SIGNED
}

ENTRY main.2 {
  v.1 = f32[3]{0:T(128)} parameter(0), metadata={op_name="v"}
  n.1 = s32[] parameter(1)
  start = (s32[], f32[3]{0}) tuple(n.1, v.1)
  %loop = (s32[], f32[3]{0}) while(%start), condition=%condition, body=%body
  %out = f32[3]{0} get-tuple-element(%loop), index=1
  zero = f32[] constant(0)
  total = f32[] reduce(%out, zero), dimensions={0}, to_apply=%region_0.1, metadata={op_name="sum" stack_frame_id=1}
  ROOT result = (f32[3]{0}, f32[]) tuple(%out, total), frontend_attributes={a="}"}
}
"""


def test_dumps_of_xla_read() -> None:
    module = parse_module(DUMP)
    verify(module)
    v = np.array([1, 2, 3], np.float32)
    out, total = interpret(module, [v, np.int32(0)])
    assert np.array_equal(out, v * 8) and total == 48
    source = next(i.source for i in module.entry.instructions if i.opcode == "reduce")
    assert source == Source("sum", "", "/home/user/model.py", 6)
    assert print_module(parse_module(print_module(module))) == print_module(module)


BRANCHES = """HloModule m
%a (p: (f32[], f32[])) -> f32[] {
  %p = (f32[], f32[]) parameter(0)
  %x = f32[] get-tuple-element(%p), index=0
  %y = f32[] get-tuple-element(%p), index=1
  ROOT %s = f32[] subtract(%x, %y)
}
%b (q: f32[]) -> f32[] {
  %q = f32[] parameter(0)
  ROOT %n = f32[] negate(%q)
}
ENTRY %main (c: pred[], x: f32[]) -> f32[] {
  %c = pred[] parameter(0)
  %x = f32[] parameter(1)
  %two = f32[] constant(2)
  %t = (f32[], f32[]) tuple(%x, %two)
  ROOT %r = f32[] conditional(%c, %t, %x), true_computation=%a, false_computation=%b
}
"""


def test_branches_of_xla_that_take_an_operand_each() -> None:
    module = parse_module(BRANCHES)
    x = np.float32(5)
    assert interpret(module, [np.bool_(True), x])[0] == 3 and interpret(module, [np.bool_(False), x])[0] == -5


def test_map_becomes_elementwise_ops() -> None:
    text = """HloModule m
%f (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %k = f32[] constant(10)
  %m = f32[] multiply(%a, %k)
  ROOT %s = f32[] add(%m, %b)
}
ENTRY %main (x: f32[3], y: f32[3]) -> f32[3] {
  %x = f32[3] parameter(0)
  %y = f32[3] parameter(1)
  ROOT %r = f32[3] map(%x, %y), dimensions={0}, to_apply=%f
}
"""
    module = parse_module(text)
    x, y = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    assert np.array_equal(interpret(module, [x, y])[0], x * 10 + y)


def test_bitcast_between_layouts_reads_memory_order() -> None:
    text = """HloModule m
ENTRY %main (x: f32[2,3]) -> f32[6] {
  %x = f32[2,3]{0,1} parameter(0)
  ROOT %b = f32[6]{0} bitcast(%x)
}
"""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(interpret(parse_module(text), [x])[0], x.T.reshape(-1))


LINE = "  ROOT %y = f32[3] negate(%x)"
GOOD = "HloModule m\nENTRY %main (x: f32[3]) -> f32[3] {\n  %x = f32[3] parameter(0)\n" + LINE + "\n}\n"
MALFORMED = {
    "unknown operand": (LINE.replace("(%x)", "(%z)"), "'z' of y is not defined above it"),
    "too many operands": (LINE.replace("(%x)", "(%x, %x)"), "1 operands expected, 2 given"),
    "too few operands": (LINE.replace("(%x)", "()"), "1 operands expected, 0 given"),
    "wrong shape": (LINE.replace("f32[3]", "f32[4]"), "its result is f32"),
    "unknown attribute": (LINE + ", colour=blue", "unknown attribute colour"),
    "unknown element type": (LINE.replace("f32", "f31"), "'f31' is not an element type"),
    "absurd dimension": (LINE.replace("f32[3]", f"f32[{'9' * 40}]"), "is not the size of a dimension"),
    "constant of other size": ("  ROOT %y = f32[99999999999] constant({1, 2})", "has 99999999999 elements"),
    "absurd attribute": ("  ROOT %y = f32[3] transpose(%x), dimensions={" + "{" * 2000 + "}" * 2000 + "}", "transpose"),
    "missing attribute": ("  ROOT %y = f32[3] concatenate(%x)", "lacks the attribute dimensions="),
    "unclosed brace": (LINE + ", sharding={{", "never closed"),
    "second name": (LINE.replace("%y", "%x"), "named x"),
    "no computation": ("  ROOT %y = f32[3] call(%x), to_apply=%nothing", "no computation is named nothing"),
    "recursion": ("  ROOT %y = f32[3] call(%x), to_apply=%main", "calls itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_text_is_an_error_with_a_place(case: str) -> None:
    line, message = MALFORMED[case]
    with pytest.raises(ParseError) as caught:
        parse_module(GOOD.replace(LINE, line))
    assert message in str(caught.value) and caught.value.line >= 2 and caught.value.column >= 1


def test_error_names_line_and_column() -> None:
    with pytest.raises(ParseError) as caught:
        parse_module(GOOD.replace("%x = f32[3] p", "%x = f32[3] !p"))
    assert (caught.value.line, caught.value.column) == (3, 15)


def test_unknown_op_is_named_with_its_line() -> None:
    with pytest.raises(UnsupportedOpError, match="infeed at line 4"):
        parse_module(GOOD.replace("negate", "infeed"))


def test_text_cut_anywhere_is_an_error() -> None:
    for end in range(DUMP.index("%doubled") + 1, len(DUMP) - 4, 3):
        with pytest.raises(ParseError):
            parse_module(DUMP[:end])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(DUMP) - 1), st.integers(0, 12), st.text('{}()[]%=,x0-"<>\n', max_size=4))
def test_damaged_text_reads_or_is_an_error_of_ours(start: int, length: int, instead: str) -> None:
    text = DUMP[:start] + instead + DUMP[start + length :]
    with contextlib.suppress(FusileError):
        verify(parse_module(text))


def test_printing_and_parsing_take_steps_in_proportion(count_calls: Any) -> None:
    def steps(layers: int) -> int:
        computation = Computation("main")
        x = computation.parameter(Shape(F32, (8, 128)))
        for i in range(layers):
            one = computation.add(OPS["constant"](Literal(np.array(i, np.float32))))
            wide = computation.add(OPS["broadcast"](dimensions=(8, 128), broadcast_dimensions=()), [one])
            x = computation.add(OPS["add"](), [x, wide])
        computation.root = x
        module = Module("long", computation)
        again = []
        count = count_calls(lambda: again.append(parse_module(print_module(module))))
        assert len(again[0].entry.instructions) == 3 * layers + 1
        return count

    assert steps(2000) < 10.5 * steps(200)
    assert steps(2000) < 200 * 6000
