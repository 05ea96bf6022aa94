"""Ops that become several of HLO's: einsum, scan, ragged products, random numbers, zeta and the like; both targets."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import fusile
from fusile.base.element_type import element_type
from fusile.base.errors import ParseError
from fusile.base.shape import Shape
from fusile.stablehlo import parse
from fusile.stablehlo.types import mlir_type

TARGETS = ["cpu", "interpreter"]
RANDOM = np.random.default_rng(7)


def kind(array: np.ndarray) -> str:
    return mlir_type(Shape(element_type(array.dtype), array.shape))


def program(body: str, arguments: list[np.ndarray], results: list[str]) -> str:
    names = ", ".join(f"%{'abcdef'[i]}: {kind(a)}" for i, a in enumerate(arguments))
    return f"func.func @main({names}) -> ({', '.join(results)}) {{\n{body}\n}}"


def run(line: str, arguments: list[np.ndarray], want: np.ndarray, target: str) -> np.ndarray:
    """One op, whose result has the type of `want`."""
    types = f"({', '.join(map(kind, arguments))}) -> {kind(want)}"
    text = program(f"%r = {line} : {types}\nreturn %r : {kind(want)}", arguments, [kind(want)])
    return np.asarray(fusile.compile(text, target=target)(*arguments))


def several(body: str, arguments: list[np.ndarray], results: list[str], target: str) -> list[np.ndarray]:
    found = fusile.compile(program(body, arguments, results), target=target)(*arguments)
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("config", "shapes"), [
    ("ab,bc->ac", [(2, 3), (3, 4)]),
    ("ab,cb->ca", [(2, 3), (4, 3)]),
    ("abc,acd->abd", [(2, 3, 4), (2, 4, 5)]),
    ("abc,cad->dba", [(2, 3, 4), (4, 2, 5)]),
    ("ab,c->cab", [(2, 3), (4,)]),
    ("ab,ab->", [(2, 3), (2, 3)]),
    ("abd,bc->ac", [(2, 3, 4), (3, 4)]),
    ("aab,b->a", [(3, 3, 2), (2,)]),
    ("aba,b->ab", [(3, 2, 3), (2,)]),
    ("...ab,...bc->...ac", [(5, 2, 3), (5, 3, 4)]),
    ("a b , b c -> a c", [(2, 0), (0, 4)]),
    ("ab->ba", [(2, 3)]),
    ("aab->b", [(3, 3, 2)]),
    ("aaa->a", [(3, 3, 3)]),
    ("...a->...", [(2, 3, 4)]),
    ("ab->", [(2, 3)]),
])  # fmt: skip
def test_einsum(config: str, shapes: list[tuple[int, ...]], target: str) -> None:
    arguments = [RANDOM.integers(-4, 5, s).astype(np.float32) for s in shapes]
    want = np.asarray(np.einsum(config, *arguments))
    name = "einsum" if len(shapes) == 2 else "unary_einsum"
    names = ", ".join(["%a", "%b"][: len(shapes)])
    found = run(f'"stablehlo.{name}"({names}) <{{einsum_config = "{config}"}}>', arguments, want, target)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize(("config", "match"), [
    ("ab->ab", "is not for 2 operands"),
    ("ab,bc", "is not for 2 operands"),
    ("ab,bcd->ad", "an operand of rank 2"),
    ("ab,bc->ad", "that no operand has"),
    ("ab,bc->aa", "repeat"),
])  # fmt: skip
def test_einsum_of_wrong_labels(config: str, match: str) -> None:
    a = np.zeros((3, 3), np.float32)
    with pytest.raises(ParseError, match=match):
        run(f'"stablehlo.einsum"(%a, %b) <{{einsum_config = "{config}"}}>', [a, a], a, "interpreter")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dim", "batch", "index"), [
    (0, 0, (4,)), (1, 0, (4,)), (2, 0, (2, 2)), (-1, 0, ()), (1, 1, (2, 4)), (2, 1, (2, 4)), (2, 2, (2, 3)),
    (2, -1, (2, 3, 2)),
])  # fmt: skip
def test_torch_index_select(dim: int, batch: int, index: tuple[int, ...], target: str) -> None:
    a = RANDOM.standard_normal((2, 3, 5)).astype(np.float32)
    at, count = dim % 3, batch if batch >= 0 else batch + len(index)
    i = RANDOM.integers(0, a.shape[at], index).astype(np.int32)
    if count:
        rows = [np.take(a[p], i[p], axis=at - count) for p in itertools.product(*(range(n) for n in a.shape[:count]))]
        want = np.stack(rows).reshape(*a.shape[:count], *rows[0].shape)
    else:
        want = np.take(a, i, axis=at)
    line = f'"stablehlo.torch_index_select"(%a, %b) <{{dim = {dim} : i64, batch_dims = {batch} : i64}}>'
    np.testing.assert_array_equal(run(line, [a, i], want, target), want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                                   ml_dtypes.int4, ml_dtypes.uint4])  # fmt: skip
def test_mulhi(dtype: type, target: str) -> None:
    of = element_type(dtype)
    low, high = (-(1 << of.bits - 1), (1 << of.bits - 1) - 1) if of.is_signed else (0, (1 << of.bits) - 1)
    values = [low, low + 1, -1 if of.is_signed else high - 1, 0, 1, 3, high // 2, high - 1, high]
    values += [int(v) for v in RANDOM.integers(low, high, 4, np.int64 if of.is_signed else np.uint64, endpoint=True)]
    pairs = np.array(list(itertools.product(values, values)), object)
    x, y = (pairs[:, i].astype(np.int64 if of.is_signed else np.uint64).astype(of.dtype) for i in (0, 1))
    exact = [(int(a) * int(b)) >> of.bits for a, b in pairs]
    want = np.array(exact, np.int64 if of.is_signed else np.uint64).astype(of.dtype)
    np.testing.assert_array_equal(run('"chlo.mulhi"(%a, %b)', [x, y], want, target), want)


@pytest.mark.parametrize("target", TARGETS)
def test_zeta(target: str) -> None:
    """Known values, and Hurwitz's identity zeta(x, q) = q**-x + zeta(x, q + 1) on both sides of 0."""
    x = np.array([2, 2, 4, 1.5, 2, 3, 30, 1, 0.5, 2, 3, 2.5, 2, np.inf, 2, np.nan, 300, np.inf], np.float64)
    q = np.array([1, 0.5, 1, 1, -0.5, -0.5, 1, 3, 3, 0, -2, -0.5, np.inf, 1, 1e200, 1, 10, 5], np.float64)
    want = np.array([np.pi**2 / 6, np.pi**2 / 2, np.pi**4 / 90, 2.612375348685488343, np.pi**2 / 2 + 4,
                     -8 + 7 * 1.2020569031595942854, 1.000000000931327432, np.inf, np.nan, np.inf, np.nan, np.nan, 0,
                     1, 1e-200, np.nan, sum((10.0 + k) ** -300 for k in range(9)), 0])  # fmt: skip
    np.testing.assert_allclose(run('"chlo.zeta"(%a, %b)', [x, q], want, target), want, rtol=2e-14)
    x = np.repeat([2.0, 3.0, 4.0, 7.0], 50)
    q = np.tile(np.linspace(-40.3, 40.2, 50), 4)
    above = run('"chlo.zeta"(%a, %b)', [x, q + 1], x, target)
    np.testing.assert_allclose(run('"chlo.zeta"(%a, %b)', [x, q], x, target), q**-x + above, rtol=1e-11)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_polygamma(dtype: type, target: str) -> None:
    euler, zeta3 = 0.57721566490153286, 1.2020569031595942854
    n = np.array([0, 0, 1, 1, 2, 3, 1, 0.5, -1, 2], dtype)
    x = np.array([1, 0.5, 1, 0.5, 1, 1, 0, 1, 1, 0], dtype)
    want = np.array([-euler, -euler - 2 * np.log(2), np.pi**2 / 6, np.pi**2 / 2, -2 * zeta3, np.pi**4 / 15, np.inf,
                     np.nan, np.nan, np.nan])  # fmt: skip
    found = run('"chlo.polygamma"(%a, %b)', [n, x], n, target).astype(np.float64)
    rounding = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found, want, rtol=max(rounding / 2 * 1.001, 1e-14))


