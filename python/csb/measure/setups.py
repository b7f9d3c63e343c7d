"""Where a budget's line finds its memory and how it decodes: the ways a window can be set up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from csb.measure.memory import Memory
from csb.native.context import Context, Rows
from csb.plan import Window

State = Callable[[], npt.NDArray[np.uint8]]  # the baseline's memory of a window's prefix


class Setup:
    """One context's memory, and what gets a window's prefix into it."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.text: list[int] = []  # prompt and trajectory, once they are there
        self.n_prompt = 0

    def begin(self, text: list[int], n_prompt: int) -> None:
        self.text, self.n_prompt = text, n_prompt

    def ready(self, window: Window, state: State) -> None:
        """The memory holds at least the window's prefix."""
        raise NotImplementedError

    def block(self, window: Window, out: Rows) -> float:
        """Seconds inside the block's llama_decode."""
        return self.memory.timed_block(window.inputs, window.prefix, out)

    def single(self, window: Window, out: Rows) -> None:
        self.memory.rewind(window.prefix)
        self.memory.single(window.inputs, window.prefix, out)


class Adopted(Setup):
    """The baseline's memory, put into this context bit for bit."""

    def ready(self, window: Window, state: State) -> None:
        self.memory.adopt(state(), window.prefix)


class Prefilled(Setup):
    """The prefix prefilled by this context itself, afresh for every window."""

    def ready(self, window: Window, state: State) -> None:
        self.memory.prefill(self.text[: window.prefix])


class Written(Setup):
    """The prompt prefilled and every later token decoded alone, as the AR run writes its memory.

    Each window's single path comes after its block and writes the tokens again alone, so that the
    next window only cuts back, whatever the windows' order.
    """

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._length = -1  # tokens that were written so
        self._row = np.empty((1, memory.context.n_vocab), np.float32)

    def ready(self, window: Window, state: State) -> None:
        if self._length < 0:
            self._length = self.n_prompt - 1
            self.memory.prefill(self.text[: self._length])
        self.memory.rewind(min(self._length, window.prefix))
        for p in range(self._length, window.prefix):
            self.memory.single([self.text[p]], p, self._row)
        self._length = window.prefix

    def single(self, window: Window, out: Rows) -> None:
        super().single(window, out)
        self._length = window.prefix + len(window.inputs)


class Neighbours:
    """Other sequences in one cache with sequence 0, each with a prefix and a next token of its own.

    A server that shares one cache between its slots decodes them so. Sequence 0 keeps the cells
    that it has alone: room for it is kept at the cache's start, the others' prefixes lie behind.
    """

    def __init__(self, context: Context, text: Sequence[int], n: int) -> None:
        self.context = context
        n_vocab = context.n_vocab
        self.prefixes = [
            [(text[(5 * i + k) % len(text)] + i + 1) % n_vocab for k in range(length(i))]
            for i in range(n)
        ]
        self.tokens = [(text[-1] + 3 * i + 1) % n_vocab for i in range(n)]
        room = Memory(context)
        room.wipe()
        room.extend(
            [text[k % len(text)] for k in range(len(text) + n)], 0, context.value("n_batch")
        )
        for i, prefix in enumerate(self.prefixes):
            context.decode(prefix, 0, outputs=False, seq_ids=i + 1)
        room.wipe()

    def decode(self, tokens: Sequence[int], start: int, n: int, out: Rows) -> None:
        """Sequence 0's tokens and one token of each of n others in one call, then the others as
        they were. Every row is an output; out: sequence 0's."""
        places = [len(prefix) for prefix in self.prefixes[:n]]
        self.context.decode(
            [*tokens, *self.tokens[:n]],
            [*range(start, start + len(tokens)), *places],
            seq_ids=[0] * len(tokens) + list(range(1, n + 1)),
        )
        self.context.logits(range(len(tokens)), out)
        for i, place in enumerate(places):
            self.context.remove(place, seq_id=i + 1)


def length(i: int) -> int:
    """Tokens in the memory of other sequence i: all at different positions."""
    return 16 + i


def cells(n_text: int, n: int) -> int:
    """Cells that a text and n neighbours need."""
    return n_text + n + sum(map(length, range(n)))


class Beside(Memory):
    """Sequence 0, with a row of each of `n` neighbours in every call that wants logits."""

    def __init__(self, neighbours: Neighbours, n: int) -> None:
        super().__init__(neighbours.context)
        self.neighbours, self.n = neighbours, n

    def single(self, inputs: Sequence[int], start: int, out: Rows) -> Rows:
        for k, token in enumerate(inputs):
            self.neighbours.decode([token], start + k, self.n, out[k : k + 1])
        return out

    def block(self, inputs: Sequence[int], start: int, out: Rows) -> Rows:
        self.neighbours.decode(inputs, start, self.n, out)
        return out


class Crowd:
    """The neighbours in one context, made when the text is there, for every line that wants some
    of them."""

    def __init__(self, context: Context, most: int) -> None:
        self.context, self.most = context, most
        self._there: Neighbours | None = None

    def neighbours(self, text: Sequence[int]) -> Neighbours:
        if self._there is None:
            self._there = Neighbours(self.context, text, self.most)
        return self._there


class Crowded(Adopted):
    """The baseline's memory, with n neighbours in every call."""

    def __init__(self, crowd: Crowd, n: int) -> None:
        super().__init__(Memory(crowd.context))
        self._crowd, self._n = crowd, n

    def begin(self, text: list[int], n_prompt: int) -> None:
        super().begin(text, n_prompt)
        self.memory = Beside(self._crowd.neighbours(text), self._n)
