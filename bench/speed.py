"""Latency of a set of TensorFlow programs under TensorFlow, TensorFlow+XLA and Fusile, in one run, as a table of
ratios.

usage: python bench/speed.py [--only NAME,NAME] [--seconds 2] [--json FILE]
Figures are the least of many calls, in milliseconds; run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import fusile.tf

Function = Callable[..., Any]


def random(*sizes: int, scale: float = 1.0) -> tf.Tensor:
    values = np.random.default_rng(sum(sizes)).standard_normal(sizes) * scale
    return tf.constant(values.astype("float32"))


def perceptron(x: tf.Tensor) -> tf.Tensor:
    for inner, outer in ((784, 1024), (1024, 1024), (1024, 10)):
        x = tf.nn.relu(x @ random(inner, outer, scale=0.03) + random(outer))
    return x


def normalized(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.gelu((x - mean) * tf.math.rsqrt(variance + 1e-5) * random(1024) + random(1024))


def network(name: str) -> Function:
    tf.keras.utils.set_random_seed(0)
    model = getattr(tf.keras.applications, name)(weights=None)
    return lambda x: model(x, training=False)


PROGRAMS: dict[str, Callable[[], tuple[Function, tf.Tensor]]] = {
    "sum": lambda: (lambda x: tf.reduce_sum(tf.square(x) + 1), random(1 << 24)),
    "sum+argmax": lambda: (lambda x: tf.reduce_sum(x, 1) + tf.cast(tf.argmax(x, 1), tf.float32), random(4096, 4096)),
    "softmax": lambda: (tf.nn.softmax, random(8192, 1024)),
    "layer norm, gelu": lambda: (normalized, random(8192, 1024)),
    "product 1024": lambda: (lambda x: x @ random(1024, 1024, scale=0.03), random(1024, 1024)),
    "perceptron, batch 1": lambda: (perceptron, random(1, 784)),
    "perceptron, batch 256": lambda: (perceptron, random(256, 784)),
    "ResNet-50": lambda: (network("ResNet50"), random(1, 224, 224, 3)),
    "MobileNetV2": lambda: (network("MobileNetV2"), random(1, 224, 224, 3)),
}


def latency(function: Function, x: tf.Tensor, seconds: float) -> float:
    """The least time of a call, in milliseconds."""
    function(x)
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        function(x).numpy()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best * 1e3


def measure(function: Function, x: tf.Tensor, seconds: float) -> dict[str, float]:
    engines = {
        "TensorFlow": tf.function(function),
        "TF + XLA": tf.function(function, jit_compile=True),
        "Fusile": fusile.tf.jit(function, freeze=True),
    }
    expected = np.asarray(engines["TensorFlow"](x))
    error = float(np.max(np.abs(np.asarray(engines["Fusile"](x)) - expected)) / (np.max(np.abs(expected)) + 1e-9))
    return {**{name: latency(f, x, seconds) for name, f in engines.items()}, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each engine repeats a program")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(PROGRAMS)
    results: dict[str, dict[str, float]] = {}
    table = Table("program", "TensorFlow", "TF + XLA", "Fusile", "better peer / Fusile", "largest error")
    console = Console()
    for name in chosen:
        with console.status(f"compiling and timing {name}"):
            function, x = PROGRAMS[name]()
            r = results[name] = measure(function, x, options.seconds)
        peer = min(r["TensorFlow"], r["TF + XLA"])
        table.add_row(
            name,
            *(f"{r[e]:.2f} ms" for e in ("TensorFlow", "TF + XLA", "Fusile")),
            f"{peer / r['Fusile']:.2f}x",
            f"{r['error']:.1e}",
        )
    console.print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
