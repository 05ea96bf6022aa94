"""The thread pool's native half, as LLVM text: `fusile_parallel`, which cuts a phase over threads, and the workers'
loop.

The pool is a block of memory (offsets below, a cache line each where threads contend). A caller takes the lock without
waiting; when another call has it, or there are no workers, it does all the work itself, so nested and concurrent calls
never wait for one another. Work is handed out in chunks by an atomic counter; iterations are independent, so results
do not depend on who does which. Workers spin a while, then sleep on a futex.

A job's fields are written only while `open` is 0 and no worker is `active`; a worker announces itself in `active`
before it
looks at `open`, and the caller closes the job before it waits for `active` to fall to 0. So a late worker never sees
the fields of another job.
"""

from __future__ import annotations

LOCK, EPOCH, NEXT, DONE, OPEN, ACTIVE, SLEEPERS = (64 * i for i in range(7))
FUNCTION, BUFFERS, EXTENT, CHUNK = 448, 456, 464, 472
WORKERS, STOP, SYSCALL, FUTEX_NUMBER = 512, 520, 528, 536
POOL_BYTES = 576
SPINS = 4000
"""Turns of the idle loop before a worker sleeps: some 50 microseconds."""

_PAUSE = {
    "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
}
"""What a waiting loop does, by architecture (a no-op elsewhere): intrinsics, as no assembler is linked in for inline
code."""


def _field(name: str, offset: int) -> str:
    return f"  %{name} = getelementptr i8, ptr %pool, i64 {offset}"


def pool_text(triple: str) -> str:
    """The pool's functions for a target."""
    pause, declaration = _PAUSE.get(triple.split("-")[0], ("fence seq_cst", ""))
    fields = "\n".join(
        _field(n, o)
        for n, o in (
            ("lock", LOCK),
            ("epoch", EPOCH),
            ("next", NEXT),
            ("done", DONE),
            ("open", OPEN),
            ("active", ACTIVE),
            ("sleepers", SLEEPERS),
            ("function.at", FUNCTION),
            ("buffers.at", BUFFERS),
            ("extent.at", EXTENT),
            ("chunk.at", CHUNK),
            ("workers.at", WORKERS),
            ("stop.at", STOP),
            ("syscall.at", SYSCALL),
            ("number.at", FUTEX_NUMBER),
        )
    )
    return f"""
{declaration}
define internal void @claim(ptr %next, ptr %done, ptr %function, ptr %buffers, i64 %extent, i64 %chunk) nounwind {{
entry:
  br label %turn
turn:
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %more = icmp slt i64 %begin, %extent
  br i1 %more, label %work, label %end
work:
  %limit = add i64 %begin, %chunk
  %short = icmp slt i64 %limit, %extent
  %stop = select i1 %short, i64 %limit, i64 %extent
  call void %function(ptr %buffers, i64 %begin, i64 %stop)
  %count = sub i64 %stop, %begin
  %before = atomicrmw add ptr %done, i64 %count release
  br label %turn
end:
  ret void
}}

define void @fusile_parallel(ptr %pool, ptr %function, ptr %buffers, i64 %extent, i64 %chunk) nounwind {{
entry:
{fields}
  %workers = load atomic i64, ptr %workers.at monotonic, align 8
  %none = icmp eq i64 %workers, 0
  %small = icmp sle i64 %extent, %chunk
  %alone = or i1 %none, %small
  br i1 %alone, label %direct, label %try
direct:
  call void %function(ptr %buffers, i64 0, i64 %extent)
  ret void
try:
  %swap = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %got, label %start, label %direct
start:
  store ptr %function, ptr %function.at, align 8
  store ptr %buffers, ptr %buffers.at, align 8
  store i64 %extent, ptr %extent.at, align 8
  store i64 %chunk, ptr %chunk.at, align 8
  store atomic i64 0, ptr %next monotonic, align 8
  store atomic i64 0, ptr %done monotonic, align 8
  store atomic i32 1, ptr %open seq_cst, align 4
  %old = atomicrmw add ptr %epoch, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %wake = icmp ne i32 %asleep, 0
  br i1 %wake, label %rouse, label %share
rouse:
  %syscall = load ptr, ptr %syscall.at, align 8
  %number = load i64, ptr %number.at, align 8
  %woken = call i64 (i64, ...) %syscall(i64 %number, ptr %epoch, i64 129, i64 %workers, ptr null, ptr null, i64 0)
  br label %share
share:
  call void @claim(ptr %next, ptr %done, ptr %function, ptr %buffers, i64 %extent, i64 %chunk)
  br label %wait
wait:
  %finished = load atomic i64, ptr %done acquire, align 8
  %all = icmp eq i64 %finished, %extent
  br i1 %all, label %close, label %hold
hold:
  {pause}
  br label %wait
close:
  store atomic i32 0, ptr %open seq_cst, align 4
  br label %drain
drain:
  %busy = load atomic i32, ptr %active seq_cst, align 4
  %quiet = icmp eq i32 %busy, 0
  br i1 %quiet, label %unlock, label %drainhold
drainhold:
  {pause}
  br label %drain
unlock:
  store atomic i32 0, ptr %lock release, align 4
  ret void
}}

define void @fusile_worker(ptr %pool) nounwind {{
entry:
{fields}
  %first = load atomic i32, ptr %epoch seq_cst, align 4
  br label %enter
enter:
  %seen = phi i32 [ %first, %entry ], [ %now, %leave ]
  %a = atomicrmw add ptr %active, i32 1 seq_cst
  %is_open = load atomic i32, ptr %open seq_cst, align 4
  %live = icmp ne i32 %is_open, 0
  br i1 %live, label %job, label %out
job:
  %function = load ptr, ptr %function.at, align 8
  %buffers = load ptr, ptr %buffers.at, align 8
  %extent = load i64, ptr %extent.at, align 8
  %chunk = load i64, ptr %chunk.at, align 8
  call void @claim(ptr %next, ptr %done, ptr %function, ptr %buffers, i64 %extent, i64 %chunk)
  br label %out
out:
  %b = atomicrmw sub ptr %active, i32 1 seq_cst
  br label %idle
idle:
  %spin = phi i64 [ 0, %out ], [ %spun, %again ], [ 0, %slept ]
  %current = load atomic i32, ptr %epoch seq_cst, align 4
  %new = icmp ne i32 %current, %seen
  br i1 %new, label %leave, label %stopped
stopped:
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %halt = icmp ne i32 %stop, 0
  br i1 %halt, label %end, label %rest
rest:
  %spun = add i64 %spin, 1
  %tired = icmp sgt i64 %spun, {SPINS}
  br i1 %tired, label %sleep, label %again
again:
  {pause}
  br label %idle
sleep:
  %c = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %syscall = load ptr, ptr %syscall.at, align 8
  %number = load i64, ptr %number.at, align 8
  %wide = zext i32 %seen to i64
  %ignored = call i64 (i64, ...) %syscall(i64 %number, ptr %epoch, i64 128, i64 %wide, ptr null, ptr null, i64 0)
  %d = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %slept
slept:
  br label %idle
leave:
  %now = phi i32 [ %current, %idle ]
  br label %enter
end:
  ret void
}}
"""
