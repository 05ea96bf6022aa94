"""What kernels compute and move, counted by hand; and the machine's peaks, which they are set beside."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import fusile
from fusile.base.settings import Settings
from fusile.compiler.roofline import Peak, peak
from fusile.runtime.program import Kernel

HEAD = """HloModule counted
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
take { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GE }
ENTRY main {
"""


def only_kernel(body: str, settings: Settings) -> Kernel:
    (kernel,) = fusile.compile(HEAD + body + "\n}", settings=settings).kernels
    return kernel


@pytest.mark.parametrize(
    ("body", "flops", "read", "written"),
    [
        ("x = f32[8,4] parameter(0)\n ROOT y = f32[8,4] tanh(x)", 32, 128, 128),
        (
            "x = f32[8,4] parameter(0)\n y = f32[4,6] parameter(1)\n"
            " ROOT z = f32[8,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            2 * 8 * 6 * 4, 128 + 96, 192,
        ),
        (
            "x = c64[8,4] parameter(0)\n y = c64[4,6] parameter(1)\n"
            " ROOT z = c64[8,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            8 * 8 * 6 * 4, 256 + 192, 384,
        ),
        (
            "x = f32[8,4] parameter(0)\n z = f32[] constant(0)\n"
            " ROOT s = f32[8] reduce(x, z), dimensions={1}, to_apply=add",
            32, 128, 32,
        ),
        (
            "x = f32[100,4] parameter(0)\n i = s32[3,1] parameter(1)\n"
            " ROOT g = f32[3,4] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},"
            " index_vector_dim=1, slice_sizes={1,4}",
            0, 48 + 12, 48,
        ),
        (
            "x = f32[100,4] parameter(0)\n ROOT s = f32[5,4] slice(x), slice={[7:12], [0:4]}", 0, 80, 80,
        ),
        (
            "x = f32[100,4] parameter(0)\n u = f32[2,4] parameter(1)\n i = s32[] parameter(2)\n z = s32[] constant(0)\n"
            " ROOT y = f32[100,4] dynamic-update-slice(x, u, i, z)",
            0, 32 + 4, 32,
        ),
        ("x = f32[3,5,5] parameter(0)\n ROOT c = f32[3,5,5] cholesky(x), lower=true", 125, 300, 300),
        (
            "a = f32[5,5] parameter(0)\n b = f32[5,2] parameter(1)\n ROOT x = f32[5,2] triangular-solve(a, b),"
            " left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE",
            50, 140, 40,
        ),
        ("x = c64[6,8] parameter(0)\n ROOT y = c64[6,8] fft(x), fft_type=FFT, fft_length={8}", 5 * 6 * 8 * 3, 384, 384),
    ],
)  # fmt: skip
def test_counts(body: str, flops: int, read: int, written: int, settings: Settings) -> None:
    kernel = only_kernel(body, settings)
    # Small constant operands (starts, zeros) are read too.
    assert kernel.flops == flops and kernel.bytes_written == written
    assert read <= kernel.bytes_read <= read + 8


def test_convolutions_count_every_multiply_add(settings: Settings) -> None:
    body = (
        "x = f32[1,9,9,4] parameter(0)\n w = f32[3,3,4,8] parameter(1)\n"
        " ROOT y = f32[1,7,7,8] convolution(x, w), window={size=3x3}, dim_labels=b01f_01io->b01f\n}"
    )
    kernels = fusile.compile(HEAD + body, settings=settings).kernels
    assert sum(k.flops for k in kernels) == 2 * 49 * 8 * 36


def test_the_whole_operand_counts_when_something_else_reads_it(settings: Settings) -> None:
    body = (
        "x = f32[100] parameter(0)\n s = f32[10] slice(x), slice={[0:10]}\n z = f32[] constant(0)\n"
        " r = f32[] reduce(x, z), dimensions={0}, to_apply=add\n b = f32[10] broadcast(r), dimensions={}\n"
        " ROOT y = f32[10] add(s, b)"
    )
    kernels = fusile.compile(HEAD + body + "\n}", settings=settings).kernels
    assert sum(k.bytes_read for k in kernels) >= 400


def test_peaks_are_measured_once_and_kept(settings: Settings) -> None:
    found = peak(settings)
    assert found.threads == 2
    # Any processor since 2010 does a thousandth of this machine's figures, none a thousand times as much.
    assert 1e8 < found.flops < 1e15 and 1e8 < found.bytes < 1e13
    (kept,) = settings.cache_directory.glob("peak-*.json")
    assert json.loads(kept.read_text())["flops"] == found.flops
    kept.write_text(json.dumps({"flops": 1.0, "bytes": 2.0, "threads": 2}))
    assert peak(settings) == found, "read once a process"


def test_a_damaged_file_of_peaks_is_measured_anew(settings: Settings) -> None:
    settings = replace(settings, threads=1)
    settings.cache_directory.mkdir(parents=True)
    found = peak(settings)
    (kept,) = settings.cache_directory.glob("peak-*.json")
    kept.write_text("{")
    from fusile.compiler import roofline

    roofline._peak.cache_clear()
    assert peak(settings).flops > 1e8 and json.loads(kept.read_text())["threads"] == found.threads


def test_the_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    machine = Peak(flops=1e9, bytes=1e9, threads=1)
    busy, idle = Kernel("k", ("dot",), 4000, 500, 500), Kernel("k", ("copy",), 0, 500, 500)
    assert machine.seconds(busy) == 4e-6 and machine.bound(busy) == "arithmetic"
    assert machine.seconds(idle) == 1e-6 and machine.bound(idle) == "memory"
