"""The LAPACK routines that JAX calls on CPUs, where an HLO op means the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusile.hlo.ir import Instruction
from fusile.stablehlo.conversion.context import Context

_TRANSPOSES = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}


def _letter(context: Context, name: str) -> str:
    """An attribute that LAPACK gives as the code of a letter."""
    config = context.attribute("mhlo.backend_config")
    value = config.get(name) if isinstance(config, dict) else None
    if not isinstance(value, int):
        raise ValueError(f"its configuration lacks {name}")
    return chr(value)


def _cholesky(context: Context) -> list[Instruction]:
    """`potrf`: the factor, and a status that stays 0, since HLO's op gives NaN where the matrix has none."""
    factor = context.add("cholesky", context.operands, lower=_letter(context, "uplo") == "L")
    status = context.broadcast(context.constant(np.zeros((), np.int32)), context.result_shape(1).dimensions)
    return [factor, status]


def _triangular_solve(context: Context) -> list[Instruction]:
    """`trsm`."""
    solution = context.add(
        "triangular-solve",
        context.operands,
        left_side=_letter(context, "side") == "L",
        lower=_letter(context, "uplo") == "L",
        unit_diagonal=_letter(context, "diag") == "U",
        transpose=_TRANSPOSES[_letter(context, "trans_x")],
    )
    return [solution]


LAPACK: dict[str, Callable[[Context], list[Instruction]]] = {
    f"lapack_{kind}{routine}_ffi": conversion
    for kind in "sdcz"
    for routine, conversion in (("potrf", _cholesky), ("trsm", _triangular_solve))
}
"""By the name of the custom call's target."""
