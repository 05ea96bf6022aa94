"""Operations in generic form -> HLO, one file a family; importing this package fills `CONVERSIONS`."""

from fusile.stablehlo.conversion import (
    collectives,
    contractions,
    control,
    dynamic,
    elementwise,
    other,
    quantized,
    quantized_contractions,
    quantized_structure,
    reductions,
    shapes,
)
from fusile.stablehlo.conversion.context import CONVERSIONS, Context, converts
from fusile.stablehlo.conversion.program import Program

__all__ = [
    "CONVERSIONS", "Context", "Program", "collectives", "contractions", "control", "converts", "dynamic", "elementwise",
    "other", "quantized", "quantized_contractions", "quantized_structure", "reductions", "shapes",
]  # fmt: skip
