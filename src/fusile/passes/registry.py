"""Every pass by its name, for running some of them alone."""

from __future__ import annotations

from collections.abc import Callable

from fusile.base.errors import ArgumentError
from fusile.base.settings import Settings
from fusile.passes.common_subexpressions import CommonSubexpressions
from fusile.passes.dead_code import DeadCode
from fusile.passes.expand import ExpandComposites
from fusile.passes.fold_batch_norm import FoldBatchNorm
from fusile.passes.fold_constants import FoldConstants
from fusile.passes.fusion import Fuse
from fusile.passes.inline import InlineCalls
from fusile.passes.merge_products import MergeProducts
from fusile.passes.packing import PackContractions
from fusile.passes.rematerialize import Rematerialize
from fusile.passes.simplify import CanonicalizeContractions, Simplify
from fusile.passes.simplify_control_flow import SimplifyControlFlow
from fusile.rewrite.passes import Pass

PANEL_BYTES = 128
"""Of packed weights, where no target says otherwise: two vectors of 64 bytes."""


def passes(settings: Settings) -> dict[str, Callable[[], Pass]]:
    """A maker of each pass, by name."""
    makers: list[Callable[[], Pass]] = [
        InlineCalls,
        DeadCode,
        ExpandComposites,
        lambda: Simplify(settings.numerics),
        FoldConstants,
        CommonSubexpressions,
        SimplifyControlFlow,
        FoldBatchNorm,
        lambda: CanonicalizeContractions(settings.numerics),
        MergeProducts,
        lambda: PackContractions(PANEL_BYTES),
        Fuse,
        Rematerialize,
    ]
    return {make().name: make for make in makers}


def passes_named(names: list[str], settings: Settings) -> list[Pass]:
    """The passes of these names, in order. Raises ArgumentError for a name that no pass has."""
    every = passes(settings)
    unknown = [n for n in names if n not in every]
    if unknown:
        raise ArgumentError(f"there is no pass {unknown[0]!r}", hint=f"the passes are: {', '.join(every)}")
    return [every[n]() for n in names]
