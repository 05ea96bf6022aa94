"""The main job on real programs: the article's two functions and Keras ResNet-50, beside TensorFlow and TensorFlow+XLA.

usage: python examples/demo.py [--quick] [--batch N] [--cached]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import fusile.tf

Function = Callable[..., Any]
ROUNDS = 4


@dataclass
class Program:
    """One row of the table: a function of tensors, and its arguments."""

    name: str
    function: Function
    arguments: list[tf.Tensor]


@dataclass
class Result:
    """What was measured of one program: seconds of a call for each engine, and Fusile's own figures."""

    tensorflow: float
    xla: float
    fusile: float
    first_xla: float
    first_fusile: float
    kernels: int
    temporary_bytes: int
    difference: float


def sum_of_squares(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(x) + 1)


def sum_and_argmax(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, 1) + tf.cast(tf.argmax(x, 1), tf.float32)


def programs(quick: bool, batch: int) -> list[Program]:
    rows = 512 if quick else 4096
    random = np.random.default_rng(0)
    vector = tf.constant(random.standard_normal(rows * 4096).astype("float32"))
    matrix = tf.constant(random.standard_normal((rows, 4096)).astype("float32"))
    images = tf.constant(random.standard_normal((batch, 224, 224, 3)).astype("float32"))
    tf.keras.utils.set_random_seed(0)
    network = tf.keras.applications.ResNet50(weights=None)
    return [
        Program(f"reduce_sum(square(x) + 1), {rows * 4096:,}", sum_of_squares, [vector]),
        Program(f"reduce_sum(x, 1) + argmax(x, 1), {rows}x4096", sum_and_argmax, [matrix]),
        Program(f"Keras ResNet-50, batch {batch}", lambda x: network(x, training=False), [images]),
    ]


def first_call(function: Function, arguments: list[tf.Tensor]) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    result = np.asarray(function(*arguments))
    return result, time.perf_counter() - start


def latency(function: Function, arguments: list[tf.Tensor], seconds: float) -> float:
    """The least time of a call, of as many calls as fit in `seconds` (three at least)."""
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        function(*arguments).numpy()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def latencies(functions: list[Function], arguments: list[tf.Tensor], seconds: float) -> list[float]:
    """The least time of each function's calls, in turns, so that other programs slow all of them alike."""
    rounds = [[latency(f, arguments, seconds / ROUNDS) for f in functions] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def measure(program: Program, seconds: float) -> Result:
    plain = tf.function(program.function)
    xla = tf.function(program.function, jit_compile=True)
    compiled = fusile.tf.jit(program.function, freeze=True)
    expected, _ = first_call(plain, program.arguments)
    _, first_xla = first_call(xla, program.arguments)
    actual, first_fusile = first_call(compiled, program.arguments)
    executable = compiled.executable(*program.arguments)
    least = latencies([plain, xla, compiled], program.arguments, seconds)
    return Result(
        tensorflow=least[0],
        xla=least[1],
        fusile=least[2],
        first_xla=first_xla,
        first_fusile=first_fusile,
        kernels=len(executable.kernels),
        temporary_bytes=executable.memory.temp,
        difference=float(np.max(np.abs(actual - expected)) / np.max(np.abs(expected))),
    )


def table_of(rows: list[tuple[Program, Result]]) -> Table:
    table = Table(title="Latency of one call, least of many; first call with compilation", title_justify="left")
    table.add_column("program")
    for column in ("TensorFlow", "TF + XLA", "Fusile", "speed-up over the better", "kernels", "temporaries",
                   "first call XLA", "first call Fusile", "largest difference"):  # fmt: skip
        table.add_column(column, justify="right")
    for program, r in rows:
        table.add_row(
            program.name,
            f"{r.tensorflow * 1e3:.2f} ms",
            f"{r.xla * 1e3:.2f} ms",
            f"{r.fusile * 1e3:.2f} ms",
            f"{min(r.tensorflow, r.xla) / r.fusile:.2f}x",
            str(r.kernels),
            f"{r.temporary_bytes / 2**20:.1f} MiB",
            f"{r.first_xla:.2f} s",
            f"{r.first_fusile:.2f} s",
            f"{r.difference:.1e}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller arrays and fewer calls")
    parser.add_argument("--batch", type=int, default=1, help="images a call of ResNet-50 (default 1)")
    parser.add_argument(
        "--cached", action="store_true", help="allow the on-disk cache (compile times are then those of loading)"
    )
    options = parser.parse_args()
    if not options.cached:
        os.environ["FUSILE_CACHE"] = "0"
    console = Console(width=None if os.isatty(1) else 200)
    rows = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("building the programs", total=None)
        for program in programs(options.quick, options.batch):
            progress.update(task, description=f"compiling and timing {program.name}")
            rows.append((program, measure(program, 0.5 if options.quick else 3.0)))
    console.print(table_of(rows))
    console.print(
        "largest difference: |Fusile - TensorFlow| over the largest |TensorFlow|. Weights are frozen for Fusile."
    )


if __name__ == "__main__":
    main()
