"""Custom calls: the interpreter and machine code call the registered function; errors come back as they were raised."""

import numpy as np
import pytest

import fusile
from fusile.runtime.executable import load


@fusile.register_custom_call("tests.scaled")
def scaled(operands, attributes, shapes):
    return [operands[0] * attributes.get("factor", 2), np.float32(operands[0].sum())]


@fusile.register_custom_call("tests.failing")
def failing(operands, attributes, shapes):
    raise ValueError("no good")


@fusile.register_custom_call("tests.misshapen")
def misshapen(operands, attributes, shapes):
    return [operands[0][:1]]


def program(body: str) -> str:
    head = "func.func public @main(%a: tensor<3xf32>) -> tensor<3xf32>"
    return f"module {{ {head} {{\n{body}\nreturn %r : tensor<3xf32>\n}} }}"


SCALED = program(
    """%0:2 = stablehlo.custom_call @tests.scaled(%a) {mhlo.backend_config = {factor = 3 : i32}}
        : (tensor<3xf32>) -> (tensor<3xf32>, tensor<f32>)
    %r = stablehlo.add %0#0, %a : tensor<3xf32>"""
)
CHECKED = """%r = stablehlo.add %a, %a : tensor<3xf32>
    stablehlo.custom_call @check.CHECK(%r, %a) {has_side_effect = true} : (tensor<3xf32>, tensor<3xf32>) -> ()"""
X = np.arange(3, dtype=np.float32)
TARGETS = pytest.mark.parametrize("target", ["cpu", "interpreter"])


@TARGETS
def test_a_call_gives_what_the_function_gives(target: str) -> None:
    assert np.array_equal(fusile.compile(SCALED, target)(X), X * 4)


def test_a_loaded_program_calls_too(tmp_path) -> None:
    fusile.compile(SCALED).save(tmp_path / "program")
    assert np.array_equal(load(tmp_path / "program")(X), X * 4)


@TARGETS
@pytest.mark.parametrize("name, error", [("failing", ValueError), ("misshapen", fusile.CompileError)])
def test_errors_come_back(target: str, name: str, error: type[Exception]) -> None:
    exe = fusile.compile(
        program(f"%r = stablehlo.custom_call @tests.{name}(%a) : (tensor<3xf32>) -> tensor<3xf32>"), target
    )
    for _ in range(2):
        with pytest.raises(error):
            exe(X)


@TARGETS
def test_unknown_targets_are_named_before_anything_runs(target: str) -> None:
    text = program("%r = stablehlo.custom_call @tests.nobody(%a) : (tensor<3xf32>) -> tensor<3xf32>")
    with pytest.raises(fusile.UnsupportedOpError, match=r"tests\.nobody"):
        fusile.compile(text, target)(X)


@TARGETS
@pytest.mark.parametrize("check", ["expect_eq", "expect_close", "expect_almost_eq"])
def test_checks_give_nothing_or_raise(target: str, check: str) -> None:
    exe = fusile.compile(program(CHECKED.replace("CHECK", check)), target)
    assert np.array_equal(exe(X * 0), X * 0)
    with pytest.raises(fusile.CompileError, match=r"2 of 3 elements .* \[1\]: 2.0 and 1.0"):
        exe(X)


@TARGETS
def test_an_array_may_be_given_twice_and_constants_too(target: str) -> None:
    text = program(
        """%c = stablehlo.constant dense<[0.0, 2.0, 4.0]> : tensor<3xf32>
        %one = stablehlo.constant dense<1.0> : tensor<f32>
        %r = stablehlo.add %a, %a : tensor<3xf32>
        stablehlo.custom_call @check.expect_eq(%r, %r) {has_side_effect = true} : (tensor<3xf32>, tensor<3xf32>) -> ()
        stablehlo.custom_call @check.expect_eq(%r, %c) {has_side_effect = true} : (tensor<3xf32>, tensor<3xf32>) -> ()
        stablehlo.custom_call @check.expect_eq(%one, %one) {has_side_effect = true} : (tensor<f32>, tensor<f32>) ->
        ()"""
    )
    assert np.array_equal(fusile.compile(text, target)(X), X * 2)


def test_names_are_taken_once() -> None:
    with pytest.raises(fusile.ArgumentError, match="registered already"):
        fusile.register_custom_call("tests.scaled")(failing)
