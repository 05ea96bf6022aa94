"""Whole models compiled with frozen weights."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.base.errors
import fusile.tf


@pytest.fixture
def model():
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential(
        [tf.keras.Input((6,)), tf.keras.layers.Dense(5, activation="tanh"), tf.keras.layers.Dense(2)]
    )


X = np.random.default_rng(3).normal(size=(3, 6)).astype(np.float32)


def test_a_keras_model_keeps_the_weights_it_had(model):
    compiled = fusile.tf.compile(model, [tf.TensorSpec((3, 6))], target="interpreter")
    want = model(X).numpy()
    model.set_weights([w * 0 for w in model.get_weights()])
    np.testing.assert_allclose(compiled(X), want, rtol=1e-5, atol=1e-6)
    assert len(compiled.lower(X).module.entry.parameters) == 1


def test_a_saved_model_and_a_keras_file(model, tmp_path):
    tf.saved_model.save(model, str(tmp_path / "saved"))
    model.save(tmp_path / "model.keras")
    (from_saved,) = fusile.tf.compile(tmp_path / "saved", target="interpreter")(X).values()
    np.testing.assert_allclose(from_saved, model(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        fusile.tf.compile(tmp_path / "model.keras", target="interpreter")(X), model(X), rtol=1e-5, atol=1e-6
    )


def test_bad_models_and_signatures(model, tmp_path):
    with pytest.raises(fusile.base.errors.ArgumentError, match="no model"):
        fusile.tf.compile(3)
    with pytest.raises(fusile.base.errors.ArgumentError, match="SavedModel"):
        fusile.tf.compile(tmp_path)
    with pytest.raises(fusile.base.errors.ArgumentError, match="sizes"):
        fusile.tf.compile(model, [tf.TensorSpec((None, 6))])
