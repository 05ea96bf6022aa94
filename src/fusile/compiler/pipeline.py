"""The whole compiler, top to bottom: source -> HLO -> passes -> kernels -> machine code -> Executable."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fusile.base.errors import ArgumentError, LoadError, ParseError, SettingsError, UnsupportedOpError
from fusile.base.records import PassRecord
from fusile.base.settings import Settings
from fusile.base.shape import TupleShape
from fusile.compiler.cache import program_cache
from fusile.compiler.cost import kernel_record, work_of
from fusile.compiler.interpreted import Interpreted
from fusile.custom_calls import registry as custom_calls
from fusile.hlo.ir import Instruction, Module
from fusile.hlo.opset.control import CustomCall, Fusion
from fusile.hlo.text import parse_module, print_module
from fusile.hlo.verifier import verify
from fusile.llvm import HostInfo, assembly_many, compile_many
from fusile.loops.lowering import lower_fusion
from fusile.loops.text import print_kernel
from fusile.memory.plan import Branch, CopyStep, Launch, Loop, Plan, Step, plan, share_buffers
from fusile.passes.fusion import Fuse, fusion_key
from fusile.passes.packing import PackContractions
from fusile.passes.pipeline import passes_after_packing, standard_passes
from fusile.passes.preparation import part_preparation
from fusile.passes.registry import passes
from fusile.passes.rematerialize import Rematerialize
from fusile.rewrite.passes import dump_records, run_passes
from fusile.runtime.executable import Executable
from fusile.runtime.program import ArraySpec, HostCall, Program, join_parts, parts_of
from fusile.stablehlo import parse as parse_stablehlo
from fusile.stablehlo.bytecode import bytecode_text, is_bytecode
from fusile.targets.cpu.arrays import arrays_text
from fusile.targets.cpu.entry import entry_text
from fusile.targets.cpu.pool import pool_text
from fusile.targets.target import CompiledKernel, Phase, Target
from fusile.targets.target import target as find_target


class Export(Protocol):
    """What `jax.export.export` returns, as far as we look into it."""

    def mlir_module(self) -> str: ...


Source = Module | str | bytes | bytearray | os.PathLike[str] | Export


def compile(
    source: Source,
    target: str = "cpu",
    settings: Settings | None = None,
    *,
    frozen: bool = False,
    donate: int | Sequence[int] = (),
    stable: Sequence[int] = (),
) -> Executable | Interpreted:
    """Compiles a program: a module, HLO or StableHLO text, MLIR bytecode, a `jax.export.Exported` or its serialized
    bytes, or a path to a file of any of these.

    The function takes the arguments of `@main`, flat. For an export those are its `in_avals` numbered by
    `module_kept_var_idx`, the leaves of the exported function's arguments without those that it does not use, after
    the number of the platform among `platforms` where there are several; its results are those of `out_avals`.

    `frozen`: constants are weights that may be folded into one another. `stable`: numbers of the arguments that seldom
    change; what depends on them alone is a program of its own, which `Executable.prepare` runs. `donate`: numbers of
    the arguments that a call gives away: each may be overwritten by the result that the program pairs it with
    (`input_output_alias`, `tf.aliasing_output`) or by one of the same type, which is then computed in its place.

    Raises ParseError, VerificationError or UnsupportedOpError when the program is wrong or has what this target can't
    do, ArgumentError when it has no such arguments, LoadError for bytecode where jaxlib is missing or can't read it.
    """
    settings = settings or Settings()
    module = read(source)
    verify(module)
    if target == "interpreter":
        return Interpreted(module)
    module = donating(module, (donate,) if isinstance(donate, int) else donate)
    notes = Notes()
    seldom = frozenset(stable) - set(module.aliases.values())
    key = program_cache.key(module, target, find_target(target).key, settings, frozen, seldom)
    program = program_cache.load(key, settings)
    cached = program is not None
    if program is None:
        check_pass_names(settings)
        program = build(module.clone(), find_target(target), settings, frozen, notes, seldom)
        program_cache.store(key, program, settings)
    if settings.log:
        log(program, target, notes.times, cached)
    writer = partial(assembly_of, info=find_target(target).details, threads=settings.compile_threads)
    return Executable(program, settings.threads, notes.times, notes.passes, writer)


def check_pass_names(settings: Settings) -> None:
    """Raises SettingsError when a pass to be skipped does not exist: it would be thought to be skipped."""
    known = passes(settings)
    for name in settings.disabled_passes:
        if name.partition("#")[0] not in known:
            raise SettingsError(f"there is no pass {name!r} to disable", hint=f"the passes are: {', '.join(known)}")


def log(program: Program, target: str, times: dict[str, float], cached: bool) -> None:
    """Says on standard error what was compiled."""
    took = ", ".join(f"{stage} {seconds:.3f} s" for stage, seconds in times.items())
    how = "from the cache" if cached else took
    print(f"fusile: {program.name} for {target}: {len(program.kernels)} kernels, {how}", file=sys.stderr)


def donating(module: Module, donate: Sequence[int]) -> Module:
    """The module, whose aliases are of these parameters alone: each with the result that the module pairs it with, or
    the first one of its type that is left. Raises ArgumentError when there is no such parameter."""
    leaves = [leaf for p in module.entry.parameters for leaf in p.shape.leaves()]
    for number in donate:
        if not isinstance(number, int) or not 0 <= number < len(leaves):
            raise ArgumentError(f"argument {number!r} can't be donated: {module.name} has {len(leaves)}")
    found = Module(module.name, module.entry)
    found.result_names = module.result_names
    found.aliases = {result: parameter for result, parameter in module.aliases.items() if parameter in donate}
    for number in dict.fromkeys(donate):
        if number not in found.aliases.values():
            fitting = (r for r, leaf in enumerate(module.entry.root.shape.leaves()) if leaf == leaves[number])
            result = next((r for r in fitting if r not in found.aliases), None)
            if result is not None:
                found.aliases[result] = number
    return found


def read(source: Source) -> Module:
    """The module in whatever names or holds it."""
    if isinstance(source, Module):
        return source
    if isinstance(source, os.PathLike) or (isinstance(source, str) and source and not set(source) & set("\n{")):
        path = Path(source)
        if not path.is_file():
            raise ArgumentError(
                f"there is no file {path}", hint="give HLO or StableHLO text, or the path of a file with it"
            )
        try:
            return read(path.read_bytes())
        except ParseError as error:
            raise error.in_file(str(path)) from None
        except LoadError as error:
            raise LoadError(f"{path}: {error.message}", hint=error.hint) from error
    text = source.mlir_module() if hasattr(source, "mlir_module") else source
    if isinstance(text, bytes | bytearray):
        data = bytes(text)
        text = bytecode_text(data) if is_bytecode(data) else data.decode("utf-8", "replace")
    if not isinstance(text, str):
        raise ArgumentError(f"a program is a module, text, bytecode, an export or a path, not {type(source).__name__}")
    if "HloModule" in text:
        return parse_module(text)
    if "func.func" in text or "stablehlo." in text or "module" in text:
        return parse_stablehlo(text)
    raise ParseError(
        "this is neither HLO text (HloModule ...) nor StableHLO (module { func.func ... })", line=1, column=1
    )


def build(
    module: Module,
    target: Target,
    settings: Settings,
    frozen: bool,
    notes: Notes,
    stable: frozenset[int] = frozenset(),
) -> Program:
    """Compiles a module, which is changed, to a Program. `notes` receives what each stage took."""
    text = print_module(module, elide=64)
    notes.begin()
    optimize(module, target, settings, frozen, notes, stable)
    preparation = part_preparation(module, stable) if stable else None
    decisions = fuse(module, settings, notes)
    program = generate(module, target, settings, notes)
    program.texts |= {"hlo": text, "decisions": decisions}
    if preparation is not None:
        decisions = fuse(preparation.module, settings, notes)
        program.preparation = generate(preparation.module, target, settings, notes)
        program.preparation.texts["decisions"] = decisions
        program.prepared_from = preparation.parameters
    if settings.dump:
        dump_records(module, notes.passes, Path(settings.dump))
    return program


def generate(module: Module, target: Target, settings: Settings, notes: Notes) -> Program:
    """The code of a fused module."""
    texts = {"optimized": print_module(module, elide=64)}
    notes.lap("passes")
    kernels, order, calls = lower(module, target)
    texts["loops"] = join_parts({k.name: print_kernel(k) for k in order}, "#")
    notes.lap("loops")
    compiled = target.compile_kernels(order, settings.compile_threads)
    by_name = {c.name: c for c in compiled}
    by_name |= {c.symbol: CompiledKernel(c.symbol, b"", (Phase(c.symbol, 1, False),), 0, "") for c in calls}
    of_fusion = {fusion: by_name[name] for fusion, name in kernels.items()}
    notes.lap("kernels")
    memory_plan = plan(module, lambda fusion: of_fusion[fusion].workspace_bytes)
    notes.lap("memory")
    work = {f: work_of(f) for f in of_fusion}
    triple = target.details.triple
    entry = entry_text(memory_plan, of_fusion, work, triple)
    entry_object, pool_object = compile_many(
        [entry, pool_text(triple) + arrays_text()], target.details, level=1, threads=settings.compile_threads
    )
    texts["llvm"] = join_parts({**{c.name: c.text for c in compiled}, "entry": entry}, ";")
    notes.lap("entry")
    objects = (*(c.object for c in compiled), entry_object)
    return _program(module, target, memory_plan, kernels, objects, pool_object, texts, calls)


@dataclass
class Notes:
    """What a compilation took: the seconds of each stage, and every run of a pass."""

    times: dict[str, float] = field(default_factory=dict)
    passes: list[PassRecord] = field(default_factory=list)
    last: float = 0.0

    def begin(self) -> None:
        """Starts the clock."""
        self.last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Adds the time since the last lap to a stage's."""
        now = time.perf_counter()
        self.times[stage] = self.times.get(stage, 0.0) + now - self.last
        self.last = now


