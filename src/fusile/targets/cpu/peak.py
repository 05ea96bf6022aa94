"""What a processor can do at most, measured by code of our own: fused multiply-adds from registers, reads of memory.

`void probe_arithmetic(ptr buffers, i64 begin, i64 end)` does `arithmetic_flops(machine)` floating-point operations for
each unit; `probe_reads` reads READ_BYTES of memory for each. Both are phases as kernels have them, so that the thread
pool runs them: `buffers` points to the address of the data (for the arithmetic: 2 f32 factors) and of 64 bytes a unit
for what comes out, without which LLVM would leave the work out.
"""

from __future__ import annotations

from fusile.loops.machine import Machine

TURNS = 200_000
READ_BYTES = 1 << 18


def chains(machine: Machine) -> int:
    """Independent sums, enough to hide an addition's latency and few enough for the registers."""
    return machine.vector_registers - 4 if machine.vector_registers <= 16 else 24


def arithmetic_flops(machine: Machine) -> int:
    """Floating-point operations of one unit of `probe_arithmetic`."""
    return 2 * TURNS * chains(machine) * (machine.vector_bytes // 4)


def probe_text(machine: Machine) -> str:
    """Both probes as LLVM text."""
    return _arithmetic(machine) + _reads(machine)


def _unit_loop(name: str, setup: list[str], body: list[str]) -> str:
    """A phase whose `body` runs once for each unit `%unit` and ends in the block `%unit.end`."""
    lines = [
        f"define void @{name}(ptr %buffers, i64 %begin, i64 %end) nounwind {{",
        "entry:",
        "  %data = load ptr, ptr %buffers, align 8",
        "  %out.at = getelementptr ptr, ptr %buffers, i64 1",
        "  %out = load ptr, ptr %out.at, align 8",
        *setup,
        "  br label %unit.head",
        "unit.head:",
        "  %unit = phi i64 [ %begin, %entry ], [ %unit.next, %unit.end ]",
        "  %more = icmp slt i64 %unit, %end",
        "  br i1 %more, label %unit.body, label %done",
        "unit.body:",
        "  %place.offset = mul i64 %unit, 64",
        "  %place = getelementptr i8, ptr %out, i64 %place.offset",
        *body,
        "  %unit.next = add i64 %unit, 1",
        "  br label %unit.head",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _joined(vector: str, add: str, parts: list[str]) -> list[str]:
    """Adds the parts and stores the sum at the unit's place."""
    lines, total = [], parts[0]
    for n, part in enumerate(parts[1:]):
        lines.append(f"  %joined.{n} = {add} {vector} {total}, {part}")
        total = f"%joined.{n}"
    return [*lines, f"  store {vector} {total}, ptr %place, align 4"]


def _arithmetic(machine: Machine) -> str:
    lanes, count = machine.vector_bytes // 4, chains(machine)
    vector = f"<{lanes} x float>"
    setup = ["  %second = getelementptr float, ptr %data, i64 1"]
    for name, place in (("factor", "%data"), ("term", "%second")):
        setup += [
            f"  %{name}.one = load float, ptr {place}, align 4",
            f"  %{name}.first = insertelement {vector} poison, float %{name}.one, i64 0",
            f"  %{name} = shufflevector {vector} %{name}.first, {vector} poison, <{lanes} x i32> zeroinitializer",
        ]
    body = ["  br label %turn", "turn:", f"  %i = phi i64 [ {TURNS}, %unit.body ], [ %i.next, %turn ]"]
    # Chains that begin alike would be one.
    start = [f"<{', '.join([f'float {n + 1}.0'] * lanes)}>" for n in range(count)]
    body += [f"  %sum.{n} = phi {vector} [ {start[n]}, %unit.body ], [ %new.{n}, %turn ]" for n in range(count)]
    for n in range(count):
        if machine.has_fma:
            operands = f"{vector} %sum.{n}, {vector} %factor, {vector} %term"
            body.append(f"  %new.{n} = call {vector} @llvm.fma.v{lanes}f32({operands})")
        else:
            body.append(f"  %product.{n} = fmul {vector} %sum.{n}, %factor")
            body.append(f"  %new.{n} = fadd {vector} %product.{n}, %term")
    body += ["  %i.next = sub i64 %i, 1", "  %again = icmp ne i64 %i.next, 0"]
    body += ["  br i1 %again, label %turn, label %unit.end", "unit.end:"]
    body += _joined(vector, "fadd", [f"%new.{n}" for n in range(count)])
    declaration = f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})\n" if machine.has_fma else ""
    return declaration + _unit_loop("probe_arithmetic", setup, body)


def _reads(machine: Machine) -> str:
    vector, parts = f"<{machine.vector_bytes // 8} x i64>", 8
    step = parts * machine.vector_bytes
    body = [
        f"  %from.offset = mul i64 %unit, {READ_BYTES}",
        "  %from = getelementptr i8, ptr %data, i64 %from.offset",
        "  br label %turn",
        "turn:",
        "  %at = phi i64 [ 0, %unit.body ], [ %at.next, %turn ]",
        *(f"  %sum.{n} = phi {vector} [ zeroinitializer, %unit.body ], [ %new.{n}, %turn ]" for n in range(parts)),
    ]
    for n in range(parts):
        body += [
            f"  %offset.{n} = add i64 %at, {n * machine.vector_bytes}",
            f"  %address.{n} = getelementptr i8, ptr %from, i64 %offset.{n}",
            f"  %value.{n} = load {vector}, ptr %address.{n}, align 64",
            f"  %new.{n} = add {vector} %sum.{n}, %value.{n}",
        ]
    body += [f"  %at.next = add i64 %at, {step}", f"  %again = icmp ult i64 %at.next, {READ_BYTES}"]
    body += ["  br i1 %again, label %turn, label %unit.end", "unit.end:"]
    body += _joined(vector, "add", [f"%new.{n}" for n in range(parts)])
    return _unit_loop("probe_reads", [], body)
