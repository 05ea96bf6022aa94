"""The TensorFlow front end: `jit` compiles functions, `compile` whole models with frozen weights."""

from fusile.tf.compile_model import compile
from fusile.tf.jit import CompiledFunction, Lowered, jit

__all__ = ["CompiledFunction", "Lowered", "compile", "jit"]
