"""Images: resizing by known weights, cropping, colours, patches, suppression of overlapping boxes.

Resizing of a known size is two small products, one a dimension, with weight matrices made when compiling; where every
row has one or two weights it is a gather instead, so that its cost does not grow with the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fusile.base.element_type import F32, S32
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.tf.context import Context, shape_of
from fusile.tf.convert.indexing import take
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

CUBIC = {False: -0.75, True: -0.5}
"""The cubic kernel's parameter, by half_pixel_centers."""
CUBIC_STEPS = 1024
"""TensorFlow rounds cubic weights' positions to a table of so many."""


# -- resizing ----------------------------------------------------------------------------------------------------------


def _scale(size: int, new: int, align: bool) -> np.float32:
    return np.float32((size - 1) / (new - 1)) if align and new > 1 else np.float32(size / new)


def _centers(size: int, new: int, align: bool, half: bool) -> np.ndarray:
    """Where each new pixel lies in the old image, computed in f32 as TensorFlow does."""
    scale = _scale(size, new, align)
    place = np.arange(new, dtype=np.float32)
    return (place + np.float32(0.5)) * scale - np.float32(0.5) if half else place * scale


def _nearest(size: int, new: int, align: bool, half: bool) -> np.ndarray:
    scale = _scale(size, new, align)
    place = np.arange(new, dtype=np.float32)
    at = (place + np.float32(0.5)) * scale if half else place * scale
    found = np.floor(at + np.float32(0.5)) if align else np.floor(at)
    return np.clip(found, 0, size - 1).astype(np.int64)


