"""LLVM's C interface as llvmlite's shared library exports it, called without llvmlite's process-wide lock.

LLVM needs only that a context stays with one thread at a time, and each compilation here makes its own. The functions
are looked up in a handle of our own, so that other users of llvmlite in the process keep their lock.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from llvmlite.binding import ffi

_TEXT = POINTER(c_char_p)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "InitializeAllTargetInfos": (None, ()),
    "InitializeAllTargets": (None, ()),
    "InitializeAllTargetMCs": (None, ()),
    "InitializeAllAsmPrinters": (None, ()),
    "GetProcessTriple": (None, (_TEXT,)),
    "GetHostCPUName": (None, (_TEXT,)),
    "GetHostCPUFeatures": (c_int, (_TEXT,)),
    "DisposeString": (None, (c_void_p,)),
    "GetTargetFromTriple": (c_void_p, (c_char_p, _TEXT)),
    "CreateTargetMachine": (
        c_void_p,
        (c_void_p, c_char_p, c_char_p, c_char_p, c_int, c_char_p, c_char_p, c_int, c_int, c_char_p),
    ),
    "DisposeTargetMachine": (None, (c_void_p,)),
    "CreateTargetMachineData": (c_void_p, (c_void_p,)),
    "CopyStringRepOfTargetData": (None, (c_void_p, _TEXT)),
    "DisposeTargetData": (None, (c_void_p,)),
    "ContextCreate": (c_void_p, ()),
    "ContextDispose": (None, (c_void_p,)),
    "ParseAssembly": (c_void_p, (c_void_p, c_char_p, _TEXT)),
    "DisposeModule": (None, (c_void_p,)),
    "VerifyModule": (c_int, (c_void_p, _TEXT)),
    "PrintModuleToString": (None, (c_void_p, _TEXT)),
    "SetTarget": (None, (c_void_p, c_char_p)),
    "SetDataLayout": (None, (c_void_p, c_char_p)),
    "CreatePipelineTuningOptions": (c_void_p, ()),
    "PTOSetLoopInterleaving": (None, (c_void_p, c_bool)),
    "PTOSetLoopVectorization": (None, (c_void_p, c_bool)),
    "PTOSetSLPVectorization": (None, (c_void_p, c_bool)),
    "PTOSetLoopUnrolling": (None, (c_void_p, c_bool)),
    "DisposePipelineTuningOptions": (None, (c_void_p,)),
    "CreatePassBuilder": (c_void_p, (c_void_p, c_void_p)),
    "DisposePassBuilder": (None, (c_void_p,)),
    "buildPerModuleDefaultPipeline": (c_void_p, (c_void_p, c_int)),
    "DisposeNewModulePassManger": (None, (c_void_p,)),
    "RunNewModulePassManager": (None, (c_void_p, c_void_p, c_void_p)),
    "TargetMachineEmitToMemory": (c_void_p, (c_void_p, c_void_p, c_int, _TEXT)),
    "GetBufferStart": (c_void_p, (c_void_p,)),
    "GetBufferSize": (c_size_t, (c_void_p,)),
    "DisposeMemoryBuffer": (None, (c_void_p,)),
}


class Library:
    """The functions above as attributes (`library.ParseAssembly`), typed, each call releasing Python's own lock."""

    def __init__(self) -> None:
        handle = ctypes.CDLL(ffi.lib._name)
        for name, (result, arguments) in _SIGNATURES.items():
            function = handle[f"LLVMPY_{name}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"LLVM function {name} is not declared in fusile/llvm/library.py")


@functools.cache
def library() -> Library:
    """The library, with every code generator set up."""
    found = Library()
    for part in ("TargetInfos", "Targets", "TargetMCs", "AsmPrinters"):
        getattr(found, f"InitializeAll{part}")()
    return found


class OwnedText:
    """A string that LLVM returns through a pointer; freed at the end of the `with` block."""

    def __init__(self) -> None:
        self.pointer = c_char_p()

    def __enter__(self) -> OwnedText:
        return self

    @property
    def argument(self) -> object:
        return byref(self.pointer)

    def __str__(self) -> str:
        return (self.pointer.value or b"").decode(errors="replace")

    def __exit__(self, *exception: object) -> None:
        if self.pointer:
            library().DisposeString(ctypes.cast(self.pointer, c_void_p))
