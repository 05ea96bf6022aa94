"""Fourier transforms of the last one, two or three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from fusile.hlo.builder import Builder
from fusile.hlo.ir import Instruction
from fusile.hlo.opset.other import Fft
from fusile.tf.context import Context
from fusile.tf.node import Node
from fusile.tf.registry import converter
from fusile.tf.value import Value

RANKS = {"": 1, "2D": 2, "3D": 3}


def _of_length(b: Builder, x: Instruction, lengths: Sequence[int]) -> Instruction:
    """x cut or filled up with zeros to these sizes of its last dimensions."""
    sizes = x.array_shape.sizes
    outer = len(sizes) - len(lengths)
    start = [0] * len(sizes)
    kept = [*sizes[:outer], *(min(s, n) for s, n in zip(sizes[outer:], lengths, strict=True))]
    x = b.slice(x, start, kept)
    more = [0] * outer + [n - k for n, k in zip(lengths, kept[outer:], strict=True)]
    return b.pad(x, b.constant(0, x.array_shape.element_type), start, more) if any(more) else x


def _complex(suffix: str, kind: str) -> None:
    @converter(kind + suffix)
    def convert(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        (x,) = inputs
        return context.builder.emit(Fft(kind, x.sizes[-RANKS[suffix] :]), x.instruction)


def _to_complex(suffix: str) -> None:
    @converter("RFFT" + suffix)
    def convert(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        b, lengths = context.builder, context.integers(inputs[1], "fft_length")
        return b.emit(Fft("RFFT", tuple(lengths)), _of_length(b, inputs[0].instruction, lengths))


def _to_real(suffix: str) -> None:
    @converter("IRFFT" + suffix)
    def convert(context: Context, node: Node, inputs: list[Value]) -> Instruction:
        b, lengths = context.builder, context.integers(inputs[1], "fft_length")
        x = _of_length(b, inputs[0].instruction, [*lengths[:-1], lengths[-1] // 2 + 1])
        return b.emit(Fft("IRFFT", tuple(lengths)), x)


for _suffix in RANKS:
    for _kind in ("FFT", "IFFT"):
        _complex(_suffix, _kind)
    _to_complex(_suffix)
    _to_real(_suffix)


def _last_axes(context: Context, x: Value, axes: Value) -> list[int]:
    """The axes from 0, if they are the last ones in order."""
    found = [a % x.rank for a in context.integers(axes, "axes")]
    if found != list(range(x.rank - len(found), x.rank)) or len(found) > 3:
        raise context.unsupported(f"a transform over the axes {found} of {x.rank}", "move them last; three at most")
    return found


@converter("FFTND", "IFFTND")
def transform_some(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, lengths, axes = inputs
    _last_axes(context, x, axes)
    sizes = context.integers(lengths, "fft_length")
    b = context.builder
    return b.emit(Fft(node.type.removesuffix("ND"), tuple(sizes)), _of_length(b, x.instruction, sizes))


@converter("RFFTND")
def transform_some_real(context: Context, node: Node, inputs: list[Value]) -> Instruction:
    x, lengths, axes = inputs
    _last_axes(context, x, axes)
    sizes = context.integers(lengths, "fft_length")
    b = context.builder
    return b.emit(Fft("RFFT", tuple(sizes)), _of_length(b, x.instruction, sizes))
