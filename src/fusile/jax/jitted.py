"""`jit`: a JAX function traced and lowered by JAX to StableHLO, compiled by Fusile, once for each signature."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusile.base.errors import UnsupportedOpError
from fusile.base.settings import Settings
from fusile.hlo.ir import Module
from fusile.stablehlo import parse

_CACHED_SIGNATURES = 128


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] = (),
    target: str = "cpu",
    settings: Settings | None = None,
) -> Any:
    """`function` compiled by Fusile; usable as a decorator, with options or without.

    Arguments and results are pytrees of arrays. Arguments at `static_argnums` are hashable Python values which the
    program is compiled for; buffers of those at `donate_argnums` may be reused for results. Each new signature (tree,
    shapes, element types, static values) is traced and compiled once. Under another JAX transformation (`grad`, `vmap`,
    `jit`) the function itself is traced.
    """
    if function is None:
        options: dict[str, Any] = {"static_argnums": static_argnums, "donate_argnums": donate_argnums}
        return functools.partial(jit, **options, target=target, settings=settings)
    return Jitted(function, _numbers(static_argnums), _numbers(donate_argnums), target, settings)


def _numbers(argnums: int | Sequence[int]) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


@dataclass(frozen=True)
class Lowered:
    """A function traced for one signature: `module` is its HLO, `text` the StableHLO that JAX gave."""

    module: Module
    text: str
    out_tree: Any
    target: str
    settings: Settings | None

    def compile(self) -> Callable[..., Any]:
        """The Executable: NumPy arrays in, one for each leaf of the arguments, NumPy arrays out."""
        from fusile.compiler.pipeline import compile

        executable: Callable[..., Any] = compile(self.module, target=self.target, settings=self.settings)
        return executable


class Jitted:
    """What `jit` gives: call it like the function, or `lower` it to look at the program."""

    def __init__(self, function: Callable[..., Any], static_argnums: tuple[int, ...], donate_argnums: tuple[int, ...],
                 target: str, settings: Settings | None) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self._function, self._static = function, static_argnums
        self._target, self._settings = target, settings
        self._traced = jax.jit(function, static_argnums=static_argnums, donate_argnums=donate_argnums, keep_unused=True)
        self._compiled: OrderedDict[Hashable, tuple[Callable[..., Any], Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((self._dynamic(args), kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return self._function(*args, **kwargs)
        kinds = [jax.typeof(leaf) for leaf in leaves]
        static = tuple(args[i] for i in self._static_positions(len(args)))
        key = (tree, tuple(kinds), static, bool(jax.config.values["jax_enable_x64"]))
        executable, out_tree = self._executable(key, args, kwargs)
        results = executable(*map(_as_numpy, leaves, kinds))
        flat = list(results) if isinstance(results, tuple | list) else [results]
        return jax.tree.unflatten(out_tree, [jnp.asarray(r) for r in flat])

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments like these (arrays or `jax.ShapeDtypeStruct`), not yet compiled."""
        lowered = self._traced.lower(*args, **kwargs)
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(lowered.out_info)):
            raise UnsupportedOpError("a function that returns random keys", hint="return jax.random.key_data of them")
        text = lowered.as_text(debug_info=True)
        return Lowered(parse(text), text, lowered.out_tree, self._target, self._settings)

    def _dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        static = self._static_positions(len(args))
        return tuple(a for i, a in enumerate(args) if i not in static)

    def _static_positions(self, count: int) -> list[int]:
        return [i + count if i < 0 else i for i in self._static if -count <= i < count]

    def _executable(self, key: Hashable, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any]:
        """What is compiled for this signature; the oldest of many are forgotten."""
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
        lowered = self.lower(*args, **kwargs)
        made = lowered.compile(), lowered.out_tree
        with self._lock:
            self._compiled[key] = made
            if len(self._compiled) > _CACHED_SIGNATURES:
                self._compiled.popitem(last=False)
        return made


def _as_numpy(leaf: Any, kind: Any) -> np.ndarray:
    """The argument's elements, of the type that JAX traced it with; a random key's are its data."""
    if jnp.issubdtype(kind.dtype, jax.dtypes.extended):
        leaf, kind = (data := jax.random.key_data(leaf)), jax.typeof(data)
    return np.asarray(leaf, kind.dtype)
