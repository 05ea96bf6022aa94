"""Our own transcendental functions as machine code, against f64 references (f32 and narrower) and mpmath (f64)."""

import math

import mpmath
import numpy as np
import pytest
import scipy.special

from fusile.base.element_type import BF16, F16, F32, F64, S64
from fusile.loops.ir import Apply, Buffer, For, Kernel, Load, LoopKind, Store, Var, const
from fusile.loops.math import DOUBLE, OWN_TYPE

REFERENCES = {
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: np.where(x < 0, np.exp(x) / (1 + np.exp(x)), 1 / (1 + np.exp(-x))),
    "tanh": np.tanh,
    "sine": np.sin,
    "cosine": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": lambda x: np.copysign(scipy.special.erfinv(x), x),
    "lgamma": lambda x: np.where(np.isinf(x), np.inf, scipy.special.gammaln(x)),
    "digamma": lambda x: np.where(x == -np.inf, np.nan, scipy.special.digamma(x)),
    "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": lambda x: np.copysign(scipy.special.i1e(x), x),
}
EXACT = {
    "exponential": (mpmath.exp, 1.0),
    "log": (mpmath.log, 1.0),
    "tanh": (mpmath.tanh, 2.0),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-x)), 2.0),
    "erf": (mpmath.erf, 1.0),
    "erfc": (mpmath.erfc, 2.0),
    "sine": (mpmath.sin, 1.5),
    "cosine": (mpmath.cos, 1.5),
    "exponential_minus_one": (mpmath.expm1, 2.0),
    "log_plus_one": (mpmath.log1p, 2.0),
    "atan": (mpmath.atan, 2.0),
    "asin": (mpmath.asin, 2.0),
    "sinh": (mpmath.sinh, 2.0),
    "cosh": (mpmath.cosh, 2.0),
    "tan": (mpmath.tan, 3.0),
}
"""In f64: the function with 100 bits and the allowed error in units in the last place."""
LANES = 8


