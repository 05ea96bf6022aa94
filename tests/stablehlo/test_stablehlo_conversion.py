"""What StableHLO operations mean once converted, by running them in the interpreter against NumPy."""

import numpy as np
import pytest

from fusile.base.element_type import U32
from fusile.base.errors import ParseError, UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.interpreter import interpret
from fusile.hlo.verifier import verify
from fusile.stablehlo import parse, print_module

X = np.array([[3, -1, 2], [0, 5, -4]], np.float32)
V = np.array([1, 2, 3], np.float32)


def run(body: str, *arguments: np.ndarray, results: str) -> list[np.ndarray]:
    """Runs a function with this body (it returns; arguments are %a, %b, ...), as written and printed and read again."""
    kinds = {"float32": "f32", "int32": "i32", "bool": "i1", "int64": "i64", "uint64": "ui64", "uint8": "ui8"}
    types = ["x".join((*map(str, a.shape), kinds[a.dtype.name])) for a in arguments]
    names = ", ".join(f"%{'abcdef'[i]}: tensor<{t}>" for i, t in enumerate(types))
    module = parse(f"func.func @main({names}) -> ({results}) {{\n{body}\n}}")
    verify(module)
    found = interpret(module, list(arguments))
    again = interpret(parse(print_module(module)), list(arguments))
    for one, two in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, two)
    return found


def test_loops_carry_what_they_capture() -> None:
    """%b and %twice come from outside the regions, %two is a constant from outside."""
    (total, count) = run(
        """
      %two = stablehlo.constant dense<2.0> : tensor<f32>
      %twice = stablehlo.multiply %b, %two : tensor<f32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.while(%x = %a, %i = %zero) : tensor<f32>, tensor<i32>
       cond {
        %p = stablehlo.compare LT, %x, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %n = stablehlo.add %i, %one : tensor<i32>
        %s = stablehlo.add %x, %two : tensor<f32>
        %w = stablehlo.add %s, %twice : tensor<f32>
        stablehlo.return %w, %n : tensor<f32>, tensor<i32>
      }
      return %r#0, %r#1 : tensor<f32>, tensor<i32>""",
        np.float32(0),
        np.float32(25),
        results="tensor<f32>, tensor<i32>",
    )
    assert total == 52 and count == 1


def test_nested_loops_capture_through_both() -> None:
    (total,) = run(
        """
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %s = %zero) : tensor<i32>, tensor<i32>
       cond {
        %p = stablehlo.compare LT, %i, %a : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %q:2 = stablehlo.while(%j = %zero, %t = %s) : tensor<i32>, tensor<i32>
         cond {
          %p = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
        } do {
          %k = stablehlo.add %j, %one : tensor<i32>
          %u = stablehlo.add %t, %a : tensor<i32>
          stablehlo.return %k, %u : tensor<i32>, tensor<i32>
        }
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %n, %q#1 : tensor<i32>, tensor<i32>
      }
      return %r#1 : tensor<i32>""",
        np.int32(5),
        results="tensor<i32>",
    )
    assert total == 10 * 5


@pytest.mark.parametrize(("index", "want"), [(0, -7), (1, 49), (2, 9), (99, 9), (-1, 9)])
def test_case_takes_the_last_branch_when_out_of_range(index: int, want: int) -> None:
    (found,) = run(
        """
      %two = stablehlo.constant dense<2.0> : tensor<f32>
      %r = "stablehlo.case"(%a) ({
        %n = stablehlo.negate %b : tensor<f32>
        stablehlo.return %n : tensor<f32>
      }, {
        %m = stablehlo.multiply %b, %b : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }, {
        %s = stablehlo.add %b, %two : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<i32>) -> tensor<f32>
      return %r : tensor<f32>""",
        np.int32(index),
        np.float32(7),
        results="tensor<f32>",
    )
    assert found == want


