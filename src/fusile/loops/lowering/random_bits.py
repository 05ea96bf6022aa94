"""Random bits: consecutive counters through a block cipher's rounds, as `hlo/opset/random_bits.py` defines them.

A block of words belongs to each counter, so counters are hashed in parallel, in vectors. Blocks whose last words no
element takes are left to a second phase, so that the first stores all its words::

    kernel k(p0: u64[2]) -> (r0: u64[2], r1: u32[11])
      parallel task in 1:  vector lane ...: words 4 * counter + 0, 1, 2, 3       # counters 0 and 1
      serial once in 1:    words 8, 9, 10; the new state
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fusile.base.element_type import U8, U16, U32, U64, ElementType
from fusile.hlo.ir import Instruction
from fusile.hlo.opset import random_bits as meaning
from fusile.hlo.opset.other import RngBitGenerator
from fusile.loops.ir import Apply, Buffer, Const, Expr, For, Kernel, LoopKind, Stmt, Store, compare, const
from fusile.loops.lowering.block import Block
from fusile.loops.lowering.elemental import Elemental
from fusile.loops.lowering.vector_loops import VectorLoops
from fusile.loops.machine import Machine

TASK_BLOCKS = 1024
"""Counters that one task hashes."""
UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}

Words = list[Expr]


def lower_random_bits(fusion: Instruction, name: str, machine: Machine) -> Kernel:
    """The kernel of a fusion of one rng-bit-generator. Raises UnsupportedOpError for algorithms that XLA lacks too."""
    writer = _Writer(Elemental(fusion, machine))
    return writer.elemental.kernel(name, *writer.phases())


class _Writer:
    def __init__(self, elemental: Elemental) -> None:
        self.elemental, self.math, self.names = elemental, elemental.math, elemental.names
        self.instruction = next(i for i in elemental.computation.post_order() if isinstance(i.op, RngBitGenerator))
        op = self.instruction.op
        assert isinstance(op, RngBitGenerator)
        op.check(self.instruction)
        self.is_philox = meaning.ALGORITHMS[op.algorithm] == meaning.PHILOX
        self.sizes, self.type = op.result.sizes, op.result.element_type
        self.state_words = self.instruction.operands[0].array_shape.elements
        self.layout = _Layout.of(self.sizes, self.type.bits, self.is_philox)

    def phases(self) -> list[Stmt]:
        """Whole blocks in parallel; then the blocks at an end, and the state."""
        layout = self.layout
        phases: list[Stmt] = []
        if layout.outer * layout.whole * layout.inner and self._result(1) is not None:
            phases.append(self._whole_blocks())
        once = self.elemental.block()
        if layout.rest and self._result(1) is not None:
            self._rest(once)
        self._store_state(once)
        if once.statements:
            phases.append(For(self.names.var("once"), const(1), once.body()))
        return phases

    def _result(self, number: int) -> Buffer | None:
        """The buffer of the state (0) or the bits (1), if the fusion has it."""
        for root, buffer in self.elemental.results:
            if getattr(root.op, "index", 0) == number:
                return buffer
        return None

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _whole_blocks(self) -> For:
        """A task hashes a piece of the counters of which every word is an element's."""
        layout = self.layout
        sizes = (layout.outer, layout.whole, layout.inner)
        count = math.prod(sizes)
        tasks = -(-count // TASK_BLOCKS)
        task = self.math.bound(self.names.var("task"), tasks)
        block = self.elemental.block()

        def body(b: Block, flat: Expr, slot: int, lane: Expr) -> None:
            outer, at, inner = self.math.unflatten(flat, sizes)
            self._block_of_words(b, outer, at, inner, layout.parts)

        lanes = max(1, self.elemental.machine.vector_bytes // 8)
        first = self.math.scale(task, TASK_BLOCKS) if tasks > 1 else const(0)
        loops = VectorLoops(self.elemental, lanes)
        loops.run(block, min(count, TASK_BLOCKS), first, body, unroll=1, total=count)
        return For(task, const(tasks), block.body(), LoopKind.PARALLEL)

    def _rest(self, block: Block) -> None:
        """The last block along the cut dimension, of which the first words alone are elements."""
        layout = self.layout
        outer = self.math.bound(self.names.var("outer"), layout.outer)
        inner = self.math.bound(self.names.var("inner"), layout.inner)
        body = block.child()
        self._block_of_words(body, outer, const(layout.whole), inner, layout.rest)
        middle = block.child()
        middle.loop(inner, layout.inner, body)
        block.loop(outer, layout.outer, middle)

    def _block_of_words(self, block: Block, outer: Expr, at: Expr, inner: Expr, count: int) -> None:
        """Hashes the counter of block (outer, at, inner) and stores the first `count` of its elements."""
        layout = self.layout
        buffer = self._result(1)
        assert buffer is not None
        number = self.math.flatten((outer, at, inner), (layout.outer, layout.blocks, layout.inner))
        words = self._hash(block, _converted(number, U64))
        if self.type.bits == 64:
            words = [_join(words[i], words[i + 1]) for i in range(0, len(words), 2)]
        for part, word in enumerate(words[:count]):
            cut = self.math.add(self.math.scale(at, layout.parts), const(part))
            place = self.math.flatten((outer, cut, inner), (layout.outer, layout.size, layout.inner))
            block.emit(Store(buffer, (place,), self._element(word)))

    def _element(self, word: Expr) -> Expr:
        """A word's low bits as an element."""
        narrow = _converted(word, UNSIGNED[self.type.bits])
        return narrow if narrow.element_type is self.type else Apply("bitcast", (narrow,), self.type)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _state(self, number: int) -> Expr:
        (operand,) = self.instruction.operands
        value: Expr = self.elemental.value(operand, (const(number),), self.elemental.block())
        return value

    def _high(self) -> Expr:
        """Philox's high counter word; a state of two has its key there."""
        return self._state(2 if self.state_words == 3 else 0)

    def _hash(self, block: Block, number: Expr) -> Words:
        """The words of the counter `number` after the state's."""
        key = [block.let(k) for k in _split(block.let(self._state(0)))]
        start = block.let(self._state(1))
        low = block.let(_add(start, number))
        if not self.is_philox:
            return threefry(block, [block.let(w) for w in _split(low)], key)
        high = block.let(_add(self._high(), _carry(low, start)))
        return philox(block, [block.let(w) for w in (*_split(low), *_split(high))], key)

    def _store_state(self, block: Block) -> None:
        """The key as it was, and the counter after the last one hashed."""
        buffer = self._result(0)
        if buffer is None:
            return
        start = block.let(self._state(1))
        low = block.let(_add(start, Const(self.layout.outer * self.layout.blocks * self.layout.inner, U64)))
        values = [self._state(0), low]
        if self.state_words == 3:
            values.append(_add(self._high(), _carry(low, start)))
        for i, value in enumerate(values):
            block.emit(Store(buffer, (const(i),), value))


class _Layout:
    """Where elements lie: [outer, size, inner], and a block's `parts` lie side by side along `size`.

    `blocks` cover it, of which `whole` have all their parts inside; one more has `rest` parts, if that isn't 0.
    """

    def __init__(self, outer: int, size: int, inner: int, parts: int) -> None:
        self.outer, self.size, self.inner, self.parts = outer, size, inner, parts
        self.blocks = -(-size // parts)
        self.whole, self.rest = divmod(size, parts)

    @staticmethod
    def of(sizes: Sequence[int], bits: int, is_philox: bool) -> _Layout:
        """Philox deals out words in order; Threefry's two alternate along a dimension, unless they are one element."""
        if is_philox:
            return _Layout(1, math.prod(sizes), 1, 2 if bits == 64 else 4)
        if bits == 64:
            return _Layout(1, math.prod(sizes), 1, 1)
        if not sizes:
            return _Layout(1, 1, 1, 2)
        d = meaning.halved_dimension(sizes)
        return _Layout(math.prod(sizes[:d]), sizes[d], math.prod(sizes[d + 1 :]), 2)


# -- rounds ------------------------------------------------------------------------------------------------------------


def threefry(block: Block, counter: Words, key: Words) -> Words:
    """Threefry-2x32 with 20 rounds, of u32 expressions."""
    keys = [*key, block.let(_xor(_xor(key[0], key[1]), Const(meaning.THREE_FRY_PARITY, U32)))]
    x, y = block.let(_add(counter[0], keys[0])), block.let(_add(counter[1], keys[1]))
    for group in range(1, 6):
        for rotation in meaning.THREE_FRY_ROTATIONS[(group - 1) % 2]:
            x = block.let(_add(x, y))
            y = block.let(_xor(x, _rotated(y, rotation)))
        x = block.let(_add(x, keys[group % 3]))
        y = block.let(_add(_add(y, keys[(group + 1) % 3]), Const(group, U32)))
    return [x, y]


def philox(block: Block, counter: Words, key: Words) -> Words:
    """Philox-4x32 with 10 rounds, of u32 expressions."""
    words, keys = counter, key
    for _ in range(meaning.PHILOX_ROUNDS):
        products = [
            block.let(Apply("multiply", (_converted(words[2 * i], U64), Const(factor, U64)), U64))
            for i, factor in enumerate(meaning.PHILOX_MULTIPLIERS)
        ]
        (low_0, high_0), (low_1, high_1) = map(_split, products)
        new = [_xor(_xor(high_1, words[1]), keys[0]), low_1, _xor(_xor(high_0, words[3]), keys[1]), low_0]
        words = [block.let(w) for w in new]
        steps = meaning.PHILOX_KEY_STEPS
        keys = [block.let(_add(k, Const(step, U32))) for k, step in zip(keys, steps, strict=True)]
    return words


def _add(a: Expr, b: Expr) -> Expr:
    return Apply("add", (a, b), a.element_type)


def _xor(a: Expr, b: Expr) -> Expr:
    return Apply("xor", (a, b), a.element_type)


def _converted(a: Expr, t: ElementType) -> Expr:
    return a if a.element_type is t else Apply("convert", (a,), t)


def _carry(total: Expr, part: Expr) -> Expr:
    """1 when an unsigned sum wrapped."""
    return _converted(compare("lt", total, part), U64)


def _rotated(a: Expr, left: int) -> Expr:
    up = Apply("shift_left", (a, Const(left, U32)), U32)
    return Apply("or", (up, Apply("shift_right_logical", (a, Const(32 - left, U32)), U32)), U32)


def _split(a: Expr) -> tuple[Expr, Expr]:
    """The low and the high u32 of a u64."""
    return _converted(a, U32), _converted(Apply("shift_right_logical", (a, Const(32, U64)), U64), U32)


def _join(low: Expr, high: Expr) -> Expr:
    shifted = Apply("shift_left", (_converted(high, U64), Const(32, U64)), U64)
    return Apply("or", (_converted(low, U64), shifted), U64)