@pytest.mark.parametrize("target", TARGETS)
def test_zeta_and_polygamma_broadcast(target: str) -> None:
    x, q = np.array([2, 3], np.float32), np.array([[1], [2], [4]], np.float32)
    whole = np.broadcast_to(x, (3, 2)).copy(), np.broadcast_to(q, (3, 2)).copy()
    for name in ("zeta", "polygamma"):
        want = run(f'"chlo.{name}"(%a, %b)', list(whole), whole[0], target)
        found = run(f'"chlo.broadcast_{name}"(%a, %b)', [x, q], want, target)
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.float32, np.float64])
def test_asin_acos_kernel(dtype: type, target: str) -> None:
    z = np.array([0.5, -0.3, 0.9, 0.1], dtype)
    if z.dtype.kind == "c":
        z = np.concatenate([z + np.array([1j, -0.2j, 3j, 0], dtype), np.array([5 - 2j, -7 + 0.5j], dtype)])
    w = run('"chlo._asin_acos_kernel"(%a)', [z], z, target)
    tolerance = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.arctan2(z.real, w.real), np.arcsin(z).real, rtol=tolerance)
    np.testing.assert_allclose(np.sign(z.imag) * w.imag, np.arcsin(z).imag, rtol=tolerance, atol=tolerance)


