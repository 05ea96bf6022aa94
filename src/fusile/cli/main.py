"""The `fusile` command: run, show, opt, convert, bench and ops. One function a subcommand; `main` parses and
dispatches."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusile.base.errors import ArgumentError, FusileError
from fusile.base.settings import Settings
from fusile.base.version import VERSION

EXAMPLES = """examples:
  fusile run program.mlir                      run on random inputs and print the results
  fusile run program.hlo --inputs x.npy y.npy --save out.npz
  fusile run program.mlir --compare            run the interpreter too and name the first instruction that differs
  fusile show program.mlir --stage loops       hlo, decisions, optimized, loops, llvm, asm, kernels
  fusile show program.mlir --html -o page.html everything about it on one page
  fusile run program.mlir --trace trace.json   when each kernel ran, for Perfetto
  fusile opt program.hlo --passes simplify,cse run some passes, text to text (--list: their names)
  fusile convert program.mlir --to hlo         between StableHLO and HLO text
  fusile bench program.mlir --seconds 3        latency, kernels, bytes, compile times
  fusile ops                                   the op set, with what each op takes
A program is a file of StableHLO (MLIR text) or HLO text. FUSILE_THREADS, FUSILE_CACHE_DIR and FUSILE_DUMP are
heeded."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's exit status: 0 when all went well, 1 for a program's error, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except FusileError as error:
        print(f"fusile: {error}", file=sys.stderr)
    except OSError as error:
        print(f"fusile: {error.filename or ''}: {error.strerror}", file=sys.stderr)
    return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="fusile",
        description="Compile and run machine-learning programs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"fusile {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = _command(commands, "run", "run a program", run_program)
    run.add_argument(
        "--inputs",
        nargs="*",
        default=[],
        metavar="FILE",
        help=".npy files in order, or one .npz (random arrays when left out)",
    )
    run.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default 0)")
    run.add_argument("--save", metavar="FILE", help="write the results to an .npz file")
    run.add_argument(
        "--compare", action="store_true", help="also run the interpreter and name the first instruction that differs"
    )
    run.add_argument("--trace", type=Path, metavar="FILE", help="write when each kernel ran, for Perfetto or Chrome")
    show = _command(commands, "show", "print a program at a stage of compilation, or write a page on it", show_program)
    show.add_argument(
        "--stage", default="optimized", choices=["hlo", "decisions", "optimized", "loops", "llvm", "asm", "kernels"]
    )
    show.add_argument("--html", action="store_true", help="write a page with everything about it, kernels timed")
    show.add_argument("-o", "--output", type=Path, help="the page's file (default: the program's name, .html)")
    show.add_argument("--seed", type=int, default=0, help="seed of the random inputs that kernels are timed on")
    _text_commands(commands)
    bench = _command(commands, "bench", "time a program", bench_program)
    bench.add_argument("--seconds", type=float, default=2.0, help="how long to repeat calls (default 2)")
    bench.add_argument("--seed", type=int, default=0)
    ops = commands.add_parser("ops", help="list the op set", description="List the op set.")
    ops.add_argument("pattern", nargs="?", default="", help="only ops whose name holds this")
    ops.set_defaults(run=list_ops)
    return top


def _text_commands(commands: Any) -> None:
    """The subcommands from text to text."""
    for name, what, function in (
        ("opt", "run passes on a program and print it", optimize_program),
        ("convert", "print a program as HLO or StableHLO text", convert_program),
    ):
        command = commands.add_parser(name, help=what, description=what.capitalize() + ".")
        command.add_argument(
            "file", type=Path, nargs="?", help="a file of StableHLO or HLO text (- or none: the input)"
        )
        command.add_argument(
            "--to", choices=["hlo", "stablehlo"], help="the text to print (default: as the file has it)"
        )
        command.add_argument("-o", "--output", type=Path, help="write there instead of printing")
        command.set_defaults(run=function)
        if name == "opt":
            command.add_argument("--passes", default="", help="names of passes, in order, with commas between")
            command.add_argument("--list", action="store_true", help="print the passes' names")


def _command(
    commands: Any, name: str, what: str, function: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what.capitalize() + ".")
    command.add_argument("file", type=Path, help="a file of StableHLO or HLO text, or of MLIR bytecode")
    command.add_argument("--target", default="cpu", help="cpu (default) or interpreter")
    command.add_argument("--threads", type=int, help="threads to run on (default: all cores)")
    command.add_argument("--no-cache", action="store_true", help="compile anew")
    command.set_defaults(run=function)
    return command


