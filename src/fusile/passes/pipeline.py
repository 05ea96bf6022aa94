"""The target-independent passes, in order. Packing and fusion come after them and are the target's business."""

from __future__ import annotations

from fusile.base.settings import Settings
from fusile.passes.common_subexpressions import CommonSubexpressions
from fusile.passes.dead_code import DeadCode
from fusile.passes.expand import ExpandComposites
from fusile.passes.fold_batch_norm import FoldBatchNorm
from fusile.passes.fold_constants import FoldConstants
from fusile.passes.inline import InlineCalls
from fusile.passes.merge_products import MergeProducts
from fusile.passes.simplify import CanonicalizeContractions, Simplify
from fusile.passes.simplify_control_flow import SimplifyControlFlow
from fusile.rewrite.passes import Pass, Repeat

ROUNDS = 6
"""Rounds of a simplification group; real programs settle in two to four."""


def standard_passes(settings: Settings, frozen: bool) -> list[Pass | Repeat]:
    """The passes for a module as a front end gives it. `frozen`: its weights are constants and may be rewritten."""
    simplification = Repeat(
        (
            # First, so that the others see less.
            DeadCode(),
            # Before folding: it moves elementwise ops before broadcasts, where their constants are small.
            Simplify(settings.numerics),
            FoldConstants(),
            # After folding, which makes equal constants; before control flow, which compares nothing.
            CommonSubexpressions(),
            # After folding, which finds predicates and trip counts; what it inlines is simplified in the next round.
            SimplifyControlFlow(),
        ),
        ROUNDS,
    )
    passes: list[Pass | Repeat] = [
        # Before everything else: no other pass looks into calls, and loops must own their computations.
        InlineCalls(),
        # Dead composites need no expansion.
        DeadCode(),
        # Before simplification, so that batch norms' constants fold.
        ExpandComposites(),
        simplification,
    ]
    if frozen:
        # After folding, so that scales and offsets are constants; before convolutions become products, behind whose
        # reshapes the channels are harder to see.
        passes.append(FoldBatchNorm())
    # Last, as simplification would take apart nothing of it but finds new reshapes to merge.
    passes += [CanonicalizeContractions(settings.numerics), simplification]
    # After simplification, which finds equal left-hand sides and brings biases to their products.
    passes += [MergeProducts(), FoldConstants(), DeadCode()]
    return passes


def passes_after_packing() -> list[Pass | Repeat]:
    """What packing of contractions calls for: frozen weights are packed now, a loop's weights before the loop."""
    return [
        FoldConstants(),
        # After folding, so that no constant becomes state.
        SimplifyControlFlow(),
        # The unpacked weights are state no more.
        DeadCode(),
    ]