WEAK = np.array([-np.nan, np.nan, -np.inf, -0.0, 0.0, 1, np.inf], np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_weak_order(direction: str, dtype: type, target: str) -> None:
    """NaNs are equal and above infinity, zeros are equal."""
    a, b = (np.array(v).astype(dtype) for v in zip(*itertools.product(WEAK, WEAK), strict=True))
    rank = [np.where(np.isnan(v), np.inf, np.where(np.isinf(v), np.sign(v) * 9, v)) for v in
            (a.astype(np.float64), b.astype(np.float64))]  # fmt: skip
    compare = {"EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
               "GE": np.greater_equal}[direction]  # fmt: skip
    found = run(f"stablehlo.compare {direction}, %a, %b, WEAKORDER", [a, b], compare(*rank), target)
    np.testing.assert_array_equal(found, compare(*rank))


def test_an_unknown_order_is_an_error() -> None:
    with pytest.raises(ParseError, match="compare_type BEST is none of"):
        run("stablehlo.compare EQ, %a, %b, BEST", [WEAK, WEAK], WEAK == 0, "interpreter")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32])
def test_the_smallest_elements(dtype: type, target: str) -> None:
    a = np.array([[3, 1, 2, 1, 5], [100, 0, 0, 7, 7]], dtype)
    if dtype is np.float32:
        a = np.array([[3, np.nan, -np.inf, -0.0, 0.0], [1, 1, -1, np.inf, -np.nan]], np.float32)
    order = np.argsort(a, axis=1, kind="stable")[:, :3]
    if dtype is np.float32:
        order = np.array([[2, 3, 4], [4, 2, 0]])
    values, places = several(
        f"%v, %i = chlo.top_k(%a, k = 3, largest = false) : {kind(a)} -> ({kind(a[:, :3])}, tensor<2x3xi32>)\n"
        f"return %v, %i : {kind(a[:, :3])}, tensor<2x3xi32>", [a], [kind(a[:, :3]), "tensor<2x3xi32>"],
        target)  # fmt: skip
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(a, order, 1))


