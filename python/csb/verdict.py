"""What a comparison's numbers amount to: outcome, exit code, one line."""

from __future__ import annotations

import enum
from typing import Any

from csb.exit_codes import Exit

FAIL_ON = ("flip", "decided", "none")


class Outcome(str, enum.Enum):
    EQUAL = "equal bits"
    NO_FLIP = "no flip"
    FLIP = "flip"
    NOTHING = "nothing compared"
    INVALID = "not valid"
    INCOMPLETE = "incomplete"


def _genuine(summary: dict[str, Any]) -> tuple[int, int]:
    """Flips at decided positions, explained or not, and all others but exact ties."""
    by_class = summary["flips_by_class"]
    return by_class["decided"] + by_class["unexplained"], by_class["near_tie"] + by_class["other"]


def judge(summary: dict[str, Any], controls: dict[str, Any], complete: bool) -> Outcome:
    """The outcome, worst first: no number of a run that can't be believed counts."""
    if controls["failed"] or summary["n_bad"]:
        return Outcome.INVALID
    if not complete or not controls["complete"]:
        return Outcome.INCOMPLETE
    if summary["n_compared"] == 0:
        return Outcome.NOTHING
    if sum(_genuine(summary)):
        return Outcome.FLIP
    return Outcome.EQUAL if summary["n_equal"] == summary["n_compared"] else Outcome.NO_FLIP


def exit_code(outcome: Outcome, summary: dict[str, Any], fail_on: str) -> Exit:
    """Exact ties alone are no flip. Incomplete runs end by their own cause."""
    if outcome in (Outcome.INVALID, Outcome.NOTHING, Outcome.INCOMPLETE):
        return Exit.INVALID
    suspicious, others = _genuine(summary)
    failing = {"flip": suspicious + others, "decided": suspicious, "none": 0}[fail_on]
    return Exit.DIFFERENT if failing else Exit.DONE


def line(outcome: Outcome, summary: dict[str, Any], controls: dict[str, Any]) -> str:
    by_class = summary["flips_by_class"]
    decided, _ = _genuine(summary)
    state = "failed" if controls["failed"] else "ok" if controls["complete"] else "did not run"
    return (
        f"csb: {outcome.value}: {summary['n_flips']} flips at {summary['n_flip_positions']} of "
        f"{summary['n_positions']} positions ({summary['n_compared']} cells), "
        f"{by_class['exact_tie']} exact ties, {decided} decided; controls {state}"
    )
