"""The prefix memory: how it is filled, and how each path finds it bit for bit the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from csb import kernels
from csb.errors import InvalidMeasurement
from csb.native.context import Context, Rows


class Memory:
    """Sequence 0 of a context.

    Plain attention memories are cut back to the prefix. Those that can't be (recurrent, hybrid)
    or whose layout changes when they are (a sliding-window ring) are restored from the state saved
    right after the prefill, before every path, the first included: a restored ring is laid out
    otherwise than one that never was.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kind: str = context.value("memory")
        self.cuts_back = self.kind == "attention" or (
            self.kind == "sliding_window" and bool(context.value("swa_full"))
        )
        self._state: npt.NDArray[np.uint8] | None = None
        self.single_without: tuple[str, ...] = ()  # kernel switches of each path alone
        self.block_without: tuple[str, ...] = ()

    @contextlib.contextmanager
    def switched(self, *, single: tuple[str, ...], block: tuple[str, ...]) -> Iterator[None]:
        """Kernel switches for the paths' decodes and no others while the block runs. A block of one
        row is a call of the single path's kind and has its switches."""
        before = self.single_without, self.block_without
        self.single_without, self.block_without = single, block
        try:
            yield
        finally:
            self.single_without, self.block_without = before

    def wipe(self) -> None:
        if not self.context.remove(0) or self.context.bounds() != (-1, -1):
            raise InvalidMeasurement("llama.cpp did not empty its memory: stale state")
        self._state = None

    def extend(self, tokens: Sequence[int], start: int, rows: int) -> None:
        """Decodes tokens from position `start` on in calls of `rows`, no logits wanted."""
        for i in range(0, len(tokens), rows):
            self.context.decode(tokens[i : i + rows], start + i, outputs=False)

    def prefill(self, prefix: Sequence[int]) -> None:
        """An empty memory, filled with the prefix in calls of n_batch tokens."""
        self.wipe()
        self.extend(prefix, 0, self.context.value("n_batch"))
        if not self.cuts_back and prefix:
            self._state = self.context.save()

    def state(self, length: int) -> npt.NDArray[np.uint8]:
        """The memory of `length` tokens as bytes, for `adopt`; no bytes of an empty one."""
        self.rewind(length)
        if not length:
            return np.empty(0, np.uint8)
        return self.context.save() if self._state is None else self._state

    def adopt(self, state: npt.NDArray[np.uint8], length: int) -> None:
        """Another context's memory of `length` tokens, bit for bit."""
        self.wipe()
        if not length:
            return
        self.context.restore(state)
        if not np.array_equal(self.context.save(), state):
            raise InvalidMeasurement("a memory could not be put into another context bit for bit")
        if not self.cuts_back:
            self._state = state

    def rewind(self, length: int) -> None:
        """The memory as it was with `length` tokens in it, and proof that it ends there."""
        if not self.cuts_back:
            if self._state is None:
                self.wipe()
            else:
                self.context.restore(self._state)
        elif not self.context.remove(length):
            raise InvalidMeasurement("llama.cpp could not cut its memory back")
        last = self.context.bounds()[1]
        if last != length - 1:
            raise InvalidMeasurement(
                f"the memory ends at position {last}, not at {length - 1}: stale or missing state"
            )

    def single(self, inputs: Sequence[int], start: int, out: Rows) -> Rows:
        """The inputs one per decode; out float32 [len(inputs), n_vocab]."""
        with kernels.without(*self.single_without):
            return self.context.steps(inputs, start, out)

    def block(self, inputs: Sequence[int], start: int, out: Rows) -> Rows:
        """The inputs in one decode, every row an output; out float32 [len(inputs), n_vocab]."""
        names = self.block_without if len(inputs) > 1 else self.single_without
        with kernels.without(*names):
            self.context.decode(inputs, start)
        return self.context.logits(range(len(inputs)), out)

    def timed_block(self, inputs: Sequence[int], prefix: int, out: Rows) -> float:
        """A block on the memory cut back to `prefix` tokens: seconds inside its llama_decode."""
        self.rewind(prefix)
        before = self.context.decode_seconds
        self.block(inputs, prefix, out)
        return self.context.decode_seconds - before

    def ubatch_rows(self, n: int) -> list[int]:
        """Rows of the ubatch that computes each row of an n-token call: llama.cpp splits a call of
        one sequence into ubatches of n_ubatch tokens in order."""
        size = int(self.context.value("n_ubatch"))
        return [min(size, n - i // size * size) for i in range(n)]


def same_bits(a: Rows, b: Rows) -> bool:
    """Equal means equal bits: 0.0 is not -0.0, and a NaN is equal to the same NaN."""
    return a.shape == b.shape and bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))
