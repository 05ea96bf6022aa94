"""The whole compiler against the interpreter: results, kernel counts, bits, and what must not bring the process
down."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import programs
import pytest

import fusile
from fusile.base.element_type import BF16, F16, F64, S8, S32, U8
from fusile.base.settings import Settings
from fusile.compiler.cache import program_cache
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.memory.places import aligned
from fusile.runtime.program import parts_of


def arguments(module: Module, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    result = []
    for p in module.entry.parameters:
        s = p.array_shape
        values = random.standard_normal(s.sizes) * 3
        result.append(values.astype(s.element_type.dtype))
    return result


def check(
    module: Module, settings: Settings, tolerance: float = 2e-5, given: list[np.ndarray] | None = None
) -> fusile.Executable:
    given = arguments(module) if given is None else given
    executable = fusile.compile(module, settings=settings)
    expected = interpret(module, given)
    actual = executable.call_flat(given)
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype
        np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=tolerance, atol=tolerance)
    return executable


ROWS = [(1, 1), (1, 7), (5, 1), (3, 33), (7, 100), (2, 1000), (130, 16)]


@pytest.mark.parametrize("r, c", ROWS)
@pytest.mark.parametrize(
    "make", [programs.softmax, programs.log_sum_exp, programs.layer_norm_gelu, programs.sum_and_argmax]
)
def test_row_programs_are_one_kernel(make, r, c, settings) -> None:
    executable = check(make(r, c), settings)
    assert len(executable.kernels) <= 1 or c == 1


@pytest.mark.parametrize(
    "make", [programs.softmax, programs.log_sum_exp, programs.layer_norm_gelu, programs.sum_and_argmax]
)
def test_kernels_read_their_input_once(make, settings) -> None:
    (kernel,) = fusile.compile(make(64, 256), settings=settings).kernels
    extra = 2 * 256 * 4 if make is programs.layer_norm_gelu else 0
    assert kernel.bytes_read == 64 * 256 * 4 + extra


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 100, 4096, 200_001, 300_000])
def test_sums_of_any_length_are_one_kernel(size, settings) -> None:
    assert len(check(programs.sum_of_squares(size), settings, 1e-4).kernels) == 1


@pytest.mark.parametrize("r, c", [(1, 1), (3, 5), (300, 10), (5000, 3), (1000, 129)])
def test_column_sums(r, c, settings) -> None:
    check(programs.column_sums(r, c), settings, 1e-3)


@pytest.mark.parametrize(
    "m, n, k",
    [
        (1, 1, 1),
        (1, 10, 64),
        (5, 7, 3),
        (6, 16, 8),
        (49, 50, 33),
        (7, 17, 1),
        (13, 100, 257),
        (130, 48, 70),
        (64, 256, 512),
    ],
)
def test_products_of_odd_sizes(m, n, k, settings) -> None:
    check(programs.dense(m, n, k), settings, 1e-3)


@pytest.mark.parametrize("of", [F64, F16, BF16, S32, S8, U8])
def test_products_of_every_type(of, settings) -> None:
    tolerance = {F16: 5e-3, BF16: 4e-2}.get(of, 1e-9)
    module = programs.dense(13, 21, 17, of)
    random = np.random.default_rng(0)
    given = [random.integers(0, 5, p.array_shape.sizes).astype(of.dtype) for p in module.entry.parameters]
    check(module, settings, tolerance, given)


@pytest.mark.parametrize("times", [0, 1, 2, 9])
def test_loops_move_their_state_at_once(times, settings) -> None:
    check(programs.counted_loop(times, 37), settings)


def test_special_values_come_through(settings) -> None:
    x = np.array([[np.nan, 1.0, 2.0], [np.inf, 1.0, 0.0], [-np.inf, -np.inf, -np.inf], [-0.0, 0.0, 1e-40]], np.float32)
    module = programs.softmax(4, 3)
    actual = fusile.compile(module, settings=settings)(x)
    np.testing.assert_allclose(actual, interpret(module, [x])[0], rtol=1e-6)


def test_same_bits_for_every_number_of_threads(settings) -> None:
    for make in (
        programs.sum_of_squares(300_000),
        programs.column_sums(3000, 40),
        programs.dense(200, 96, 300),
        programs.softmax(500, 700),
    ):
        given = arguments(make)
        one = fusile.compile(make, settings=replace(settings, threads=1)).call_flat(given)
        two = fusile.compile(make, settings=settings)
        for _ in range(5):
            for a, b in zip(one, two.call_flat(given), strict=True):
                assert a.tobytes() == b.tobytes()


def test_calls_from_many_threads(settings) -> None:
    module = programs.dense(120, 64, 200)
    executable = fusile.compile(module, settings=settings)
    inputs = [arguments(module, seed) for seed in range(8)]
    expected = [executable.call_flat(i)[0].tobytes() for i in inputs]
    wrong = []

    def work(n: int) -> None:
        for _ in range(30):
            if executable.call_flat(inputs[n])[0].tobytes() != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_forked_child_computes_too(settings) -> None:
    module = programs.softmax(500, 700)
    executable = fusile.compile(module, settings=settings)
    given = arguments(module)
    expected = executable.call_flat(given)[0].tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if all(executable.call_flat(given)[0].tobytes() == expected for _ in range(20)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [np.zeros((3, 4), np.float32)] * 2,
        [np.zeros((3, 4), np.float64)],
        [np.zeros((4, 3), np.float32)],
        [np.zeros(12, np.float32)],
        [1.0],
        [None],
    ],
)
def test_wrong_arguments_are_refused(wrong, settings) -> None:
    executable = fusile.compile(programs.softmax(3, 4), settings=settings)
    with pytest.raises(fusile.ArgumentError, match=r"softmax|x"):
        executable(*wrong)


def test_any_memory_order_is_taken(settings) -> None:
    module = programs.softmax(6, 10)
    x = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    executable = fusile.compile(module, settings=settings)
    expected = executable(np.ascontiguousarray(x.T))
    x.flags.writeable = False
    np.testing.assert_array_equal(executable(x.T), expected)
    np.testing.assert_array_equal(executable(x.T.astype(">f4")), expected)
    wide = np.zeros((6, 20), np.float32)
    wide[:, ::2] = x.T
    np.testing.assert_array_equal(executable(wide[:, ::2]), expected)


def test_results_outlive_later_calls(settings) -> None:
    module = programs.softmax(64, 128)
    executable = fusile.compile(module, settings=settings)
    first = executable(*arguments(module, 1))
    kept = first.copy()
    for seed in range(5):
        executable(*arguments(module, seed))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_empty_arrays(sizes, settings) -> None:
    check(programs.layer_norm_gelu(*sizes) if sizes[1] else programs.column_sums(*sizes), settings)


def test_what_is_no_program_is_refused(settings, tmp_path) -> None:
    with pytest.raises(fusile.ParseError):
        fusile.compile("this is\nno program", settings=settings)
    with pytest.raises(fusile.ArgumentError, match="no file"):
        fusile.compile(tmp_path / "missing.hlo", settings=settings)


def test_texts_of_every_stage(settings) -> None:
    executable = fusile.compile(programs.softmax(4, 8), settings=settings)
    assert "exponential" in executable.text("hlo") and "fusion" in executable.text("optimized")
    assert "parallel" in executable.text("loops") and "define" in executable.text("llvm")
    assert "fused" in executable.text("decisions") and "ret" in executable.text("asm")
    parts = [parts_of(executable.text(stage)) for stage in ("llvm", "asm")]
    assert [list(p) for p in parts] == [[executable.kernels[0].code, "entry"]] * 2
    with pytest.raises(fusile.ArgumentError, match="stage"):
        executable.text("nothing")


def test_assembly_needs_a_compiler_but_nothing_that_is_not_kept(settings, tmp_path) -> None:
    module = programs.softmax(4, 8)
    made = fusile.compile(module, settings=settings).text("asm")
    program_cache.clear_memory()
    from_disk = fusile.compile(module, settings=settings)
    assert not from_disk.compile_times and from_disk.text("asm") == made
    from_disk.save(tmp_path / "softmax.fusile")
    with pytest.raises(fusile.ArgumentError, match="compile its source"):
        fusile.load(tmp_path / "softmax.fusile").text("asm")


@pytest.mark.parametrize(
    "module", [programs.dense(33, 70, 20), programs.counted_loop(3, 9), programs.column_sums(8, 5)]
)
def test_the_timeline_adds_up_to_the_memory(module, settings) -> None:
    def check_sums(executable) -> None:
        lives = executable.program.lives
        assert sum(aligned(life.bytes) for life in lives) == executable.memory.temp_unshared
        ends = [life.offset + aligned(life.bytes) for life in lives if life.space == "arena"]
        assert max(ends, default=0) == executable.memory.temp
        assert {k.name for k in executable.kernels} <= set(executable.program.timeline)

    check_sums(fusile.compile(module, settings=settings))
    program_cache.clear_memory()
    check_sums(fusile.compile(module, settings=settings))


def test_a_dump_has_every_pass_that_changed_something_and_their_times(settings, tmp_path) -> None:
    settings = replace(settings, dump=str(tmp_path / "dump"))
    executable = fusile.compile(programs.softmax(4, 8), settings=settings)
    folder = tmp_path / "dump" / "softmax"
    files = {p.name for p in folder.glob("*.hlo")}
    assert files == {"000-input.hlo", *(r.dumped for r in executable.passes if r.changed)}
    table = (folder / "passes.txt").read_text()
    assert all(r.name in table and r.dumped in table for r in executable.passes) and "total" in table
