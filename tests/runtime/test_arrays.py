"""Arguments of every kind reach the kernel as their elements, and calls take microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusile
from fusile.base.errors import ArgumentError
from fusile.runtime.arrays import ArrayAddresses

ADD = """HloModule add
ENTRY e { a = f32[2,3] parameter(0)
 b = f32[2,3] parameter(1)
 ROOT c = f32[2,3] add(a, b) }"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Foreign:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Subclass(np.ndarray):
    pass


def misaligned(x: np.ndarray) -> np.ndarray:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    memory[1:] = x.reshape(-1).view(np.uint8)
    return memory[1:].view(x.dtype).reshape(x.shape)


KINDS = {
    "plain": lambda x: x.copy(),
    "columns first": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "other byte order": lambda x: x.astype(">f4"),
    "misaligned": misaligned,
    "dlpack": Foreign,
    "subclass": lambda x: x.view(Subclass),
    "nested lists of numbers": lambda x: np.array(x.tolist(), np.float32),
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_kind(kind: str, native: bool) -> None:
    exe = fusile.compile(ADD)
    exe._addresses._native = native
    np.testing.assert_array_equal(exe(KINDS[kind](X), X), X + X)
    np.testing.assert_array_equal(exe(X, KINDS[kind](X)), X + X)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "wrong", [(), (X,), (X, X, X), (X, X.reshape(3, 2)), (X, X.astype(np.float64)), (X, 1.0), (X, "text"), (X, X[0])]
)
def test_wrong_arguments_are_refused(wrong: tuple[Any, ...], native: bool) -> None:
    exe = fusile.compile(ADD)
    exe._addresses._native = native
    for call in (exe, exe.call_flat):
        with pytest.raises(ArgumentError):
            call(*wrong) if call is exe else call(list(wrong))


def test_objects_of_this_interpreter_are_read_natively() -> None:
    exe = fusile.compile(ADD)
    assert isinstance(exe._addresses, ArrayAddresses) and exe._addresses._native


def test_a_small_call_takes_few_steps(count_calls: Any) -> None:
    exe = fusile.compile(ADD)
    exe(X, X)
    assert count_calls(lambda: exe(X, X)) <= 12
