"""`fusile.tf.jit`: a Python function on tensors, compiled once per signature of its arguments."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from fusile.base.errors import ArgumentError
from fusile.base.settings import Settings
from fusile.compiler.pipeline import compile as compile_for_target
from fusile.hlo.ir import Module
from fusile.runtime.executable import Prepared
from fusile.targets.target import target as find_target
from fusile.tf.gradient import Backward, record_gradient
from fusile.tf.lower import Lowering, lower
from fusile.tf.results import tensor
from fusile.tf.signature import as_numpy, check_arguments, describe
from fusile.tf.trace import Trace, trace
from fusile.tf.variables import ASSIGNING, EXCHANGING, VariableReader, VariableWriter

MOST_SIGNATURES = 256
"""A compiled function keeps this many executables; the least recently used goes first."""


class Options:
    """How a function is compiled: see `jit`."""

    __slots__ = ("freeze", "settings", "target")

    def __init__(self, freeze: bool, numerics: str, threads: int | None, target: str) -> None:
        settings = replace(Settings(), numerics=numerics)
        self.freeze, self.target = freeze, target
        self.settings = settings if threads is None else replace(settings, threads=threads)
        if target != "interpreter":
            find_target(target)


def compile_module(
    module: Module, options: Options, stable: Sequence[int] = (), settings: Settings | None = None
) -> Any:
    """An executable of a module for the options' target. `stable`: the arguments that seldom change; `settings` are
    used in place of the options'."""
    settings = settings or options.settings
    return compile_for_target(module, target=options.target, settings=settings, frozen=options.freeze, stable=stable)


def seldom_changed(lowering: Lowering) -> list[int]:
    """The arguments that change less often than calls come: captured tensors, and variables that a call does not
    assign."""
    first = lowering.arguments + len(lowering.tensors)
    assigned = {first + i for i in lowering.assigned}
    return [n for n in range(lowering.arguments, first + len(lowering.variables)) if n not in assigned]


class Lowered:
    """A function lowered for one signature. `module` is its HLO."""

    def __init__(self, lowering: Lowering, options: Options) -> None:
        self._lowering, self._options = lowering, options

    @property
    def module(self) -> Module:
        return self._lowering.module

    def compile(self) -> Any:
        """The executable, on NumPy arrays: arguments, captured tensors, variables' values -> results, new values."""
        return compile_module(self._lowering.module, self._options)


