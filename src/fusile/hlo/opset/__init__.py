"""The op set, by family. Importing this package fills `hlo.ir.OPS`."""

from fusile.hlo.opset import contraction, control, elementwise, other, reduction, shape, structure, window

__all__ = ["contraction", "control", "elementwise", "other", "reduction", "shape", "structure", "window"]