def apply(native, op, t, *arrays):
    """The op on arrays, once on vectors and once element by element: the same bits."""
    count = len(arrays[0])
    assert count % LANES == 0
    ins = [Buffer(f"x{i}", t, (count,)) for i in range(len(arrays))]
    out, single = Buffer("y", t, (count,)), Buffer("z", t, (count,))
    block, lane, i = Var("block"), Var("lane"), Var("i")
    index = Apply("add", (Apply("multiply", (block, const(LANES)), S64), lane), S64)
    body = Store(out, (index,), Apply(op, tuple(Load(b, (index,)) for b in ins), t))
    vector = For(block, const(count // LANES), (For(lane, const(LANES), (body,), LoopKind.VECTOR),), LoopKind.PARALLEL)
    one = For(i, const(count), (Store(single, (i,), Apply(op, tuple(Load(b, (i,)) for b in ins), t)),))
    results = [np.zeros(count, t.dtype) for _ in range(2)]
    native(Kernel("k", (*ins, out, single), (out, single), (vector, one)), [*arrays, *results])
    a, b = results
    assert ((a == b) | ((a != a) & (b != b))).all()
    return a


def units_off(got, wanted, t):
    """Errors in units in the last place of `t`; where either is not finite, 0 if they agree and infinity if not."""
    with np.errstate(all="ignore"):
        near = wanted.astype(t.dtype)
        step = np.maximum(
            np.spacing(np.abs(near)).astype(np.float64), float(np.nextafter(t.dtype.type(0), t.dtype.type(1)))
        )
        error = np.abs(got.astype(np.float64) - wanted) / step
        finite = np.isfinite(near.astype(np.float64)) & np.isfinite(got.astype(np.float64))
        agree = (got == near) | ((got != got) & (near != near))
        overflows = (
            ~finite
            & ~agree
            & (np.abs(got.astype(np.float64)) >= float(np.finfo(t.dtype).max if t in (F32, F64) else 6e4))
        )
    return np.where(finite, error, np.where(agree | overflows, 0, np.inf))


def every_exponent(count=1 << 16):
    """f32 numbers of all exponents and signs, infinities and NaNs among them."""
    bits = np.arange(0, 1 << 32, (1 << 32) // count, dtype=np.uint64)
    return (
        (bits + np.random.default_rng(0).integers(0, (1 << 32) // count, count).astype(np.uint64))
        .astype(np.uint32)
        .view(np.float32)
    )


def test_every_function_has_a_reference():
    assert {*OWN_TYPE, *DOUBLE} - {*REFERENCES} == {"power", "atan2", "remainder", "next_after", "clamp"}


@pytest.mark.parametrize("op", REFERENCES)
def test_f32_is_within_two_units_over_all_exponents(native, op):
    random = np.random.default_rng(1)
    moderate = np.concatenate([random.normal(0, s, 1 << 13) for s in (0.1, 1, 10, 100)]).astype(np.float32)
    x = np.concatenate([every_exponent(), moderate])
    with np.errstate(all="ignore"):
        wanted = REFERENCES[op](x.astype(np.float64))
    off = units_off(apply(native, op, F32, x), wanted, F32)
    worst = int(np.argmax(off))
    assert off[worst] <= 2, (x[worst], wanted[worst], off[worst])


@pytest.mark.parametrize("t", [F16, BF16], ids=repr)
@pytest.mark.parametrize(
    "op", ["exponential", "log", "tanh", "logistic", "erf", "sine", "cosine", "rsqrt", "log_plus_one", "cbrt"]
)
def test_every_16_bit_float(native, op, t):
    x = np.arange(1 << 16, dtype=np.uint16).view(t.dtype)
    with np.errstate(all="ignore"):
        wanted = REFERENCES[op](x.astype(np.float64)).astype(t.dtype)
    got = apply(native, op, t, x)
    one_apart = np.abs(order(got) - order(wanted)) <= 1
    assert (one_apart | ((got != got) & (wanted != wanted))).all()


def order(x):
    """Numbers that count floats in order, -0 and 0 as one."""
    bits = x.view(np.int16).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("op", EXACT)
def test_f64_against_mpmath(native, op):
    random = np.random.default_rng(2)
    x = np.concatenate(
        [
            random.normal(0, 1, 120),
            random.normal(0, 30, 40),
            random.uniform(-1, 1, 32),
            np.exp(random.uniform(-30, 6, 64)),
        ]
    )
    x = np.abs(x) if op == "log" else np.clip(x, -0.999, None) if op == "log_plus_one" else x
    x = np.clip(x, -1, 1) if op == "asin" else x
    function, allowed = EXACT[op]
    got = apply(native, op, F64, x)
    with mpmath.workprec(200):
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            exact = function(mpmath.mpf(value))
            step = math.ulp(abs(float(exact)))
            assert abs(mpmath.mpf(result) - exact) <= allowed * step, (value, result, float(exact))


def test_sine_of_huge_f64(native):
    x = np.array([1e15, 1e22, 1.7976931348623157e308, -3e200, 2.0**1023, 6381956970095103 * 2.0**797, 1e16, -1e18])
    got = apply(native, "sine", F64, x)
    with mpmath.workprec(1500):
        wanted = [float(mpmath.sin(mpmath.mpf(v))) for v in x.tolist()]
    assert np.allclose(got, wanted, rtol=4e-16, atol=0)


EDGES = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324]


@pytest.mark.parametrize("t", [F32, F64], ids=repr)
@pytest.mark.parametrize("op", [op for op in REFERENCES if op not in ("lgamma", "digamma")])
def test_edges_as_numpy(native, op, t):
    x = np.array(EDGES).astype(t.dtype)
    with np.errstate(all="ignore"):
        wanted = REFERENCES[op](x.astype(np.float64)).astype(t.dtype)
    got = apply(native, op, t, x)
    assert (units_off(got, wanted.astype(np.float64), t) <= 2).all(), (got, wanted)
    zeros = (wanted == 0) & (got == 0)
    assert (np.signbit(got) == np.signbit(wanted))[zeros].all(), (got, wanted)


def grid(t):
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-30, -1e30, 1.5]
    a, b = np.meshgrid(values, values)
    random = np.random.default_rng(3).normal(0, 20, (2, 512))
    return np.concatenate([a.ravel(), random[0]]).astype(t.dtype), np.concatenate([b.ravel(), random[1]]).astype(
        t.dtype
    )


@pytest.mark.parametrize("t", [F32, F64], ids=repr)
@pytest.mark.parametrize(("op", "function"), [("power", np.power), ("atan2", np.arctan2)])
def test_functions_of_two(native, op, function, t):
    x, y = grid(t)
    if op == "power":
        x[256:] = np.abs(x[256:])
    with np.errstate(all="ignore"):
        wanted = function(x.astype(np.float64), y.astype(np.float64))
    got = apply(native, op, t, x, y)
    assert (units_off(got, wanted, t) <= 2).all()
    assert (np.signbit(got) == np.signbit(wanted))[wanted == 0].all()


def test_remainder_of_far_apart_numbers(native):
    random = np.random.default_rng(4)
    x = (random.normal(size=256) * np.exp(random.uniform(-600, 600, 256))).astype(np.float64)
    y = (random.normal(size=256) * np.exp(random.uniform(-600, 600, 256))).astype(np.float64)
    assert (apply(native, "remainder", F64, x, y) == np.fmod(x, y)).all()
