"""Quantized tensors moved, chosen, reduced, carried through control flow, on both targets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from quantized_reference import TARGETS, Type, program, region, run, tensor

OTHER = Type("i8", "f32", (0.1,), (-128,))

# Movement


@pytest.mark.parametrize("target", TARGETS)
def test_movement_moves_integers(target: str) -> None:
    q = Type("i8", "f32", (0.5,), (3,))
    x, scalar, small = q.random(4, 6), np.array(-7, np.int8), q.random(2, 3, seed=1)
    t = lambda *sizes: tensor(q, *sizes)  # noqa: E731
    body = f"""
      %i = stablehlo.constant dense<1> : tensor<i32>
      %at = stablehlo.constant dense<[2, 0, 3]> : tensor<3xi32>
      %r0 = stablehlo.reshape %a : ({t(4, 6)}) -> {t(3, 8)}
      %r1 = stablehlo.transpose %a, dims = [1, 0] : ({t(4, 6)}) -> {t(6, 4)}
      %r2 = stablehlo.broadcast_in_dim %b, dims = [] : ({t()}) -> {t(2, 2)}
      %r3 = stablehlo.slice %a [1:4:2, 0:6:3] : ({t(4, 6)}) -> {t(2, 2)}
      %r4 = stablehlo.dynamic_slice %a, %i, %i, sizes = [2, 2] : ({t(4, 6)}, tensor<i32>, tensor<i32>) -> {t(2, 2)}
      %r5 = stablehlo.dynamic_update_slice %a, %c, %i, %i :
        ({t(4, 6)}, {t(2, 3)}, tensor<i32>, tensor<i32>) -> {t(4, 6)}
      %r6 = "stablehlo.gather"(%a, %at) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 6>}}> :
        ({t(4, 6)}, tensor<3xi32>) -> {t(3, 6)}
      %r7 = stablehlo.concatenate %a, %a, dim = 0 : ({t(4, 6)}, {t(4, 6)}) -> {t(8, 6)}
      %r8 = stablehlo.pad %a, %b, low = [1, 0], high = [0, 2], interior = [0, 1] : ({t(4, 6)}, {t()}) -> {t(5, 13)}
      %r9 = stablehlo.reverse %a, dims = [0] : {t(4, 6)}
      %r10 = stablehlo.bitcast_convert %a : ({t(4, 6)}) -> tensor<4x6xi8>
      %r11 = stablehlo.bitcast_convert %r10 : (tensor<4x6xi8>) -> {tensor(OTHER, 4, 6)}
      %r12 = stablehlo.optimization_barrier %a : {t(4, 6)}
      %r13 = stablehlo.get_dimension_size %a, dim = 1 : ({t(4, 6)}) -> tensor<i32>"""
    shapes = [t(3, 8), t(6, 4), t(2, 2), t(2, 2), t(2, 2), t(4, 6), t(3, 6), t(8, 6), t(5, 13), t(4, 6),
              "tensor<4x6xi8>", tensor(OTHER, 4, 6), t(4, 6), "tensor<i32>"]  # fmt: skip
    found = run(target, program(body, [t(4, 6), t(), t(2, 3)], shapes), x, scalar, small)
    updated = x.copy()
    updated[1:3, 1:4] = small
    padded = np.full((5, 13), -7, np.int8)
    padded[1:, :11:2] = x
    wanted = [x.reshape(3, 8), x.T, np.full((2, 2), -7), x[1:4:2, ::3], x[1:3, 1:3], updated, x[[2, 0, 3]],
              np.concatenate([x, x]), padded, x[::-1], x, x, x, 6]  # fmt: skip
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("target", TARGETS)
def test_per_axis_dimensions_move_along(target: str) -> None:
    """Transposed, reshaped, broadcast and stretched, each element still expresses the same number."""
    q = Type("i8", "f32", (0.5, 0.1, 2.0), (3, -1, 0), 1)
    one = Type("i8", "f32", (0.5,), (3,), 0)
    last = Type("i8", "f32", q.scales, q.zero_points, 2)
    moved = {
        "stablehlo.transpose %a, dims = [1, 0]": ((2, 3), (3, 2), Type("i8", "f32", q.scales, q.zero_points, 0)),
        "stablehlo.reshape %a": ((2, 3), (1, 2, 3), last),
        "stablehlo.broadcast_in_dim %a, dims = [0, 2]": ((2, 3), (2, 4, 3), last),
    }  # fmt: skip
    x = q.random(2, 3)
    for op, (old, new, kind) in moved.items():
        text = program(
            f"%m = {op} : ({tensor(q, *old)}) -> {tensor(kind, *new)}\n"
            f"%r0 = stablehlo.uniform_dequantize %m : ({tensor(kind, *new)}) -> {tensor('f32', *new)}",
            [tensor(q, *old)], [tensor("f32", *new)],
        )  # fmt: skip
        numbers = q.dequantize(x)
        wanted = {(3, 2): numbers.T, (1, 2, 3): numbers[None]}.get(new)
        np.testing.assert_array_equal(
            run(target, text, x), np.broadcast_to(numbers[:, None], new) if wanted is None else wanted
        )
    stretched = Type("i8", "f32", (0.5,) * 4, (3,) * 4, 1)
    text = program(
        f"%r0 = stablehlo.broadcast_in_dim %a, dims = [1] : ({tensor(one, 1)}) -> {tensor(stretched, 2, 4)}",
        [tensor(one, 1)], [tensor(stretched, 2, 4)],
    )  # fmt: skip
    np.testing.assert_array_equal(run(target, text, np.array([5], np.int8)), np.full((2, 4), 5))


CONSTANTS = {
    "stablehlo.constant dense<[-128, 0, 127]> : TYPE": [-128, 0, 127],
    "stablehlo.constant() <{value = dense<[1, 2, 3]> : tensor<3xi8>}> : () -> TYPE": [1, 2, 3],
    "stablehlo.constant() {value = dense<7> : tensor<3xi8>} : () -> TYPE": [7, 7, 7],
    '"stablehlo.constant"() <{value = dense<[1, 2, 3]> : TYPE}> : () -> TYPE': [1, 2, 3],
}


@pytest.mark.parametrize("form", CONSTANTS)
@pytest.mark.parametrize("target", TARGETS)
def test_constants_list_storage_integers(form: str, target: str) -> None:
    shape = tensor(Type(), 3)
    text = program(f"%r0 = {form.replace('TYPE', shape)}", [], [shape])
    np.testing.assert_array_equal(run(target, text), np.array(CONSTANTS[form], np.int8))


def test_aliases_and_generic_form() -> None:
    """Aliases of the element type and of the tensor, and the generic form of every part."""
    text = """
      !q = !quant.uniform<i8<-128:127>:f32, 5.000000e-01:3>
      !t = tensor<2x!q>
      !p = !quant.uniform<u8:f32:0, {1.000000e-01:3, 0.2}>
      "builtin.module"() ({
        "func.func"() <{function_type = (!t, tensor<2x!p>) -> (tensor<2xf32>, tensor<2xf32>), sym_name = "main"}> ({
        ^bb0(%a: !t, %b: tensor<2x!p>):
          %0 = "stablehlo.uniform_dequantize"(%a) : (!t) -> tensor<2xf32>
          %1 = "stablehlo.uniform_dequantize"(%b) : (tensor<2x!p>) -> tensor<2xf32>
          "func.return"(%0, %1) : (tensor<2xf32>, tensor<2xf32>) -> ()
        }) : () -> ()
      }) : () -> ()"""
    first, second = run("interpreter", text, np.array([3, 5], np.int8), np.array([4, 5], np.uint8))
    np.testing.assert_array_equal(first, np.array([0, 1], np.float32))
    np.testing.assert_array_equal(second, np.array([0.1, 1.0], np.float32))


# Regions


@pytest.mark.parametrize("kind", [Type("i8", "f32", (0.1,), (3,)), Type("i8", "bf16", (0.25,), (0,))], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_reductions(kind: Type, target: str) -> None:
    """Sums that stay in range and of exact steps, so that no order matters; maxima; both forms of the op."""
    x = np.random.default_rng(0).integers(-4, 5, (3, 8)).astype(np.int8)
    t, v, s, zero = tensor(kind, 3, 8), tensor(kind, 3), tensor(kind), kind.zero_points[0]
    window = "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>"
    body = f"""
      %i = stablehlo.constant dense<{zero}> : {s}
      %low = stablehlo.constant dense<-128> : {s}
      %r0 = stablehlo.reduce(%a init: %i) applies stablehlo.add across dimensions = [1] : ({t}, {s}) -> {v}
      %r1 = "stablehlo.reduce"(%a, %low) <{{dimensions = array<i64: 1>}}> {region("maximum", s)} : ({t}, {s}) -> {v}
      %r2 = "stablehlo.reduce_window"(%a, %low) <{{{window}}}> {region("maximum", s)} :
        ({t}, {s}) -> {tensor(kind, 3, 4)}
      %r3 = "stablehlo.map"(%a, %a) <{{dimensions = array<i64: 0, 1>}}> {region("add", s)} : ({t}, {t}) -> {t}"""
    results = run(target, program(body, [t], [v, v, tensor(kind, 3, 4), t]), x)
    np.testing.assert_array_equal(results[0], (x.astype(int) - zero).sum(1) + zero)
    np.testing.assert_array_equal(results[1], x.max(1))
    np.testing.assert_array_equal(results[2], x.reshape(3, 4, 2).max(2))
    np.testing.assert_array_equal(results[3], kind.quantize(kind.dequantize(x) + kind.dequantize(x)))


@pytest.mark.parametrize("target", TARGETS)
def test_reduce_in_wider_storage(target: str) -> None:
    """The region takes i32 storage: inputs are requantized to it, the result back."""
    q, wide = Type("i8", "f32", (0.5,), (3,)), Type("i32", "f32", (0.5,), (0,))
    x = q.random(3, 50)
    t, v, s = tensor(q, 3, 50), tensor(q, 3), tensor(q)
    text = program(
        f"%i = stablehlo.constant dense<3> : {s}\n"
        f'%r0 = "stablehlo.reduce"(%a, %i) <{{dimensions = array<i64: 1>}}> {region("add", tensor(wide))} : '
        f"({t}, {s}) -> {v}", [t], [v],
    )  # fmt: skip
    np.testing.assert_array_equal(run(target, text, x), q.quantize(q.dequantize(x).sum(1)))


@pytest.mark.parametrize("target", TARGETS)
def test_sort_scatter_and_select_and_scatter(target: str) -> None:
    q = Type("i8", "f32", (0.5,), (3,))
    x, updates = q.random(8), np.array([5, 6], np.int8)
    t, s = tensor(q, 8), tensor(q)
    compare = (
        f"({{ ^bb0(%x: {s}, %y: {s}):\n%z = stablehlo.compare LT, %x, %y, FLOAT : ({s}, {s}) -> tensor<i1>\n"
        '"stablehlo.return"(%z) : (tensor<i1>) -> () })'
    )
    ge = compare.replace("LT", "GE").replace("%x", "%u").replace("%y", "%w")
    numbers = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    body = f"""
      %at = stablehlo.constant dense<[1, 4]> : tensor<2xi32>
      %zero = stablehlo.constant dense<3> : {s}
      %r0 = "stablehlo.sort"(%a) <{{dimension = 0 : i64, is_stable = true}}> {compare} : ({t}) -> {t}
      %r1 = "stablehlo.scatter"(%a, %at, %b) <{{scatter_dimension_numbers = {numbers}}}> {region("maximum", s)} :
        ({t}, tensor<2xi32>, {tensor(q, 2)}) -> {t}
      %r2 = "stablehlo.select_and_scatter"(%a, %b, %zero) <{{window_dimensions = array<i64: 4>,
        window_strides = array<i64: 4>}}>
        ({ge[1:-1]}, {region("add", s)[1:-1]}) : ({t}, {tensor(q, 2)}, {s}) -> {t}"""
    ordered, scattered, selected = run(target, program(body, [t, tensor(q, 2)], [t, t, t]), x, updates)
    np.testing.assert_array_equal(ordered, np.sort(x))
    wanted = x.copy()
    wanted[[1, 4]] = np.maximum(x[[1, 4]], updates)
    np.testing.assert_array_equal(scattered, wanted)
    wanted = np.full(8, 3, np.int8)
    for window, value in enumerate(updates):
        wanted[4 * window + x[4 * window : 4 * window + 4].argmax()] = value
    np.testing.assert_array_equal(selected, wanted)


@pytest.mark.parametrize("target", TARGETS)
def test_control_flow_calls_and_tuples(target: str) -> None:
    """Loops carry and capture quantized values; branches, calls and tuples give them."""
    q = Type("i8", "f32", (0.5,), (3,))
    t = tensor(q, 4)
    text = f"""
    func.func private @twice(%x: {t}) -> {t} {{
      %0 = stablehlo.add %x, %x : {t}
      return %0 : {t}
    }}
    func.func @main(%a: {t}, %b: {t}, %p: tensor<i1>) -> ({t}, {t}, {t}, {t}) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %step = stablehlo.constant dense<5> : {t}
      %w:2 = stablehlo.while(%x = %a, %i = %zero) : {t}, tensor<i32>
       cond {{
        %three = stablehlo.constant dense<3> : tensor<i32>
        %c = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %n = stablehlo.add %i, %one : tensor<i32>
        %s = stablehlo.add %x, %b : {t}
        %u = stablehlo.add %s, %step : {t}
        stablehlo.return %u, %n : {t}, tensor<i32>
      }}
      %if = "stablehlo.if"(%p) ({{
        %m = stablehlo.negate %a : {t}
        stablehlo.return %m : {t}
      }}, {{
        stablehlo.return %w#0 : {t}
      }}) : (tensor<i1>) -> {t}
      %call = call @twice(%a) : ({t}) -> {t}
      %tuple = stablehlo.tuple %zero, %b : tuple<tensor<i32>, {t}>
      %part = stablehlo.get_tuple_element %tuple[1] : (tuple<tensor<i32>, {t}>) -> {t}
      %sum = stablehlo.add %part, %if : {t}
      return %w, %if, %call, %sum : {t}, {t}, {t}, {t}
    }}"""
    a, b = (np.random.default_rng(i).integers(-9, 10, 4).astype(np.int8) for i in (0, 1))
    for flag in (True, False):
        loop, branch, called, total = run(target, text, a, b, np.array(flag))
        wanted = a
        for _ in range(3):
            for other in (b, np.full(4, 5, np.int8)):
                wanted = q.quantize(q.dequantize(wanted) + q.dequantize(other))
        np.testing.assert_array_equal(loop, wanted)
        np.testing.assert_array_equal(branch, q.quantize(-q.dequantize(a)) if flag else loop)
        np.testing.assert_array_equal(called, q.quantize(q.dequantize(a) * 2))
        np.testing.assert_array_equal(total, q.quantize(q.dequantize(b) + q.dequantize(branch)))
