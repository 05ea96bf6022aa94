"""MLIR bytecode, StableHLO portable artifacts and `jax.export`'s files -> text, by the MLIR that comes with jaxlib.

The format is MLIR's own and changes with it, so MLIR reads it; what is read from then on is text. It does so in a
process of its own, because its reader takes damaged bytes for pointers: a bad file ends that process, not the user's.
"""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
from multiprocessing.spawn import get_executable

from fusile.base.errors import LoadError

MAGIC = b"ML\xefR"
"""How bytecode begins. It is no UTF-8, so that no text holds it."""

_MODULE_SLOT = 13
"""The field of jax.export's FlatBuffers table `Exported` that holds the module (`mlir_module_serialized`)."""


def is_bytecode(data: bytes) -> bool:
    """Whether these bytes are MLIR bytecode or hold it, as an export does."""
    return MAGIC in data


def bytecode_text(data: bytes) -> str:
    """The program's text, with constants whole and source locations. It takes about half a second.

    `data`: MLIR bytecode of StableHLO, a portable artifact, or `jax.export.Exported.serialize()`. Raises LoadError
    where jaxlib is missing or the bytes are damaged or newer than it.
    """
    if importlib.util.find_spec("jaxlib") is None:
        raise LoadError(
            "MLIR bytecode is read by jaxlib's MLIR, and there is no jaxlib",
            hint="pip install jaxlib, or save the program as text: exported.mlir_module()",
        )
    if not data.startswith(MAGIC):
        data = _module_of_export(data)
    paths = os.pathsep.join(filter(None, sys.path))
    reader = subprocess.run(
        [os.fsdecode(get_executable()), "-P", "-m", __name__],
        input=data,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    if reader.returncode:
        said = reader.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = said[-1].strip() if said else f"its reader ended with status {reader.returncode}"
        raise LoadError(
            f"MLIR can't read this bytecode: {reason}",
            hint="was the file cut off, damaged, or written by a newer version than this jaxlib?",
        )
    return reader.stdout.decode()


def _module_of_export(data: bytes) -> bytes:
    """The module in the FlatBuffers table that `Exported.serialize` writes. An export with derivatives holds theirs
    too, so the place is looked up. Raises LoadError."""
    try:
        (table,) = struct.unpack_from("<I", data, 0)
        (back,) = struct.unpack_from("<i", data, table)
        (slot,) = struct.unpack_from("<H", data, table - back + 4 + 2 * _MODULE_SLOT)
        field = table + slot
        vector = field + struct.unpack_from("<I", data, field)[0]
        (size,) = struct.unpack_from("<I", data, vector)
    except struct.error:
        size = vector = len(data)
    module = data[vector + 4 : vector + 4 + size]
    if len(module) != size or not module.startswith(MAGIC):
        raise LoadError(
            "this is neither MLIR bytecode nor a whole export of jax.export",
            hint="was the file cut off? exported.mlir_module_serialized is the module alone",
        )
    return module


def _read() -> None:
    """What the other process does: bytecode in, text out."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    chlo.register_dialect(context)
    mhlo.register_mhlo_dialect(context)
    sdy.register_dialect(context)
    with context:
        module = stablehlo.deserialize_portable_artifact(context, sys.stdin.buffer.read())
        text = str(module.operation.get_asm(enable_debug_info=True))
    sys.stdout.buffer.write(text.encode())


if __name__ == "__main__":
    _read()
