"""The numbers of a report: what each kernel does, could take and took; and what the whole program does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusile.base.settings import Settings
from fusile.compiler.roofline import Peak, peak
from fusile.runtime.executable import Executable
from fusile.runtime.profile import Profile
from fusile.runtime.program import Kernel


@dataclass(frozen=True)
class KernelFigures:
    """One kernel: launches in a run (None when it was not run), the seconds of all of them together, and the least
    seconds that the machine would take for one. `prepared`: it runs once for arguments that seldom change."""

    kernel: Kernel
    estimate: float
    bound: str
    launches: int | None = None
    seconds: float | None = None
    prepared: bool = False

    @property
    def bytes(self) -> int:
        """Bytes read and written by one launch."""
        return self.kernel.bytes_read + self.kernel.bytes_written

    @property
    def of_roofline(self) -> float | None:
        """How near it came to the estimate: 1 is as fast as the machine can, more is out of the caches."""
        return self.estimate * self.launches / self.seconds if self.launches and self.seconds else None


@dataclass(frozen=True)
class Figures:
    """A program's numbers. `seconds` is the fastest run's; None when it was not run."""

    kernels: tuple[KernelFigures, ...]
    peak: Peak
    seconds: float | None

    @property
    def run(self) -> list[KernelFigures]:
        """The kernels of a run, without those that prepare arguments."""
        return [k for k in self.kernels if not k.prepared]

    @property
    def flops(self) -> int:
        """Operations of a run; of each kernel once when it was not run."""
        return sum(k.kernel.flops * _times(k) for k in self.run)

    @property
    def bytes(self) -> int:
        """Bytes that a run moves."""
        return sum(k.bytes * _times(k) for k in self.run)

    @property
    def estimate(self) -> float:
        """The least seconds of a run, the roofline's of its launches."""
        return sum(k.estimate * _times(k) for k in self.run)


def _times(k: KernelFigures) -> int:
    return 1 if k.launches is None else k.launches


def figures(executable: Executable, profile: Profile | None) -> Figures:
    """The numbers of a program, with a run's profile if it was run."""
    program = executable.program
    most = peak(replace(Settings(), threads=executable.threads))
    launches, seconds = _launches(profile, len(program.kernels))
    rows = [
        KernelFigures(k, most.seconds(k), most.bound(k), launches[n], seconds[n]) for n, k in enumerate(program.kernels)
    ]
    if program.preparation is not None:
        rows += [KernelFigures(k, most.seconds(k), most.bound(k), prepared=True) for k in program.preparation.kernels]
    return Figures(tuple(rows), most, None if profile is None else profile.seconds)


def _launches(profile: Profile | None, count: int) -> tuple[Sequence[int | None], Sequence[float | None]]:
    """How often each kernel was launched, and the seconds of its launches."""
    if profile is None:
        return [None] * count, [None] * count
    launches, seconds = [0] * count, [0.0] * count
    for event in profile.events:
        launches[event.kernel] += 1
        seconds[event.kernel] += event.seconds
    return launches, seconds
