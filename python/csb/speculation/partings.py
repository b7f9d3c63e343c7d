"""Where a loop's text leaves the AR run's, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from csb.speculation.faults import Sizes


@dataclass(frozen=True)
class Parting:
    """At generated position pos the AR run has token ar_id and the loop token id.

    Differences are l[ar_id] - l[id]: ar_margin in the AR run's row (None: not the first parting, so
    that the AR run's row is of another text), single in the single path on the loop's memory, loop
    in the loop's own row, where it is not above 0. alone: the loop's row was decoded alone.
    """

    pos: int
    ar_id: int
    id: int
    offset: int
    alone: bool
    ar_margin: float | None
    single: float
    loop: float

    @property
    def drift(self) -> float | None:
        """What the memory's history turned."""
        return None if self.ar_margin is None else self.ar_margin - self.single

    @property
    def gap(self) -> float:
        """What the block turned."""
        return self.single - self.loop

    @property
    def exact_tie(self) -> bool:
        return self.ar_margin == 0 or self.loop == 0

    def to_json(self, sizes: Sizes) -> dict[str, Any]:
        """bridged: the margin is no more than the comparison's largest pair gap and drift."""
        bridged = None
        if self.ar_margin is not None:
            bridged = self.ar_margin <= sizes.pair_gap + sizes.pair_drift
        return {
            **asdict(self),
            "drift": self.drift,
            "gap": self.gap,
            "exact_tie": self.exact_tie,
            "bridged": bridged,
        }
