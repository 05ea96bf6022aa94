"""Makes calls of compiled functions differentiable: GradientTape sees one op whose backward function is compiled too.

The backward function recomputes the forward pass from the call's inputs and from the values that the variables had.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import forwardprop_util, record, tape

from fusile.base.errors import UnsupportedOpError
from fusile.tf.trace import Trace

if TYPE_CHECKING:
    from fusile.tf.jit import Specialization

_LOCK = threading.RLock()


@dataclass
class Backward:
    """A compiled gradient function: (inputs, gradients of the outputs) -> the gradients that there are.

    `has` says for each input, then for each captured tensor or variable, whether there is one.
    """

    compiled: Specialization
    has: list[bool]


def record_gradient(forward: Specialization, arrays: Sequence[Any], values: Sequence[Any] | None = None) -> list[Any]:
    """Runs `forward` on the call's arrays and records it on the tapes that watch its inputs. With `values`, these stand
    in for its variables."""
    inputs = [tf.convert_to_tensor(a) for a in arrays]
    if forwardprop_util.pack_tangents(inputs).tangents:
        raise UnsupportedOpError(
            "compiled functions have no forward-mode derivatives",
            hint="call the function itself under tf.autodiff.ForwardAccumulator, or use tf.GradientTape",
        )
    for variable in forward.trace.graph.variables:
        if variable.trainable:
            tape.variable_accessed(variable)
    with record.stop_recording():
        # The backward pass sees the very values that this call read: read apart, they might be another thread's.
        if values is None:
            outputs, held = forward.call_and_values(inputs)
        else:
            outputs, held = forward.call_with(inputs, values), values

    def backward(*upstream: Any) -> list[Any]:
        return _gradients(forward, inputs, held, upstream)

    record.record_operation("FusileCall", outputs, [*inputs, *forward.trace.captured], backward)
    return outputs


def _gradients(forward: Specialization, inputs: list[Any], values: Sequence[Any], upstream: Sequence[Any]) -> list[Any]:
    """Gradients for each input and captured tensor or handle of `forward`, None where there is none."""
    backward = backward_of(forward)
    given = [*inputs, *(tf.convert_to_tensor(g) for g in upstream)]
    by_handle = dict(zip(map(id, forward.lowering.variables), values, strict=True))
    held = [by_handle[id(h)] for h in backward.compiled.lowering.variables]
    run = record_gradient if record.could_possibly_record() else type(forward).call_with
    found = iter(run(backward.compiled, given, held))
    return [next(found) if has else None for has in backward.has]


def backward_of(forward: Specialization) -> Backward:
    """The compiled gradient function of `forward`, made when first asked for."""
    with _LOCK:
        if forward.backward is None:
            has: list[bool] = []
            traced = _trace_backward(forward.trace, has)
            # Weights change between its calls.
            forward.backward = Backward(type(forward)(traced, forward.options, keep_prepared=False), has)
        return forward.backward


def _trace_backward(traced: Trace, has: list[bool]) -> Trace:
    graph, count = traced.graph, traced.arguments
    variables = {id(v.handle): v for v in graph.variables}

    def backward(*given: Any) -> list[Any]:
        inputs, upstream = given[:count], given[count:]
        sources = [*inputs, *(variables.get(id(c), c) for c in traced.captured)]
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            for source in sources:
                if source.dtype.is_floating or source.dtype.is_complex:
                    inner.watch(source)
            outputs = traced.concrete(*inputs)
        gradients = inner.gradient(outputs, sources, output_gradients=list(upstream))
        has[:] = [g is not None for g in gradients]
        return [tf.convert_to_tensor(g) for g in gradients if g is not None]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in [*graph.inputs[:count], *graph.outputs]]
    function = tf.function(backward, autograph=False)
    concrete = function.get_concrete_function(*specs)
    return Trace(f"{traced.name}_gradient", concrete, list, (function, traced), traced.generators, traced.frozen)
