"""Images, Fourier transforms and fake quantization agree with TensorFlow's own kernels."""

import numpy as np
import pytest
import tensorflow as tf

import fusile.tf

RANDOM = np.random.default_rng(0)
IMAGES = tf.constant(RANDOM.uniform(size=(2, 7, 9, 3)).astype(np.float32))
SIZES = ((14, 18), (3, 4), (7, 9), (10, 5), (1, 1))


def same(function, *arguments, close: float = 2e-5) -> None:
    got, wanted = (tf.nest.flatten(f(*arguments)) for f in (fusile.tf.jit(function), function))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=close, atol=close)


@pytest.mark.parametrize("method", ["bilinear", "nearest", "bicubic", "area", "lanczos3", "gaussian", "mitchellcubic"])
def test_resizing(method: str) -> None:
    def resize(x):
        return [tf.image.resize(x, s, method, antialias=a) for s in SIZES for a in (False, True)]

    same(resize, IMAGES)


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("op", ["ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"])
def test_resizing_and_its_gradient(op: str, flags: tuple[bool, bool]) -> None:
    def both(x):
        results = []
        for size in SIZES[:2]:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = getattr(tf.raw_ops, op)(images=x, size=size, align_corners=flags[0], half_pixel_centers=flags[1])
                total = tf.reduce_sum(y**2)
            results += [y, tape.gradient(total, x)]
        return results

    same(both, IMAGES, close=1e-4)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crops(method: str) -> None:
    boxes = tf.constant(RANDOM.uniform(-0.2, 1.2, size=(5, 4)).astype(np.float32))
    for size in ((4, 5), (1, 1), (8, 2)):
        same(lambda x, b, s=size: tf.image.crop_and_resize(x, b, [0, 1, 0, 1, 1], s, method, 3.0), IMAGES, boxes)


def test_colours() -> None:
    same(lambda x: (tf.image.rgb_to_hsv(x), tf.image.hsv_to_rgb(x)), IMAGES)
    same(lambda x: (tf.image.rgb_to_hsv(x), tf.image.hsv_to_rgb(x)), tf.zeros((2, 2, 3)))

    def adjusted(x):
        return (
            tf.image.adjust_contrast(x, 1.7),
            tf.image.adjust_hue(x, 0.3),
            tf.image.adjust_hue(x, -0.6),
            tf.image.adjust_saturation(x, 0.4),
            tf.image.adjust_saturation(x, 3.0),
        )

    same(adjusted, IMAGES, close=3e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_patches(padding: str) -> None:
    same(lambda x: tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 1, 1], [1, 1, 2, 1], padding), IMAGES)
    volumes = tf.reshape(IMAGES, (2, 7, 3, 3, 3))
    same(lambda x: tf.extract_volume_patches(x, [1, 2, 2, 2, 1], [1, 2, 1, 1, 1], padding), volumes)


def test_suppression_of_overlapping_boxes() -> None:
    boxes, scores = (tf.constant(RANDOM.uniform(size=s).astype(np.float32)) for s in ((40, 4), (40,)))

    def padded(b, s):
        return tf.image.non_max_suppression_padded(b, s, 10, 0.4, 0.2, pad_to_max_output_size=True)

    same(padded, boxes, scores)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 12, 16, 64])
def test_transforms(length: int) -> None:
    x = tf.constant(RANDOM.uniform(size=(3, 4, length)).astype(np.float32))

    def transformed(x):
        c = tf.complex(x, x[::-1])
        return (
            tf.signal.rfft(x), tf.signal.rfft2d(x), tf.signal.fft(c), tf.signal.ifft(c), tf.signal.fft2d(c),
            tf.signal.fft3d(c), tf.signal.irfft(tf.signal.rfft(x), [length]), tf.signal.rfft(x, [length + 3]),
        )  # fmt: skip

    same(transformed, x, close=1e-4)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_fake_quantization(bits: int, narrow: bool) -> None:
    x = tf.constant(RANDOM.uniform(-8, 8, size=(50, 4)).astype(np.float32))
    q = tf.quantization

    def forward_and_back(x):
        low, high = tf.constant([-1.0, -2, -3, -0.1]), tf.constant([1.0, 2, 0.5, 4])
        with tf.GradientTape() as tape:
            tape.watch([x, low, high])
            each = q.fake_quant_with_min_max_vars_per_channel(x, low, high, bits, narrow)
            fixed = q.fake_quant_with_min_max_args(x, -3, 5.5, bits, narrow)
            total = tf.reduce_sum(each**2 + fixed)
        return (
            each,
            fixed,
            q.fake_quant_with_min_max_vars(x, -3.3, 6.0, bits, narrow),
            tape.gradient(total, [x, low, high]),
        )

    same(forward_and_back, x, close=1e-4)
