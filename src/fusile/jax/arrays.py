"""Between JAX's arrays and NumPy's, without copies.

A JAX array over a result's memory is made by the call that JAX's own dispatch uses for NumPy arguments: `jnp.asarray`
and `jax.device_put` take ten times as long. What such arrays lie in is remembered, so that a donated one can be
overwritten.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.lib import xla_client

_LENT: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""The writable arrays whose memory JAX arrays share, by address."""


def to_numpy(kind: Any) -> Callable[[Any], np.ndarray]:
    """What takes an argument of this JAX type to its elements, as JAX traced it; a random key's are its data."""
    if jnp.issubdtype(kind.dtype, jax.dtypes.extended):
        return lambda leaf: np.asarray(jax.random.key_data(leaf))
    return lambda leaf: np.asarray(leaf, kind.dtype)


def donated(leaf: Any, array: np.ndarray) -> np.ndarray:
    """A donated argument's elements: writable if it is a JAX array over a result that was given before. Other memory
    isn't ours: it may be read alone."""
    if isinstance(leaf, jax.Array):
        found = _LENT.get(leaf.unsafe_buffer_pointer())
        if found is not None and found.dtype == array.dtype and found.shape == array.shape:
            return found
    array = array.view()
    array.flags.writeable = False
    return array


class ToJax:
    """Makes JAX arrays of results of one shape and element type."""

    def __init__(self, sizes: tuple[int, ...], dtype: np.dtype[Any], lend: bool) -> None:
        self._aval, self._lend = jax.core.ShapedArray(sizes, dtype), lend
        self._direct = dtype.kind in "biufc" and dtype == jax.dtypes.canonicalize_dtype(dtype)
        self._device: Any = None

    def __call__(self, array: np.ndarray) -> Any:
        """A JAX array over the array's memory where JAX allows it, which the array is given up to."""
        if not self._direct or jax.config.jax_default_device is not None:
            return jnp.asarray(array)
        if self._device is None:
            self._device = jax.local_devices()[0]
            self._sharding = jax.sharding.SingleDeviceSharding(self._device)
        made = xla_client.batched_device_put(self._aval, self._sharding, [array], [self._device], committed=False)
        if self._lend and made.unsafe_buffer_pointer() == array.ctypes.data:
            _LENT[array.ctypes.data] = array
        return made
