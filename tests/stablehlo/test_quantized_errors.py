"""Quantized types and ops that the specification forbids."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusile.base.errors import FusileError
from fusile.stablehlo import parse

sys.path.insert(0, str(Path(__file__).parent))
from quantized_reference import Type, refused, region, tensor

# Errors

BAD_TYPES = {
    "i8:f32, -1.0:3": "scale -1.0 is not a positive finite f32",
    "i8:f32, 0.0:3": "scale 0.0 is not a positive",
    "i8:f16, 1e-10:3": "scale 1e-10 is not a positive finite f16",
    "i8:f16, 1e9:3": "scale 1e9 is not a positive finite f16",
    "i8:f32, 0.5:128": "zero point 128 is not within the storage's -128 to 127",
    "u8:f32, 0.5:-1": "zero point -1 is not within the storage's 0 to 255",
    "i8<-129:3>:f32, 0.5:1": "is no range of i8",
    "i8<5:5>:f32, 0.5:5": "is no range of i8",
    "i8<-5:5>:f32, 0.5:6": "zero point 6 is not within the storage's -5 to 5",
    "i64:f32, 0.5:3": "at most 32 bits, not i64",
    "f32:f32, 0.5:3": "stored as integers",
    "i8:i32, 0.5:3": "express bf16, f16, f32, f64, not i32",
    "i7:f32, 0.5:3": "no element type is i7",
    "i8:f32, {0.5:3}": "a dimension after the expressed type goes with a list",
    "i8:f32:0, 0.5:3": "a dimension after the expressed type goes with a list",
    "i8:f32:1, {0.5:3, 0.25:3}": "the quantized dimension is 1, the tensor has 1",
    "i8:f32:0, {0.5:3, 0.25:3}": "2 scales for dimension 0 of size 4",
    "i8:f32:0, {0.5:3, x}": "'x' is not a scale and zero point",
    "i8:f32:{0:2}, {0.5:3}": "is not a quantized type such as",
    "i8, 0.5": "is not a quantized type such as",
}


@pytest.mark.parametrize("body", BAD_TYPES)
@pytest.mark.parametrize("alias", [False, True])
def test_wrong_types_are_refused(body: str, alias: bool) -> None:
    kind = f"!quant.uniform<{body}>"
    text = f"!q = {kind}\nfunc.func @main(%a: tensor<4x!q>) {{ return }}"
    error = refused(text if alias else f"\nfunc.func @main(%a: tensor<4x{kind}>) {{ return }}")
    assert BAD_TYPES[body] in str(error)
    about_tensor = "the quantized dimension is" in str(error) or "scales for dimension" in str(error)
    assert (error.line, error.column) == (1, 6) if alias and not about_tensor else (2, 21)


def test_other_types_of_the_dialect_are_refused() -> None:
    for kind in ("!quant.any<i8:f32>", "!quant.calibrated<f32<-1:1>>", "!unknown", "!quant.uniform"):
        assert "is not a quantized type such as" in str(refused(f"func.func @main(%a: tensor<2x{kind}>) {{ return }}"))
    assert "is no element type" in str(refused("!t = tensor<2xf32>\nfunc.func @main(%a: tensor<2x!t>) { return }"))


A, B = Type(), Type("i8", "f32", (0.25,), (3,))
AXIS = Type("i8", "f32", (0.5, 0.25), (3, 3), 0)
WRONG_OPS = {
    "mul of other storage": (
        "%r = stablehlo.multiply %a, %b : (AA, tensor<4x!quant.uniform<i16:f32, 0.5>>) -> AA",
        [tensor(A, 4), "tensor<4x!quant.uniform<i16:f32, 0.5>>"], "differs from"),
    "add of other storage": (
        "%r = stablehlo.add %a, %b : (AA, tensor<4x!quant.uniform<i16:f32, 0.5>>) -> AA",
        [tensor(A, 4), "tensor<4x!quant.uniform<i16:f32, 0.5>>"], "operand 1 is stored as s16"),
    "add of other expressed": (
        "%r = stablehlo.add %a, %b : (AA, tensor<4x!quant.uniform<i8:f16, 0.5>>) -> AA",
        [tensor(A, 4), "tensor<4x!quant.uniform<i8:f16, 0.5>>"], "express f16 and f32"),
    "add of numbers": ("%r = stablehlo.add %a, %b : (AA, tensor<4xf32>) -> AA",
                       [tensor(A, 4), "tensor<4xf32>"], "operand 1 is not quantized"),
    "the text lies": ("%r = stablehlo.negate %a : (BB) -> BB", [tensor(A, 4)],
                      "operand 0 is !quant.uniform<i8:f32, 0.5:3>"),
    "slice": ("%r = stablehlo.slice %a [0:2] : (AA) -> B2", [tensor(A, 4)], "operand 0 is"),
    "reshape": ("%r = stablehlo.reshape %a : (AA) -> tensor<2x2xi8>", [tensor(A, 4)], "result 0 is not quantized"),
    "pad": ("%r = stablehlo.pad %a, %b, low = [0], high = [1], interior = [0] : (AA, tensor<i8>) -> tensor<5xTA>",
            [tensor(A, 4), "tensor<i8>"], "operand 1 is not quantized"),
    "concatenate": ("%r = stablehlo.concatenate %a, %b, dim = 0 : (AA, BB) -> tensor<8xTA>",
                    [tensor(A, 4), tensor(B, 4)], "operand 1 is !quant.uniform<i8:f32, 0.25:3>"),
    "per-axis slice": ("%r = stablehlo.slice %a [0:2] : (tensor<2xTX>) -> tensor<2xTX>",
                       [tensor(AXIS, 2)], "quantized as a whole"),
    "per-axis transpose": ("%r = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x2xTX>) -> tensor<2x2xTX>",
                           [tensor(AXIS, 2, 2)], "result 0 is"),
    "per-axis reshape": ("%r = stablehlo.reshape %a : (tensor<2x3xTX>) -> tensor<3x2xTY>",
                         [tensor(AXIS, 2, 3)], "slices before the quantized dimension"),
    "convert": ("%r = stablehlo.convert %a : (AA) -> tensor<4xf32>", [tensor(A, 4)], "use stablehlo.uniform_quantize"),
    "quantize to numbers": ("%r = stablehlo.uniform_quantize %a : (AA) -> tensor<4xf32>", [tensor(A, 4)],
                            "its result is not quantized"),
    "quantize integers": ("%r = stablehlo.uniform_quantize %a : (tensor<4xi8>) -> AA", ["tensor<4xi8>"],
                          "it quantizes s8[4], the result's type expresses f32"),
    "quantize nothing": ("%r = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4xf32>", ["tensor<4xf32>"],
                         "neither its operand nor its result is quantized"),
    "dequantize to quantized": ("%r = stablehlo.uniform_dequantize %a : (AA) -> AA", [tensor(A, 4)], "gives numbers"),
    "dequantize to f64": ("%r = stablehlo.uniform_dequantize %a : (AA) -> tensor<4xf64>", [tensor(A, 4)],
                          "result 0 is f32[4]"),
    "constant out of range": ("%r = stablehlo.constant dense<[1, 9]> : tensor<2x!quant.uniform<i8<0:8>:f32, 0.5>>", [],
                              "integers 1 to 9 are not within the storage's 0 to 8"),
    "constant beyond storage": ("%r = stablehlo.constant dense<300> : AA", [], "not a constant of type"),
    "constant of numbers": ("%r = stablehlo.constant() <{value = dense<1.0> : tensor<4xf32>}> : () -> AA", [],
                            "does not list the storage integers"),
    "dot of other storage": ("%r = stablehlo.dot %a, %b : (AA, tensor<4x!quant.uniform<i16:f32, 0.5>>) -> tensor<TA>",
                             [tensor(A, 4), "tensor<4x!quant.uniform<i16:f32, 0.5>>"], "are stored as s8 and s16"),
    "dot of lhs alone": ("%r = stablehlo.dot %a, %b : (AA, tensor<4xf32>) -> tensor<TA>",
                         [tensor(A, 4), "tensor<4xf32>"], "the right operand and"),
    "hybrid dot of f64": ("%r = stablehlo.dot %a, %b : (tensor<4xf64>, AA) -> tensor<f64>",
                          ["tensor<4xf64>", tensor(A, 4)], "the left operand is f64, the right one expresses f32"),
    "dot along scales": ("%r = stablehlo.dot %a, %b : (tensor<2xTA>, tensor<2xTX>) -> tensor<TA>",
                         [tensor(A, 2), tensor(AXIS, 2)], "is none of the result's"),
    "per-axis lhs": ("%r = stablehlo.dot %a, %b : (tensor<2x4xTX>, AA) -> tensor<2xTA>",
                     [tensor(AXIS, 2, 4), tensor(A, 4)], "the left operand is quantized per axis"),
    "compare": ("%r = stablehlo.compare LT, %a, %b : (AA, tensor<4xi8>) -> tensor<4xi1>",
                [tensor(A, 4), "tensor<4xi8>"], "it compares"),
    "and": ("%r = stablehlo.and %a, %a : AA", [tensor(A, 4)], "f32"),
    "reduce to other expressed": (
        "%i = stablehlo.constant dense<0> : tensor<TA>\n"
        '%r = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> '
        + region("add", "tensor<!quant.uniform<i8:f16, 0.5>>") + " : (AA, tensor<TA>) -> tensor<TA>",
        [tensor(A, 4)], "does not become"),
    "while": ("%r = stablehlo.while(%x = %a) : AA cond { %t = stablehlo.constant dense<false> : tensor<i1>\n"
              "stablehlo.return %t : tensor<i1> } do { %n = stablehlo.bitcast_convert %x : (AA) -> BB\n"
              "stablehlo.return %n : BB }", [tensor(A, 4)], "value 0 that its body returns"),
    "if": ('%r = "stablehlo.if"(%b) ({ stablehlo.return %a : AA }, { %n = stablehlo.bitcast_convert %a : (AA) -> BB\n'
           "stablehlo.return %n : BB }) : (tensor<i1>) -> AA", [tensor(A, 4), "tensor<i1>"], "value 0 of branch 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_OPS)
def test_wrong_operations_are_refused_with_their_line(case: str) -> None:
    body, arguments, message = WRONG_OPS[case]
    names = {
        "AA": tensor(A, 4),
        "BB": tensor(B, 4),
        "B2": tensor(B, 2),
        "TA": str(A),
        "TX": str(AXIS),
        "TY": str(replace(AXIS, dimension=1)),
    }
    for name, text in names.items():
        body = body.replace(name, text)
    parameters = ", ".join(f"%{'ab'[i]}: {t}" for i, t in enumerate(arguments))
    error = refused(f"func.func @main({parameters}) {{\n{body}\nreturn\n}}")
    assert message in str(error), str(error)
    assert error.line > 1


def test_functions_return_what_they_declare() -> None:
    a, b = tensor(A, 4), tensor(B, 4)
    assert "it returns" in str(refused(f"func.func @main(%a: {a}) -> {b} {{ return %a : {b} }}"))
    text = f"func.func @f(%x: {b}) -> {b} {{ return %x : {b} }}\nfunc.func @main(%a: {a}) -> {b} {{"
    assert "@f takes" in str(refused(f"{text}\n%0 = call @f(%a) : ({a}) -> {b}\nreturn %0 : {b}\n}}"))


GOOD = f"""!q = {A}
func.func @main(%a: tensor<4x!q>, %b: tensor<2x3x{replace(AXIS, dimension=0)}>) -> tensor<4x!q> {{
  %c = stablehlo.constant dense<[1, 2, 3, 4]> : tensor<4x!q>
  %0 = stablehlo.add %a, %c : tensor<4x!q>
  %1 = stablehlo.uniform_dequantize %b : (tensor<2x3x{AXIS}>) -> tensor<2x3xf32>
  return %0 : tensor<4x!q>
}}"""


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1), st.integers(0, 12), st.text("{}()[]<>%@#=,:x!-019.eq ?", max_size=4))
def test_damaged_text_reads_or_is_an_error_of_ours(place: float, length: int, instead: str) -> None:
    start = int(place * len(GOOD))
    try:
        parse(GOOD[:start] + instead + GOOD[start + length :])
    except FusileError as error:
        assert str(error)
