"""Runs kernels natively, for comparison with the loop interpreter."""

import ctypes
import itertools

import llvmlite.binding as llvm
import numpy as np
import pytest

from fusile.targets.target import target

_numbers = itertools.count()
_kept = []


def load(code):
    """Object code in memory; a function from a symbol to its address."""
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _kept.append(engine)
    return engine.get_function_address


def run_native(kernel, arrays, chunks=1):
    """Runs a kernel's machine code on arrays; parallel phases in `chunks` calls. Returns the CompiledKernel."""
    compiled = target("cpu").compile_kernels([kernel], 1)[0]
    address = load(compiled.object)
    workspace = np.zeros(compiled.workspace_bytes + 64, np.uint8)
    buffers = (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in arrays), workspace.ctypes.data)
    for phase in compiled.phases:
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address(phase.symbol))
        size = -(-phase.extent // chunks) if phase.parallel else phase.extent
        for begin in range(0, phase.extent, max(1, size)):
            function(buffers, begin, min(phase.extent, begin + size))
    return compiled


@pytest.fixture
def native():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return run_native
