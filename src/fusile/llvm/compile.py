"""LLVM text to object code or assembly, on several threads at once."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from fusile.base.errors import CompileError
from fusile.llvm.library import OwnedText, library


@dataclass(frozen=True)
class HostInfo:
    """What code is made for: LLVM's triple, processor name and feature string (`+avx2,-avx512f,...`)."""

    triple: str
    cpu: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def architecture(self) -> str:
        return self.triple.partition("-")[0]


@functools.cache
def host() -> HostInfo:
    """This machine."""
    llvm = library()
    found = []
    for function in (llvm.GetProcessTriple, llvm.GetHostCPUName, llvm.GetHostCPUFeatures):
        with OwnedText() as text:
            function(text.argument)
            found.append(str(text))
    triple, cpu, features = found
    return HostInfo(triple, cpu, ",".join(sorted(features.split(","), key=lambda f: f[1:])))


def compile_object(text: str, target: HostInfo | None = None, level: int = 2) -> bytes:
    """The relocatable, position-independent ELF object of LLVM text. Raises CompileError when LLVM rejects the text."""
    return _emit(text, target or host(), level, as_object=True)


def assembly(text: str, target: HostInfo | None = None, level: int = 2) -> str:
    """The assembly of LLVM text."""
    return _emit(text, target or host(), level, as_object=False).decode()


def assembly_many(texts: Sequence[str], target: HostInfo | None = None, level: int = 2, threads: int = 1) -> list[str]:
    """The assembly of several texts, in order, made on `threads` threads at once."""
    target = target or host()
    library()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        return list(pool.map(lambda t: assembly(t, target, level), texts))


def optimized_text(text: str, target: HostInfo | None = None, level: int = 2) -> str:
    """LLVM text after LLVM's own passes."""
    target = target or host()
    with _machine(target, level) as machine, _optimized(text, machine, target, level) as module, OwnedText() as printed:
        library().PrintModuleToString(module, printed.argument)
        return str(printed)


def compile_many(texts: Sequence[str], target: HostInfo | None = None, level: int = 2, threads: int = 1) -> list[bytes]:
    """The objects of several texts, in order, compiled on `threads` threads at once."""
    target = target or host()
    if threads <= 1 or len(texts) <= 1:
        return [compile_object(t, target, level) for t in texts]
    library()
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda t: compile_object(t, target, level), texts))


@contextmanager
def _machine(target: HostInfo, level: int) -> Iterator[int]:
    llvm = library()
    with OwnedText() as error:
        found = llvm.GetTargetFromTriple(target.triple.encode(), error.argument)
        if not found:
            raise CompileError(f"LLVM has no code generator for {target.triple}: {error}")
    names = (target.triple.encode(), target.cpu.encode(), target.features.encode())
    machine = llvm.CreateTargetMachine(found, *names, level, b"pic", b"small", 0, 0, b"")
    if not machine:
        raise CompileError(f"LLVM makes no code for {target.cpu} of {target.triple}")
    try:
        yield machine
    finally:
        llvm.DisposeTargetMachine(machine)


@contextmanager
def _parsed(text: str) -> Iterator[int]:
    """A verified module in a context of its own."""
    llvm = library()
    context = llvm.ContextCreate()
    module = None
    try:
        with OwnedText() as error:
            module = llvm.ParseAssembly(context, text.encode(), error.argument)
            if not module:
                raise _rejected(str(error))
        with OwnedText() as error:
            if llvm.VerifyModule(module, error.argument):
                raise _rejected(str(error))
        yield module
    finally:
        if module:
            llvm.DisposeModule(module)
        llvm.ContextDispose(context)


def _rejected(why: str) -> CompileError:
    return CompileError(f"LLVM does not take the generated code: {why}", hint="a bug in Fusile; please report it")


@contextmanager
def _optimized(text: str, machine: int, target: HostInfo, level: int) -> Iterator[int]:
    llvm = library()
    with _parsed(text) as module:
        data = llvm.CreateTargetMachineData(machine)
        with OwnedText() as layout:
            llvm.CopyStringRepOfTargetData(data, layout.argument)
            llvm.SetDataLayout(module, str(layout).encode())
        llvm.DisposeTargetData(data)
        llvm.SetTarget(module, target.triple.encode())
        if level > 0:
            _run_passes(module, machine, level)
        yield module


def _run_passes(module: int, machine: int, level: int) -> None:
    """LLVM's default pipeline without its vectorizers (kernels come vectorized) and unrolling only where asked for."""
    llvm = library()
    options = llvm.CreatePipelineTuningOptions()
    for setting in ("LoopInterleaving", "LoopVectorization", "SLPVectorization", "LoopUnrolling"):
        getattr(llvm, f"PTOSet{setting}")(options, False)
    builder = llvm.CreatePassBuilder(machine, options)
    passes = llvm.buildPerModuleDefaultPipeline(builder, level)
    try:
        llvm.RunNewModulePassManager(passes, module, builder)
    finally:
        llvm.DisposeNewModulePassManger(passes)
        llvm.DisposePassBuilder(builder)
        llvm.DisposePipelineTuningOptions(options)


def _emit(text: str, target: HostInfo, level: int, as_object: bool) -> bytes:
    llvm = library()
    with _machine(target, level) as machine, _optimized(text, machine, target, level) as module:
        with OwnedText() as error:
            buffer = llvm.TargetMachineEmitToMemory(machine, module, int(as_object), error.argument)
            if not buffer:
                raise CompileError(f"LLVM could not write the code: {error}")
        try:
            return ctypes.string_at(llvm.GetBufferStart(buffer), llvm.GetBufferSize(buffer))
        finally:
            llvm.DisposeMemoryBuffer(buffer)
