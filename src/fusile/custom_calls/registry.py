"""Functions behind custom calls, by name: for the interpreter and for machine code, which calls back into Python.

A function takes the operands' arrays, the call's attributes and the results' shapes, and gives the results' arrays::

    @register("my_library.scale")
    def scale(operands, attributes, shapes):
        return [operands[0] * attributes["factor"]]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError, CompileError
from fusile.base.shape import Shape

Array = np.ndarray[Any, Any]
Function = Callable[[Sequence[Array], Mapping[str, Any], Sequence[Shape]], Sequence[Array]]
_FUNCTIONS: dict[str, Function] = {}


def register(target: str) -> Callable[[Function], Function]:
    """Enters a function as the meaning of custom calls to `target`. Raises ArgumentError for a name that is taken by
    another function."""

    def enter(function: Function) -> Function:
        if _FUNCTIONS.setdefault(target, function) is not function:
            raise ArgumentError(f"the custom call target {target!r} is registered already")
        return function

    return enter


def find(target: str) -> Function | None:
    """The function of a target, None when there is none."""
    if target.startswith("lapack_"):
        from fusile.custom_calls import lapack  # noqa: F401  (registers its targets)
    if target.startswith("check."):
        from fusile.custom_calls import checks  # noqa: F401
    return _FUNCTIONS.get(target)


def call(target: str, config: str, operands: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
    """The results of a custom call. Raises CompileError when the function gives others than the program says."""
    function = find(target)
    if function is None:
        raise CompileError(f"no function is registered for the custom call to {target!r}")
    results = [np.asarray(r) for r in function(operands, attributes_of(config), shapes)]
    found = [(r.dtype, r.shape) for r in results]
    if found != [(s.element_type.dtype, s.sizes) for s in shapes]:
        wanted = ", ".join(map(str, shapes))
        raise CompileError(f"the custom call to {target!r} gave {found}, not {wanted}")
    return results


def attributes_of(config: str) -> dict[str, Any]:
    """A call's configuration as attributes: a JSON object's members, else one named `config`."""
    try:
        found = json.loads(config) if config else {}
    except ValueError:
        found = config
    return found if isinstance(found, dict) else {"config": found}