@pytest.mark.parametrize("which", [True, False])
def test_if_takes_its_first_branch_when_true(which: bool) -> None:
    first, second = run("""
      %r:2 = "stablehlo.if"(%a) ({
        stablehlo.return %b, %c : tensor<f32>, tensor<f32>
      }, {
        stablehlo.return %c, %b : tensor<f32>, tensor<f32>
      }) : (tensor<i1>) -> (tensor<f32>, tensor<f32>)
      return %r#0, %r#1 : tensor<f32>, tensor<f32>""", np.bool_(which), np.float32(1), np.float32(2),
                        results="tensor<f32>, tensor<f32>")  # fmt: skip
    assert (first, second) == ((1, 2) if which else (2, 1))


def test_reduce_of_several_inputs() -> None:
    best, place = run(
        """
      %i = stablehlo.iota dim = 1 : tensor<2x3xi32>
      %m = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %z = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.reduce(%a init: %m), (%i init: %z) across dimensions = [1]
          : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
       reducer(%x: tensor<f32>, %y: tensor<f32>) (%p: tensor<i32>, %q: tensor<i32>)  {
        %g = stablehlo.compare GT, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %v = stablehlo.select %g, %x, %y : tensor<i1>, tensor<f32>
        %w = stablehlo.select %g, %p, %q : tensor<i1>, tensor<i32>
        stablehlo.return %v, %w : tensor<f32>, tensor<i32>
      }
      return %r#0, %r#1 : tensor<2xf32>, tensor<2xi32>""",
        X,
        results="tensor<2xf32>, tensor<2xi32>",
    )
    np.testing.assert_array_equal(best, X.max(1))
    np.testing.assert_array_equal(place, X.argmax(1))


def test_regions_of_reductions_take_constants_from_outside() -> None:
    (found,) = run(
        """
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %r = "stablehlo.reduce"(%a, %one) <{dimensions = array<i64: 0>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %p = stablehlo.multiply %x, %y : tensor<f32>
        %q = stablehlo.multiply %p, %one : tensor<f32>
        stablehlo.return %q : tensor<f32>
      }) : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
      return %r : tensor<f32>""",
        V,
        results="tensor<f32>",
    )
    assert found == 6
    with pytest.raises(UnsupportedOpError, match="uses %b from outside"):
        run(
            """
      %one = stablehlo.constant dense<1.0> : tensor<f32>
      %r = "stablehlo.reduce"(%a, %one) <{dimensions = array<i64: 0>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %p = stablehlo.multiply %x, %b : tensor<f32>
        stablehlo.return %p : tensor<f32>
      }) : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
      return %r : tensor<f32>""",
            V,
            np.float32(2),
            results="tensor<f32>",
        )


