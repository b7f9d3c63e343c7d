"""Faults of a speculative loop, planted into the context under it. Positions and tails are planted
consistently: what the context says of its memory fits to what the loop believes."""

from __future__ import annotations

from typing import Any

import csb
import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float32]]


class Planted:
    """A context with nothing wrong until `on`. fired: how often the fault was committed."""

    def __init__(self, context: csb.Context) -> None:
        self._context = context
        self.on = False
        self.fired = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Shifted(Planted):
    """At its `at`-th rollback the memory is cut at another place than the loop asks for, and every
    later position is shifted by the difference, so that the two fit again."""

    def __init__(self, context: csb.Context, at: int) -> None:
        super().__init__(context)
        self._at, self._rollbacks = at, 0
        self._since, self._shift = 0, 0

    def cut(self, position: int, end: int) -> int:
        """Where the memory is really cut."""
        raise NotImplementedError

    def _real(self, position: int) -> int:
        return position + self._shift if position >= self._since else position

    def decode(self, tokens: Any, start: int, **options: Any) -> None:
        self._context.decode(tokens, self._real(start), **options)

    def steps(self, tokens: Any, start: int, out: Rows) -> Rows:
        return self._context.steps(tokens, self._real(start), out)

    def bounds(self) -> tuple[int, int]:
        first, last = self._context.bounds()
        return first, last - self._shift

    def remove(self, position: int) -> bool:
        end = self.bounds()[1] + 1
        if self.on and 0 < position < end:
            self._rollbacks += 1
            if self._rollbacks == self._at:
                real = self.cut(position, end)
                self._since, self._shift = position, real - position
                self.fired += 1
                return self._context.remove(real)
        if position < self._since:  # the place of the fault itself goes
            self._since, self._shift = 0, 0
        return self._context.remove(self._real(position))


class TailLeft(Shifted):
    """The rejected tail stays in the memory, and the text goes on behind it."""

    def cut(self, position: int, end: int) -> int:
        return end


class OffByOne(Shifted):
    """One token too many is cut off: what follows stands one position too early."""

    def cut(self, position: int, end: int) -> int:
        return position - 1


class StaleRow(Planted):
    """The `at`-th block's first row is that of the block before it."""

    def __init__(self, context: csb.Context, at: int) -> None:
        super().__init__(context)
        self._at, self._blocks = at, 0
        self._before: Rows | None = None

    def logits(self, entries: Any = None, out: Rows | None = None) -> Rows:
        rows = self._context.logits(entries, out)
        if self.on and len(rows) > 1:
            self._blocks += 1
            right = rows[0].copy()
            if self._blocks == self._at and self._before is not None:
                rows[0] = self._before
                self.fired += 1
            self._before = right
        return rows


class RowsOffByOne(Planted):
    """Every block's row j is answered with row j - 1, always."""

    def logits(self, entries: Any = None, out: Rows | None = None) -> Rows:
        rows = self._context.logits(entries, out)
        if self.on and len(rows) > 1:
            rows[1:] = rows[:-1].copy()
            self.fired += 1
        return rows


class TailKept(Planted):
    """Rollbacks do nothing and say that they did."""

    def remove(self, position: int) -> bool:
        if self.on and position > 0:
            self.fired += 1
            return True
        return self._context.remove(position)
