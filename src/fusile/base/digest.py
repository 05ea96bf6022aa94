"""Digests of large data, in pieces on several threads: weights are hundreds of megabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

PIECE = 8 << 20
THREADS = 4
"""More only help where memory is faster than this many cores hash."""


def digest(data: bytes | memoryview) -> bytes:
    """32 bytes: the SHA-256 of the SHA-256s of the data's pieces."""
    return digest_of([data])


def digest_of(parts: Iterable[bytes | memoryview]) -> bytes:
    """32 bytes for a list of parts; where one ends and the next begins matters."""
    pieces: list[memoryview] = []
    lengths = []
    for part in parts:
        view = memoryview(part).cast("B")
        lengths.append(len(view))
        pieces += [view[at : at + PIECE] for at in range(0, len(view), PIECE)]
    whole = hashlib.sha256(repr(lengths).encode())
    if sum(lengths) <= PIECE:
        found = map(_of_piece, pieces)
        return _joined(whole, found)
    with ThreadPoolExecutor(THREADS) as pool:
        # Hashing large data lets other threads run.
        return _joined(whole, pool.map(_of_piece, pieces))


def _of_piece(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _joined(whole: hashlib._Hash, digests: Iterable[bytes]) -> bytes:
    for one in digests:
        whole.update(one)
    return whole.digest()