@pytest.mark.parametrize(("line", "want"), [
    ("stablehlo.add %a, %a : tensor<2x3xf32>", X + X),
    ("stablehlo.add %a, %a : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>", X + X),
    ("stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>", X.T),
    ("stablehlo.reshape %a : (tensor<2x3xf32>) -> tensor<6xf32>", X.reshape(6)),
    ("stablehlo.reverse %a, dims = [1] : tensor<2x3xf32>", X[:, ::-1]),
    ("stablehlo.slice %a [0:2:1, 1:3:2] : (tensor<2x3xf32>) -> tensor<2x1xf32>", X[:, 1:3:2]),
    ("stablehlo.concatenate %a, %a, dim = 0 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>",
     np.vstack([X, X])),
    ("stablehlo.convert %a : (tensor<2x3xf32>) -> tensor<2x3xi32>", X.astype(np.int32)),
    ("stablehlo.is_finite %a : (tensor<2x3xf32>) -> tensor<2x3xi1>", np.isfinite(X)),
    ("stablehlo.compare GE, %a, %a, TOTALORDER : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>", X >= X),
    ("stablehlo.broadcast %a, sizes = [2] : (tensor<2x3xf32>) -> tensor<2x2x3xf32>", np.stack([X, X])),
    ("stablehlo.iota dim = 1 : tensor<2x3xf32>", np.broadcast_to(np.arange(3, dtype=np.float32), (2, 3))),
    ("stablehlo.reduce_precision %a, format = e8m23 : tensor<2x3xf32>", X),
    ("chlo.square %a : tensor<2x3xf32> -> tensor<2x3xf32>", X * X),
    ("chlo.sinh %a : tensor<2x3xf32> -> tensor<2x3xf32>", np.sinh(X.astype(np.float64)).astype(np.float32)),
    ("chlo.is_inf %a : tensor<2x3xf32> -> tensor<2x3xi1>", np.isinf(X)),
    ("chlo.broadcast_add %a, %a : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>", X + X),
    ('"stablehlo.all_reduce"(%a) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({\n'
     '^bb0(%x: tensor<f32>, %y: tensor<f32>):\n'
     "%s = stablehlo.add %x, %y : tensor<f32>\nstablehlo.return %s : tensor<f32>\n}) "
     ": (tensor<2x3xf32>) -> tensor<2x3xf32>", X),
    ('stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{replicated}"} : (tensor<2x3xf32>) -> tensor<2x3xf32>', X),
    ("stablehlo.optimization_barrier %a : tensor<2x3xf32>", X),
])  # fmt: skip
def test_ops_of_one_operand(line: str, want: np.ndarray) -> None:
    kind = {"float32": "f32", "int32": "i32", "bool": "i1"}[want.dtype.name]
    result = f"tensor<{'x'.join((*map(str, want.shape), kind))}>"
    (found,) = run(f"%r = {line}\nreturn %r : {result}", X, results=result)
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_broadcasts_repeat_dimensions_of_size_one() -> None:
    column = X[:, :1].copy()
    (found,) = run("%r = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (tensor<2x1xf32>) -> tensor<4x3x2xf32>\n"
                   "return %r : tensor<4x3x2xf32>", column, results="tensor<4x3x2xf32>")  # fmt: skip
    np.testing.assert_array_equal(found, np.broadcast_to(column.reshape(2), (4, 3, 2)))


def test_chlo_broadcasts_as_numpy_does() -> None:
    (found,) = run("%r = chlo.broadcast_compare %a, %b {comparison_direction = #chlo<comparison_direction LT>}"
                   " : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xi1>\nreturn %r : tensor<2x3xi1>", X, V,
                   results="tensor<2x3xi1>")  # fmt: skip
    np.testing.assert_array_equal(found, X < V)


def test_select_and_clamp_take_scalars() -> None:
    chosen, held = run(
        """
      %r = stablehlo.select %c, %a, %b : tensor<i1>, tensor<3xf32>
      %one = stablehlo.constant dense<1.5> : tensor<f32>
      %two = stablehlo.constant dense<2.5> : tensor<f32>
      %s = stablehlo.clamp %one, %a, %two : (tensor<f32>, tensor<3xf32>, tensor<f32>) -> tensor<3xf32>
      return %r, %s : tensor<3xf32>, tensor<3xf32>""",
        V,
        -V,
        np.bool_(False),
        results="tensor<3xf32>, tensor<3xf32>",
    )
    np.testing.assert_array_equal(chosen, -V)
    np.testing.assert_array_equal(held, np.clip(V, 1.5, 2.5))


def test_top_k_and_sort() -> None:
    values, places, low, order = run("""
      %v, %i = chlo.top_k(%a, k = 2) : tensor<2x3xf32> -> (tensor<2x2xf32>, tensor<2x2xi32>)
      %n = stablehlo.iota dim = 1 : tensor<2x3xi32>
      %s:2 = "stablehlo.sort"(%a, %n) <{dimension = -1 : i64, is_stable = true}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i32>, %q: tensor<i32>):
        %l = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %l : tensor<i1>
      }) : (tensor<2x3xf32>, tensor<2x3xi32>) -> (tensor<2x3xf32>, tensor<2x3xi32>)
      return %v, %i, %s#0, %s#1 : tensor<2x2xf32>, tensor<2x2xi32>, tensor<2x3xf32>, tensor<2x3xi32>""", X,
        results="tensor<2x2xf32>, tensor<2x2xi32>, tensor<2x3xf32>, tensor<2x3xi32>")  # fmt: skip
    np.testing.assert_array_equal(values, np.sort(X, 1)[:, :0:-1])
    np.testing.assert_array_equal(places, np.argsort(X, 1)[:, :0:-1])
    np.testing.assert_array_equal(low, np.sort(X, 1))
    np.testing.assert_array_equal(order, np.argsort(X, 1))


