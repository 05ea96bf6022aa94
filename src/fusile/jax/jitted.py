"""`jit`: a JAX function traced and lowered by JAX to StableHLO, compiled by Fusile, once for each signature."""

from __future__ import annotations

import dataclasses
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
from fusile.jax.arrays import ToJax, donated, to_numpy
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
    shapes, element types, static values) is traced and compiled once. A donated array is deleted, as by `jax.jit`; its
    memory is written to if it is a result of a function compiled by Fusile with donated arguments, else it is copied
    once. Under another JAX transformation (`grad`, `vmap`, `jit`) the function itself is traced.
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
    results: tuple[Any, ...] = ()
    """Shape and element type of each leaf of the results."""
    donated: tuple[int, ...] = ()
    """The leaves of the arguments that a call gives away."""

    def compile(self) -> Callable[..., Any]:
        """The Executable: NumPy arrays in, one for each leaf of the arguments, NumPy arrays out."""
        from fusile.compiler.pipeline import compile

        executable: Callable[..., Any] = compile(
            self.module, target=self.target, settings=self.settings, donate=self.donated
        )
        return executable


class _Compiled:
    """A program and how a call's leaves become its arguments, and its results leaves."""

    def __init__(self, lowered: Lowered, kinds: Sequence[Any]) -> None:
        self.run, self.out_tree = lowered.compile(), lowered.out_tree
        self.donated = lowered.donated
        self._to_numpy = [to_numpy(k) for k in kinds]
        lend = bool(lowered.donated)
        self._to_jax = [ToJax(tuple(r.shape), np.dtype(r.dtype), lend) for r in lowered.results]

    def __call__(self, leaves: Sequence[Any]) -> Any:
        arrays = [convert(leaf) for convert, leaf in zip(self._to_numpy, leaves, strict=True)]
        for number in self.donated:
            arrays[number] = donated(leaves[number], arrays[number])
        results = self.run(*arrays)
        flat = results if isinstance(results, tuple | list) else (results,)
        for number in self.donated:
            if isinstance(leaves[number], jax.Array):
                leaves[number].delete()
        return self.out_tree.unflatten([to(r) for to, r in zip(self._to_jax, flat, strict=True)])


class Jitted:
    """What `jit` gives: call it like the function, or `lower` it to look at the program."""

    def __init__(self, function: Callable[..., Any], static_argnums: tuple[int, ...], donate_argnums: tuple[int, ...],
                 target: str, settings: Settings | None) -> None:  # fmt: skip
        functools.update_wrapper(self, function)
        self._function, self._static = function, static_argnums
        self._target, self._settings = target, settings
        self._traced = jax.jit(function, static_argnums=static_argnums, donate_argnums=donate_argnums, keep_unused=True)
        self._compiled: OrderedDict[Hashable, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((self._dynamic(args) if self._static else args, kwargs))
        kinds = []
        for leaf in leaves:
            if isinstance(leaf, jax.core.Tracer):
                return self._function(*args, **kwargs)
            kinds.append(leaf.aval if isinstance(leaf, jax.Array) else jax.typeof(leaf))
        static = tuple(args[i] for i in self._static_positions(len(args))) if self._static else ()
        key = (tree, tuple(kinds), static, jax.config.jax_enable_x64)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compile(key, kinds, args, kwargs)
        return compiled(leaves)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments like these (arrays or `jax.ShapeDtypeStruct`), not yet compiled."""
        lowered = self._traced.lower(*args, **kwargs)
        results = tuple(jax.tree.leaves(lowered.out_info))
        if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in results):
            raise UnsupportedOpError("a function that returns random keys", hint="return jax.random.key_data of them")
        text = lowered.as_text(debug_info=True)
        given = jax.tree.leaves(lowered.args_info)
        donated = tuple(n for n, info in enumerate(given) if info.donated)
        return Lowered(parse(text), text, lowered.out_tree, self._target, self._settings, results, donated)

    def compile_anew(self, *args: Any, **kwargs: Any) -> tuple[Any, list[np.ndarray] | None]:
        """The executable for these arguments, not from any cache, and the arrays that a call gives it; None when some
        are `jax.ShapeDtypeStruct`s. `fusile.report` asks for it."""
        leaves = jax.tree.leaves((self._dynamic(args) if self._static else args, kwargs))
        lowered = self.lower(*args, **kwargs)
        lowered = dataclasses.replace(lowered, settings=dataclasses.replace(self._settings or Settings(), cache=False))
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return lowered.compile(), None
        return lowered.compile(), [to_numpy(jax.typeof(leaf))(leaf) for leaf in leaves]

    def _dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        static = self._static_positions(len(args))
        return tuple(a for i, a in enumerate(args) if i not in static)

    def _static_positions(self, count: int) -> list[int]:
        return [i + count if i < 0 else i for i in self._static if -count <= i < count]

    def _compile(self, key: Hashable, kinds: Sequence[Any], args: Any, kwargs: Any) -> _Compiled:
        """What is compiled for this signature; the oldest of many are forgotten."""
        made = _Compiled(self.lower(*args, **kwargs), kinds)
        with self._lock:
            self._compiled[key] = made
            if len(self._compiled) > _CACHED_SIGNATURES:
                self._compiled.popitem(last=False)
        return made
