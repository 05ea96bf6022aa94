"""JAX programs, compiled by Fusile: `fusile.jax.jit` in place of `jax.jit`."""

from fusile.jax.jitted import Jitted, Lowered, jit

__all__ = ["Jitted", "Lowered", "jit"]
