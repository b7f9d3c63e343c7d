"""What a loop's turns add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """One verify decode. draft: the proposed tokens; accepted: of them, those that were given;
    given: tokens that the text grew by; alone: single decodes."""

    pos: int
    draft: list[int]
    accepted: int
    given: int
    alone: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def acceptance(turns: Sequence[Turn]) -> dict[str, Any]:
    """Drafted and accepted tokens, in all and by the draft's width; a step's own token is in
    neither. Turns without a draft count as width 0."""
    widths = sorted({len(turn.draft) for turn in turns})
    by_width = [
        {"width": width, **_count([t for t in turns if len(t.draft) == width])} for width in widths
    ]
    return {**_count(turns), "by_width": by_width}


def _count(turns: Sequence[Turn]) -> dict[str, Any]:
    drafted = sum(len(turn.draft) for turn in turns)
    accepted = sum(turn.accepted for turn in turns)
    n = len(turns)
    return {
        "steps": n,
        "drafted": drafted,
        "accepted": accepted,
        "rate": accepted / drafted if drafted else None,
        "mean_accepted": accepted / n if n else None,
        "tokens_per_step": sum(turn.given for turn in turns) / n if n else None,
    }
