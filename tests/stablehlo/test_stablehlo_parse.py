"""Reading StableHLO text: forms, constants, locations, errors. What programs compute is checked by the interpreter."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusile.base.element_type import ALL, BF16, C64, F32, F64, PRED, S4, S32, U8, Kind
from fusile.base.errors import FusileError, ParseError, UnsupportedOpError
from fusile.base.shape import Shape
from fusile.base.source import Source
from fusile.hlo.interpreter import interpret
from fusile.stablehlo import parse
from fusile.stablehlo.attributes import AttributeParser
from fusile.stablehlo.dense import parse_dense
from fusile.stablehlo.op_attributes import dense
from fusile.stablehlo.syntax import DialectAttribute, Symbol
from fusile.stablehlo.types import mlir_element_name, mlir_element_type


def fail(message: str) -> Exception:
    return ValueError(message)


def attribute(text: str):
    return AttributeParser(text).parse_attribute()


PRETTY = """module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<f32>)
      -> (tensor<2x3xf32> {jax.result_info = "a"}, tensor<2xf32> {jax.result_info = "b"}) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<2x3xf32>  // a comment
    %1 = stablehlo.add %arg0, %0 : tensor<2x3xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [1]
        : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    return %1, %2 : tensor<2x3xf32>, tensor<2xf32>
  }
}
"""

GENERIC = """"builtin.module"() <{sym_name = "jit_f"}> ({
  "func.func"() <{
      function_type = (tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<2xf32>), sym_name = "main",
      arg_attrs = [{tf.aliasing_output = 0 : i32}, {}],
      res_attrs = [{jax.result_info = "a"}, {jax.result_info = "b"}]}> ({
  ^bb0(%x: tensor<2x3xf32>, %y: tensor<f32>):
    %0 = "stablehlo.broadcast_in_dim"(%y) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<2x3xf32>
    %1 = "stablehlo.add"(%x, %0) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = "stablehlo.constant"() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
    %3 = "stablehlo.reduce"(%1, %2) <{dimensions = array<i64: 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %4 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%4) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    "func.return"(%1, %3) : (tensor<2x3xf32>, tensor<2xf32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 1 : i32} : () -> ()
"""


@pytest.mark.parametrize("text", [PRETTY, GENERIC], ids=["pretty", "generic"])
def test_pretty_and_generic_forms_mean_the_same(text: str) -> None:
    module = parse(text)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    total, rows = interpret(module, [x, np.float32(1)])
    assert np.array_equal(total, x + 1) and np.array_equal(rows, (x + 1).sum(1))
    assert module.name == "jit_f" and module.aliases == {0: 0} and module.result_names == ["a", "b"]


def test_a_function_without_a_module_reads() -> None:
    module = parse("func.func @f(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }")
    assert module.entry.root is module.entry.parameters[0]


# Types and attributes


def test_every_element_type_has_its_mlir_name() -> None:
    for kind in ALL:
        if kind.kind is not Kind.TOKEN:
            assert mlir_element_type(mlir_element_name(kind)) is kind
    assert mlir_element_type("f8E4M3FN").name == "f8e4m3fn" and mlir_element_type("i1") is PRED


@pytest.mark.parametrize(("text", "value"), [
    ("-7 : i32", -7),
    ("1.5e+00 : f32", 1.5),
    ("0x7F800000 : f32", np.inf),
    ("true", True),
    ("unit", True),
    (r'"a\22b\\c\0A"', 'a"b\\c\n'),
    ('[1, [2], "x"]', [1, [2], "x"]),
    ("array<i64: 1, -2>", [1, -2]),
    ("array<i64>", []),
    ("array<i1: true, false>", [True, False]),
    ('{a = 1 : i64, b, "c d" = [2]}', {"a": 1, "b": True, "c d": [2]}),
    ("@f", Symbol("f")),
    ('@"odd name"', Symbol("odd name")),
    ("tensor<2xi32>", Shape(S32, (2,))),
])  # fmt: skip
def test_attributes(text: str, value) -> None:
    assert attribute(text) == value


def test_dialect_attributes() -> None:
    assert attribute("#stablehlo<comparison_direction EQ>").words[-1] == "EQ"
    found = attribute("#stablehlo.gather<offset_dims = [1, 2], start_index_map = [0], index_vector_dim = 1>")
    assert found.fields == {"offset_dims": [1, 2], "start_index_map": [0], "index_vector_dim": 1}
    rule = attribute("#sdy.op_sharding_rule<([i, j])->([k, l], []) {i=6, j=6}, custom>")
    assert isinstance(rule, DialectAttribute) and rule.name == "sdy.op_sharding_rule"


# Constants


@pytest.mark.parametrize(("token", "shape", "value"), [
    ("dense<5>", Shape(S32), 5),
    ("dense<-1>", Shape(S32, (2,)), [-1, -1]),
    ("dense<true>", Shape(PRED, (2,)), [True, True]),
    ("dense<[[1, 2], [3, 4]]>", Shape(S32, (2, 2)), [[1, 2], [3, 4]]),
    ("dense<255>", Shape(U8), 255),
    ("dense<4294967295>", Shape(S32), -1),
    ("dense<[-8, 7]>", Shape(S4, (2,)), [-8, 7]),
    ("dense<>", Shape(F32, (0, 3)), []),
    ("dense<[1.5e+00, -2.0]>", Shape(BF16, (2,)), [1.5, -2.0]),
    ("dense<0x7F800000>", Shape(F32), np.inf),
    ("dense<[true, false]>", Shape(PRED, (2,)), [True, False]),
    ("dense<(1.0, -2.0)>", Shape(C64), 1 - 2j),
    ("dense<[(1.0, 2.0), (0x7F800000, 0.0)]>", Shape(C64, (2,)), [1 + 2j, complex(np.inf, 0)]),
    ('dense<"0x0000803F000000C0">', Shape(F32, (2,)), [1.0, -2.0]),
    ('dense<"0x05">', Shape(PRED, (3,)), [True, False, True]),
    ('dense<"0x000080BF">', Shape(F32, (3,)), [-1.0, -1.0, -1.0]),
])  # fmt: skip
def test_dense_forms(token: str, shape: Shape, value) -> None:
    found = parse_dense(token, shape, fail)
    assert found.array.dtype == shape.element_type.dtype and found.array.shape == shape.sizes
    want = np.array(value).astype(shape.element_type.dtype).reshape(shape.sizes)
    assert found.array.tobytes() == want.tobytes()


@pytest.mark.parametrize(("token", "shape"), [
    ("dense<[1, 2]>", Shape(S32, (3,))),
    ("dense<300>", Shape(U8)),
    ("dense<[1, x]>", Shape(S32, (2,))),
    ("dense<1.5>", Shape(S32)),
    ('dense<"0x00">', Shape(F32, (2,))),
    ('dense<"0xZZ">', Shape(F32)),
    ('dense<"text">', Shape(F32)),
    ("dense<[1]>", Shape(S32, (10**12,))),
    ("dense<>", Shape(S32, (2,))),
    ("dense<1, 2>", Shape(S32, (3,))),
])  # fmt: skip
def test_wrong_constants_are_errors(token: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_dense(token, shape, fail)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([t for t in ALL if t.kind is not Kind.TOKEN]),
    st.sampled_from([(), (1,), (3,), (2, 2), (0, 2), (5, 20)]),
    st.integers(0, 2**32 - 1),
)
def test_what_is_printed_reads_back(kind, sizes: tuple[int, ...], seed: int) -> None:
    r = np.random.default_rng(seed)
    if kind.bits == 8 * kind.bytes:
        raw = r.integers(0, 256, int(np.prod(sizes)) * kind.bytes, dtype=np.uint8)
        array = raw.view(kind.dtype).reshape(sizes)
    else:
        low, high = (-(1 << (kind.bits - 1)), 1 << (kind.bits - 1)) if kind.is_signed else (0, 1 << min(kind.bits, 3))
        array = np.asarray(r.integers(low, high, sizes)).astype(kind.dtype)
    token = dense(array).rpartition(" : ")[0]
    assert parse_dense(token, Shape(kind, sizes), fail).array.tobytes() == array.tobytes()


def test_a_splat_takes_no_memory() -> None:
    kind = "tensor<1000000x1000000xf32>"
    module = parse(f"func.func @f() -> {kind} {{ %c = stablehlo.constant dense<1.0> : {kind}\n return %c : {kind} }}")
    assert module.entry.root.opcode == "broadcast" and module.entry.root.operands[0].op.literal.array == 1


def test_resources_hold_constants() -> None:
    data = np.array([1.5, -2.0], np.float32)
    text = f"""func.func @f() -> tensor<2xf32> {{
      %c = stablehlo.constant dense_resource<w> : tensor<2xf32>
      return %c : tensor<2xf32>
    }}
    {{-#
      dialect_resources: {{ builtin: {{ w: "0x04000000{data.tobytes().hex().upper()}" }} }}
    #-}}
    """
    assert np.array_equal(interpret(parse(text), [])[0], data)


# Locations


def test_locations_become_sources() -> None:
    text = """#loc = loc(unknown)
module @m {
  func.func public @main(%arg0: tensor<3xf32> loc("x")) -> tensor<3xf32> {
    %0 = stablehlo.sine %arg0 : tensor<3xf32> loc(#loc4)
    %1 = stablehlo.cosine %0 : tensor<3xf32> loc("direct"("/a/b.py":7:1))
    %2 = stablehlo.tanh %1 : tensor<3xf32> loc(fused<"tag">["/c.py":9:2, #loc])
    %3 = stablehlo.negate %2 : tensor<3xf32> loc(#loc9)
    return %3 : tensor<3xf32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/home/me/model.py":5:23 to :33)
#loc2 = loc("/home/me/main.py":6:2)
#loc3 = loc(callsite(#loc1 at #loc2))
#loc4 = loc("jit(f)/sin"(#loc3))
#loc9 = loc(#loc9)
"""
    by_opcode = {i.opcode: i.source for i in parse(text).entry.instructions}
    assert by_opcode["sine"] == Source("jit(f)/sin", file="/home/me/model.py", line=5)
    assert by_opcode["cosine"] == Source("direct", file="/a/b.py", line=7)
    assert by_opcode["tanh"] == Source(file="/c.py", line=9)
    assert by_opcode["parameter"] == Source("x") and by_opcode["negate"] is None


# Errors

LINE = "  %0 = stablehlo.add %arg0, %arg0 : tensor<3xf32>"
GOOD = f"func.func @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {{\n{LINE}\n  return %0 : tensor<3xf32>\n}}\n"
MALFORMED = {
    "unknown value": (LINE.replace("%arg0,", "%nothing,"), "%nothing is not defined"),
    "too few operands": (LINE.replace("%arg0, ", ""), "add takes 2 operands, not 1"),
    "wrong result type": (LINE.replace("tensor<3xf32>", "tensor<4xf32>"), "result 0 is f32[3], the text says f32[4]"),
    "mixed types": (
        "  %c = stablehlo.constant dense<1> : tensor<i32>\n" + LINE.replace("%arg0,", "%c,"),
        "takes operands of one shape",
    ),
    "missing attribute": (
        "  %0 = stablehlo.transpose %arg0 : (tensor<3xf32>) -> tensor<3xf32>",
        "permutation is missing",
    ),
    "defined twice": (LINE + "\n" + LINE, "%0 is defined twice"),
    "unknown element type": (LINE.replace("xf32", "xf31"), "no element type is f31"),
    "unknown function": (
        "  %0 = call @nothing(%arg0) : (tensor<3xf32>) -> tensor<3xf32>",
        "no function is named @nothing",
    ),
    "recursion": ("  %0 = call @main(%arg0) : (tensor<3xf32>) -> tensor<3xf32>", "calls itself"),
    "result count": (LINE.replace("%0 =", "%0:2 ="), "it gives 1 results, the text names 2"),
    "absurd result count": (LINE.replace("%0 =", "%0:99999999999 ="), "is not a number of results"),
    "deep nesting": ("  %0 = stablehlo.add %arg0, %arg0 {a = " + "[" * 5000 + "} : tensor<3xf32>", "nested too deeply"),
    "absurd dimension": (LINE.replace("3xf32", f"{'9' * 30}xf32"), "is no dimension's size"),
    "absurd attribute": (
        '  %0 = "stablehlo.transpose"(%arg0) {permutation = dense<0> : tensor<9999999999xi64>}'
        " : (tensor<3xf32>) -> tensor<3xf32>",
        "permutation has 9999999999 elements",
    ),
    "no brackets": (
        "  %0 = stablehlo.convolution(%arg0, %arg0) dim_numbers = b : (tensor<3xf32>) -> tensor<3xf32>",
        "expected an opening bracket",
    ),
    "stray text": (LINE + " ]", "expected an operation"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_text_is_an_error_with_a_place(case: str) -> None:
    line, message = MALFORMED[case]
    with pytest.raises(ParseError) as caught:
        parse(GOOD.replace(LINE, line))
    assert message in str(caught.value) and caught.value.line >= 1 and caught.value.column >= 1


@pytest.mark.parametrize(("line", "message"), [
    ('  %0 = "stablehlo.infeed"(%arg0) : (tensor<3xf32>) -> tensor<3xf32>', "stablehlo.infeed at line 2"),
    ("  %0 = chlo.xi %arg0, %arg0 : tensor<3xf32>, tensor<3xf32> -> tensor<3xf32>", "chlo.xi at line 2"),
])  # fmt: skip
def test_what_is_unsupported_is_named_with_its_line(line: str, message: str) -> None:
    with pytest.raises(UnsupportedOpError, match=message):
        parse(GOOD.replace(LINE, line))


def test_arguments_of_unknown_size_are_unsupported() -> None:
    with pytest.raises(UnsupportedOpError, match=r"@main at line 1 takes a tensor of unknown size"):
        parse(GOOD.replace("3xf32", "?xf32"))


def test_text_cut_anywhere_is_an_error() -> None:
    for text in (PRETTY, GENERIC):
        for end in range(len(text.rstrip())):
            with pytest.raises((ParseError, UnsupportedOpError)):
                parse(text[:end])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([PRETTY, GENERIC]),
    st.floats(0, 1),
    st.integers(0, 12),
    st.text('{}()[]<>%@#=,:x0-"\n?', max_size=4),
)
def test_damaged_text_reads_or_is_an_error_of_ours(text: str, place: float, length: int, instead: str) -> None:
    start = int(place * len(text))
    try:
        parse(text[:start] + instead + text[start + length :])
    except FusileError as error:
        assert str(error)


# Speed


def test_parsing_takes_steps_in_proportion(count_calls: Any) -> None:
    def steps(layers: int) -> int:
        lines, last = ["func.func @main(%arg0: tensor<8x128xf32>) -> tensor<8x128xf32> {"], "%arg0"
        for i in range(layers):
            lines.append(f"  %c{i} = stablehlo.constant dense<{i}.0> : tensor<f32>")
            lines.append(f"  %b{i} = stablehlo.broadcast_in_dim %c{i}, dims = [] : (tensor<f32>) -> tensor<8x128xf32>")
            lines.append(f"  %a{i} = stablehlo.add {last}, %b{i} : tensor<8x128xf32>")
            last = f"%a{i}"
        text = "\n".join([*lines, f"  return {last} : tensor<8x128xf32>", "}"])
        modules: list[Any] = []
        count = count_calls(lambda: modules.append(parse(text)))
        assert len(modules[0].entry.instructions) == 3 * layers + 1
        return count

    assert steps(1000) < 10.5 * steps(100)
    assert steps(1000) < 230 * 3000


def test_megabytes_of_hexadecimal_are_read_at_once(count_calls: Any) -> None:
    data = np.arange(2 << 20, dtype=np.float32)
    kind = f"tensor<{data.size}xf32>"
    constant = f'%c = stablehlo.constant dense<"0x{data.tobytes().hex()}"> : {kind}'
    text = f"func.func @main() -> {kind} {{ {constant}\n return %c : {kind} }}"
    modules: list[Any] = []
    assert count_calls(lambda: modules.append(parse(text))) < 600
    assert np.array_equal(modules[0].entry.root.op.literal.array, data)


def test_bfloat16_keeps_its_bits() -> None:
    found = parse_dense("dense<[0x7FC1, 0xFFC0, 1.0]>", Shape(BF16, (3,)), fail).array
    assert found.dtype == ml_dtypes.bfloat16 and found.view(np.uint16).tolist() == [0x7FC1, 0xFFC0, 0x3F80]
    assert parse_dense("dense<0x7FF8000000000000>", Shape(F64), fail).array.view(np.uint64) == 0x7FF8000000000000