def test_map_applies_its_computation_to_each_element() -> None:
    (found,) = run(
        """
      %r = "stablehlo.map"(%a, %a) <{dimensions = array<i64: 0, 1>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %k = stablehlo.constant dense<10.0> : tensor<f32>
        %p = stablehlo.multiply %x, %k : tensor<f32>
        %q = stablehlo.add %p, %y : tensor<f32>
        stablehlo.return %q : tensor<f32>
      }) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      return %r : tensor<2x3xf32>""",
        X,
        results="tensor<2x3xf32>",
    )
    np.testing.assert_array_equal(found, 11 * X)


def test_gather_and_scatter_clamp_and_drop() -> None:
    table, indices = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[1], [9]], np.int32)
    rows, added = run(
        """
      %g = "stablehlo.gather"(%a, %b) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
          indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}>
          : (tensor<4x3xf32>, tensor<2x1xi32>) -> tensor<2x3xf32>
      %s = "stablehlo.scatter"(%a, %b, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
          index_vector_dim = 1>,
          unique_indices = false}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %t = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %t : tensor<f32>
      }) : (tensor<4x3xf32>, tensor<2x1xi32>, tensor<2x3xf32>) -> tensor<4x3xf32>
      return %g, %s : tensor<2x3xf32>, tensor<4x3xf32>""",
        table,
        indices,
        results="tensor<2x3xf32>, tensor<4x3xf32>",
    )
    np.testing.assert_array_equal(rows, table[[1, 3]])
    np.testing.assert_array_equal(added, table + table * np.array([[0], [1], [0], [0]], np.float32))


@pytest.mark.parametrize("form", [
    "stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1], "
    "precision = [DEFAULT, DEFAULT]",
    '"stablehlo.dot_general"(%a, %b) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], '
    "rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>}>",
])  # fmt: skip
def test_dot_general(form: str) -> None:
    a = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    b = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (found,) = run(f"%r = {form} : (tensor<2x2x3xf32>, tensor<2x3x4xf32>) -> tensor<2x2x4xf32>\n"
                   "return %r : tensor<2x2x4xf32>",
                   a, b, results="tensor<2x2x4xf32>")  # fmt: skip
    np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize("form", [
    "stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [2], "
    "pad = [[1, 0]], rhs_dilate = [1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}",
    '"stablehlo.convolution"(%a, %b) <{batch_group_count = 1 : i64, feature_group_count = 1 : i64, dimension_numbers = '
    "#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, window_strides = array<i64: 2>, "
    "padding = dense<[[1, 0]]> : tensor<1x2xi64>}>",
])  # fmt: skip
def test_convolution(form: str) -> None:
    a, b = np.arange(10, dtype=np.float32).reshape(1, 5, 2), np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    (found,) = run(f"%r = {form} : (tensor<1x5x2xf32>, tensor<2x2x3xf32>) -> tensor<1x3x3xf32>\n"
                   "return %r : tensor<1x3x3xf32>",
                   a, b, results="tensor<1x3x3xf32>")  # fmt: skip
    padded = np.vstack([np.zeros((1, 2), np.float32), a[0]])
    want = [sum(padded[i + k] @ b[k] for k in range(2)) for i in (0, 2, 4)]
    np.testing.assert_array_equal(found[0], want)


