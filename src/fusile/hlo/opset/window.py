"""The window of a convolution or windowed reduction, and a convolution's dimension roles."""

from __future__ import annotations

from dataclasses import dataclass

from fusile.base.errors import ShapeError


@dataclass(frozen=True)
class Window:
    """One entry a dimension: size, stride, padding (may be negative), dilations and whether the window is reversed."""

    size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding_low: tuple[int, ...] = ()
    padding_high: tuple[int, ...] = ()
    base_dilation: tuple[int, ...] = ()
    window_dilation: tuple[int, ...] = ()
    reversal: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.size)
        defaults = {
            "stride": 1,
            "padding_low": 0,
            "padding_high": 0,
            "base_dilation": 1,
            "window_dilation": 1,
            "reversal": False,
        }
        for name, default in defaults.items():
            value = tuple(getattr(self, name)) or (default,) * rank
            object.__setattr__(self, name, value)
            if len(value) != rank:
                raise ShapeError(f"the window has {rank} dimensions but {name} has {len(value)}")
        positive = (*self.size, *self.stride, *self.base_dilation, *self.window_dilation)
        if any(v <= 0 for v in positive):
            raise ShapeError(f"window sizes, strides and dilations must be positive: {self}")

    @property
    def rank(self) -> int:
        return len(self.size)

    def output_size(self, dimension: int, input_size: int) -> int:
        """Number of window positions along a dimension of `input_size` (StableHLO, reduce_window constraint C15)."""
        i = dimension
        dilated = 0 if input_size == 0 else (input_size - 1) * self.base_dilation[i] + 1
        padded = self.padding_low[i] + dilated + self.padding_high[i]
        extent = (self.size[i] - 1) * self.window_dilation[i] + 1
        return 0 if padded <= 0 or extent > padded else (padded - extent) // self.stride[i] + 1


@dataclass(frozen=True)
class ConvolutionDimensions:
    """Which dimension of input, kernel and output plays which role."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]