def optimize(
    module: Module,
    target: Target,
    settings: Settings,
    frozen: bool,
    notes: Notes,
    stable: frozenset[int] = frozenset(),
) -> None:
    """The passes before fusion, in order."""
    machine = target.machine
    panel_bytes = machine.vector_bytes * (4 if machine.vector_bytes <= 16 and machine.vector_registers >= 32 else 2)
    # Packing comes after simplification, which would undo it; folding then packs frozen weights once and for all.
    packing = [PackContractions(panel_bytes, stable=stable), *passes_after_packing()]
    notes.passes += run_passes(module, [*standard_passes(settings, frozen), *packing], settings)


def fuse(module: Module, settings: Settings, notes: Notes) -> str:
    """Makes kernels, and decides which of their results lie in an operand's place. Last: nothing looks into fusions.
    Returns what was decided about fusion and why, a line each."""
    fusion = Fuse()
    notes.passes += run_passes(module, [fusion, Rematerialize()], settings)
    share_buffers(module)
    return "\n".join(map(str, fusion.decisions))


def lower(module: Module, target: Target) -> tuple[dict[Instruction, str], list[Any], list[HostCall]]:
    """Kernels of all fusions: which fusion has which, and the different ones, and calls out of the program. Equal
    fusions share one. Raises UnsupportedOpError for calls of functions that nobody has registered."""
    calls: list[HostCall] = []
    names: dict[str, str] = {}
    kernels: dict[Instruction, str] = {}
    order = []
    for computation in module.computations():
        for i in computation.post_order():
            if not isinstance(i.op, Fusion):
                continue
            if i.op.kind == "host":
                calls.append(host_call(i, f"host.{len(calls)}"))
                kernels[i] = calls[-1].symbol
                continue
            key = fusion_key(i)
            if key not in names:
                names[key] = f"k{len(names)}.{i.op.kind}"
                order.append(lower_fusion(i, names[key], target.machine))
            kernels[i] = names[key]
    return kernels, order, calls


