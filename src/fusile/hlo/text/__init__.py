"""HLO text: XLA's syntax, in and out.

`print_module` and `parse_module` round-trip every op. Dumps made by XLA read too: row-major layouts are dropped,
sharding and backend configuration ignored, tuples of loops and branches spread out.
"""

from fusile.hlo.text.parser import parse_module
from fusile.hlo.text.printer import print_computation, print_module

__all__ = ["parse_module", "print_computation", "print_module"]
