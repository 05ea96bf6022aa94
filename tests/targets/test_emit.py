"""Loops, memory and reductions of the code generator, against the loop interpreter."""

import re

import numpy as np
import pytest

from fusile.base.element_type import BF16, F16, F32, F64, PRED, S4, S8, S32, S64, U8
from fusile.base.errors import CompileError
from fusile.llvm import assembly
from fusile.loops.interpreter import run_kernel
from fusile.loops.ir import (
    Accumulate,
    Alloc,
    Apply,
    Buffer,
    Combiner,
    For,
    If,
    Kernel,
    Let,
    Load,
    LoopKind,
    Space,
    Store,
    Var,
    While,
    compare,
    const,
    select,
)
from fusile.loops.machine import Machine
from fusile.targets.cpu.emit import emit_kernel
from fusile.targets.cpu.machine import _NAMED
from fusile.targets.target import target

L = 8
i, j, k, lane = Var("i"), Var("j"), Var("k"), Var("lane")
VECTOR, UNROLLED, SERIAL, PARALLEL = LoopKind.VECTOR, LoopKind.UNROLLED, LoopKind.SERIAL, LoopKind.PARALLEL


def plus(a, b):
    return Apply("add", (a, b), S64)


def times(a, b):
    return Apply("multiply", (a, const(b)), S64)


def filled(buffer, seed):
    random = np.random.default_rng(seed)
    t = buffer.element_type
    if t.is_predicate:
        return random.integers(0, 2, buffer.dimensions).astype(bool)
    if t.is_integer:
        return random.integers(0, 7, buffer.dimensions).astype(t.dtype)
    return random.integers(-40, 40, buffer.dimensions).astype(t.dtype)


def agree(native, kernel, chunks=1):
    """Machine code and interpreter do the same to the same memory; numbers are small integers, so sums are exact."""
    arrays = [filled(b, n) for n, b in enumerate(kernel.parameters)]
    wanted = [a.copy() for a in arrays]
    run_kernel(kernel, wanted)
    native(kernel, arrays, chunks)
    for buffer, got, want in zip(kernel.parameters, arrays, wanted, strict=True):
        assert got.tobytes() == want.tobytes(), (buffer, got, want)


def over_lanes(body, active=None, kind=SERIAL, extent=3):
    """body under a vector loop under an outer loop."""
    return For(i, const(extent), (For(lane, const(L), tuple(body), VECTOR, active),), kind)


TYPES = [F32, F64, S32, S8, U8, S64, PRED, BF16, F16, S4]


