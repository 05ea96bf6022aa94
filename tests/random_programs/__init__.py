"""Random, valid HLO modules of all ops, control flow and many types, and what their results may differ by."""

from random_programs import composites, contractions, control, elementwise, reductions, shapes  # noqa: F401
from random_programs.generator import FAMILIES, Generator

__all__ = ["FAMILIES", "Generator"]
