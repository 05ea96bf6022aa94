"""Programs whose temporaries are compared: a residual network, a Transformer's training step, an LSTM, its gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def resnet(parameters: list, x: jax.Array) -> jax.Array:
    """ResNet-50 for inference, batch norms with given statistics."""
    rest = iter(parameters)

    def block(x: jax.Array, stride: int = 1, relu: bool = True) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, next(rest), (stride, stride), "SAME", dimension_numbers=dimensions)
        scale, offset, mean, variance = (next(rest) for _ in range(4))
        y = (y - mean) * lax.rsqrt(variance + 1e-3) * scale + offset
        return jax.nn.relu(y) if relu else y

    x = lax.reduce_window(block(x, 2), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for stage, (_, blocks) in enumerate(STAGES):
        for number in range(blocks):
            stride = 2 if number == 0 and stage else 1
            y = block(block(block(x, stride)), relu=False)
            x = jax.nn.relu(y + (block(x, stride, relu=False) if number == 0 else x))
    return jax.nn.softmax(jnp.mean(x, (1, 2)) @ next(rest) + next(rest))


def resnet_parameters() -> list:
    found: list = []

    def block(kernel: int, inputs: int, outputs: int) -> None:
        found.extend([shape(kernel, kernel, inputs, outputs), *[shape(outputs)] * 4])

    block(7, 3, 64)
    channels = 64
    for width, blocks in STAGES:
        for number in range(blocks):
            for kernel, inputs, outputs in ((1, channels, width), (3, width, width), (1, width, 4 * width)):
                block(kernel, inputs, outputs)
            if number == 0:
                block(1, channels, 4 * width)
            channels = 4 * width
    return [*found, shape(2048, 1000), shape(1000)]


def layer_norm(x: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + offset


def encoder(p: dict, x: jax.Array, heads: int = 8) -> jax.Array:
    batch, length, width = x.shape

    def split(weights: jax.Array) -> jax.Array:
        return (
            (layer_norm(x, *p["first"]) @ weights).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
        )

    q, k, v = (split(p[name]) for name in ("q", "k", "v"))
    scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // heads)))
    x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, width) @ p["o"]
    return x + jax.nn.gelu(layer_norm(x, *p["second"]) @ p["up"]) @ p["down"]


def loss(p: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    for layer in p["layers"]:
        x = encoder(layer, x)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(x @ p["out"]), y[..., None], -1)
    return -jnp.mean(chosen)


def train(state: tuple, x: jax.Array, y: jax.Array) -> tuple:
    """One step of Adam."""
    p, m, v = state
    value, g = jax.value_and_grad(loss)(p, x, y)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    p = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v)
    return (p, m, v), value


def train_arguments(batch: int = 8, length: int = 128, d: int = 256) -> tuple:
    norm = (shape(d), shape(d))
    square = {name: shape(d, d) for name in ("q", "k", "v", "o")}
    layer = {"first": norm, "second": norm, **square, "up": shape(d, 4 * d), "down": shape(4 * d, d)}
    p = {"layers": [layer, layer], "out": shape(d, 1000)}
    return (p, p, p), shape(batch, length, d), jax.ShapeDtypeStruct((batch, length), jnp.int32)


def lstm(w: jax.Array, u: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    def cell(state: Any, now: jax.Array) -> Any:
        h, c = state
        i, f, g, o = jnp.split(now @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]), jnp.float32)
    return lax.scan(cell, (zero, zero), x)[1]


def lstm_gradient(w: jax.Array, u: jax.Array, b: jax.Array, x: jax.Array) -> Any:
    return jax.grad(lambda *weights: lstm(*weights, x).sum(), (0, 1, 2))(w, u, b)


LSTM_ARGUMENTS = (shape(128, 1024), shape(256, 1024), shape(1024), shape(64, 32, 128))
PROGRAMS = {
    "ResNet-50, batch 8": (resnet, (resnet_parameters(), shape(8, 224, 224, 3)), ()),
    "2-layer Transformer, Adam step": (train, train_arguments(), ()),
    "2-layer Transformer, Adam step, donated": (train, train_arguments(), (0,)),
    "LSTM over 64 steps": (lstm, LSTM_ARGUMENTS, ()),
    "LSTM over 64 steps, gradient": (lstm_gradient, LSTM_ARGUMENTS, ()),
}
"""Name -> function, arguments' shapes, donated arguments."""
