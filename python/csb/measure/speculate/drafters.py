"""Who proposes tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class Drafter(Protocol):
    @property
    def decode_seconds(self) -> float:
        """Time inside llama_decode, of a drafter that has a model."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Before a text, outside the loop's clock."""

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        """At most n tokens that may follow the text: the prompt and what was generated."""


class _Plain:
    """A drafter without a model."""

    decode_seconds = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        self._n_prompt = len(prompt)


class Oracle(_Plain):
    """Proposes a known continuation of the prompt by position, right or wrong."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        pos = len(text) - self._n_prompt
        return self._tokens[pos : pos + n]


class Noisy(Oracle):
    """The oracle with a wrong token at a share `rate` of the positions, the same ones however the
    loop comes to them."""

    def __init__(
        self, tokens: Sequence[int], rate: float, seed: Sequence[int], n_vocab: int
    ) -> None:
        random = np.random.default_rng(list(seed))
        right = np.asarray(tokens, np.int64)
        wrong = (right + random.integers(1, max(2, n_vocab), len(right))) % n_vocab
        super().__init__([int(t) for t in np.where(random.random(len(right)) < rate, wrong, right)])


class Recorded(_Plain):
    """Drafts that were recorded elsewhere: for each position the tokens proposed there."""

    def __init__(self, drafts: Mapping[int, Sequence[int]]) -> None:
        self._drafts = drafts

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        return list(self._drafts.get(len(text) - self._n_prompt, ()))[:n]


class Ngram(_Plain):
    """Prompt lookup: what followed the last tokens where they stood before, the longest match of at
    most LONGEST first, the latest place first."""

    LONGEST = 3

    def begin(self, prompt: Sequence[int]) -> None:
        super().begin(prompt)
        self._places: dict[tuple[int, ...], int] = {}
        self._known = 0  # tokens whose n-grams have a place

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        for end in range(self._known + 1, len(text)):  # those that end before the last token
            for size in range(1, min(self.LONGEST, end) + 1):
                self._places[tuple(text[end - size : end])] = end
        self._known = max(self._known, len(text) - 1)
        for size in range(min(self.LONGEST, len(text)), 0, -1):
            place = self._places.get(tuple(text[-size:]))
            if place is not None:
                return list(text[place : place + n])
        return []
