"""Ways back to the AR trajectory: which rows of a verified block are decoded again, alone.

Each gets the block's tokens with their rows, leaves the memory as long as the text that then
stands, and returns what is given. Names and options: csb.speculation.plan.Way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from csb.measure.speculate.target import Mark, Target
from csb.measure.speculate.verified import Verified, alone
from csb.speculation.plan import Way
from csb.speculation.texts import first_under


class Settle(Protocol):
    def begin(self, mark: Mark) -> None:
        """The prompt without its last token is in the memory, as the AR run has it."""

    def __call__(
        self, mark: Mark, inputs: list[int], given: list[Verified], text: Sequence[int]
    ) -> list[Verified]: ...


class Ungated:
    """The block's rows stand; the rejected tail is rolled back."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def begin(self, mark: Mark) -> None:
        pass

    def __call__(
        self, mark: Mark, inputs: list[int], given: list[Verified], text: Sequence[int]
    ) -> list[Verified]:
        if len(given) < len(inputs):
            self.target.back(mark, inputs[: len(given)])
        return given


class Margin(Ungated):
    """The first row whose margin is under tau is decoded alone, and the rest of the block dropped.
    The rows before it stay as the block wrote them."""

    def __init__(self, target: Target, tau: float) -> None:
        super().__init__(target)
        self.tau = tau
        self._row = np.empty((1, target.context.n_vocab), np.float32)

    def __call__(
        self, mark: Mark, inputs: list[int], given: list[Verified], text: Sequence[int]
    ) -> list[Verified]:
        gate = first_under([v.margin for v in given], self.tau)
        if gate is None:
            return super().__call__(mark, inputs, given, text)
        return [*given[:gate], self._again(mark, inputs[: gate + 1], text)]

    def _again(self, mark: Mark, inputs: list[int], text: Sequence[int]) -> Verified:
        self.target.back(mark, inputs[:-1])
        return alone(self.target, inputs[-1], mark.length + len(inputs) - 1, self._row)


class Repair(Margin):
    """As Margin, and everything since the last singly written token is decoded alone too: before
    the row stands a memory written one by one. The tokens given meanwhile stay, even where their
    row now says another one: `late` counts those."""

    def __init__(self, target: Target, tau: float) -> None:
        super().__init__(target, tau)
        self.late = 0

    def begin(self, mark: Mark) -> None:
        self._written = mark

    def _again(self, mark: Mark, inputs: list[int], text: Sequence[int]) -> Verified:
        start = self._written.length
        rewritten = [*text[start : mark.length], *inputs]
        self.target.back(self._written)
        for i, token in enumerate(rewritten):
            found = alone(self.target, token, start + i, self._row)
            if i + 1 < len(rewritten) and found.token != rewritten[i + 1]:
                self.late += 1
        self._written = self.target.mark(start + len(rewritten))
        return found


class Single(Margin):
    """Every row that the block gives is decoded alone: the bound of what re-running costs."""

    def __init__(self, target: Target, width: int) -> None:
        super().__init__(target, np.inf)
        self._rows = np.empty((width, 1, target.context.n_vocab), np.float32)

    def __call__(
        self, mark: Mark, inputs: list[int], given: list[Verified], text: Sequence[int]
    ) -> list[Verified]:
        self.target.back(mark)
        again: list[Verified] = []
        for i, before in enumerate(given):
            again.append(alone(self.target, inputs[i], mark.length + i, self._rows[i]))
            if again[-1].token != before.token:  # what follows was drafted for another text
                break
        return again


def settle(way: Way, target: Target, width: int) -> Settle:
    """`kernels` and `f32` change the decodes themselves, not which rows stand."""
    if way.kind == "margin":
        return Margin(target, way.tau)
    if way.kind == "repair":
        return Repair(target, way.tau)
    return Single(target, width) if way.kind == "single" else Ungated(target)
