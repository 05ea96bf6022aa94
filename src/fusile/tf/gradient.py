"""Makes calls of compiled functions differentiable: GradientTape sees one op whose backward function is compiled too.

The backward function recomputes the forward pass from the call's inputs and from the values that the variables had.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.eager import record, tape

from fusile.tf.trace import Trace

if TYPE_CHECKING:
    from fusile.tf.jit import Specialization

_LOCK = threading.RLock()


def record_gradient(forward: Specialization, arrays: Sequence[Any]) -> list[Any]:
    """Runs `forward` on the call's arrays and records it on the tapes that watch its inputs."""
    inputs = [tf.convert_to_tensor(a) for a in arrays]
    captured = forward.trace.captured
    variables = list(forward.trace.graph.variables)
    for variable in variables:
        if variable.trainable:
            tape.variable_accessed(variable)
    values = forward.read_variables()
    with record.stop_recording():
        outputs = forward.call(inputs)
    sources = [*inputs, *captured]

    def backward(*upstream: Any) -> list[Any]:
        return _backward(forward, inputs, values, upstream)

    record.record_operation("FusileCall", outputs, sources, backward)
    return outputs


def _backward(forward: Specialization, inputs: list[Any], values: list[Any], upstream: Sequence[Any]) -> list[Any]:
    """Gradients for each input and captured tensor or handle of `forward`, None where there is none."""
    compiled = backward_of(forward)
    given = [*inputs, *(tf.convert_to_tensor(g) for g in upstream)]
    by_handle = dict(zip(map(id, forward.lowering.variables), values, strict=True))
    kept = [by_handle[id(h)] for h in compiled.lowering.variables]
    found = iter(record_gradient(compiled, given) if record.could_possibly_record() else compiled.call(given, kept))
    return [next(found) if has else None for has in compiled.trace.kept]


def backward_of(forward: Specialization) -> Specialization:
    """The compiled gradient function of `forward`, made once: inputs, gradients of outputs -> gradients of inputs."""
    with _LOCK:
        if forward.backward is None:
            from fusile.tf.jit import Specialization

            forward.backward = Specialization(_trace_backward(forward.trace), forward.options)
        return forward.backward


def _trace_backward(traced: Trace) -> Trace:
    graph, count = traced.graph, traced.arguments
    captured = traced.captured
    has: list[bool] = []

    def backward(*given: Any) -> list[Any]:
        inputs, upstream = given[:count], given[count:]
        variables = {id(v.handle): v for v in graph.variables}
        sources = [*inputs, *(variables.get(id(c), c) for c in captured)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for source in sources:
                if source.dtype.is_floating or source.dtype.is_complex:
                    tape.watch(source)
            outputs = traced.concrete(*inputs)
        gradients = tape.gradient(outputs, sources, output_gradients=list(upstream))
        has[:] = [g is not None for g in gradients]
        return [tf.convert_to_tensor(g) for g in gradients if g is not None]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in [*graph.inputs[:count], *graph.outputs]]
    function = tf.function(backward, autograph=False)
    concrete = function.get_concrete_function(*specs)
    return Trace(f"{traced.name}_gradient", concrete, list, function, has)
