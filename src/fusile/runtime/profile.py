"""When each kernel of one run ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusile.runtime.program import Kernel

MOST_EVENTS = 100_000
"""Launches of a run that are noted; what comes after them is not."""


@dataclass(frozen=True)
class Event:
    """One launch: which of the program's kernels, when it began, and how long it took (with copies up to the next),
    in seconds."""

    kernel: int
    start: float
    seconds: float


@dataclass(frozen=True)
class KernelTime:
    """A kernel of the program, its launches in the run, and the seconds of all of them."""

    kernel: Kernel
    launches: int
    seconds: float

    @property
    def gflops(self) -> float:
        """10^9 floating-point operations a second."""
        return self.kernel.flops * self.launches / max(self.seconds, 1e-12) / 1e9

    @property
    def gigabytes(self) -> float:
        """10^9 bytes a second that had to be moved."""
        moved = self.kernel.bytes_read + self.kernel.bytes_written
        return moved * self.launches / max(self.seconds, 1e-12) / 1e9


@dataclass(frozen=True)
class Profile:
    """One run. `seconds` is the whole call's, in Python and out."""

    kernels: tuple[Kernel, ...]
    events: tuple[Event, ...]
    seconds: float

    @staticmethod
    def of_log(log: np.ndarray[Any, Any], seconds: float, kernels: Sequence[Kernel]) -> Profile:
        """The profile in an entry's log: rows (count, capacity), then (launch, clock). The clock's unit is not known:
        the log's span is taken for the call's `seconds`."""
        rows = log[1 : 1 + int(log[0, 0])]
        clocks = rows[:, 1].astype(np.float64)
        span = max(1.0, clocks[-1] - clocks[0]) if len(rows) else 1.0
        starts = (clocks - clocks[0]) / span * seconds if len(rows) else clocks
        events = [
            Event(int(rows[n, 0]), float(starts[n]), float(starts[n + 1] - starts[n])) for n in range(len(rows) - 1)
        ]
        return Profile(tuple(kernels), tuple(events), seconds)

    def by_kernel(self) -> list[KernelTime]:
        """Every kernel that ran, the longest first."""
        launches, seconds = [0] * len(self.kernels), [0.0] * len(self.kernels)
        for e in self.events:
            launches[e.kernel] += 1
            seconds[e.kernel] += e.seconds
        found = [KernelTime(k, n, s) for k, n, s in zip(self.kernels, launches, seconds, strict=True) if n]
        return sorted(found, key=lambda t: -t.seconds)

    def chrome_trace(self) -> dict[str, Any]:
        """The run as `chrome://tracing` and Perfetto read it (Trace Event Format; times in microseconds)."""
        events = []
        for e in self.events:
            k = self.kernels[e.kernel]
            detail = {"ops": " ".join(k.ops), "flops": k.flops, "bytes": k.bytes_read + k.bytes_written}
            times = {"ts": e.start * 1e6, "dur": e.seconds * 1e6}
            events.append({"name": k.name, "ph": "X", "pid": 0, "tid": 0, **times, "args": detail})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def __str__(self) -> str:
        lines = [f"{'ms':>9} {'runs':>5} {'GFLOP/s':>8} {'GB/s':>7}  kernel"]
        for t in self.by_kernel():
            row = f"{t.seconds * 1e3:9.3f} {t.launches:5} {t.gflops:8.1f} {t.gigabytes:7.1f}"
            lines.append(f"{row}  {t.kernel.name}: {' '.join(t.kernel.ops)[:80]}")
        return "\n".join(lines)