def test_shapes_computed_from_constants_become_static() -> None:
    spread, grown, cut, counted = run("""
      %n = stablehlo.get_dimension_size %a, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
      %k = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %two = stablehlo.constant dense<2> : tensor<1xi32>
      %s = stablehlo.concatenate %two, %k, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %w = stablehlo.dynamic_broadcast_in_dim %b, %s, dims = [1] : (tensor<3xf32>, tensor<2xi32>) -> tensor<?x?xf32>
      %lo = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
      %hi = stablehlo.constant dense<[2, 3]> : tensor<2xi32>
      %no = stablehlo.constant dense<0> : tensor<2xi32>
      %st = stablehlo.constant dense<1> : tensor<2xi32>
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %p = stablehlo.dynamic_pad %a, %z, %lo, %no, %no
          : (tensor<2x3xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x3xf32>
      %c = stablehlo.real_dynamic_slice %a, %lo, %hi, %st
          : (tensor<2x3xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
      %i = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi32>) -> tensor<?x?xi32>
      return %w, %p, %c, %i : tensor<?x?xf32>, tensor<?x3xf32>, tensor<?x?xf32>, tensor<?x?xi32>""", X, V,
        results="tensor<?x?xf32>, tensor<?x3xf32>, tensor<?x?xf32>, tensor<?x?xi32>")  # fmt: skip
    np.testing.assert_array_equal(spread, np.stack([V, V]))
    np.testing.assert_array_equal(grown, np.vstack([np.zeros((1, 3)), X]))
    np.testing.assert_array_equal(cut, X[1:2])
    np.testing.assert_array_equal(counted, [[0, 1, 2]] * 2)


def test_a_shape_from_an_argument_is_unsupported() -> None:
    with pytest.raises(UnsupportedOpError, match="dynamic_reshape at line 2: a shape that is known only when"):
        run("%r = stablehlo.dynamic_reshape %a, %b : (tensor<3xf32>, tensor<1xi32>) -> tensor<?xf32>\n"
            "return %r : tensor<?xf32>", V, np.array([3], np.int32), results="tensor<?xf32>")  # fmt: skip


def test_calls_and_composites() -> None:
    module = parse("""module @m {
      func.func public @main(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
        %0:2 = call @pair(%a) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
        %1 = stablehlo.composite "my.twice" %0#1 {composite_attributes = {n = 2 : i64}, decomposition = @twice}
            : (tensor<3xf32>) -> tensor<3xf32>
        return %0#0, %1 : tensor<3xf32>, tensor<3xf32>
      }
      func.func private @pair(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
        %0 = func.call @twice(%a) : (tensor<3xf32>) -> tensor<3xf32>
        return %0, %a : tensor<3xf32>, tensor<3xf32>
      }
      func.func private @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.add %a, %a : tensor<3xf32>
        return %0 : tensor<3xf32>
      }
    }""")
    for one in (module, parse(print_module(module))):
        first, second = interpret(one, [V])
        np.testing.assert_array_equal(first, 2 * V)
        np.testing.assert_array_equal(second, 2 * V)


def test_cholesky_and_triangular_solve_by_op_and_by_lapack_name() -> None:
    a = np.array([[4, 2, 0], [2, 5, 1], [0, 1, 3]], np.float32)
    found = run("""
      %0 = stablehlo.cholesky %a, lower = true : tensor<3x3xf32>
      %1:2 = stablehlo.custom_call @lapack_spotrf_ffi(%a) {mhlo.backend_config = {uplo = 76 : ui8}}
          : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
      %2 = "stablehlo.triangular_solve"(%0, %a) <{left_side = true, lower = true,
          transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}>
          : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
      %3 = stablehlo.custom_call @lapack_strsm_ffi(%0, %a)
          {mhlo.backend_config = {diag = 78 : ui8, side = 76 : ui8, trans_x = 84 : ui8, uplo = 76 : ui8}}
          : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
      return %0, %1#0, %2, %3, %1#1
          : tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<i32>""", a,
        results="tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<3x3xf32>, tensor<i32>")  # fmt: skip
    factor = np.linalg.cholesky(a.astype(np.float64))
    for number in (0, 1):
        np.testing.assert_allclose(np.tril(found[number]), factor, rtol=1e-5, atol=1e-6)
    for number in (2, 3):
        np.testing.assert_allclose(found[number], np.linalg.solve(factor.T, a), rtol=1e-4, atol=1e-5)
    assert found[4] == 0


