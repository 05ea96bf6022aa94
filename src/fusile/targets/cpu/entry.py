"""The program's one native entry: launches, loops, branches and copies of a plan, as LLVM text.

`i32 fusile_entry(ptr arguments, ptr results, ptr constants, ptr arena, ptr pool, ptr log)`: the first three point to
tables of data pointers. Nothing returns to Python until the whole program has run.

`log` is null, or where to note when each launch begins: i64 count, i64 capacity, then pairs of launch number and
clock; the last pair, of launch -1, is the end. Runs that aren't observed pay a branch a launch for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusile.hlo.ir import Instruction
from fusile.memory.plan import Branch, CopyStep, Launch, Loop, Plan, Slice, Step
from fusile.targets.cpu.emit import quoted
from fusile.targets.target import CompiledKernel

SMALL_WORK = 96 << 10
"""Bytes and operations below which a kernel runs on the calling thread: waking others would take longer."""
CHUNKS = 32
_PARAMETERS = "ptr %arguments, ptr %results, ptr %constants, ptr %arena, ptr %pool, ptr %log"
_NOTE = """
declare i64 @{clock}()
define internal void @note(ptr %log, i64 %launch) noinline nounwind {{
entry:
  %now = call i64 @{clock}()
  %count = load i64, ptr %log, align 8
  %capacity.at = getelementptr i64, ptr %log, i64 1
  %capacity = load i64, ptr %capacity.at, align 8
  %full = icmp uge i64 %count, %capacity
  br i1 %full, label %out, label %write
write:
  %next = add i64 %count, 1
  store i64 %next, ptr %log, align 8
  %pair = shl i64 %next, 1
  %launch.at = getelementptr i64, ptr %log, i64 %pair
  store i64 %launch, ptr %launch.at, align 8
  %second = add i64 %pair, 1
  %clock.at = getelementptr i64, ptr %log, i64 %second
  store i64 %now, ptr %clock.at, align 8
  br label %out
out:
  ret void
}}
"""


def entry_text(
    plan: Plan, kernels: Mapping[Instruction, CompiledKernel], work: Mapping[Instruction, int], triple: str
) -> str:
    """The entry's LLVM text. `work` estimates what each fusion touches and computes."""
    # x86's time-stamp counter runs steadily; elsewhere only the steady counter may be read.
    clock = "llvm.readcyclecounter" if triple.startswith("x86_64") else "llvm.readsteadycounter"
    emitter = _EntryEmitter(kernels, work, clock)
    return emitter.text(plan)


class _EntryEmitter:
    def __init__(
        self, kernels: Mapping[Instruction, CompiledKernel], work: Mapping[Instruction, int], clock: str
    ) -> None:
        self.kernels, self.work, self.clock = kernels, work, clock
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0
        self.most = 1
        self.launched = 0

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def define(self, text: str) -> str:
        name = "%" + self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def text(self, plan: Plan) -> str:
        self._steps(plan.steps)
        self._note(-1)
        declarations = [f"declare void @{quoted(s)}(ptr, i64, i64)" for s in sorted(self.declared)]
        return "\n".join(
            [
                "declare void @fusile_parallel(ptr, ptr, ptr, i64, i64)",
                "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)",
                *declarations,
                _NOTE.format(clock=self.clock),
                f"define i32 @fusile_entry({_PARAMETERS}) nounwind {{",
                "entry:",
                "  %observed = icmp ne ptr %log, null",
                f"  %buffers = alloca [{self.most} x ptr], align 64",
                *self.lines,
                "  ret i32 0",
                "}",
                '!0 = !{!"branch_weights", i32 1, i32 100000}',
            ]
        )

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, CopyStep):
                self._copy(step)
            elif isinstance(step, Loop):
                self._loop(step)
            else:
                self._branch(step)

    def _pointer(self, place: Slice) -> str:
        if place.space == "arena":
            return self.define(f"getelementptr i8, ptr %arena, i64 {place.offset}")
        cell = self.define(f"getelementptr ptr, ptr %{place.space}s, i64 {place.index}")
        return self.define(f"load ptr, ptr {cell}, align 8")

    def _note(self, launch: int) -> None:
        note, go = self.name("note"), self.name("go")
        self.lines += [
            f"  br i1 %observed, label %{note}, label %{go}, !prof !0",
            f"{note}:",
            f"  call void @note(ptr %log, i64 {launch})",
            f"  br label %{go}",
            f"{go}:",
        ]

    def _launch(self, step: Launch) -> None:
        self._note(self.launched)
        self.launched += 1
        kernel = self.kernels[step.fusion]
        places = [*step.operands, *step.results, *([step.workspace] if step.workspace else [])]
        self.most = max(self.most, len(places) + 1)
        for i, place in enumerate(places):
            cell = self.define(f"getelementptr ptr, ptr %buffers, i64 {i}")
            self.lines.append(f"  store ptr {self._pointer(place)}, ptr {cell}, align 8")
        for phase in kernel.phases:
            symbol, extent = phase.symbol, phase.extent
            self.declared.add(symbol)
            if phase.parallel and extent > 1 and self.work[step.fusion] > SMALL_WORK:
                chunk = max(1, extent // CHUNKS)
                self.lines.append(
                    f"  call void @fusile_parallel(ptr %pool, ptr @{quoted(symbol)}, ptr %buffers, "
                    f"i64 {extent}, i64 {chunk})"
                )
            else:
                self.lines.append(f"  call void @{quoted(symbol)}(ptr %buffers, i64 0, i64 {extent})")

    def _copy(self, step: CopyStep) -> None:
        if not step.source.bytes:
            return
        source, target = self._pointer(step.source), self._pointer(step.target)
        # A result in a parameter's buffer holds it already.
        maybe_one = step.source.space == "argument" and step.target.space == "result"
        if maybe_one:
            copy, go = self.name("copy"), self.name("go")
            one = self.define(f"icmp eq ptr {source}, {target}")
            self.lines += [f"  br i1 {one}, label %{go}, label %{copy}", f"{copy}:"]
        self.lines.append(
            f"  call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {step.source.bytes}, i1 false)"
        )
        if maybe_one:
            self.lines += [f"  br label %{go}", f"{go}:"]

    def _loop(self, step: Loop) -> None:
        head, body, after = self.name("head"), self.name("body"), self.name("after")
        self.lines += [f"  br label %{head}", f"{head}:"]
        self._steps(step.condition)
        more = self._flag(step.predicate)
        self.lines += [f"  br i1 {more}, label %{body}, label %{after}", f"{body}:"]
        self._steps(step.body)
        self.lines += [f"  br label %{head}", f"{after}:"]

    def _flag(self, place: Slice) -> str:
        value = self.define(f"load i8, ptr {self._pointer(place)}, align 1")
        return self.define(f"icmp ne i8 {value}, 0")

    def _branch(self, step: Branch) -> None:
        labels, after = [self.name("case") for _ in step.branches], self.name("after")
        if step.is_predicate:
            flag = self._flag(step.index)
            self.lines.append(f"  br i1 {flag}, label %{labels[0]}, label %{labels[1]}")
        else:
            value = self.define(f"load i32, ptr {self._pointer(step.index)}, align 4")
            cases = " ".join(f"i32 {i}, label %{label}" for i, label in enumerate(labels[:-1]))
            self.lines.append(f"  switch i32 {value}, label %{labels[-1]} [ {cases} ]")
        for label, steps in zip(labels, step.branches, strict=True):
            self.lines.append(f"{label}:")
            self._steps(steps)
            self.lines.append(f"  br label %{after}")
        self.lines.append(f"{after}:")
