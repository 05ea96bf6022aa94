"""Results as tensors, without needless copies."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from tensorflow.python.framework.ops import EagerTensor

LARGE = 1 << 16
"""Bytes from which a copy costs more than avoiding it."""


def tensor(array: np.ndarray[Any, Any], datatype: int) -> Any:
    """A tensor over an array's memory.

    TensorFlow's `Tensor.numpy()` copies, because who changes the array would change the tensor. In `f(x).numpy()` the
    tensor is gone by then: nobody can see a change, and the array is handed over as it is.
    """
    result = EagerTensor(array, None, datatype)
    if array.nbytes >= LARGE:
        alive = weakref.ref(result)

        def numpy() -> np.ndarray[Any, Any]:
            found = alive()
            return array if found is None else type(found).numpy(found)

        result.numpy = numpy
    return result