@pytest.mark.parametrize("t", TYPES, ids=repr)
@pytest.mark.parametrize("stride", [0, 1, -1, 2, 3, 4, -2, -3, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_loads_at_any_distance(native, t, stride, masked):
    x, y = Buffer("x", t, (3, 60)), Buffer("y", t, (3, L))
    start = const(max(0, -stride * (L - 1)))
    load = Load(x, (i, plus(start, times(lane, stride))))
    active = plus(i, const(4)) if masked else None
    agree(native, Kernel("k", (x, y), (y,), (over_lanes([Store(y, (i, lane), load)], active),)))


@pytest.mark.parametrize("t", TYPES, ids=repr)
@pytest.mark.parametrize("stride", [1, -1, 2, -3, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_stores_at_any_distance(native, t, stride, masked):
    x, y = Buffer("x", t, (3, L)), Buffer("y", t, (3, 60))
    start = const(max(0, -stride * (L - 1)))
    store = Store(y, (i, plus(start, times(lane, stride))), Load(x, (i, lane)))
    active = plus(i, const(4)) if masked else None
    agree(native, Kernel("k", (x, y), (y,), (over_lanes([store], active),)))


def test_a_named_index_is_seen_through(native):
    x, y, at = Buffer("x", F32, (64,)), Buffer("y", F32, (64,)), Var("at")
    body = [Let(at, plus(times(i, L), lane)), Store(y, (at,), Load(x, (at,)))]
    kernel = Kernel("k", (x, y), (y,), (over_lanes(body),))
    agree(native, kernel)
    assert "gather" not in emit_kernel(kernel, target().machine)


def test_gather_by_loaded_indices(native):
    x, at, y = Buffer("x", F32, (7,)), Buffer("at", S32, (24,)), Buffer("y", F32, (24,))
    index = plus(times(i, L), lane)
    where = Apply("convert", (Load(at, (index,)),), S64)
    agree(native, Kernel("k", (x, at, y), (y,), (over_lanes([Store(y, (index,), Load(x, (where,)))]),)))


def test_all_lanes_store_to_one_element(native):
    x, y = Buffer("x", F32, (24,)), Buffer("y", F32, (3,))
    store = Store(y, (i,), Load(x, (plus(times(i, L), lane),)))
    for active in (None, const(5), plus(i, const(1)), times(i, 1)):
        agree(native, Kernel("k", (x, y), (y,), (over_lanes([store], active),)))


def test_a_dead_vector_touches_no_memory(native):
    """No lane is active: neither a far element for all lanes nor neighbours there may be read."""
    x, y, nothing = Buffer("x", F32, (1 << 41,)), Buffer("y", F32, (L,)), Buffer("nothing", S64, (1,))
    result = np.ones(L, np.float32)
    for far in (const(1 << 40), plus(const(1 << 40), lane)):
        store = Store(y, (lane,), Load(x, (far,)))
        dead = For(lane, const(L), (store,), VECTOR, Load(nothing, (const(0),)))
        kernel = Kernel("k", (x, y, nothing), (y,), (For(i, const(2), (dead,)),))
        native(kernel, [np.zeros(1, np.float32), result, np.zeros(1, np.int64)])
        assert (result == 1).all()


@pytest.mark.parametrize("offset, whole", [(0, True), (8, True), (3, False), (13, False)])
def test_masked_lanes_touch_no_memory_beyond_their_buffer(native, offset, whole):
    """Dead lanes may touch scratch memory only where a whole vector of the buffer lies."""
    scratch = Buffer("s", F32, (16,), Space.SCRATCH)
    x, y = Buffer("x", F32, (16,)), Buffer("y", F32, (16,))
    fill = For(i, const(16), (Store(scratch, (i,), Load(x, (i,))),))
    place = plus(lane, const(offset))
    some = Store(scratch, (place,), Apply("add", (Load(scratch, (place,)), const(100.0, F32)), F32))
    change = For(lane, const(L), (some,), VECTOR, const(3))
    show = For(j, const(16), (Store(y, (j,), Load(scratch, (j,))),))
    kernel = Kernel("k", (x, y), (y,), (For(k, const(1), (Alloc(scratch), fill, change, show)),))
    agree(native, kernel)
    assert ("llvm.masked.store" not in emit_kernel(kernel, Machine(vector_bytes=32))) == whole


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 12, 16])
@pytest.mark.parametrize("op", ["add", "maximum", "multiply"])
def test_lanes_join_into_one_cell(native, lanes, op):
    x, y = Buffer("x", F32, (3, 20)), Buffer("y", F32, (3,))
    identity = {"add": 0.0, "maximum": -np.inf, "multiply": 1.0}[op]
    value = (
        Load(x, (i, lane))
        if op != "multiply"
        else select(compare("gt", Load(x, (i, lane)), const(0.0, F32)), const(2.0, F32), const(-1.0, F32))
    )
    add = Accumulate(((y, (i,)),), (value,), Combiner.of(op, F32), (const(identity, F32),))
    for active in (None, plus(i, const(0))):
        loop = For(i, const(3), (For(lane, const(lanes), (add,), VECTOR, active),), PARALLEL)
        agree(native, Kernel("k", (x, y), (y,), (loop,)), chunks=2)


def test_argmax_joins_pairs(native):
    x, best, place = Buffer("x", F32, (3, 13)), Buffer("best", F32, (3,)), Buffer("place", S32, (3,))
    a, p, b, q = Var("a", F32), Var("p", S32), Var("b", F32), Var("q", S32)
    wins = Apply("or", (compare("gt", a, b), Apply("and", (compare("eq", a, b), compare("lt", p, q)), PRED)), PRED)
    combiner = Combiner((a, p), (b, q), (select(wins, a, b), select(wins, p, q)))
    at = plus(times(j, L), lane)
    step = Accumulate(
        ((best, (i,)), (place, (i,))),
        (Load(x, (i, at)), Apply("convert", (at,), S32)),
        combiner,
        (const(-np.inf, F32), const(99, S32)),
    )
    rest = Apply("subtract", (const(13), times(j, L)), S64)
    row = (
        Store(best, (i,), const(-np.inf, F32)),
        Store(place, (i,), const(99, S32)),
        For(j, const(2), (For(lane, const(L), (step,), VECTOR, rest),)),
    )
    agree(native, Kernel("k", (x, best, place), (best, place), (For(i, const(3), row, PARALLEL),)))


def test_conditions_that_differ_between_lanes(native):
    x, y, z = Buffer("x", F32, (24,)), Buffer("y", F32, (24,)), Buffer("z", F32, (3,))
    index = plus(times(i, L), lane)
    value = Load(x, (index,))
    total = Accumulate(((z, (i,)),), (value,), Combiner.of("add", F32), (const(0.0, F32),))
    inner = If(compare("gt", value, const(20.0, F32)), (Store(y, (index,), const(5.0, F32)),))
    body = If(
        compare("gt", value, const(0.0, F32)),
        (Store(y, (index,), value), total, inner),
        (Store(y, (index,), const(-1.0, F32)),),
    )
    for active in (None, plus(i, const(4))):
        agree(native, Kernel("k", (x, y, z), (y, z), (over_lanes([body], active),)))


def test_uniform_conditions_branch(native):
    x, y = Buffer("x", F32, (24,)), Buffer("y", F32, (24,))
    index = plus(times(i, L), lane)
    body = If(
        compare("eq", i, const(1)), (Store(y, (index,), Load(x, (index,))),), (Store(y, (index,), const(0.0, F32)),)
    )
    agree(native, Kernel("k", (x, y), (y,), (over_lanes([body]),)))


def test_while_in_lanes_and_outside(native):
    x, y, left = Buffer("x", S32, (24,)), Buffer("y", S32, (24,)), Buffer("left", S32, (), Space.REGISTER)
    index = plus(times(i, L), lane)
    step = (
        Store(left, (), Apply("subtract", (Load(left, ()), const(2, S32)), S32)),
        Store(y, (index,), Apply("add", (Load(y, (index,)), const(1, S32)), S32)),
    )
    loop = While(compare("gt", Load(left, ()), const(0, S32)), step)
    body = [Alloc(left), Store(left, (), Load(x, (index,))), loop]
    for active in (None, plus(i, const(4))):
        agree(native, Kernel("k", (x, y), (y,), (over_lanes(body, active),)))
    one = For(lane, const(L), tuple(body))
    agree(native, Kernel("k", (x, y), (y,), (For(i, const(3), (one,)),)))


def test_scratch_and_shared_memory(native):
    x, y = Buffer("x", F32, (4, 16)), Buffer("y", F32, (4, 16))
    row, both = Buffer("row", F32, (16,), Space.SCRATCH), Buffer("both", F32, (4, 16), Space.SHARED)
    fill = For(j, const(16), (Store(row, (j,), Load(x, (i, j))),))
    back = For(j, const(16), (Store(both, (i, j), Load(row, (Apply("subtract", (const(15), j), S64),))),))
    first = For(i, const(4), (Alloc(row), fill, back), PARALLEL)
    second = For(
        i,
        const(4),
        (For(j, const(16), (Store(y, (i, j), Load(both, (Apply("subtract", (const(3), i), S64), j))),)),),
        PARALLEL,
    )
    agree(native, Kernel("k", (x, y), (y,), (Alloc(both), first, second)), chunks=3)


def test_update_in_place(native):
    x = Buffer("x", F32, (24,))
    index = plus(times(i, L), lane)
    doubled = Apply("add", (Load(x, (index,)), Load(x, (index,))), F32)
    body = [Store(x, (index,), doubled), Store(x, (index,), Apply("add", (Load(x, (index,)), const(1.0, F32)), F32))]
    agree(native, Kernel("k", (x,), (x,), (over_lanes(body),), no_alias=False))


def test_stored_values_are_loaded_again_in_the_next_turn(native):
    x, y = Buffer("x", F32, (1,)), Buffer("y", F32, (5,))
    step = Store(x, (const(0),), Apply("add", (Load(x, (const(0),)), const(1.0, F32)), F32))
    loop = For(i, const(5), (step, Store(y, (i,), Load(x, (const(0),)))))
    before = Store(y, (const(0),), Load(x, (const(0),)))
    agree(native, Kernel("k", (x, y), (x, y), (For(k, const(1), (before, loop)),)))


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels(native, seed):
    agree(native, random_kernel(np.random.default_rng(seed)), chunks=2)


def random_kernel(random):
    """Nested loops of random kinds whose statements load and store at random linear places of small buffers."""
    t = [F32, S32, F64, S8][random.integers(4)]
    x, y = Buffer("x", t, (4000,)), Buffer("y", t, (4000,))
    acc = Buffer("acc", t, (4, L), Space.REGISTER)
    kinds = [SERIAL, UNROLLED, LoopKind.PIPELINED]
    middle = kinds[random.integers(3)]

    def place():
        a, b, c, d = random.integers(0, 40, 4)
        step = int(random.choice([0, 1, 1, 2, 5]))
        return plus(plus(times(i, int(a)), times(j, int(b))), plus(times(lane, step), const(int(c + d))))

    value = Apply("add", (Load(x, (place(),)), Load(x, (place(),))), t)
    if random.integers(2):
        value = select(compare("gt", Load(x, (place(),)), const(0, t)), value, Load(x, (place(),)))
    out = plus(plus(times(i, 200), times(j, 40)), times(lane, int(random.choice([1, 2, 3]))))
    step = Accumulate(((acc, (j, lane)),), (value,), Combiner.of("add", t), (const(0, t),))
    active = plus(j, const(int(random.integers(1, L)))) if random.integers(2) else None

    def vector(*body):
        return For(lane, const(L), body, VECTOR, active)

    clear = For(j, const(4), (For(lane, const(L), (Store(acc, (j, lane), const(0, t)),), VECTOR),), UNROLLED)
    work = For(k, const(3), (For(j, const(4), (vector(step),), middle),))
    write = For(j, const(4), (vector(Store(y, (out,), Load(acc, (j, lane)))),), middle)
    return Kernel("k", (x, y), (y,), (For(i, const(5), (Alloc(acc), clear, work, write), PARALLEL),))


def product_kernel(rows, vectors, lanes, depth=64):
    """A register tile of a product: `rows` x `vectors` accumulators."""
    a, b = Buffer("a", F32, (rows, depth)), Buffer("b", F32, (depth, vectors, lanes))
    c = Buffer("c", F32, (rows, vectors, lanes))
    acc = Buffer("acc", F32, (rows, vectors, lanes), Space.REGISTER)
    v = Var("v")

    def tile(*body):
        inner = For(v, const(vectors), (For(lane, const(lanes), body, VECTOR),), UNROLLED)
        return For(i, const(rows), (inner,), UNROLLED)

    fused = Apply("fma", (Load(a, (i, k)), Load(b, (k, v, lane)), Load(acc, (i, v, lane))), F32)
    body = (
        Alloc(acc),
        tile(Store(acc, (i, v, lane), const(0.0, F32))),
        For(k, const(depth), (tile(Store(acc, (i, v, lane), fused)),), LoopKind.PIPELINED),
        tile(Store(c, (i, v, lane), Load(acc, (i, v, lane)))),
    )
    return Kernel("tile", (a, b, c), (c,), (For(Var("task"), const(1), body, PARALLEL),))


def inner_loop(text):
    """The instructions of the assembly's block that has the most multiply-adds."""
    blocks = re.split(r"^\.L\w+:", text, flags=re.M)
    block = max(blocks, key=lambda block: len(re.findall(r"v?fmadd|fmla", block)))
    return re.split(r"^\s+(?:j\w+|b\.\w+|cbn?z.*)\s+\.L", block, flags=re.M)[0]


@pytest.mark.parametrize(
    ("name", "rows", "vectors", "lanes"), [("x86-64-v3", 6, 2, 8), ("x86-64-v4", 14, 2, 16), ("aarch64", 6, 4, 4)]
)
def test_accumulators_stay_in_registers(native, name, rows, vectors, lanes):
    kernel = product_kernel(rows, vectors, lanes)
    agree(native, kernel)
    described = target(f"cpu:{name}")
    text = assembly(emit_kernel(kernel, described.machine), described.details)
    loop = inner_loop(text)
    fused = re.findall(r"vfmadd\w+\s+.*|fmla\s+.*", loop)
    assert len(fused) % (rows * vectors) == 0 and len(fused) >= rows * vectors
    assert "sp)" not in loop and "[sp" not in loop, "an accumulator was spilled"
    register = {"x86-64-v3": "ymm", "x86-64-v4": "zmm", "aarch64": ".4s"}[name]
    assert all(register in line for line in fused)


@pytest.mark.parametrize("name", _NAMED)
def test_no_kernel_calls_a_library(name):
    """Whatever the machine lacks is written out: only memory functions may be called."""
    described = target(f"cpu:{name}")
    singles = ["exponential", "sine", "round_nearest_even", "round_nearest_afz", "fma", "maximum", "remainder"]
    for op, t in [*((op, F32) for op in singles), ("power", F64), ("floor", F64), ("sqrt", BF16), ("tanh", F16)]:
        kernel = one_op(op, t)
        text = assembly(emit_kernel(kernel, described.machine), described.details)
        called = set(re.findall(r"^\s+(?:callq?|bl|jmp|b)\s+([A-Za-z_]\w+)", text, flags=re.M))
        assert called <= {"memcpy", "memset", "memmove"}, (op, t, called)
    for source, result in [
        (F64, F16),
        (F16, F64),
        (F32, F16),
        (F32, S64),
        (F64, S8),
        (S64, F32),
        (S64, F16),
        (F32, U8),
    ]:
        text = assembly(emit_kernel(one_op("convert", source, result), described.machine), described.details)
        called = set(re.findall(r"^\s+(?:callq?|bl|jmp|b)\s+([A-Za-z_]\w+)", text, flags=re.M))
        assert not called, (source, result, called)


def one_op(op, t, result=None):
    arity = {"power": 2, "maximum": 2, "remainder": 2, "fma": 3}.get(op, 1)
    ins = tuple(Buffer(f"x{n}", t, (64,)) for n in range(arity))
    y = Buffer("y", result or t, (64,))
    index = plus(times(i, 8), lane)
    store = Store(y, (index,), Apply(op, tuple(Load(b, (index,)) for b in ins), result or t))
    scalar = For(j, const(64), (Store(y, (j,), Apply(op, tuple(Load(b, (j,)) for b in ins), result or t)),))
    return Kernel("k", (*ins, y), (y,), (over_lanes([store]), scalar))


def test_what_has_no_code_is_an_error():
    x = Buffer("x", F32, (8,))
    machine = Machine()
    nested = For(lane, const(8), (For(Var("m"), const(8), (), VECTOR),), VECTOR)
    with pytest.raises(CompileError, match="vector loop inside"):
        emit_kernel(Kernel("k", (x,), (x,), (nested,)), machine)
    large = Buffer("large", F32, (1 << 20,), Space.SCRATCH)
    with pytest.raises(CompileError, match="too large"):
        emit_kernel(Kernel("k", (x,), (x,), (For(i, const(1), (Alloc(large),)),)), machine)
    with pytest.raises(CompileError, match="outside its scope"):
        emit_kernel(Kernel("k", (x,), (x,), (Store(x, (j,), const(0.0, F32)),)), machine)
    with pytest.raises(CompileError, match="no code for"):
        emit_kernel(
            Kernel("k", (x,), (x,), (Store(x, (const(0),), Apply("nonsense", (const(0.0, F32),), F32)),)), machine
        )