def test_fft_and_batch_norm() -> None:
    back, normal = run(
        """
      %f = stablehlo.fft %a, type = RFFT, length = [3] : (tensor<2x3xf32>) -> tensor<2x2xcomplex<f32>>
      %r = stablehlo.fft %f, type = IRFFT, length = [3] : (tensor<2x2xcomplex<f32>>) -> tensor<2x3xf32>
      %n = "stablehlo.batch_norm_inference"(%a, %b, %b, %b, %b) <{epsilon = 0.0 : f32, feature_index = 1 : i64}>
          : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
      return %r, %n : tensor<2x3xf32>, tensor<2x3xf32>""",
        X,
        V,
        results="tensor<2x3xf32>, tensor<2x3xf32>",
    )
    np.testing.assert_allclose(back, X, atol=1e-5)
    np.testing.assert_allclose(normal, (X - V) / np.sqrt(V) * V + V, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["DEFAULT", "THREE_FRY", "PHILOX"])
def test_random_bits_keep_algorithm_and_shape(algorithm: str) -> None:
    text = f"""func.func @main(%a: tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>) {{
      %s, %r = stablehlo.rng_bit_generator %a, algorithm = {algorithm}
          : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
      return %s, %r : tensor<2xui64>, tensor<4xui32>
    }}"""
    module = parse(text)
    for one in (module, parse(print_module(module))):
        op = next(i.op for i in one.entry.instructions if i.opcode == "rng-bit-generator")
        assert (op.algorithm, op.result) == (f"RNG_{algorithm}", Shape(U32, (4,)))


def test_windows() -> None:
    sums, spread = run("""
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %r = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 1>,
          padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
      %u = "stablehlo.select_and_scatter"(%a, %b, %z) <{window_dimensions = array<i64: 2, 3>,
          window_strides = array<i64: 2, 3>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %s : tensor<i1>
      }, {
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<2x3xf32>, tensor<1x1xf32>, tensor<f32>) -> tensor<2x3xf32>
      return %r, %u : tensor<2x3xf32>, tensor<2x3xf32>""", X, np.array([[7]], np.float32),
        results="tensor<2x3xf32>, tensor<2x3xf32>")  # fmt: skip
    np.testing.assert_array_equal(sums, X + np.hstack([np.zeros((2, 1)), X[:, :-1]]))
    np.testing.assert_array_equal(spread, np.where(X.max() == X, 7, 0))


def test_communication_between_devices_is_unsupported() -> None:
    with pytest.raises(UnsupportedOpError, match="several devices"):
        run('%r = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, '
            "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}>"
            " : (tensor<3xf32>) -> tensor<6xf32>\nreturn %r : tensor<6xf32>", V, results="tensor<6xf32>")  # fmt: skip


def test_a_loop_whose_body_returns_too_little_is_an_error() -> None:
    with pytest.raises(ParseError, match="does not return 1 values"):
        run(
            """
      %r = stablehlo.while(%x = %a) : tensor<f32>
       cond {
        %p = stablehlo.compare LT, %x, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        stablehlo.return
      }
      return %r : tensor<f32>""",
            np.float32(1),
            results="tensor<f32>",
        )


