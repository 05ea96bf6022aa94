"""Keras models under TensorFlow, TensorFlow + XLA and Fusile: whether they agree, latency and compile time, in a table.

usage: python bench/models.py [NAME ...] [--train] [--batch 1] [--size 64] [--seconds 1] [--kernels 5] [--no-xla]
Without names, all of them. Figures are the least of many calls, in milliseconds; run it with nothing else on the
machine. `error` is the largest difference from TensorFlow's results, relative to the largest value. With --train it is
that of the loss or, where larger, the norm of all weights' difference after one step of SGD, relative to how far the
step moved them. Weight by weight it means nothing: biases before batch normalization have no gradient but rounding.
Deep models with random weights magnify rounding, so this finds gross faults only: TensorFlow's own gradients of
ResNet50 are several percent from f64's.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import fusile.tf

TOLERANCE = 1e-3
TRAINING_TOLERANCE = 0.05

SIZES = {
    **dict.fromkeys(["VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2"], 32),
    **dict.fromkeys(["ResNet152V2", "MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"], 32),
    **dict.fromkeys(["DenseNet121", "DenseNet169", "DenseNet201", "NASNetMobile", "NASNetLarge"], 32),
    **dict.fromkeys([f"EfficientNetB{n}" for n in range(8)], 32),
    **dict.fromkeys([f"EfficientNetV2{n}" for n in ("B0", "B1", "B2", "B3", "S", "M", "L")], 32),
    **dict.fromkeys([f"ConvNeXt{n}" for n in ("Tiny", "Small", "Base", "Large")], 32),
    **dict.fromkeys(["Xception"], 71),
    **dict.fromkeys(["InceptionV3", "InceptionResNetV2"], 75),
}
"""Architectures of `keras.applications`, with the least height and width of an image that each takes."""


@dataclass
class Figures:
    """What was measured of one model. Times are in milliseconds, compile time in seconds."""

    error: float
    latencies: dict[str, float]
    compile_seconds: float
    kernels: str = ""


def build(name: str, size: int | None) -> Any:
    """The model with random weights, batch normalization's statistics among them."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    side = max(size or 0, SIZES[name])
    options = {"weights": None, "input_shape": (side, side, 3), "classes": 10, "classifier_activation": None}
    model = getattr(keras.applications, name)(**options)
    random = np.random.default_rng(0)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            for variable in (layer.gamma, layer.moving_variance):
                if variable is not None:
                    variable.assign(random.uniform(0.5, 1.5, variable.shape))
            for variable in (layer.beta, layer.moving_mean):
                if variable is not None:
                    variable.assign(random.normal(0, 0.1, variable.shape))
    return model


def training_step(model: Any, optimizer: Any) -> Callable[..., Any]:
    """One step on a batch, with its loss."""
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def difference(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    return float(np.max(np.abs(got - want), initial=0) / (np.max(np.abs(want), initial=0) + 1e-12))


def step_difference(got: list[Any], want: list[Any], before: list[Any]) -> float:
    """How far apart two steps' variables are, relative to how far the second moved them; infinite for NaN in one."""
    if any(not np.array_equal(np.isfinite(g), np.isfinite(w)) for g, w in zip(got, want, strict=True)):
        return float("inf")
    apart = sum(float(np.sum((g.astype(float) - w) ** 2)) for g, w in zip(got, want, strict=True))
    moved = sum(float(np.sum((w.astype(float) - b) ** 2)) for w, b in zip(want, before, strict=True))
    return (apart / max(moved, 1e-30)) ** 0.5


def latency(function: Callable[..., Any], arguments: list[Any], seconds: float) -> float:
    """The least time of a call, in milliseconds."""
    function(*arguments)
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        function(*arguments).numpy()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best * 1e3


def program(name: str, options: argparse.Namespace) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """What is timed: a function, its arguments, and the variables that it assigns."""
    model = build(name, options.size)
    random = np.random.default_rng(1)
    x = tf.constant(random.normal(size=(options.batch, *model.input_shape[1:])).astype("float32"))
    if not options.train:
        return lambda x: model(x, training=False), [x], []
    optimizer = keras.optimizers.SGD(0.01)
    step = training_step(model, optimizer)
    return step, [x, tf.constant(random.integers(0, 10, options.batch))], [*model.trainable_variables]


def measure(name: str, options: argparse.Namespace) -> Figures:
    """Compares and times one model."""
    function, arguments, variables = program(name, options)
    ours = fusile.tf.jit(function, freeze=not options.train)
    engines = {"TensorFlow": tf.function(function)}
    if options.xla:
        engines["TF + XLA"] = tf.function(function, jit_compile=True)
    engines["Fusile"] = ours
    before = [v.numpy() for v in variables]
    want, wanted = engines["TensorFlow"](*arguments), [v.numpy() for v in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    start = time.perf_counter()
    executable = ours.executable(*arguments)
    seconds = time.perf_counter() - start
    error = difference(ours(*arguments), want)
    if variables:
        error = max(error, step_difference([v.numpy() for v in variables], wanted, before))
    latencies = {engine: latency(f, arguments, options.seconds) for engine, f in engines.items()}
    return Figures(error, latencies, seconds, kernels_of(executable, options.kernels) if options.kernels else "")


def kernels_of(executable: Any, count: int) -> str:
    """The kernels that took longest, on zeros."""
    zeros = [np.zeros(p.sizes, p.dtype) for p in executable.program.parameters[: executable._count]]
    return "\n".join(str(executable.profile(*zeros)).splitlines()[: count + 1])


def row(name: str, found: Figures, tolerance: float) -> list[str]:
    """A model's row of the table."""
    times = found.latencies
    peer = min(t for engine, t in times.items() if engine != "Fusile")
    return [
        name,
        "yes" if found.error <= tolerance else "NO",
        f"{found.error:.1e}",
        *(f"{times[e]:.2f} ms" if e in times else "" for e in ("TensorFlow", "TF + XLA", "Fusile")),
        f"{peer / times['Fusile']:.2f}x",
        f"{found.compile_seconds:.1f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--train", action="store_true", help="a training step instead of inference")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, help="height and width of images; the least that the model takes otherwise")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each engine repeats a model")
    parser.add_argument("--kernels", type=int, default=0, help="print so many of Fusile's longest kernels")
    parser.add_argument("--no-xla", dest="xla", action="store_false", help="leave TF + XLA out")
    options = parser.parse_args()
    console = Console(width=140)
    table = Table("model", "agrees", "error", "TensorFlow", "TF + XLA", "Fusile", "better peer / Fusile", "compiles in")
    for name in options.names or list(SIZES):
        try:
            with console.status(f"compiling and timing {name}"):
                found = measure(name, options)
        except fusile.FusileError as error:
            table.add_row(name, "fails", type(error).__name__)
            console.print(f"{name}: {error}", markup=False)
            continue
        table.add_row(*row(name, found, TRAINING_TOLERANCE if options.train else TOLERANCE))
        if found.kernels:
            console.print(f"{name}\n{found.kernels}", highlight=False, markup=False)
        gc.collect()
    console.print(table)


if __name__ == "__main__":
    main()
