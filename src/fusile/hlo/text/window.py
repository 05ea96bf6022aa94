"""Windows and convolution dimensions in HLO text: `window={size=3x3 stride=2x2}`, `dim_labels=b01f_01io->b01f`."""

from __future__ import annotations

import re

from fusile.hlo.opset.window import ConvolutionDimensions, Window

_PART = re.compile(r"(\w+)=([^\s{}]+)")
_NUMBER = re.compile(r"-?\d{1,18}")


def format_window(window: Window) -> str:
    """Parts at their defaults (stride and dilations 1, padding 0, no reversal) are left out."""
    parts = [_part("size", window.size, None), _part("stride", window.stride, 1)]
    padding = list(zip(window.padding_low, window.padding_high, strict=True))
    if any(p != (0, 0) for p in padding):
        parts.append("pad=" + "x".join(f"{low}_{high}" for low, high in padding))
    parts += [
        _part("lhs_dilate", window.base_dilation, 1),
        _part("rhs_dilate", window.window_dilation, 1),
        _part("rhs_reversal", tuple(map(int, window.reversal)), 0),
    ]
    return "{" + " ".join(filter(None, parts)) + "}"


def _part(name: str, values: tuple[int, ...], default: int | None) -> str:
    return "" if all(v == default for v in values) else f"{name}=" + "x".join(map(str, values))


def parse_window(text: str) -> Window:
    """Raises ValueError."""
    parts = dict(_PART.findall(text))
    unknown = set(parts) - {"size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal"}
    if unknown:
        raise ValueError(f"a window has no {', '.join(sorted(unknown))}")
    size = _numbers(parts.get("size", ""), None, 0)
    rank = len(size)
    padding = [_pair(p) for p in parts["pad"].split("x")] if "pad" in parts else [(0, 0)] * rank
    if len(padding) != rank:
        raise ValueError(f"pad={parts['pad']} in a window of {rank} dimensions")
    return Window(
        size=size,
        stride=_numbers(parts.get("stride", ""), rank, 1),
        padding_low=tuple(low for low, _ in padding),
        padding_high=tuple(high for _, high in padding),
        base_dilation=_numbers(parts.get("lhs_dilate", ""), rank, 1),
        window_dilation=_numbers(parts.get("rhs_dilate", ""), rank, 1),
        reversal=tuple(bool(v) for v in _numbers(parts.get("rhs_reversal", ""), rank, 0)),
    )


def _numbers(text: str, rank: int | None, default: int) -> tuple[int, ...]:
    if not text:
        return (default,) * (rank or 0)
    values = tuple(_number(word) for word in text.split("x"))
    if rank is not None and len(values) != rank:
        raise ValueError(f"{text!r} in a window of {rank} dimensions")
    return values


def _number(word: str) -> int:
    if _NUMBER.fullmatch(word) is None:
        raise ValueError(f"{word!r} is not a number")
    return int(word)


def _pair(text: str) -> tuple[int, int]:
    low, _, high = text.partition("_")
    return _number(low), _number(high)


def format_dim_labels(numbers: ConvolutionDimensions) -> str:
    """`b`, `f` and spatial digits of the input, `i`, `o` and digits of the kernel, then of the output."""
    return (
        f"{_labels({'b': numbers.input_batch, 'f': numbers.input_feature}, numbers.input_spatial)}_"
        f"{_labels({'i': numbers.kernel_input_feature, 'o': numbers.kernel_output_feature}, numbers.kernel_spatial)}->"
        f"{_labels({'b': numbers.output_batch, 'f': numbers.output_feature}, numbers.output_spatial)}"
    )


def _labels(letters: dict[str, int], spatial: tuple[int, ...]) -> str:
    labels = {position: letter for letter, position in letters.items()}
    labels |= {position: str(number) for number, position in enumerate(spatial)}
    return "".join(labels[position] for position in range(len(labels)))


def parse_dim_labels(text: str) -> ConvolutionDimensions:
    """Raises ValueError."""
    found = re.fullmatch(r"(\w+?)_(\w+)->(\w+)", text)
    if found is None:
        raise ValueError(f"expected dim_labels such as b01f_01io->b01f, found {text!r}")
    data, kernel, output = (
        positions(list(found[1]), "bf"),
        positions(list(found[2]), "io"),
        positions(list(found[3]), "bf"),
    )
    return ConvolutionDimensions(*data, *kernel, *output)


def positions(labels: list[str], letters: str) -> tuple[int, int, tuple[int, ...]]:
    """Where the two letters stand, and where the spatial labels 0, 1, ... do. Raises ValueError."""
    count = len(labels) - 2
    expected = [*letters, *map(str, range(count))]
    if sorted(labels) != sorted(expected):
        raise ValueError(f"expected the labels {', '.join(expected)}, found {', '.join(labels)}")
    return labels.index(letters[0]), labels.index(letters[1]), tuple(labels.index(str(i)) for i in range(count))
