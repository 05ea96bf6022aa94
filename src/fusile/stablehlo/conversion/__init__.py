"""Operations in generic form -> HLO, one file a family; importing this package fills `CONVERSIONS`."""

from fusile.stablehlo.conversion import (
    collectives,
    contractions,
    control,
    dynamic,
    einsum,
    elementwise,
    other,
    quantized,
    quantized_contractions,
    quantized_structure,
    ragged_dot,
    random,
    reductions,
    scan,
    shapes,
    special,
)
from fusile.stablehlo.conversion.context import CONVERSIONS, Context, converts
from fusile.stablehlo.conversion.program import Program

__all__ = [
    "CONVERSIONS", "Context", "Program", "collectives", "contractions", "control", "converts", "dynamic", "einsum",
    "elementwise", "other", "quantized", "quantized_contractions", "quantized_structure", "ragged_dot", "random",
    "reductions", "scan", "shapes", "special",
]  # fmt: skip
