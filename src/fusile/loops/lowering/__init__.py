"""HLO fusions to loop kernels: one file a kind of fusion."""

from __future__ import annotations

from collections.abc import Callable

from fusile.base.errors import CompileError
from fusile.hlo.ir import Instruction
from fusile.loops.ir import Kernel
from fusile.loops.lowering import elementwise, index_ops, inline_loops  # noqa: F401 (they enter their rules)
from fusile.loops.lowering.contraction import lower_contraction
from fusile.loops.lowering.library import lower_library
from fusile.loops.lowering.rows import lower_rows
from fusile.loops.lowering.scatter import lower_scatter
from fusile.loops.lowering.select_and_scatter import lower_select_and_scatter
from fusile.loops.lowering.sort import lower_sort
from fusile.loops.lowering.update import lower_update
from fusile.loops.machine import Machine

KINDS: dict[str, Callable[[Instruction, str, Machine], Kernel]] = {
    "loop": lower_rows,
    "contraction": lower_contraction,
    "update": lower_update,
    "scatter": lower_scatter,
    "select_and_scatter": lower_select_and_scatter,
    "sort": lower_sort,
    "library": lower_library,
}


def lower_fusion(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a Fusion. Its parameters are the fusion's operands in order, then the results' leaves.

    Raises UnsupportedOpError when something inside has no code.
    """
    kind = getattr(fusion.op, "kind", "")
    if kind not in KINDS:
        raise CompileError(f"{fusion.name} is a fusion of the unknown kind {kind!r}", source=fusion.source)
    return KINDS[kind](fusion, name, machine)
