"""What `rng-bit-generator` computes: counters through a block cipher's rounds, the bits XLA gives for the same state.

A state is u64[2] or u64[3]: a key and a counter. Both algorithms hash consecutive counters into blocks of 32-bit words:
Threefry-2x32 with 20 rounds gives two words, Philox-4x32 with 10 rounds four (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3"). Elements of 64 bits take two words, low one first; narrower ones take a word and drop high bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Words = list[Any]

THREE_FRY = "RNG_THREE_FRY"
PHILOX = "RNG_PHILOX"
ALGORITHMS = {THREE_FRY: THREE_FRY, PHILOX: PHILOX, "RNG_DEFAULT": PHILOX}
"""The algorithm that a name stands for; XLA's default on CPUs is Philox."""
STATE_SIZES = {THREE_FRY: (2,), PHILOX: (2, 3)}

THREE_FRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
THREE_FRY_PARITY = 0x1BD11BDA
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def threefry(counter: Words, key: Words) -> Words:
    """Two u32 arrays of counters and a key of two u32, to two u32 arrays."""
    keys = [*key, key[0] ^ key[1] ^ np.uint32(THREE_FRY_PARITY)]
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(1, 6):
        for rotation in THREE_FRY_ROTATIONS[(group - 1) % 2]:
            x = x + y
            y = x ^ (y << np.uint32(rotation) | y >> np.uint32(32 - rotation))
        x, y = x + keys[group % 3], y + keys[(group + 1) % 3] + np.uint32(group)
    return [x, y]


def philox(counter: Words, key: Words) -> Words:
    """Four u32 arrays of counters, low word first, and a key of two u32, to four u32 arrays."""
    words, keys = list(counter), list(key)
    for _ in range(PHILOX_ROUNDS):
        low, high = zip(*(_product(words[2 * i], m) for i, m in enumerate(PHILOX_MULTIPLIERS)), strict=True)
        words = [high[1] ^ words[1] ^ keys[0], low[1], high[0] ^ words[3] ^ keys[1], low[0]]
        keys = [k + np.uint32(step) for k, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    return words


def _product(x: Any, factor: int) -> Words:
    """Both words of a 32 by 32 bit product, the low one first."""
    return split(x.astype(np.uint64) * np.uint64(factor))


def split(x: Any) -> Words:
    """The low and the high u32 of u64s."""
    return [x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)]


def joined(low: Any, high: Any) -> Any:
    """The u64s of low and high u32s."""
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def halved_dimension(sizes: Sequence[int]) -> int:
    """The dimension along which Threefry's two words alternate: the first even one, else the first of the longest."""
    even = [d for d, size in enumerate(sizes) if size % 2 == 0]
    return even[0] if even else max(range(len(sizes)), key=lambda d: sizes[d])


def generate(algorithm: str, state: Any, sizes: Sequence[int], bits: int) -> tuple[Any, Any]:
    """The next state, and an array of so many bits an element: u64 for 64, else u32s whose high bits don't count."""
    # Arrays of one element, because NumPy warns of scalars that wrap.
    key = [k.reshape(1) for k in split(state[:1])]
    if ALGORITHMS[algorithm] == THREE_FRY:
        values, counter = _threefry_values(key, state[1:2], sizes, bits)
    else:
        values, counter = _philox_values(key, state, sizes, bits)
    return np.concatenate([state[:1], counter]), values


def _threefry_values(key: Words, counter: Any, sizes: Sequence[int], bits: int) -> tuple[Any, Any]:
    if bits == 64 or not sizes:
        blocks = math.prod(sizes)
        words = threefry(split(counter + np.arange(blocks, dtype=np.uint64)), key)
        values = joined(*words) if bits == 64 else words[0]
        return values.reshape(sizes), counter + np.uint64(blocks)
    d = halved_dimension(sizes)
    half = [*sizes[:d], -(-sizes[d] // 2), *sizes[d + 1 :]]
    words = threefry(split(counter + np.arange(math.prod(half), dtype=np.uint64)), key)
    pairs = np.stack([w.reshape(half) for w in words], axis=d + 1)
    values = pairs.reshape([*sizes[:d], 2 * half[d], *sizes[d + 1 :]])
    return np.take(values, range(sizes[d]), axis=d), counter + np.uint64(math.prod(half))


def _philox_values(key: Words, state: Any, sizes: Sequence[int], bits: int) -> tuple[Any, Any]:
    """A state of two has one counter word that moves; its key is the counter's high word as well."""
    low, high = (state[1:2], state[2:3]) if len(state) == 3 else (state[1:2], state[0:1])
    elements = math.prod(sizes)
    blocks = -(-elements * (2 if bits == 64 else 1) // 4)
    moved = low + np.arange(blocks, dtype=np.uint64)
    words = philox([*split(moved), *split(high + (moved < low))], key)
    parts = [joined(*words[:2]), joined(*words[2:])] if bits == 64 else words
    last = low + np.uint64(blocks)
    counter = [last, high + (last < low)] if len(state) == 3 else [last]
    return np.stack(parts, axis=1).reshape(-1)[:elements].reshape(sizes), np.concatenate(counter)
