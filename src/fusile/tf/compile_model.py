"""Compiles whole models for inference: weights become constants of the program, packed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from fusile.base.errors import ArgumentError
from fusile.tf.jit import CompiledFunction, Options


def compile(model: Any, input_signature: Sequence[tf.TensorSpec] | None = None, *, numerics: str = "exact",
            threads: int | None = None, target: str = "cpu") -> CompiledFunction:  # fmt: skip
    """A function of the model's inputs with the weights it has now.

    `model` is a Keras model or layer, a `tf.Module` or other callable, or the path of a SavedModel or `.keras` file.
    With `input_signature`, whose shapes must be known, it is compiled at once, otherwise at the first call with each
    shape. Keras models run with `training=False`.

    Raises ArgumentError for what is no model, UnsupportedOpError for ops that can't be compiled.
    """
    compiled = CompiledFunction(inference_function(model), Options(True, numerics, threads, target))
    if input_signature is not None:
        compiled.executable(*input_signature)
    return compiled


def inference_function(model: Any) -> Callable[..., Any]:
    """What to call for a model's predictions."""
    if isinstance(model, (str, os.PathLike)):
        return _from_path(Path(model))
    if isinstance(model, tf.keras.layers.Layer):
        return _keras_function(model)
    if callable(model):
        return model  # type: ignore[no-any-return]
    raise ArgumentError(
        f"{type(model).__name__} is no model", hint="give a Keras model, a callable, or the path of a saved model"
    )


def _keras_function(model: Any) -> Callable[..., Any]:
    def predict(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    predict.__name__ = model.name
    return tf.autograph.experimental.do_not_convert(predict)  # type: ignore[no-any-return]


def _from_path(path: Path) -> Callable[..., Any]:
    if path.suffix in (".keras", ".h5") and path.is_file():
        return _keras_function(tf.keras.models.load_model(path))
    if not (path / "saved_model.pb").is_file():
        raise ArgumentError(f"{path} is no SavedModel directory and no .keras file")
    loaded = tf.saved_model.load(str(path))
    if "serving_default" in loaded.signatures:
        return _signature_function(loaded, loaded.signatures["serving_default"])
    if callable(loaded):
        return loaded  # type: ignore[no-any-return]
    raise ArgumentError(
        f"the SavedModel in {path} has no serving_default signature", hint="export the model with a signature"
    )


def _signature_function(loaded: Any, signature: Any) -> Callable[..., Any]:
    """Takes a signature's named inputs by position, too, in the order that the SavedModel lists them."""
    names = list(signature.structured_input_signature[1])

    def serve(*inputs: Any, **named: Any) -> Any:
        serve.keeps_alive = loaded  # type: ignore[attr-defined]
        return signature(**dict(zip(names, inputs, strict=False)), **named)

    return tf.autograph.experimental.do_not_convert(serve)  # type: ignore[no-any-return]
