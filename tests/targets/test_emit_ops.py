"""Every scalar op of every element type: machine code against the op's meaning in NumPy, bit for bit."""

import numpy as np
import pytest

from fusile.base.element_type import ALL, BF16, F8E8M0FNU, F16, F32, F64, PRED, S4, S8, S32, S64, U4, U8, U32, U64, Kind
from fusile.hlo.opset import numerics
from fusile.loops.ir import Apply, Buffer, For, Kernel, Load, LoopKind, Store, Var, const
from fusile.loops.math.number import Number
from fusile.loops.math.rounding import ROUNDING
from fusile.loops.scalar_ops import OPS, scalar_op

LANES = 8
KINDS = (Kind.PREDICATE, Kind.SIGNED, Kind.UNSIGNED, Kind.FLOAT)
INTEGERS = [t for t in ALL if t.is_integer]
FLOATS = [t for t in ALL if t.is_float]
FLOAT_UNARY = [
    "abs",
    "negate",
    "sign",
    "floor",
    "ceil",
    "round_nearest_even",
    "round_nearest_afz",
    "trunc",
    "sqrt",
    "is_finite",
]
FLOAT_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "copysign",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "remainder",
]
INTEGER_UNARY = ["abs", "negate", "sign", "not", "popcnt", "count_leading_zeros"]
INTEGER_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "remainder",
    "maximum",
    "minimum",
    "and",
    "or",
    "xor",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]