ONE = "func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {\n  LINE\n  return %a : tensor<3xf32>\n}\n"
NAMED = {
    "a function defined twice": ("%r = stablehlo.negate %a : tensor<3xf32>\n  return %a : tensor<3xf32>\n}\n"
                                 "func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {\n  "
                                 "%r = stablehlo.abs %a : tensor<3xf32>", "@main is defined twice, first at line 1"),
    "a callee that is not there": ("%r = call @f(%a) : (tensor<3xf32>) -> tensor<3xf32>", "no function is named @f"),
    "a decomposition that is not there": (
        'stablehlo.composite "x.y" %a {decomposition = @g} : (tensor<3xf32>) -> tensor<3xf32>', "is named @g"),
    "a function that calls itself": ("%r = call @main(%a) : (tensor<3xf32>) -> tensor<3xf32>", "calls itself"),
    "a reducer of one argument": (
        "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        '  %q = "stablehlo.reduce"(%a, %z) <{dimensions = array<i64: 0>}> ({\n  ^bb0(%x: tensor<f32>):\n'
        "    stablehlo.return %x : tensor<f32>\n  }) : (tensor<3xf32>, tensor<f32>) -> tensor<f32>", "reduce"),
    "a comparator of one argument": (
        '%q = "stablehlo.sort"(%a) <{dimension = 0 : i64}> ({\n  ^bb0(%x: tensor<f32>):\n'
        "    %c = stablehlo.compare LT, %x, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "    stablehlo.return %c : tensor<i1>\n  }) : (tensor<3xf32>) -> tensor<3xf32>", "sort"),
    "a map of too few arguments": (
        '%q = "stablehlo.map"(%a, %a) <{dimensions = array<i64: 0>}> ({\n  ^bb0(%x: tensor<f32>):\n'
        "    stablehlo.return %x : tensor<f32>\n  }) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>", "map"),
    "a while of too many region arguments": (
        '%q = "stablehlo.while"(%a) ({\n  ^bb0(%x: tensor<3xf32>, %y: tensor<3xf32>):\n'
        "    %c = stablehlo.constant dense<false> : tensor<i1>\n    stablehlo.return %c : tensor<i1>\n  }, {\n"
        "  ^bb0(%x: tensor<3xf32>):\n    stablehlo.return %x : tensor<3xf32>\n  })"
        " : (tensor<3xf32>) -> tensor<3xf32>", "while"),
    "a branch with an argument": (
        "%p = stablehlo.constant dense<true> : tensor<i1>\n"
        '  %q = "stablehlo.if"(%p) ({\n  ^bb0(%x: tensor<3xf32>):\n    stablehlo.return %x : tensor<3xf32>\n  }, {\n'
        "    stablehlo.return %a : tensor<3xf32>\n  }) : (tensor<i1>) -> tensor<3xf32>", "if"),
    "an if of one branch": (
        "%p = stablehlo.constant dense<true> : tensor<i1>\n"
        '  %q = "stablehlo.if"(%p) ({\n    stablehlo.return %a : tensor<3xf32>\n  })'
        " : (tensor<i1>) -> tensor<3xf32>", "if"),
    "a sort of no region": ('%q = "stablehlo.sort"(%a) <{dimension = 0 : i64}> : (tensor<3xf32>) -> tensor<3xf32>',
                            "it has 0 regions"),
    "a call of too few arguments": (
        "%q = call @f() : () -> tensor<3xf32>\n  return %q : tensor<3xf32>\n}\n"
        "func.func private @f(%a: tensor<3xf32>) -> tensor<3xf32> {\n  %r = stablehlo.abs %a : tensor<3xf32>", "call"),
    "a scatter whose region gives two values": (
        "%i = stablehlo.constant dense<0> : tensor<1x1xi32>\n  %u = stablehlo.constant dense<1.0> : tensor<1xf32>\n"
        '  %q = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims ='
        " [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({\n"
        "  ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n    stablehlo.return %x, %y : tensor<f32>, tensor<f32>\n  })"
        " : (tensor<3xf32>, tensor<1x1xi32>, tensor<1xf32>) -> tensor<3xf32>", "scatter"),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_programs_that_do_not_fit_together_are_errors_with_a_place(case: str) -> None:
    line, message = NAMED[case]
    with pytest.raises(ParseError, match=message) as caught:
        parse(ONE.replace("LINE", line))
    assert caught.value.line >= 1 and caught.value.column >= 1
