"""Random bits: the ciphers give their authors' test vectors, kernels what the HLO interpreter gives."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fusile.base.element_type import F32, PRED, S8, S64, U8, U16, U32, U64, ElementType
from fusile.base.errors import UnsupportedOpError
from fusile.base.shape import Shape
from fusile.hlo.builder import Builder
from fusile.hlo.interpreter import interpret
from fusile.hlo.ir import Module
from fusile.hlo.opset import random_bits
from fusile.hlo.opset.other import RngBitGenerator
from fusile.loops.lowering import random_bits as lowering
from fusile.loops.machine import SSE2

sys.path.insert(0, str(Path(__file__).parent))
from fused import check, run_fused

PI = "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0"
"""The first fractional digits of pi, which the authors use as an input."""


def words(text: str) -> list[np.ndarray]:
    return [np.array([int(w, 16)], np.uint32) for w in text.split()]


def generator(algorithm: str, kind: ElementType, sizes: tuple[int, ...], state: int = 2) -> Module:
    b = Builder("bits")
    return b.module(b.emit(RngBitGenerator(algorithm, Shape(kind, sizes)), b.parameter(Shape(U64, (state,)))))


def state_of(size: int) -> np.ndarray:
    """A counter whose low word is about to wrap."""
    return np.array([0x123456789ABCDEF0, 2**64 - 2, 2**64 - 1], np.uint64)[:size]


@pytest.mark.parametrize(
    "inputs, expected",
    [
        ("0 0 0 0", "6b200159 99ba4efe"),
        ("ffffffff ffffffff ffffffff ffffffff", "1cb996fc bb002be7"),
        (" ".join(PI.split()[:4]), "c4923a9c 483df7a0"),
    ],
)
def test_threefry_vectors_of_random123(inputs: str, expected: str) -> None:
    given = words(inputs)
    assert random_bits.threefry(given[:2], given[2:]) == words(expected)


@pytest.mark.parametrize(
    "inputs, expected",
    [
        ("0 0 0 0 0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (" ".join(["ffffffff"] * 6), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_vectors_of_random123(inputs: str, expected: str) -> None:
    given = words(inputs)
    assert random_bits.philox(given[:4], given[4:]) == words(expected)


@pytest.mark.parametrize("algorithm, state", [("RNG_THREE_FRY", 2), ("RNG_PHILOX", 2), ("RNG_PHILOX", 3)])
@pytest.mark.parametrize("kind", [U8, U16, U32, U64])
@pytest.mark.parametrize("sizes", [(), (1,), (5,), (3, 4), (3, 5, 3), (0, 2), (2, 0)])
def test_kernels(algorithm: str, state: int, kind: ElementType, sizes: tuple[int, ...]) -> None:
    check(generator(algorithm, kind, sizes, state), [state_of(state)])


@pytest.mark.parametrize("algorithm", ["RNG_THREE_FRY", "RNG_DEFAULT"])
@pytest.mark.parametrize("kind", [S8, S64])
def test_signed_elements(algorithm: str, kind: ElementType) -> None:
    check(generator(algorithm, kind, (7,)), [state_of(2)], machine=SSE2)


def test_bits_become_floats_as_they_are() -> None:
    (_, floats), (_, integers) = (interpret(generator("RNG_PHILOX", t, (9,)), [state_of(2)]) for t in (F32, U32))
    assert np.array_equal(floats.view(np.uint32), integers)
    (_, kernel_floats), _ = run_fused(generator("RNG_PHILOX", F32, (9,)), [state_of(2)])
    assert np.array_equal(kernel_floats.view(np.uint32), integers)


@pytest.mark.parametrize("algorithm", ["RNG_THREE_FRY", "RNG_PHILOX"])
@pytest.mark.parametrize("sizes", [(23,), (5, 9), (3, 6, 5)])
def test_several_tasks(algorithm: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "TASK_BLOCKS", 4)
    check(generator(algorithm, U32, sizes), [state_of(2)])


@pytest.mark.parametrize("used", [0, 1])
def test_only_one_of_the_results_is_used(used: int) -> None:
    b = Builder("bits")
    result = b.emit(RngBitGenerator("RNG_THREE_FRY", Shape(U32, (6,))), b.parameter(Shape(U64, (2,))))
    check(b.module(b.element(result, used)), [state_of(2)])


@pytest.mark.parametrize(
    "algorithm, kind, state", [("RNG_NONE", U32, 2), ("RNG_THREE_FRY", U32, 3), ("RNG_PHILOX", PRED, 2)]
)
def test_what_xla_does_not_generate_is_refused(algorithm: str, kind: ElementType, state: int) -> None:
    module = generator(algorithm, kind, (4,), state)
    for run in (interpret, run_fused):
        with pytest.raises(UnsupportedOpError, match="rng-bit-generator"):
            run(module, [state_of(state)])
