"""The loop of exact-match speculative decoding: draft, verify as one block, accept, roll back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from csb.measure.speculate.drafters import Drafter
from csb.measure.speculate.target import Call, Mark, Target
from csb.measure.speculate.verified import Verified, best_tokens, read
from csb.measure.speculate.ways import Settle
from csb.speculation.counts import Turn
from csb.speculation.faults import Fault, unverified
from csb.speculation.texts import accept


@dataclass(frozen=True)
class Step:
    """One turn while its rows are still there. pos: tokens generated before it; mark: the memory
    before its block; inputs: the block's."""

    pos: int
    mark: Mark
    inputs: list[int]
    given: list[Verified]


@dataclass
class LoopRun:
    """What a loop did, as plain data. margins, alone, offsets: of the row of each token; a row's
    offset is its place in the block. seconds are the loop's own, without what watches it."""

    ids: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    count: dict[str, int] = field(default_factory=dict)  # Target.count
    seconds: float = 0.0
    decode_seconds: float = 0.0
    ended: bool = False  # by an end-of-generation token, which is kept
    fault: Fault | None = None  # the loop stopped at it


class Loop:
    """One text, from the prompt on. on_step sees each turn, outside the loop's clock."""

    def __init__(
        self, target: Target, drafter: Drafter, settle: Settle, width: int, n: int
    ) -> None:
        self.target, self.drafter, self._settle = target, drafter, settle
        self._width, self._n = width, n
        self._rows = np.empty((width, target.context.n_vocab), np.float32)
        self.made = LoopRun(calls=target.calls)

    def run(
        self,
        prompt: Sequence[int],
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> LoopRun:
        """Generates n tokens at most; stops after an end-of-generation token, which is kept, or at
        a fault. InvalidMeasurement on NaN or infinity."""
        made = self.made
        self.text = list(prompt)
        self.target.begin(prompt[:-1])
        self.drafter.begin(prompt)
        self._settle.begin(self.target.mark(len(prompt) - 1))
        while len(made.ids) < self._n and not made.ended and made.fault is None:
            before = self._decoded()
            begin = time.perf_counter()
            step = self._step()
            made.seconds += time.perf_counter() - begin
            made.decode_seconds += self._decoded() - before
            on_step(step)
        made.count = self.target.count()
        return made

    def _decoded(self) -> float:
        return self.target.context.decode_seconds + self.drafter.decode_seconds

    def _step(self) -> Step:
        made, target, text = self.made, self.target, self.text
        pos, start = len(made.ids), len(text) - 1
        draft = self.drafter.draft(text, min(self._width, self._n - pos) - 1)
        inputs = [text[-1], *draft]
        mark = target.mark(start)
        call = len(target.calls)
        rows = target.block(inputs, start, self._rows[: len(inputs)])
        table = read(rows)
        tokens = self._until_end(accept(draft, best_tokens(table)))
        given = [Verified.of(token, rows[i], table[i], (call, i)) for i, token in enumerate(tokens)]
        given = self._settle(mark, inputs, given, text)

        alone = sum(made.kind == "single" for made in target.calls[call:])
        self._keep(Turn(pos, draft, _agreed(draft, given), len(given), alone), given)
        return Step(pos, mark, inputs, given)

    def _until_end(self, tokens: list[int]) -> list[int]:
        is_end = self.target.context.model.is_eog
        return tokens[: next((i + 1 for i, t in enumerate(tokens) if is_end(t)), len(tokens))]

    def _keep(self, turn: Turn, given: list[Verified]) -> None:
        """Into the text, if each token is what its row says and the memory holds just the text."""
        made = self.made
        made.turns.append(turn)
        made.fault = unverified(turn.pos, [v.token for v in given], [v.best for v in given])
        for offset, verified in enumerate(given):
            made.ids.append(verified.token)
            made.margins.append(verified.margin)
            made.alone.append(verified.alone)
            made.offsets.append(offset)
            self.text.append(verified.token)
        made.ended = bool(given) and self.target.context.model.is_eog(given[-1].token)
        held = len(self.text) - 1
        if made.fault is None and not self.target.covers(held):
            found = self.target.context.bounds()
            made.fault = Fault(
                "memory",
                turn.pos,
                f"it holds positions {found[0]} to {found[1]}, not 0 to {held - 1}",
            )


def _agreed(draft: list[int], given: list[Verified]) -> int:
    pairs = list(zip(draft, given, strict=False))
    return next((i for i, (d, v) in enumerate(pairs) if d != v.token), len(pairs))
