"""What the tests of passes share: passes by name, arguments with edge values, comparison of meanings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusile.base.shape import Shape
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.passes.common_subexpressions import CommonSubexpressions
from fusile.passes.dead_code import DeadCode
from fusile.passes.expand import ExpandComposites
from fusile.passes.fold_batch_norm import FoldBatchNorm
from fusile.passes.fold_constants import FoldConstants
from fusile.passes.inline import InlineCalls
from fusile.passes.merge_products import MergeProducts
from fusile.passes.simplify import CanonicalizeContractions, Simplify
from fusile.passes.simplify_control_flow import SimplifyControlFlow
from fusile.rewrite.passes import Pass

EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, -7.25, 1e-3, 100.0)


def pass_named(name: str, numerics: str = "exact") -> Pass:
    every: list[Pass] = [
        InlineCalls(), DeadCode(), CommonSubexpressions(), FoldConstants(), ExpandComposites(), FoldBatchNorm(),
        MergeProducts(), Simplify(numerics), CanonicalizeContractions(numerics), SimplifyControlFlow(),
    ]  # fmt: skip
    return {one.name: one for one in every}[name]


def argument(shape: Shape, random: np.random.Generator, edges: bool) -> np.ndarray[Any, Any]:
    """Elements of a shape: ordinary small ones, or with edge values of the type among them."""
    kind, sizes = shape.element_type, shape.sizes
    if kind.is_predicate:
        return random.random(sizes) < 0.5
    if kind.is_integer:
        low, high = (
            (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1) if kind.is_signed else (0, (1 << kind.bits) - 1)
        )
        values = random.integers(max(low, -9), 10, sizes)
        ends = random.choice(np.array([low, low + 1, 0, 1, high - 1, high], object), sizes)
        return (
            np.where(random.random(sizes) < 0.4, ends, values).astype(kind.dtype)
            if edges
            else values.astype(kind.dtype)
        )
    plain = random.normal(size=sizes) * 2
    if edges:
        plain = np.where(random.random(sizes) < 0.6, random.choice(np.array(EDGES), sizes), plain)
    if kind.is_complex:
        return (plain + 1j * random.normal(size=sizes)).astype(kind.dtype)
    return np.asarray(plain).astype(kind.dtype)


def check_meaning(
    before: Module, after: Module, exact: bool = True, signed_zeros: bool = True, trials: int = 3
) -> None:
    """Fails unless both modules give the same results: the same bits when `exact` (NaN is NaN), else close ones.

    `signed_zeros`: whether 0.0 and -0.0 differ, which in products depends on the accumulator's precision.
    """
    for trial in range(trials):
        random = np.random.default_rng(trial)
        edges = exact and trial > 0
        arguments = [argument(p.array_shape, random, edges) for p in before.entry.parameters]
        for i, (a, b) in enumerate(zip(interpret(before, arguments), interpret(after, arguments), strict=True)):
            assert a.dtype == b.dtype and a.shape == b.shape, f"result {i}: {a.dtype}{a.shape}, now {b.dtype}{b.shape}"
            if not signed_zeros:
                a, b = a + a.dtype.type(0), b + b.dtype.type(0)
            same = same_bits(a, b) if exact else close(a, b)
            assert same, f"result {i} of {arguments}:\n{a}\nis now\n{b}"


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal bits; any NaN equals any other."""
    if a.dtype.kind == "c":
        return same_bits(np.ascontiguousarray(a.real), np.ascontiguousarray(b.real)) and same_bits(
            np.ascontiguousarray(a.imag), np.ascontiguousarray(b.imag)
        )
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    equal = (
        (a.reshape(-1).view(np.uint8) == b.reshape(-1).view(np.uint8)).reshape(a.size, -1).all(1) if a.size else True
    )
    return bool(np.all(equal | ((a != a) & (b != b)).reshape(-1)))


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    if a.dtype.kind not in "fcV":
        return bool(np.array_equal(a, b))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=1e-5, atol=1e-5, equal_nan=True))