class Specialization:
    """A function compiled for one signature; any thread may call it.

    Variables are passed without a copy and assigned by handing over the results' memory. A call that assigns variables
    excludes others that do, so that none is lost; one that only reads them runs beside, and sees all or none of an
    assigning call's new values. What depends on captured tensors and unassigned variables alone (packed weights) is
    kept until one of them is assigned.
    """

    def __init__(self, traced: Trace, options: Options, keep_prepared: bool = True) -> None:
        self.trace, self.options = traced, options
        self.backward: Backward | None = None
        """Its gradient function, made when first asked for."""
        self.lowering = lowering = lower(traced, options.freeze)
        self.executable = compile_module(lowering.module, options, seldom_changed(lowering) if keep_prepared else ())
        self._prepared: Prepared | None = None
        self._run = self._interpret if options.target == "interpreter" else self._compiled
        if options.target != "interpreter" and self.executable.program.preparation is None:
            self._run = self.executable.call_flat
        self._captured = [as_numpy(t) for t in lowering.tensors]
        self._read = VariableReader(lowering.variables)
        self._write = VariableWriter([lowering.variables[i] for i in lowering.assigned])
        variables = [lowering.variables[i]._handle_data.shape_and_type[0].dtype for i in lowering.assigned]
        self._types = [s.dtype.as_datatype_enum for s in traced.graph.outputs] + variables

    def call(self, arrays: Sequence[Any]) -> list[Any]:
        """The result's tensors for a call's tensors and NumPy arrays. Variables are assigned last, so that a call that
        fails leaves them unchanged."""
        return self.call_and_values(arrays)[0]

    def call_and_values(self, arrays: Sequence[Any]) -> tuple[list[Any], Sequence[Any]]:
        """As `call`; and the variables' values that the call saw, whatever it or another assigned meanwhile."""
        if not self.lowering.assigned:
            values = self.read_variables() if self.lowering.variables else ()
            return self._outputs(arrays, values), values
        with ASSIGNING:
            values = self.read_variables()
            outputs = self._outputs(arrays, values)
            with EXCHANGING:
                self._write(outputs[self.lowering.results :])
        return outputs[: self.lowering.results], values

    def call_with(self, arrays: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """The result's tensors with `values` in place of the variables', which are neither read nor assigned."""
        return self._outputs(arrays, values)[: self.lowering.results]

    def _outputs(self, arrays: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        inputs = [*map(as_numpy, arrays), *self._captured, *map(as_numpy, values)]
        return list(map(tensor, self._run(inputs), self._types))

    def _compiled(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        # TensorFlow writes to no memory that another holds, and `_prepared` holds what it was made from: a variable
        # whose value lies where it lay then has not been assigned.
        self._prepared = prepared = self.executable.prepare(inputs, self._prepared)
        return self.executable.call_flat(inputs, None, prepared)  # type: ignore[no-any-return]

    def _interpret(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Copies, because the interpreter's results may be its arguments, which TensorFlow may update in place."""
        return [np.array(result) for result in self.executable.call_flat(arrays)]

    def read_variables(self) -> list[Any]:
        """The current values of the variables among the parameters."""
        with EXCHANGING:
            self.trace.generators.follow_seed()
            return self._read()


class CompiledFunction:
    """What `jit` gives: call it as the function itself."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._function, self._options = function, options
        self._specializations: OrderedDict[Hashable, Specialization] = OrderedDict()
        self._lock = threading.RLock()
        self._attribute = ""
        self._bound_to: Any = None
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the compiled function. Inside another traced function it is traced along.

        Raises UnsupportedOpError for what can't be compiled and ArgumentError for arguments TensorFlow has no type for.
        """
        if not tf.executing_eagerly():
            return self._as_tf_function(*args, **kwargs)
        arrays: list[Any] = []
        key = describe((args, kwargs) if kwargs else args, arrays)
        found = self._specializations.get(key)
        if found is None:
            found = self._specialize(key, args, kwargs, arrays)
        else:
            self._specializations.move_to_end(key)
        if record.could_possibly_record():
            return found.trace.restore(record_gradient(found, arrays))
        return found.trace.restore(found.call(arrays))

    def _specialize(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any]
    ) -> Specialization:
        with self._lock:
            if key in self._specializations:
                return self._specializations[key]
            check_arguments(self._function, args, kwargs)
            made = Specialization(trace(self._function, args, kwargs, arrays), self._options)
            self._specializations[key] = made
            while len(self._specializations) > MOST_SIGNATURES:
                self._specializations.popitem(last=False)
            return made

    @functools.cached_property
    def _as_tf_function(self) -> Any:
        return tf.function(self._function)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function lowered for these arguments (a tf.TensorSpec may stand for a tensor), not compiled: `.module` is
        the HLO, `.compile()` the executable."""
        return Lowered(self._lower(args, kwargs)[0], self._options)

    def compile_anew(self, *args: Any, **kwargs: Any) -> tuple[Any, list[np.ndarray]]:
        """The executable for these arguments, not from any cache, and the arrays that a call gives it, with the
        variables' values now. `fusile.report` asks for it."""
        lowering, arrays = self._lower(args, kwargs)
        settings = replace(self._options.settings, cache=False)
        executable = compile_module(lowering.module, self._options, seldom_changed(lowering), settings)
        return executable, list(map(as_numpy, [*arrays, *lowering.tensors, *VariableReader(lowering.variables)()]))

    def _lower(self, args: Any, kwargs: Any) -> tuple[Lowering, list[Any]]:
        """The function lowered for these arguments, and their tensors and arrays."""
        args, kwargs = _examples((args, kwargs))
        arrays: list[Any] = []
        describe((args, kwargs), arrays)
        check_arguments(self._function, args, kwargs)
        return lower(trace(self._function, args, kwargs, arrays), self._options.freeze), arrays

    def executable(self, *args: Any, **kwargs: Any) -> Any:
        """The executable that serves these arguments, made when there is none."""
        args, kwargs = _examples((args, kwargs))
        arrays: list[Any] = []
        key = describe((args, kwargs) if kwargs else args, arrays)
        found = self._specializations.get(key) or self._specialize(key, args, kwargs, arrays)
        return found.executable

    # -- as a method of a class
    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    def __get__(self, instance: Any, owner: type | None = None) -> CompiledFunction:
        if instance is None:
            return self
        kept = getattr(instance, "__dict__", {})
        key = f"_fusile_{self._attribute}"
        bound = kept.get(key)
        # A copy of an instance has the attributes of the first.
        if bound is None or bound._bound_to is not instance:
            bound = CompiledFunction(self._function.__get__(instance, owner), self._options)
            bound._bound_to = instance
            if self._attribute:
                kept[key] = bound
        return bound

    def __reduce__(self) -> Any:
        """What an instance keeps of its compiled methods is made anew when it is copied or read back; else the function
        is pickled by its name, as functions are."""
        return (_nothing, ()) if self._bound_to is not None else self.__qualname__


def _nothing() -> None:
    """In place of a bound method's compiled function in a pickle."""


def _examples(arguments: Any) -> Any:
    """The arguments with a tensor of zeros for each tf.TensorSpec."""

    def example(value: Any) -> Any:
        if not isinstance(value, tf.TensorSpec):
            return value
        if not value.shape.is_fully_defined():
            raise ArgumentError(f"the sizes of {value} are not all known", hint="give every dimension a size")
        return tf.zeros(value.shape, value.dtype)

    return tf.nest.map_structure(example, arguments)


def jit(function: Callable[..., Any] | None = None, *, freeze: bool = False, numerics: str = "exact",
        threads: int | None = None, target: str = "cpu") -> Any:  # fmt: skip
    """Compiles a function of tensors; a decorator with or without options.

    Arguments may be tensors, NumPy arrays, variables, Python values and structures of them. One executable is made per
    signature: element types and shapes of arrays, all else by value.

    - `freeze`: captured tensors and variables become constants at the first call, weights are prepacked.
    - `numerics`: "exact" keeps IEEE semantics; "fast" allows reassociation and approximations.
    - `threads`: most threads of a call; all of the process's CPUs by default.
    - `target`: "cpu", or "interpreter", which is slow and needs no code generator.

    Raises SettingsError for other numerics and numbers of threads, ArgumentError for other targets.
    """
    options = Options(freeze, numerics, threads, target)
    if function is None:
        return functools.partial(jit, freeze=freeze, numerics=numerics, threads=threads, target=target)
    if not callable(function):
        raise ArgumentError(f"jit takes a function, not a {type(function).__name__}")
    return CompiledFunction(function, options)