SCAN = """
  %z = stablehlo.constant dense<ZERO> : CARRY
  %r:2 = chlo.scan(%a) inits(%z) dimension=DIM REVERSE {
  ^bb0(%x: CARRY, %c: CARRY):
    %n = stablehlo.add %x, %c : CARRY
    %o = stablehlo.multiply %n, %k : CARRY
    stablehlo.return %o, %n : CARRY, CARRY
  } : (INPUT, CARRY) -> (INPUT, CARRY)
  return %r#0, %r#1 : INPUT, CARRY"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dimension"), [((5,), 0), ((2, 3), 0), ((2, 3), 1), ((2, 3, 4), 1), ((1,), 0),
                                                  ((3, 0), 1), ((0, 3), 1)])  # fmt: skip
def test_scan(shape: tuple[int, ...], dimension: int, reverse: bool, target: str) -> None:
    """%k is a value from outside the body."""
    a = RANDOM.integers(-9, 9, shape).astype(np.int32)
    flipped = np.flip(a, dimension) if reverse else a
    sums = np.cumsum(flipped, dimension, dtype=np.int32)
    last = a.sum(dimension, dtype=np.int32)
    outer = np.full(last.shape, 3, np.int32)
    body = SCAN.replace("DIM", str(dimension)).replace("CARRY", kind(outer)).replace("INPUT", kind(a))
    body = body.replace("REVERSE", f"attributes {{is_reverse = {str(reverse).lower()}}}").replace("ZERO", "0")
    body = body.replace("%k", "%b")
    out, carry = several(body, [a, outer], [kind(a), kind(outer)], target)
    np.testing.assert_array_equal(out, 3 * (np.flip(sums, dimension) if reverse else sums))
    np.testing.assert_array_equal(carry, last)


@pytest.mark.parametrize("target", TARGETS)
def test_scan_of_several_inputs_in_generic_form(target: str) -> None:
    a, b = np.array([3, 1, 4, 1, 5], np.int32), np.arange(5, dtype=np.int32)
    found = several("""
      %v = stablehlo.constant dense<-2147483648> : tensor<i32>
      %i = stablehlo.constant dense<0> : tensor<i32>
      %r:4 = "chlo.scan"(%a, %b, %v, %i) <{dimension = 0 : i64, operandSegmentSizes = array<i32: 2, 2>,
          resultSegmentSizes = array<i32: 2, 2>, is_reverse = false}> ({
      ^bb0(%x: tensor<i32>, %p: tensor<i32>, %m: tensor<i32>, %q: tensor<i32>):
        %g = stablehlo.compare GE, %x, %m : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %s = stablehlo.select %g, %x, %m : tensor<i1>, tensor<i32>
        %t = stablehlo.select %g, %p, %q : tensor<i1>, tensor<i32>
        stablehlo.return %s, %t, %s, %t : tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>
      }) : (tensor<5xi32>, tensor<5xi32>, tensor<i32>, tensor<i32>)
          -> (tensor<5xi32>, tensor<5xi32>, tensor<i32>, tensor<i32>)
      return %r#0, %r#1, %r#2, %r#3 : tensor<5xi32>, tensor<5xi32>, tensor<i32>, tensor<i32>""", [a, b],
        ["tensor<5xi32>", "tensor<5xi32>", "tensor<i32>", "tensor<i32>"], target)  # fmt: skip
    np.testing.assert_array_equal(found[0], [3, 3, 4, 4, 5])
    np.testing.assert_array_equal(found[1], [0, 0, 2, 2, 4])
    assert (found[2], found[3]) == (5, 4)


def test_scan_of_different_lengths_is_an_error() -> None:
    with pytest.raises(ParseError, match=r"chlo.scan: .*lengths \[4, 5\]"):
        parse("""func.func @main(%a: tensor<5xi32>, %z: tensor<i32>) -> tensor<4xi32> {
          %r:2 = chlo.scan(%a) inits(%z) dimension=0 {
          ^bb0(%x: tensor<i32>, %c: tensor<i32>):
            stablehlo.return %x, %c : tensor<i32>, tensor<i32>
          } : (tensor<5xi32>, tensor<i32>) -> (tensor<4xi32>, tensor<i32>)
          return %r#0 : tensor<4xi32>
        }""")


