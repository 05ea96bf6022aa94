"""The generators of ops such as `tf.random.uniform`, which keep a state from call to call.

TensorFlow gives each such op of a graph a Philox generator of its own, made from the op's two seeds, or from chance
when both are 0; every call moves it on, and `tf.random.set_seed` starts it anew. So does compiled code: each op's state
is a variable that no one else sees, s64[3] as a `tf.random.Generator` has it: the counter's low and high half, the key.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from fusile.base.element_type import S64
from fusile.base.shape import Shape
from fusile.tf.registry import GENERATORS
from fusile.tf.value import GENERATOR_PREFIX, Resource

STATE = Shape(S64, (3,))


def generator_of(operation: Any) -> Resource:
    """The generator that a stateful random op draws from. Ops of one name and seeds in several functions share one."""
    first, second = _seeds(operation)
    return Resource(f"{GENERATOR_PREFIX}{operation.name} {first} {second}", STATE)


def _seeds(operation: Any) -> tuple[int, int]:
    names = operation.node_def.attr
    return tuple(operation.get_attr(n) if n in names else 0 for n in ("seed", "seed2"))  # type: ignore[return-value]


class Generators:
    """The states of a function's generators, by their resources' keys."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}
        self._seeds: dict[str, tuple[int, int]] = {}
        self._seeded = _seeding()

    def handles(self, operations: Iterable[Any]) -> dict[str, Any]:
        """The handles of the states that the stateful random ops among these need, made where there is none yet."""
        found = {}
        for operation in operations:
            if operation.type in GENERATORS:
                key = generator_of(operation).key
                if key not in self._variables:
                    self._seeds[key] = _seeds(operation)
                    with tf.init_scope(), tf.device("CPU"):
                        self._variables[key] = tf.Variable(_first_state(self._seeds[key]), trainable=False)
                found[key] = self._variables[key].handle
        return found

    def follow_seed(self) -> None:
        """Starts all of them anew when `tf.random.set_seed` was called since the last time."""
        if self._variables and self._seeded is not _seeding():
            self._seeded = _seeding()
            for key, variable in self._variables.items():
                variable.assign(_first_state(self._seeds[key]))


def _seeding() -> Any:
    """An object that `tf.random.set_seed` replaces, None before its first call."""
    return getattr(eager_context.context(), "_rng", None)


def _first_state(seeds: tuple[int, int]) -> np.ndarray:
    key, high = seeds if any(seeds) else (secrets.randbits(64), secrets.randbits(64))
    return np.array([0, high % 2**64, key % 2**64], np.uint64).view(np.int64)