def _linear(size: int, new: int, align: bool, half: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two old pixels of each new one, and how far it is towards the second."""
    at = _centers(size, new, align, half)
    floor = np.floor(at)
    low = np.maximum(floor, 0).astype(np.int64)
    high = np.minimum(np.ceil(at), size - 1).astype(np.int64)
    return np.minimum(low, size - 1), np.maximum(high, 0), (at - floor).astype(np.float32)


def _cubic(size: int, new: int, align: bool, half: bool) -> np.ndarray:
    """Weights [new, size]. With half-pixel centers, weights beyond the edge are dropped and the rest scaled up."""
    a, matrix = CUBIC[half], np.zeros((new, size))
    for row, at in enumerate(_centers(size, new, align, half).astype(np.float32)):
        base = math.floor(at)
        offset = int(np.rint(np.float32(at - np.float32(base)) * CUBIC_STEPS)) / CUBIC_STEPS
        weights = [_cubic_weight(a, abs(tap - offset)) for tap in (-1, 0, 1, 2)]
        places = [base + tap for tap in (-1, 0, 1, 2)]
        if half:
            inside = [0 <= p < size for p in places]
            weights = [w if ok else 0.0 for w, ok in zip(weights, inside, strict=True)]
            total = sum(weights)
            if abs(total) >= 1000 * np.finfo(np.float32).tiny:
                weights = [w / total for w in weights]
        for place, weight in zip(places, weights, strict=True):
            matrix[row, min(max(place, 0), size - 1)] += weight
    return matrix


def _cubic_weight(a: float, x: float) -> float:
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _area(size: int, new: int, align: bool) -> np.ndarray:
    """Weights [new, size]: how much of each old pixel a new one covers."""
    scale, matrix = float(_scale(size, new, align)), np.zeros((new, size))
    for row in range(new):
        begin, end = row * scale, (row + 1) * scale
        for place in range(math.floor(begin), math.ceil(end)):
            covered = min(place + 1, end) - max(place, begin)
            matrix[row, min(max(place, 0), size - 1)] += covered / scale
    return matrix


def _apply(b: Builder, x: Instruction, matrix: np.ndarray, axis: int) -> Instruction:
    """x with `axis` replaced by the rows of a matrix [new, size]."""
    of = x.array_shape.element_type
    rank = x.array_shape.rank
    weights = b.constant(matrix, of)
    moved = b.dot(x, weights, (), (), (axis,), (1,))
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return b.transpose(moved, order)


def _at(b: Builder, x: Instruction, places: np.ndarray, axis: int) -> Instruction:
    if np.array_equal(places, np.arange(x.array_shape.sizes[axis])):
        return x
    return take(b, x, b.constant(places, S32), axis)


def _between(b: Builder, x: Instruction, size: int, new: int, axis: int, flags: tuple[bool, bool]) -> Instruction:
    """x resized along an axis by linear interpolation."""
    low, high, part = _linear(size, new, *flags)
    first, second = _at(b, x, low, axis), _at(b, x, high, axis)
    share = b.broadcast(b.constant(part, F32), first.array_shape.sizes, (axis,))
    return b.add(first, b.multiply(b.subtract(second, first), share))


def _flags(node: Node) -> tuple[bool, bool]:
    return bool(node.attribute("align_corners")), bool(node.attribute("half_pixel_centers"))


def _sizes(context: Context, inputs: list[Value]) -> tuple[tuple[int, int], tuple[int, int]]:
    new = context.integers(inputs[1], "the new size")
    return inputs[0].sizes[1:3], (new[0], new[1])


@converter("ResizeNearestNeighbor")
def resize_nearest(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (rows, columns), (new_rows, new_columns) = _sizes(context, inputs)
    b, flags = context.builder, _flags(node)
    x = _at(b, inputs[0].instruction, _nearest(rows, new_rows, *flags), 1)
    return _at(b, x, _nearest(columns, new_columns, *flags), 2)


@converter("ResizeBilinear")
def resize_bilinear(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (rows, columns), (new_rows, new_columns) = _sizes(context, inputs)
    b, flags = context.builder, _flags(node)
    x = b.convert(inputs[0].instruction, F32)
    return _between(b, _between(b, x, columns, new_columns, 2, flags), rows, new_rows, 1, flags)


@converter("ResizeBicubic")
def resize_bicubic(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (rows, columns), (new_rows, new_columns) = _sizes(context, inputs)
    b, flags = context.builder, _flags(node)
    x = _apply(b, b.convert(inputs[0].instruction, F32), _cubic(rows, new_rows, *flags), 1)
    return _apply(b, x, _cubic(columns, new_columns, *flags), 2)


@converter("ResizeArea")
def resize_area(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    (rows, columns), (new_rows, new_columns) = _sizes(context, inputs)
    b, align = context.builder, bool(node.attribute("align_corners"))
    x = _apply(b, b.convert(inputs[0].instruction, F32), _area(rows, new_rows, align), 1)
    return _apply(b, x, _area(columns, new_columns, align), 2)


def _linear_matrix(size: int, new: int, flags: tuple[bool, bool]) -> np.ndarray:
    low, high, part = _linear(size, new, *flags)
    matrix, row = np.zeros((new, size)), np.arange(new)
    np.add.at(matrix, (row, low), 1 - part)
    np.add.at(matrix, (row, high), part)
    return matrix


@converter("ResizeBilinearGrad", "ResizeBicubicGrad")
def resize_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    gradient, original = inputs
    b, flags = context.builder, _flags(node)
    matrix = _cubic if node.type == "ResizeBicubicGrad" else None
    x = gradient.instruction
    for axis in (1, 2):
        size, new = original.sizes[axis], gradient.sizes[axis]
        weights = matrix(size, new, *flags) if matrix else _linear_matrix(size, new, flags)
        x = _apply(b, x, weights.T, axis)
    return b.convert(x, original.element_type)


@converter("ResizeNearestNeighborGrad")
def resize_nearest_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    gradient = inputs[0]
    b, flags, x = context.builder, _flags(node), gradient.instruction
    for axis, size in zip((1, 2), context.integers(inputs[1], "the size"), strict=True):
        new = gradient.sizes[axis]
        matrix = np.zeros((size, new))
        matrix[_nearest(size, new, *flags), np.arange(new)] = 1
        x = _apply(b, x, matrix, axis)
    return x


KERNELS: dict[str, tuple[float, Callable[[float], float]]] = {
    "lanczos1": (1.0, lambda x: _lanczos(1.0, x)),
    "lanczos3": (3.0, lambda x: _lanczos(3.0, x)),
    "lanczos5": (5.0, lambda x: _lanczos(5.0, x)),
    "gaussian": (1.5, lambda x: math.exp(-x * x / 0.5) if x < 1.5 else 0.0),
    "box": (0.5, lambda x: 1.0 if x < 0.5 else 0.5 if x == 0.5 else 0.0),
    "triangle": (1.0, lambda x: max(0.0, 1.0 - x)),
    "keyscubic": (2.0, lambda x: _cubic_weight(-0.5, x)),
    "mitchellcubic": (2.0, lambda x: _mitchell(x)),
}
"""Resampling kernels by TensorFlow's names: the radius, and the weight at a distance."""


def _lanczos(radius: float, x: float) -> float:
    if x > radius:
        return 0.0
    if x <= 1e-3:
        return 1.0
    return radius * math.sin(math.pi * x) * math.sin(math.pi * x / radius) / (math.pi * math.pi * x * x)


def _mitchell(x: float) -> float:
    if x >= 2:
        return 0.0
    if x >= 1:
        return (((-7 / 18) * x + 2) * x - 10 / 3) * x + 16 / 9
    return ((7 / 6) * x - 2) * x * x + 8 / 9


def _resampled(size: int, new: int, scale: float, translation: float, kernel: str, antialias: bool) -> np.ndarray:
    """Weights [new, size]; pixels whose center lies outside of the image have none."""
    radius, weight = KERNELS[kernel]
    single = np.float32
    inverse = single(1.0 / scale)
    moved = single(-inverse * single(translation))
    wide = max(inverse, single(1)) if antialias else single(1)
    reach = single(radius) * wide
    matrix = np.zeros((new, size))
    for row in range(new):
        center = single(row + 0.5) * inverse + moved
        if center < 0 or center > size:
            continue
        first = min(max(math.ceil(center - reach - single(0.5)), 0), size - 1)
        last = min(max(math.floor(center + reach - single(0.5)), 0), size - 1)
        weights = [weight(abs(float((single(p + 0.5) - center) / wide))) for p in range(first, last + 1)]
        total = sum(weights)
        if abs(total) >= 1000 * np.finfo(single).tiny:
            matrix[row, first : last + 1] = np.array(weights) / total
    return matrix


def _resampling(
    context: Context, node: Node, sizes: Sequence[int], new: Sequence[int], given: list[Value]
) -> list[np.ndarray]:
    scale, translation = (context.constant(v, w) for v, w in zip(given, ("scale", "translation"), strict=True))
    kernel, antialias = node.attribute("kernel_type"), bool(node.attribute("antialias"))
    return [_resampled(sizes[d], new[d], float(scale[d]), float(translation[d]), kernel, antialias) for d in range(2)]


@converter("ScaleAndTranslate")
def scale_and_translate(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    sizes, new = _sizes(context, inputs)
    b, x = context.builder, context.builder.convert(inputs[0].instruction, F32)
    for axis, weights in enumerate(_resampling(context, node, sizes, new, inputs[2:])):
        x = _apply(b, x, weights, 1 + axis)
    return x


@converter("ScaleAndTranslateGrad")
def scale_and_translate_gradient(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    gradient, original = inputs[:2]
    b, x = context.builder, gradient.instruction
    found = _resampling(context, node, original.sizes[1:3], gradient.sizes[1:3], inputs[2:])
    for axis, weights in enumerate(found):
        x = _apply(b, x, weights.T, 1 + axis)
    return b.convert(x, original.element_type)


@converter("CropAndResize")
def crop_and_resize(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Boxes of images, each resized to one size; what lies outside of its image is the extrapolation value."""
    images, boxes, numbers = (v.instruction for v in inputs[:3])
    b = context.builder
    crop = context.integers(inputs[3], "the crop size")
    _, *sizes, depth = inputs[0].sizes
    count = inputs[1].sizes[0]
    whole = (count, *crop, depth)
    nearest = node.attribute("method") == "nearest"
    images = b.convert(images, F32)
    places, inside = zip(*(_crop_places(b, boxes, d, sizes[d], crop[d], count) for d in range(2)), strict=True)

    def corner(rows: Instruction, columns: Instruction) -> Instruction:
        spread = (count, *crop)
        index = [b.broadcast(v, spread, dims) for v, dims in ((numbers, (0,)), (rows, (0, 1)), (columns, (0, 2)))]
        flat = b.add(b.multiply(b.add(b.multiply(index[0], b.like(sizes[0], index[0])), index[1]),
                                b.like(sizes[1], index[0])), index[2])  # fmt: skip
        rows_of = b.reshape(images, (math.prod(inputs[0].sizes[:3]), depth))
        return take(b, rows_of, flat, 0)

    def whole_numbers(x: Instruction, op: str, size: int) -> Instruction:
        rounded = getattr(b, op)(x)
        return b.convert(b.clamp(b.like(0, rounded), rounded, b.like(size - 1, rounded)), S32)

    if nearest:
        rows, columns = (whole_numbers(p, "round_nearest_afz", s) for p, s in zip(places, sizes, strict=True))
        result = corner(rows, columns)
    else:
        (top, bottom), (left, right) = (
            (whole_numbers(p, "floor", s), whole_numbers(p, "ceil", s)) for p, s in zip(places, sizes, strict=True)
        )
        parts = [b.subtract(p, b.floor(p)) for p in places]
        down, across = (b.broadcast(p, whole, (0, 1 + d)) for d, p in enumerate(parts))

        def mixed(x: Instruction, y: Instruction, share: Instruction) -> Instruction:
            return b.add(x, b.multiply(b.subtract(y, x), share))

        result = mixed(
            mixed(corner(top, left), corner(top, right), across),
            mixed(corner(bottom, left), corner(bottom, right), across),
            down,
        )
    fits = b.and_(*(b.broadcast(i, whole, (0, 1 + d)) for d, i in enumerate(inside)))
    return b.select(fits, result, b.like(node.attribute("extrapolation_value"), result))


def _crop_places(
    b: Builder, boxes: Instruction, d: int, size: int, crop: int, count: int
) -> tuple[Instruction, Instruction]:
    """Where a crop's rows (or columns) lie in the image [boxes, crop], and whether that is inside of it."""
    low, high = (b.reshape(b.slice(boxes, (0, n), (count, n + 1)), (count,)) for n in (d, d + 2))
    low, high = (b.broadcast(v, (count, crop), (0,)) for v in (low, high))
    last = b.like(size - 1, low)
    if crop > 1:
        step = b.multiply(b.subtract(high, low), b.like((size - 1) / (crop - 1), low))
        number = b.iota(Shape(F32, (count, crop)), 1)
        place = b.add(b.multiply(low, last), b.multiply(number, step))
    else:
        place = b.multiply(b.multiply(b.like(0.5, low), b.add(low, high)), last)
    inside = b.and_(b.compare(place, b.like(0, place), "GE"), b.compare(place, last, "LE"))
    return place, inside


# -- colours -----------------------------------------------------------------------------------------------------------


def _channels(b: Builder, x: Instruction) -> list[Instruction]:
    """The three channels, without the last dimension."""
    sizes = x.array_shape.sizes
    start = [0] * (len(sizes) - 1)
    return [b.reshape(b.slice(x, (*start, n), (*sizes[:-1], n + 1)), sizes[:-1]) for n in range(3)]


def _stacked(b: Builder, parts: Sequence[Instruction]) -> Instruction:
    sizes = (*parts[0].array_shape.sizes, 1)
    return b.concatenate([b.reshape(p, sizes) for p in parts], len(sizes) - 1)


def _to_hsv(b: Builder, x: Instruction) -> list[Instruction]:
    red, green, blue = _channels(b, x)
    value = b.maximum(b.maximum(red, green), blue)
    span = b.subtract(value, b.minimum(b.minimum(red, green), blue))
    zero, positive = b.like(0, value), b.compare(span, b.like(0, span), "GT")
    saturation = b.select(b.compare(value, zero, "GT"), b.divide(span, value), zero)
    sixth = b.divide(b.like(1 / 6, span), span)
    hue = b.select(
        b.compare(red, value, "EQ"),
        b.multiply(sixth, b.subtract(green, blue)),
        b.select(
            b.compare(green, value, "EQ"),
            b.add(b.multiply(sixth, b.subtract(blue, red)), b.like(2 / 6, span)),
            b.add(b.multiply(sixth, b.subtract(red, green)), b.like(4 / 6, span)),
        ),
    )
    hue = b.select(positive, hue, zero)
    return [b.select(b.compare(hue, zero, "LT"), b.add(hue, b.like(1, hue)), hue), saturation, value]


def _to_rgb(b: Builder, hue: Instruction, saturation: Instruction, value: Instruction) -> Instruction:
    turn = b.multiply(hue, b.like(6, hue))

    def ramp(center: float, sign: float, offset: float) -> Instruction:
        wave = b.add(
            b.multiply(b.abs(b.subtract(turn, b.like(center, turn))), b.like(sign, turn)), b.like(offset, turn)
        )
        return b.clamp(b.like(0, wave), wave, b.like(1, wave))

    one = b.like(1, saturation)
    shades = (ramp(3, 1, -1), ramp(2, -1, 2), ramp(4, -1, 2))
    return _stacked(
        b, [b.multiply(b.add(b.subtract(one, saturation), b.multiply(saturation, s)), value) for s in shades]
    )


@converter("RGBToHSV")
def rgb_to_hsv(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _stacked(context.builder, _to_hsv(context.builder, inputs[0].instruction))


@converter("HSVToRGB")
def hsv_to_rgb(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _to_rgb(context.builder, *_channels(context.builder, inputs[0].instruction))


@converter("AdjustContrastv2")
def adjust_contrast(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    """Each channel's distance from its mean over the image, scaled."""
    x, factor = (v.instruction for v in inputs)
    b, sizes = context.builder, inputs[0].sizes
    kept = [d for d in range(len(sizes)) if d not in (len(sizes) - 3, len(sizes) - 2)]
    wide = b.convert(x, F32)
    total = b.reduce_with("add", wide, (len(sizes) - 3, len(sizes) - 2))
    mean = b.broadcast(b.divide(total, b.like(sizes[-3] * sizes[-2], total)), sizes, kept)
    scaled = b.multiply(b.subtract(wide, mean), b.broadcast(b.convert(factor, F32), sizes, ()))
    return b.convert(b.add(scaled, mean), inputs[0].element_type)


@converter("AdjustHue")
def adjust_hue(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, of = context.builder, inputs[0].element_type
    hue, saturation, value = _to_hsv(b, b.convert(inputs[0].instruction, F32))
    moved = b.add(hue, b.broadcast(inputs[1].instruction, hue.array_shape.sizes, ()))
    moved = b.subtract(moved, b.floor(moved))
    return b.convert(_to_rgb(b, moved, saturation, value), of)


@converter("AdjustSaturation")
def adjust_saturation(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    b, of = context.builder, inputs[0].element_type
    hue, saturation, value = _to_hsv(b, b.convert(inputs[0].instruction, F32))
    scaled = b.multiply(saturation, b.broadcast(inputs[1].instruction, saturation.array_shape.sizes, ()))
    scaled = b.clamp(b.like(0, scaled), scaled, b.like(1, scaled))
    return b.convert(_to_rgb(b, hue, scaled, value), of)


# -- patches -----------------------------------------------------------------------------------------------------------


@converter("ExtractImagePatches")
def extract_patches(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _patches(context, node, inputs[0], "rates")


@converter("ExtractVolumePatches")
def extract_volume_patches(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    return _patches(context, node, inputs[0], "")


def _patches(context: Context, node: Node, x: Value, rates: str) -> Instruction:
    """Windows of each position side by side in the last dimension, rows first: one strided slice a place in the
    window."""
    b = context.builder
    window, strides = node.attribute("ksizes")[1:-1], node.attribute("strides")[1:-1]
    apart = node.attribute(rates)[1:-1] if rates else [1] * len(window)
    _, *sizes, depth = x.sizes
    spans = [(w - 1) * r + 1 for w, r in zip(window, apart, strict=True)]
    same = node.attribute("padding") == "SAME"
    counts = [-(-n // s) if same else -(-(n - span + 1) // s) for n, s, span in zip(sizes, strides, spans, strict=True)]
    counts = [max(0, n) for n in counts]
    padding = [
        max(0, (c - 1) * s + span - n) if same else 0
        for c, s, span, n in zip(counts, strides, spans, sizes, strict=True)
    ]
    low = [p // 2 for p in padding]
    zero = b.constant(0, x.element_type)
    padded = b.pad(x.instruction, zero, (0, *low, 0), (0, *(p - n for p, n in zip(padding, low, strict=True)), 0))
    if not math.prod(counts):
        return b.full(0, shape_of(x.element_type, (x.sizes[0], *counts, math.prod(window) * depth)))
    parts = []
    for place in np.ndindex(*window):
        start = [p * r for p, r in zip(place, apart, strict=True)]
        limit = [p + (c - 1) * s + 1 for p, c, s in zip(start, counts, strides, strict=True)]
        parts.append(b.slice(padded, (0, *start, 0), (x.sizes[0], *limit, depth), (1, *strides, 1)))
    return b.concatenate(parts, len(x.sizes) - 1)


# -- boxes -------------------------------------------------------------------------------------------------------------


@converter("NonMaxSuppressionV4")
def suppressed_padded(context: Context, node: Node, inputs: list[Value]) -> list[Instruction]:
    """Of overlapping boxes the best, in order of scores, as many as asked for; the rest of the indices is 0."""
    if not node.attribute("pad_to_max_output_size"):
        raise context.unsupported("a number of boxes that depends on values", "set pad_to_max_output_size=True")
    return _suppressed(context, inputs)


def _suppressed(context: Context, inputs: list[Value]) -> list[Instruction]:
    b = context.builder
    boxes, scores = (b.convert(v.instruction, F32) for v in inputs[:2])
    most = int(context.scalar(inputs[2], "max_output_size"))
    overlap, least = (b.convert(v.instruction, F32) for v in inputs[3:5])
    count = inputs[0].sizes[0]
    if not most or not count:
        return [b.full(0, Shape(S32, (most,))), b.constant(0, S32)]

    def inside(name: str) -> tuple[Builder, list[Instruction]]:
        inner = Builder(name)
        shapes = [Shape(S32), Shape(S32, (most,)), Shape(F32, (count,)), Shape(F32), Shape(F32, (count, 4)), Shape(F32)]
        return inner, [inner.parameter(s) for s in shapes]

    condition, state = inside("more_boxes")
    best = condition.reduce_with("maximum", state[2], (0,))
    some = condition.compare(best, state[5], "GT")
    condition.build(condition.and_(some, condition.compare(state[0], condition.like(most, state[0]), "LT")))
    body, state = inside("take_the_best")
    taken, chosen, left, limit, all_boxes, bound = state
    best = body.broadcast(body.reduce_with("maximum", left, (0,)), (count,), ())
    number = body.iota(Shape(S32, (count,)), 0)
    first = body.select(body.compare(left, best, "EQ"), number, body.like(count, number))
    index = body.reduce_with("minimum", first, (0,))
    place = body.iota(Shape(S32, (most,)), 0)
    here = body.compare(place, body.broadcast(taken, (most,), ()), "EQ")
    chosen = body.select(here, body.broadcast(index, (most,), ()), chosen)
    own = body.dynamic_slice(all_boxes, [index, body.constant(0, S32)], (1, 4))
    covered = body.compare(_overlaps(body, all_boxes, own), body.broadcast(limit, (count,), ()), "GT")
    gone = body.or_(covered, body.compare(number, body.broadcast(index, (count,), ()), "EQ"))
    left = body.select(gone, body.like(-math.inf, left), left)
    body.build(body.tuple([body.add(taken, body.like(1, taken)), chosen, left, limit, all_boxes, bound]))
    start = [b.constant(0, S32), b.full(0, Shape(S32, (most,))), scores, overlap, boxes, least]
    result = b.while_loop(condition.computation, body.computation, start)
    return [result[1], result[0]]


def _overlaps(b: Builder, boxes: Instruction, own: Instruction) -> Instruction:
    """Intersection over union of each box [n, 4] with one [1, 4]; corners in any order."""
    count = boxes.array_shape.sizes[0]

    def edges(x: Instruction) -> list[Instruction]:
        rows = x.array_shape.sizes[0]
        parts = [b.reshape(b.slice(x, (0, n), (rows, n + 1)), (rows,)) for n in range(4)]
        low, high = ([op(parts[d], parts[d + 2]) for d in range(2)] for op in (b.minimum, b.maximum))
        return [*low, *high]

    mine = [b.broadcast(b.reshape(e, ()), (count,), ()) for e in edges(own)]
    theirs = edges(boxes)

    def area(e: Sequence[Instruction]) -> Instruction:
        return b.multiply(b.subtract(e[2], e[0]), b.subtract(e[3], e[1]))

    sides = [
        b.maximum(b.subtract(b.minimum(mine[d + 2], theirs[d + 2]), b.maximum(mine[d], theirs[d])), b.like(0, mine[0]))
        for d in range(2)
    ]
    shared = b.multiply(*sides)
    areas = [area(mine), area(theirs)]
    ratio = b.divide(shared, b.subtract(b.add(*areas), shared))
    flat = b.or_(*(b.compare(a, b.like(0, a), "LE") for a in areas))
    return b.select(flat, b.like(0, ratio), ratio)