def ragged(**dimensions: list[int]) -> str:
    fields = ", ".join(f"{name} = {value}" for name, value in dimensions.items())
    return f'"chlo.ragged_dot"(%a, %b, %c) {{ragged_dot_dimension_numbers = #chlo.ragged_dot<{fields}>}}'


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [[3, 2, 6], [0, 11, 0], [1, 2, 3], [5, 0, 9]])
def test_ragged_dot_of_rows(sizes: list[int], target: str) -> None:
    """NaN in one group's matrix stays there."""
    a = RANDOM.integers(-4, 5, (2, 11, 5)).astype(np.float32)
    b = RANDOM.integers(-4, 5, (3, 2, 5, 7)).astype(np.float32)
    b[1, 0, 0, 0] = np.nan
    want = np.zeros((2, 11, 7), np.float32)
    start = 0
    for g, size in enumerate(sizes):
        want[:, start : start + size] = a[:, start : start + size] @ b[g]
        start += size
    line = ragged(lhs_batching_dimensions=[0], rhs_batching_dimensions=[1], lhs_contracting_dimensions=[2],
                  rhs_contracting_dimensions=[2], lhs_ragged_dimensions=[1], rhs_group_dimensions=[0])  # fmt: skip
    np.testing.assert_array_equal(run(line, [a, b, np.array(sizes, np.int64)], want, target), want)
    each = np.array([sizes, sizes[::-1]], np.int32)
    start = sizes[2]
    want[1] = 0
    for row, size in ((0, sizes[2]), (1, sizes[1]), (2, sizes[0])):
        begin = sum(each[1][:row])
        want[1, begin : begin + size] = a[1, begin : begin + size] @ b[row, 1]
    np.testing.assert_array_equal(run(line, [a, b, each], want, target), want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [[3, 2], [0, 5], [1, 1]])
def test_ragged_dot_of_contracted_and_batch_dimensions(sizes: list[int], target: str) -> None:
    a, b = RANDOM.integers(-4, 5, (3, 5)).astype(np.float32), RANDOM.integers(-4, 5, (5, 7)).astype(np.float32)
    bounds = np.cumsum([0, *sizes])
    want = np.stack([a[:, s:e] @ b[s:e] for s, e in itertools.pairwise(bounds)])
    line = ragged(lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0], lhs_ragged_dimensions=[1])
    np.testing.assert_array_equal(run(line, [a, b, np.array(sizes, np.int32)], want, target), want)
    a, b = a.reshape(3, 1, 5), RANDOM.integers(-4, 5, (3, 5, 2)).astype(np.float32)
    line = ragged(lhs_batching_dimensions=[0], rhs_batching_dimensions=[0], lhs_contracting_dimensions=[2],
                  rhs_contracting_dimensions=[1], lhs_ragged_dimensions=[0])  # fmt: skip
    np.testing.assert_array_equal(run(line, [a, b, np.array(sizes, np.int32)], a @ b, target), a @ b)


def rng(low: np.ndarray, high: np.ndarray, count: int, distribution: str, target: str) -> list[np.ndarray]:
    result = f"tensor<{count}x{kind(low)[7:-1]}>"
    line = f"stablehlo.rng %a, %b, %s, distribution = {distribution} : ({kind(low)}, {kind(high)}, tensor<1xi64>)"
    body = f"%s = stablehlo.constant dense<{count}> : tensor<1xi64>\n"
    body += f"%r = {line} -> {result}\n%q = {line} -> {result}\nreturn %r, %q : {result}, {result}"
    return several(body, [low, high], [result, result], target)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32,
                                   np.uint64, np.bool_])  # fmt: skip
def test_uniform_numbers(dtype: type) -> None:
    low, high = (np.array(v, dtype) for v in ((0, 1) if dtype is np.bool_ else (3, 7)))
    first, second = rng(low, high, 4000, "UNIFORM", "interpreter")
    for one, two in zip((first, second), rng(low, high, 4000, "UNIFORM", "cpu"), strict=True):
        np.testing.assert_array_equal(one, two)
    assert (first != second).mean() > 0.3
    x = first.astype(np.float64)
    if dtype is np.bool_:
        assert abs(x.mean() - 0.5) < 0.05
    else:
        whole = np.dtype(dtype).kind in "iu"
        assert x.min() >= 3 and x.max() < 7 and abs(x.mean() - (4.5 if whole else 5)) < 0.1
        assert not whole or set(x) == {3, 4, 5, 6}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_normal_numbers(dtype: type) -> None:
    mean, deviation = np.array(3, dtype), np.array(2, dtype)
    first, second = rng(mean, deviation, 4000, "NORMAL", "interpreter")
    for one, two in zip((first, second), rng(mean, deviation, 4000, "NORMAL", "cpu"), strict=True):
        np.testing.assert_allclose(one.astype(np.float64), two.astype(np.float64), rtol=1e-6)
    x = first.astype(np.float64)
    assert abs(x.mean() - 3) < 0.15 and abs(x.std() - 2) < 0.1 and np.isfinite(x).all()
    assert (first != second).mean() > 0.9


