"""Calls from native code into Python: the functions of custom calls.

Native code calls one symbol a call site with a table of pointers, as it calls kernels. An exception can't pass through
native code: it is kept, the results are left as they are, and the call of the program raises it when it returns.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusile.base.element_type import element_type
from fusile.base.errors import LoadError
from fusile.base.shape import Shape
from fusile.custom_calls import registry as custom_calls
from fusile.runtime.program import ArraySpec, HostCall

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)


class HostCalls:
    """The native entry points of a program's calls. Raises LoadError for a target that nobody has registered."""

    def __init__(self, calls: Sequence[HostCall]) -> None:
        self._failed = threading.local()
        for call in calls:
            if custom_calls.find(call.target) is None:
                raise LoadError(
                    f"the program calls {call.target!r}, for which no function is registered",
                    hint="register it with fusile.register_custom_call before loading",
                )
        self._callbacks = {call.symbol: self._callback(call) for call in calls}

    @property
    def addresses(self) -> dict[str, int]:
        return {s: ctypes.cast(c, ctypes.c_void_p).value or 0 for s, c in self._callbacks.items()}

    def _callback(self, call: HostCall) -> Any:
        shapes = [Shape(element_type(r.element_type), r.sizes) for r in call.results]

        def run(buffers: Any, begin: int, end: int) -> None:
            try:
                specs = (*call.operands, *call.results)
                arrays = [_array(buffers[n], spec) for n, spec in enumerate(specs)]
                count = len(call.operands)
                found = custom_calls.call(call.target, call.config, [arrays[n] for n in call.arguments], shapes)
                for target, value in zip(arrays[count:], found, strict=True):
                    target[...] = value
            except BaseException as error:
                if getattr(self._failed, "error", None) is None:
                    self._failed.error = error

        return _KERNEL(run)

    def raise_failure(self) -> None:
        """Raises what a call on this thread has raised since the last time."""
        error = getattr(self._failed, "error", None)
        if error is not None:
            self._failed.error = None
            raise error


def _array(address: int, spec: ArraySpec) -> np.ndarray[Any, Any]:
    """The array at an address that native code gave."""
    dtype = spec.dtype
    count = int(np.prod(spec.sizes, dtype=np.int64))
    if not count:
        return np.empty(spec.sizes, dtype)
    block = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    elements: np.ndarray[Any, Any] = np.frombuffer(memoryview(block), np.uint8).view(dtype)
    return elements.reshape(spec.sizes)
