"""Memory of results comes back when the last array over it is gone, from any thread, and never while one lives."""

from __future__ import annotations

import gc
import threading

import numpy as np

from fusile.runtime.buffers import ALIGNMENT, Buffers


def array(buffers: Buffers, count: int) -> np.ndarray:
    return buffers.array((count,), np.dtype(np.float32), count)


def test_memory_is_used_again_and_aligned() -> None:
    buffers = Buffers()
    first = array(buffers, 5000)
    address = first.ctypes.data
    assert address % ALIGNMENT == 0
    view = first[10:20]
    del first
    assert array(buffers, 5000).ctypes.data != address
    del view
    assert array(buffers, 5000).ctypes.data == address


def test_what_is_alive_is_never_given_out_again() -> None:
    buffers = Buffers()
    kept = [array(buffers, 3000 + n) for n in range(50)]
    for n, a in enumerate(kept):
        a[:] = n
    for _ in range(200):
        array(buffers, 3000)[:] = -1
    assert all((a == n).all() for n, a in enumerate(kept))


def test_garbage_in_cycles_comes_back_too() -> None:
    buffers = Buffers()
    cycle: list = [array(buffers, 5000)]
    address = cycle[0].ctypes.data
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert array(buffers, 5000).ctypes.data == address


def test_many_threads() -> None:
    buffers, wrong = Buffers(), []

    def work(mark: int) -> None:
        for turn in range(300):
            a = array(buffers, 2000 + turn % 5 * 1000)
            a[:] = mark
            b = array(buffers, 2000)
            b[:] = mark + 1
            if not ((a == mark).all() and (b == mark + 1).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(10 * n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