PREDICATE_BINARY = ["and", "or", "xor", "add", "multiply", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum"]


def values(t, count=400):
    """Edge values, then random bits, as arrays of a type."""
    random = np.random.default_rng(len(t.name))
    if t.is_predicate:
        return random.integers(0, 2, count).astype(bool)
    if t.is_integer:
        low, high = (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.is_signed else (0, (1 << t.bits) - 1)
        edges = [low, high, 0, 1, min(high, 2), max(low, -1), low + 1, high - 1]
        wide = random.integers(low, high, count - 8 - 100, dtype=np.int64 if t.is_signed else np.uint64, endpoint=True)
        small = random.integers(max(low, -70), min(high, 70), 100)
        return np.concatenate([np.array(edges, wide.dtype), wide, small.astype(wide.dtype)]).astype(t.dtype)
    edges = np.array(
        [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, 1.5, -2.5, 3.4e38, 1e-40, -1e-45, 2.0, 65504, 1e300]
    )
    raw = random.integers(0, 256, (count - 116, t.bytes), dtype=np.uint8)
    if t.bits < 8:
        raw &= (1 << t.bits) - 1
    near = random.normal(0, 3, 100)
    with np.errstate(all="ignore"):
        parts = [edges.astype(t.dtype), raw.view(t.dtype)[:, 0], near.astype(t.dtype)]
    return np.concatenate(parts)


def pairs(t, count=400):
    """All pairs of edges, then random ones."""
    a, b = values(t, count), values(t, count)[::-1].copy()
    edges = a[:16]
    grid = np.meshgrid(edges, edges)
    return np.concatenate([grid[0].ravel(), a]), np.concatenate([grid[1].ravel(), b])


def elementwise(ops, inputs, count):
    """A kernel that applies ops (name, result type, constant arguments), each vectorized with a masked tail and once
    more one element at a time. All outputs follow the inputs, two an op."""
    parameters = [Buffer(f"x{n}", t, (count,)) for n, t in enumerate(inputs)]
    block, lane, i = Var("block"), Var("lane"), Var("i")
    start = Apply("multiply", (block, const(LANES)), S64)
    rest = Apply("subtract", (const(count), start), S64)
    outputs, vectors, ones = [], [], []
    for n, (op, result, extra) in enumerate(ops):
        out, scalar_out = Buffer(f"y{n}", result, (count,)), Buffer(f"z{n}", result, (count,))
        outputs += [out, scalar_out]
        for stores, buffer, index in ((vectors, out, Apply("add", (start, lane), S64)), (ones, scalar_out, i)):
            value = Apply(op, (*(Load(p, (index,)) for p in parameters), *extra), result)
            stores.append(Store(buffer, (index,), value))
    vector = For(lane, const(LANES), tuple(vectors), LoopKind.VECTOR, rest)
    blocks = For(block, const(-(-count // LANES)), (vector,), LoopKind.PARALLEL)
    return Kernel("k", (*parameters, *outputs), tuple(outputs), (blocks, For(i, const(count), tuple(ones))))


def check(native, op, arrays, types, result, extra=()):
    check_all(native, [(op, result, extra)], arrays, types)


def check_all(native, ops, arrays, types):
    count = len(arrays[0])
    outs = [np.zeros(count, result.dtype) for _, result, _ in ops for _ in range(2)]
    native(elementwise(ops, types, count), [*arrays, *outs], chunks=2)
    for n, (op, result, extra) in enumerate(ops):
        constants = (np.full(count, c.value, c.element_type.dtype) for c in extra)
        wanted = scalar_op(op)(result, *arrays, *constants)
        for got in outs[2 * n : 2 * n + 2]:
            compare(op, result, arrays, got, wanted)


def compare(op, result, arrays, got, wanted):
    same = bits(got, result) == bits(wanted, result)
    if result.is_float:
        same |= is_nan(got) & is_nan(wanted)
    if op == "next_after":
        same |= (got == 0) & (wanted == 0)  # NumPy keeps the first zero's sign in f16, the second's in f32
    if result.bits < 8 and result.is_float:  # NaN, which these types lack, becomes a zero of either sign
        same |= is_nan(scalar_op(op)(F32, *(a.astype(np.float32) for a in arrays)))
    wrong = np.flatnonzero(~same)[:5]
    assert not len(wrong), (op, result, [(tuple(a[w] for a in arrays), got[w], wanted[w]) for w in wrong])


def results(ops, t):
    return [(op, PRED if OPS[op].is_predicate else t, ()) for op in ops]


def bits(x, t):
    return x.view(np.dtype(f"u{t.bytes}"))


def is_nan(x):
    return x != x


@pytest.mark.parametrize("t", FLOATS, ids=repr)
def test_unary_ops_of_floats(native, t):
    check_all(native, results(FLOAT_UNARY, t), [values(t)], [t])


@pytest.mark.parametrize("t", FLOATS, ids=repr)
def test_binary_ops_of_floats(native, t):
    check_all(native, results(FLOAT_BINARY, t), list(pairs(t)), [t, t])


@pytest.mark.parametrize("t", INTEGERS, ids=repr)
def test_unary_ops_of_integers(native, t):
    check_all(native, results(INTEGER_UNARY, t), [values(t)], [t])


@pytest.mark.parametrize("t", INTEGERS, ids=repr)
def test_binary_ops_of_integers(native, t):
    check_all(native, results(INTEGER_BINARY, t), list(pairs(t)), [t, t])


@pytest.mark.parametrize("t", INTEGERS, ids=repr)
def test_powers_of_integers(native, t):
    a, b = pairs(t)
    count = len(a)
    vector, scalar = np.zeros(count, t.dtype), np.zeros(count, t.dtype)
    native(elementwise([("power", t, ())], [t, t], count), [a, b, vector, scalar])
    wanted = numerics.widened(numerics.power)(a, b)
    assert (bits(vector, t) == bits(wanted, t)).all() and (bits(scalar, t) == bits(wanted, t)).all()


def test_ops_of_predicates(native):
    check_all(native, results(PREDICATE_BINARY, PRED), list(pairs(PRED)), [PRED, PRED])
    check(native, "not", [values(PRED)], [PRED], PRED)


@pytest.mark.parametrize("source", [t for t in ALL if t.kind in KINDS], ids=repr)
def test_conversions(native, source):
    wanted = [t for t in ALL if t.kind in KINDS]
    if source is F8E8M0FNU:  # ml_dtypes has no such casts to compare with
        wanted = [t for t in wanted if t is source or not t.is_float or t.bits > 8]
    elif source.is_float and source.bits <= 8:
        wanted.remove(F8E8M0FNU)
    check_all(native, [("convert", t, ()) for t in wanted], [values(source)], [source])


@pytest.mark.parametrize(
    ("source", "result"), [(F32, S32), (U32, F32), (F64, U64), (F16, BF16), (S8, U8), (S4, U4)], ids=repr
)
def test_bitcasts(native, source, result):
    check(native, "bitcast", [values(source)], [source], result)


@pytest.mark.parametrize("t", [F32, F64, F16, BF16, S32], ids=repr)
def test_select_and_clamp(native, t):
    a, b = pairs(t)
    flags = np.random.default_rng(1).integers(0, 2, len(a)).astype(bool)
    check(native, "select", [flags, a, b], [PRED, t, t], t)
    low, high = OPS["minimum"](t, a, b), OPS["maximum"](t, a, b)
    check(native, "clamp", [low, a[::-1].copy(), high], [t, t, t], t)


@pytest.mark.parametrize("t", [F32, F64], ids=repr)
def test_fused_multiply_add_rounds_once(native, t):
    a, b = pairs(t)
    with np.errstate(all="ignore"):
        check(native, "fma", [a, b, (-(a * b)).astype(t.dtype)], [t, t, t], t)
        check(native, "fma", [a, b, a[::-1].copy()], [t, t, t], t)


@pytest.mark.parametrize("t", [F32, F64, F16, BF16], ids=repr)
def test_total_order_next_after_and_reduced_precision(native, t):
    integer = {16: ALL[ALL.index(S8) + 1], 32: S32, 64: S64}[t.bits]
    check(native, "total_order_key", [values(t)], [t], integer)
    check(native, "next_after", list(pairs(t)), [t, t], t)
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (8, 23), (2, 1), (11, 52)):
        check(native, "reduce_precision", [values(t)], [t], t, (const(exponent, S32), const(mantissa, S32)))


def test_index_division_rounds_down(native):
    a = values(S64)
    a = np.where(np.abs(a.astype(float)) > 2.0**62, a >> 2, a)
    for divisor in (1, 2, 3, 7, 64, 1000):
        for op in ("floor_divide", "modulo"):
            check(native, op, [a], [S64], S64, (const(divisor),))


def test_rounding_without_an_instruction_for_it():
    """What is written out for machines that lack it, computed in NumPy."""

    class Writer:
        def apply(self, op, arguments, result):
            return scalar_op(op)(result, *np.broadcast_arrays(*arguments))

        def constant(self, number, element_type):
            return np.asarray(number, element_type.dtype)

    for t in (F32, F64):
        x = np.concatenate(
            [
                values(t),
                np.arange(-9, 9, 0.25).astype(t.dtype),
                np.array([2.0**23 + 0.5, 2.0**22 + 0.5, 2.0**52 + 0.5], t.dtype),
            ]
        )
        for op, function in ROUNDING.items():
            got, wanted = function(Number(Writer(), x, t)).value, scalar_op(op)(t, x)
            assert ((bits(got, t) == bits(wanted, t)) | (is_nan(got) & is_nan(wanted))).all(), op