def _console() -> Any:
    try:
        from rich.console import Console
    except ImportError as error:
        raise FusileError(
            "the command needs the package rich for its tables", hint="pip install 'fusile[cli]'"
        ) from error
    return Console()


def _compiled(options: argparse.Namespace) -> Any:
    """The executable, with a spinner while a long compilation runs."""
    import fusile

    settings = Settings()
    if options.threads:
        settings = replace(settings, threads=max(1, options.threads))
    if options.no_cache:
        settings = replace(settings, cache=False)
    with _console().status(f"compiling {options.file}"):
        return fusile.compile(options.file, target=options.target, settings=settings)


def _inputs(options: argparse.Namespace) -> list[np.ndarray[Any, Any]]:
    """The arrays that were given, or random ones of the parameters' shapes."""
    from fusile.compiler.pipeline import read

    files = getattr(options, "inputs", [])
    if len(files) == 1 and files[0].endswith(".npz"):
        with np.load(files[0]) as archive:
            return [archive[name] for name in archive.files]
    if files:
        return [np.load(f) for f in files]
    random = np.random.default_rng(options.seed)
    return [_random(p.array_shape, random) for p in read(options.file).entry.parameters]


def _random(shape: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    t = shape.element_type
    if t.is_predicate:
        return random.integers(0, 2, shape.sizes).astype(bool)
    if t.is_integer:
        return random.integers(0, 8 if t.bits > 4 else 2, shape.sizes).astype(t.dtype)
    values = random.standard_normal(shape.sizes)
    return (
        (values + 1j * random.standard_normal(shape.sizes)).astype(t.dtype) if t.is_complex else values.astype(t.dtype)
    )


def run_program(options: argparse.Namespace) -> int:
    inputs = _inputs(options)
    executable = _compiled(options)
    result = executable(*inputs)
    results = list(result) if isinstance(result, tuple) else [result]
    for number, r in enumerate(results):
        print(f"result {number}: {r.dtype}{list(r.shape)}")
        print(np.array2string(r, threshold=20, precision=6))
    if options.trace:
        if options.target == "interpreter":
            raise ArgumentError("the interpreter has no kernels to trace", hint="run it with --target cpu")
        options.trace.write_text(json.dumps(executable.profile(*inputs).chrome_trace()))
        print(f"trace: {options.trace} (open it in https://ui.perfetto.dev or chrome://tracing)")
    if options.save:
        np.savez(options.save, **{f"result_{i}": r for i, r in enumerate(results)})
    return _compare(options, inputs, results) if options.compare else 0


def _compare(options: argparse.Namespace, inputs: list[Any], results: list[Any]) -> int:
    """Whether results differ from the interpreter's; says which instruction is the first to."""
    import fusile
    from fusile.compiler.compare import difference, first_difference
    from fusile.compiler.pipeline import read

    expected = fusile.compile(options.file, target="interpreter").call_flat(inputs)  # type: ignore[arg-type]
    wrong = False
    for number, (a, e) in enumerate(zip(results, expected, strict=True)):
        wide = np.complex128 if np.iscomplexobj(e) else np.float64
        largest = float(np.nanmax(np.abs(a.astype(wide) - e.astype(wide)), initial=0.0))
        print(f"result {number}: largest difference from the interpreter {largest:.3g}")
        wrong = wrong or difference(np.asarray(e), a) is not None
    if wrong:
        found = first_difference(read(options.file), options.target, inputs, Settings())
        print(found or "no instruction differs by itself: the difference appears only when they are fused")
    return int(wrong)


def _text_of(options: argparse.Namespace) -> str:
    if options.file is None or str(options.file) == "-":
        return sys.stdin.read()
    from fusile.stablehlo.bytecode import bytecode_text, is_bytecode

    data: bytes = options.file.read_bytes()
    return bytecode_text(data) if is_bytecode(data) else data.decode("utf-8", "replace")


def _write(options: argparse.Namespace, module: Any, source: str) -> int:
    """Prints a module in the dialect that was asked for, or that it came in."""
    from fusile.hlo.text import print_module as as_hlo
    from fusile.stablehlo import print_module as as_stablehlo

    kind = options.to or ("hlo" if "HloModule" in source else "stablehlo")
    text = as_hlo(module) if kind == "hlo" else as_stablehlo(module)
    if options.output:
        options.output.write_text(text)
    else:
        print(text)
    return 0


def optimize_program(options: argparse.Namespace) -> int:
    from fusile.compiler.pipeline import read
    from fusile.hlo.verifier import verify
    from fusile.passes.registry import passes, passes_named
    from fusile.rewrite.passes import run_passes

    settings = Settings()
    if options.list:
        print("\n".join(passes(settings)))
        return 0
    chosen = passes_named([n.strip() for n in options.passes.split(",") if n.strip()], settings)
    text = _text_of(options)
    module = read(text)
    verify(module)
    run_passes(module, chosen, settings)
    return _write(options, module, text)


def convert_program(options: argparse.Namespace) -> int:
    from fusile.compiler.pipeline import read
    from fusile.hlo.verifier import verify

    text = _text_of(options)
    module = read(text)
    verify(module)
    if options.to is None:
        options.to = "stablehlo" if "HloModule" in text else "hlo"
    return _write(options, module, text)


def show_program(options: argparse.Namespace) -> int:
    if options.html:
        return _write_report(options)
    if options.output:
        raise ArgumentError("-o is the file of a page", hint="add --html")
    if options.stage == "asm" and ":" in options.target:
        from fusile.compiler.pipeline import cross_assembly

        # Code for another kind of machine can't be loaded here.
        print(cross_assembly(options.file, options.target))
        return 0
    executable = _compiled(options)
    if options.stage == "kernels":
        _print_kernels(executable)
    else:
        print(executable.text(options.stage))
    return 0


def _write_report(options: argparse.Namespace) -> int:
    from fusile.compiler.report import Report

    if options.target == "interpreter":
        raise ArgumentError("the interpreter compiles nothing to report on", hint="use --target cpu")
    # Compiled anew, so that the page says what compiling takes.
    options.no_cache = True
    report = Report(_compiled(options), _inputs(options))
    print(report.save(options.output or options.file.with_suffix(".html")))
    return 0


def _print_kernels(executable: Any) -> None:
    from rich.table import Table

    table = Table("kernel", "ops", "flops", "bytes read", "bytes written")
    for k in executable.kernels:
        table.add_row(k.name, " ".join(k.ops), f"{k.flops:,}", f"{k.bytes_read:,}", f"{k.bytes_written:,}")
    _console().print(table)


def bench_program(options: argparse.Namespace) -> int:
    from rich.table import Table

    inputs = _inputs(options)
    executable = _compiled(options)
    times: list[float] = []
    end = time.perf_counter() + options.seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        executable.call_flat(inputs)
        times.append(time.perf_counter() - start)
    best = min(times)
    table = Table("figure", "value", title=str(options.file), title_justify="left")
    rows = [
        ("latency, least", f"{best * 1e3:.4f} ms"),
        ("latency, median", f"{float(np.median(times)) * 1e3:.4f} ms"),
        ("calls", str(len(times))),
        ("kernels", str(len(executable.kernels))),
        *_rates(executable, best),
        ("temporaries", f"{executable.memory.temp:,} bytes"),
        *((f"compile: {stage}", f"{seconds:.3f} s") for stage, seconds in executable.compile_times.items()),
    ]
    for row in rows:
        table.add_row(*row)
    _console().print(table)
    return 0


def _rates(executable: Any, seconds: float) -> list[tuple[str, str]]:
    """How fast a run of so many seconds computed and moved data, beside what the machine can do. Kernels in loops count
    once, so that programs with loops do more."""
    from fusile.compiler.roofline import peak

    if not executable.kernels:
        return []
    most = peak(replace(Settings(), threads=executable.threads))
    flops = sum(k.flops for k in executable.kernels)
    moved = sum(k.bytes_read + k.bytes_written for k in executable.kernels)
    least = sum(map(most.seconds, executable.kernels))
    return [
        ("arithmetic", f"{flops / seconds * 1e-9:.1f} of {most.flops * 1e-9:.0f} GFLOP/s"),
        ("memory", f"{moved / seconds * 1e-9:.1f} of {most.bytes * 1e-9:.0f} GB/s"),
        ("roofline estimate", f"{least * 1e3:.4f} ms"),
    ]


def list_ops(options: argparse.Namespace) -> int:
    from rich.table import Table

    from fusile.hlo import opset as _opset  # noqa: F401  the ops enter themselves in OPS
    from fusile.hlo.ir import OPS

    table = Table("op", "attributes", "meaning")
    for opcode, cls in sorted(OPS.items()):
        if options.pattern in opcode:
            first = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
            attributes = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
            table.add_row(opcode, ", ".join(attributes), first)
    if not table.row_count:
        print(f"fusile: no op has {options.pattern!r} in its name", file=sys.stderr)
        return 1
    _console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
