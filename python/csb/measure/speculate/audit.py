"""Audits of a loop, at every parting, every 16th token and the last one.

(a) is the loop's row, (b) the single path on the loop's own memory, (c) the single path on memory
prefilled afresh from the accepted tokens. (a)-(b) is the row's gap, (b)-(c) the memory's drift:
csb.speculation.faults says how large they may be. Also every token is looked up in a fresh decode
of the whole text, and the loop's calls are made once more on a fresh memory: every row that gave a
token must have the same bits then.

Where the memory can be cut back to a row, (b) is decoded when the loop is over, from the last audit
to the first: the loop runs as if nobody looked. Other memories are restored to the block's state at
once and put back afterwards, which is proven by the state's bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csb.cells import Cells
from csb.errors import InvalidMeasurement
from csb.measure.score import score
from csb.measure.speculate import memories
from csb.measure.speculate.loop import LoopRun, Step
from csb.measure.speculate.target import Target
from csb.measure.trajectory import digest
from csb.native.context import Rows
from csb.plan import Window
from csb.speculation.faults import Seen
from csb.speculation.texts import parts_at

CHUNK = 32  # rows of a block of the fresh decode


@dataclass
class Audit:
    """One audited position. loop, single: rows (a) and (b), float32 [1, n_vocab]; gap: their cell;
    drift: that of (b) and (c). After a second look the nearest of several honest rows stands for
    (b) in gap, for (c) in drift. spread: the standard deviation of (c)'s logits. mixed: as in Seen.
    """

    pos: int
    why: str  # "parting", "audit" or "end"
    token: int
    offset: int
    alone: bool
    mixed: bool
    loop: Rows
    single: Rows | None = None
    gap: Cells | None = None
    drift: Cells | None = None
    spread: float = 0.0

    def compare(self, fresh: Rows) -> None:
        assert self.single is not None
        self.gap, self.drift = self._cell(self.single, self.loop), self._cell(fresh, self.single)
        self.spread = float(np.std(fresh, dtype=np.float64))

    def nearer(self, single: Rows) -> None:
        """Another single row of the same text: what is nearer counts."""
        assert self.gap is not None and self.drift is not None and self.single is not None
        gap, drift = self._cell(single, self.loop), self._cell(single, self.single)
        if not self.alone and gap["rms"][0] < self.gap["rms"][0]:
            self.gap = gap
        if drift["rms"][0] < self.drift["rms"][0]:
            self.drift = drift

    def _cell(self, one: Rows, other: Rows) -> Cells:
        window = Window(self.pos, 0, (0,), (self.token,))
        return score(window, None, one, other, [1], 1.0)

    def seen(self) -> Seen:
        assert self.gap is not None and self.drift is not None
        gap, drift = self.gap[0], self.drift[0]
        return Seen(
            pos=self.pos,
            pair_gap=float(gap["pair_gap"]),
            rms_gap=float(gap["rms"]),
            pair_drift=float(drift["pair_gap"]),
            rms_drift=float(drift["rms"]),
            spread=self.spread,
            equal=not gap["n_diff"],
            alone=self.alone,
            mixed=self.mixed,
        )


class Auditor:
    """Sees every step of one loop; `finish` when it is over. rewrites: the way writes earlier
    tokens again, so that the memory is not any more as the rows found it."""

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        ar: Sequence[int],
        every: int,
        rewrites: bool = False,
    ) -> None:
        self._target = target  # not the loop's: its calls are not
        self._prompt, self._ar, self._every = list(prompt), list(ar), every
        self._rewrites = rewrites
        self._last: Step | None = None
        self._calls: list[tuple[int, int]] = []  # where the row of each token is from
        self.ids: list[int] = []
        self.audits: list[Audit] = []
        self.digests: list[bytes] = []  # of the row of each token
        self.again: list[bool] = []  # whether it has the same bits when the calls are made again
        self.deficits: list[float] = []  # of each token: memories.deficits

    def __call__(self, step: Step) -> None:
        self.ids += [v.token for v in step.given]
        for offset, verified in enumerate(step.given):
            pos = step.pos + offset
            self.digests.append(digest(verified.row))
            self._calls.append(verified.call)
            if parts_at(self._ar, self.ids, pos):
                self._take(step, offset, "parting")
            elif (pos + 1) % self._every == 0:
                self._take(step, offset, "audit")
        self._last = step

    def _take(self, step: Step, offset: int, why: str) -> None:
        verified = step.given[offset]
        audit = Audit(
            pos=step.pos + offset,
            why=why,
            token=verified.token,
            offset=offset,
            alone=verified.alone,
            mixed=self._rewrites and not verified.alone,
            loop=verified.row.copy(),
        )
        if not self._target.memory.cuts_back:
            audit.single = self._at_once(step, offset)
        self.audits.append(audit)

    def _at_once(self, step: Step, offset: int) -> Rows:
        """(b) from the block's state."""
        context, target = self._target.context, self._target
        before = context.save()
        in_block = sum(not v.alone for v in step.given[:offset])
        target.back(step.mark, step.inputs[:in_block])
        row = np.empty((1, context.n_vocab), np.float32)
        for i in range(in_block, offset + 1):
            target.single(step.inputs[i], step.mark.length + i, row)
        target.memory.wipe()
        context.restore(before)
        if not np.array_equal(context.save(), before):
            raise InvalidMeasurement("an audit could not put the loop's memory back bit for bit")
        return row

    @property
    def _text(self) -> list[int]:
        return self._prompt + self.ids

    @property
    def _lengths(self) -> list[int]:
        """Tokens in the memory before each audited row's own."""
        return [len(self._prompt) - 1 + audit.pos for audit in self.audits]

    def finish(self, run: LoopRun) -> None:
        """The rows that are still missing, and what they say. Uses up the memory."""
        last = self._last
        if last is not None and last.given:
            offset = len(last.given) - 1
            if not self.audits or self.audits[-1].pos != last.pos + offset:
                self._take(last, offset, "end")
        if self._target.memory.cuts_back:
            rows = memories.walk(self._target, self._text, self._lengths)
            for audit, row in zip(self.audits, rows, strict=True):
                audit.single = row
        self._make_again(run)
        self.deficits = self._decode_afresh(CHUNK)
        for audit, row in zip(self.audits, self._singles(self._target.begin), strict=True):
            audit.compare(row)

    def _make_again(self, run: LoopRun) -> None:
        """Where a bit differs, once more still: of a backend that gives other bits every time it
        says nothing."""
        found = self._again(run)
        self.again = [a == b for a, b in zip(found, self.digests, strict=True)]
        if not all(self.again) and self._again(run) != found:
            raise InvalidMeasurement("the loop's calls give other bits every time: a noisy backend")

    def _again(self, run: LoopRun) -> list[bytes]:
        return memories.make_again(self._target, self._prompt[:-1], run.calls, self._calls)

    def _decode_afresh(self, rows: int) -> list[float]:
        return memories.deficits(self._target, self._prompt, self.ids, rows)

    def _singles(self, write: memories.Write) -> list[Rows]:
        """The single path's rows on the memory that a fresh decode left, where it can be cut back
        to them; else on memories written by `write`."""
        if self._target.memory.cuts_back:
            return memories.walk(self._target, self._text, self._lengths)
        return memories.rows_at(self._target, self._text, self._lengths, write)

    def seen(self) -> tuple[list[Seen], list[float]]:
        """What `finish` found, for csb.speculation.faults."""
        return [audit.seen() for audit in self.audits], self.deficits

    def second_look(self, width: int) -> None:
        """The nearest honest relative instead. Rounding can jump, where an expert or a quantized
        value changes: then the same tokens, written in blocks or one by one, jump there too in one
        way or another; a row, a memory or a token of another text is far from all of them."""
        for rows in (width, 1):
            found = self._decode_afresh(rows)
            self.deficits = [min(pair) for pair in zip(self.deficits, found, strict=True)]
            write = memories.in_calls(self._target, len(self._prompt), rows)
            for audit, row in zip(self.audits, self._singles(write), strict=True):
                audit.nearer(row)