def test_there_are_no_normal_integers() -> None:
    with pytest.raises(ParseError, match="no NORMAL numbers of s32"):
        rng(np.int32(1), np.int32(2), 3, "NORMAL", "interpreter")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_approximate_top_k_is_exact(dimension: int, target: str) -> None:
    a = RANDOM.permutation(40).reshape(4, 10).astype(np.float32)
    a[1, 2] = a[1, 3] = a[2, 3]
    order = np.argsort(-a, axis=dimension, kind="stable").astype(np.int32).take(range(3), axis=dimension)
    want = np.take_along_axis(a, order, dimension)
    types = f"({kind(a)}, {kind(a.astype(np.int32))}, tensor<f32>, tensor<i32>) -> ({kind(want)}, {kind(order)})"
    text = f"""module {{
      func.func private @order(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i32>, %q: tensor<i32>) -> tensor<i1> {{
        %0 = stablehlo.compare GT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
        return %0 : tensor<i1>
      }}
      func.func public @main(%a: {kind(a)}) -> ({kind(want)}, {kind(order)}) {{
        %i = stablehlo.iota dim = {dimension} : {kind(a.astype(np.int32))}
        %n = stablehlo.constant dense<-1> : tensor<i32>
        %m = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %r:2 = stablehlo.custom_call @ApproxTopK(%a, %i, %m, %n) {{called_computations = [@order],
            mhlo.backend_config = {{reduction_dim = {dimension} : i64, top_k = 3 : i64}}}} : {types}
        return %r#0, %r#1 : {kind(want)}, {kind(order)}
      }}
    }}"""
    values, places = fusile.compile(text, target=target)(a)
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(places, order)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("narrow", "wide"), [(np.int8, np.int32), (np.uint8, np.uint16), (np.float16, np.float32),
                                              (ml_dtypes.bfloat16, np.float32)])  # fmt: skip
def test_reductions_and_scatters_in_a_wider_type(narrow: type, wide: type, target: str) -> None:
    """The body's type is the result's, and may be wider than the operand's."""
    a = np.full((3, 40), 100, narrow)
    of, to = element_type(narrow), element_type(wide)
    n, w = kind(np.zeros((), narrow)), kind(np.zeros((), wide))
    sums, windows, rows = (kind(np.zeros(s, wide)) for s in ((3,), (3, 20), (3, 40)))
    body = f"({{\n^bb0(%x: {w}, %y: {w}):\n%s = stablehlo.add %x, %y : {w}\nstablehlo.return %s : {w}\n}})"
    found = several(f"""
      %z = stablehlo.constant dense<{"0.0" if of.is_float else "0"}> : {n}
      %i = stablehlo.constant dense<[[1], [1]]> : tensor<2x1xi32>
      %u = stablehlo.slice %a [0:2, 0:40] : ({kind(a)}) -> {kind(a[:2])}
      %r = "stablehlo.reduce"(%a, %z) <{{dimensions = array<i64: 1>}}> {body} : ({kind(a)}, {n}) -> {sums}
      %w = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 1, 2>,
          window_strides = array<i64: 1, 2>}}> {body} : ({kind(a)}, {n}) -> {windows}
      %t = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> {body}
          : ({kind(a)}, tensor<2x1xi32>, {kind(a[:2])}) -> {rows}
      return %r, %w, %t : {sums}, {windows}, {rows}""", [a], [sums, windows, rows], target)  # fmt: skip
    assert [x.dtype for x in found] == [to.dtype] * 3
    np.testing.assert_array_equal(found[0], np.full(3, 4000, wide))
    np.testing.assert_array_equal(found[1], np.full((3, 20), 200, wide))
    np.testing.assert_array_equal(found[2], np.array([100, 300, 100], wide)[:, None].repeat(40, 1))