def host_call(fusion: Instruction, symbol: str) -> HostCall:
    """The record of a fusion around a custom call."""
    (computation,) = fusion.op.computations()
    call = next(i for i in computation.instructions if isinstance(i.op, CustomCall))
    assert isinstance(call.op, CustomCall)
    if custom_calls.find(call.op.target) is None:
        raise UnsupportedOpError(
            f"no kernel is registered for the custom call to {call.op.target!r}",
            source=call.source,
            hint="register a function with fusile.register_custom_call",
        )
    operands, results = (
        tuple(ArraySpec(f"{symbol}.{n}", s.element_type.name, s.sizes) for n, s in enumerate(shapes))
        for shapes in ([s for o in fusion.operands for s in o.shape.leaves()], fusion.shape.leaves())
    )
    numbers = {p: n for n, p in enumerate(computation.parameters)}
    arguments = tuple(numbers[o] for o in call.operands)
    return HostCall(symbol, call.op.target, call.op.config, operands, results, arguments)


def assembly_of(llvm_text: str, info: HostInfo, threads: int) -> str:
    """The assembly of a program's LLVM text, part by part. Compiles it anew: assembly is kept nowhere."""
    parts = parts_of(llvm_text)
    return join_parts(dict(zip(parts, assembly_many(list(parts.values()), info, threads=threads), strict=True)), "#")


def cross_assembly(source: Source, target: str, settings: Settings | None = None) -> str:
    """The assembly of a program for any kind of machine. Raises what `compile` raises."""
    settings, found = settings or Settings(), find_target(target)
    module = read(source).clone()
    verify(module)
    program = build(module, found, settings, False, Notes())
    return assembly_of(program.texts["llvm"], found.details, settings.compile_threads)


def launches(steps: Sequence[Step]) -> list[Launch]:
    """Every launch of a plan, those in loops and branches once."""
    found: list[Launch] = []
    for step in steps:
        if isinstance(step, Launch):
            found.append(step)
        elif isinstance(step, Loop):
            found += launches(step.condition) + launches(step.body)
        elif isinstance(step, Branch):
            found += [x for branch in step.branches for x in launches(branch)]
        else:
            assert isinstance(step, CopyStep)
    return found


def _program(
    module: Module,
    target: Target,
    memory_plan: Plan,
    kernels: dict[Instruction, str],
    objects: tuple[bytes, ...],
    pool_object: bytes,
    texts: dict[str, str],
    calls: Sequence[HostCall],
) -> Program:
    names = [p.name for p in module.entry.parameters for _ in p.shape.leaves()]
    parameters = tuple(
        ArraySpec(n, s.element_type.name, s.sizes) for n, s in zip(names, memory_plan.parameters, strict=True)
    )
    results = tuple(ArraySpec(f"result {i}", s.element_type.name, s.sizes) for i, s in enumerate(memory_plan.results))
    return Program(
        name=module.name,
        target=target.key,
        parameters=parameters,
        results=results,
        aliases=tuple(sorted(module.aliases.items())),
        is_tuple=isinstance(module.entry.root.shape, TupleShape),
        objects=objects,
        pool_object=pool_object,
        constants=tuple(c.array for c in memory_plan.constants),
        arena_bytes=memory_plan.arena_bytes,
        temp_unshared=memory_plan.temp_unshared,
        kernels=tuple(kernel_record(x.fusion, kernels[x.fusion]) for x in launches(memory_plan.steps)),
        lives=memory_plan.lives,
        timeline=memory_plan.timeline,
        texts=texts,
        host_calls=tuple(calls),
    )


__all__ = ["CompiledKernel", "build", "compile", "fuse", "lower", "optimize", "read"]
