"""What speculative runs amount to: outcome, exit code, one line."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from csb.exit_codes import Exit

Record = dict[str, Any]


class Outcome(str, enum.Enum):
    EQUAL = "equal to AR"
    PARTED = "parted, all rounding"
    FAULT = "not rounding"
    NOTHING = "nothing compared"
    INVALID = "not valid"
    INCOMPLETE = "incomplete"


WORST_FIRST = (
    Outcome.INVALID,
    Outcome.FAULT,
    Outcome.INCOMPLETE,
    Outcome.NOTHING,
    Outcome.PARTED,
    Outcome.EQUAL,
)
CODES = {
    Outcome.EQUAL: Exit.DONE,
    Outcome.PARTED: Exit.DIFFERENT,
    Outcome.FAULT: Exit.FAULT,
    Outcome.NOTHING: Exit.INVALID,
    Outcome.INVALID: Exit.INVALID,
    Outcome.INCOMPLETE: Exit.INVALID,  # of an incomplete run; an interrupt has its own
}


def of_loop(ar: Sequence[int], loop: Record) -> Outcome:
    """A loop of a valid run. `blocks`: verify decodes of more than one row together."""
    if loop["faults"]:
        return Outcome.FAULT
    if not loop["blocks"]:
        return Outcome.NOTHING
    return Outcome.EQUAL if loop["ids"] == list(ar) else Outcome.PARTED


def asked(run: Record, judged: str) -> list[Record]:
    """The loops whose text decides: those of the way that was asked for. The ungated loop beside
    them shows what it changed."""
    return [loop for loop in run["loops"] if loop["way"].partition(":")[0] == judged]


def of_run(run: Record, judged: str) -> Outcome:
    """An AR run and its loops. Faults of any loop count. A run that has none of the asked ones is
    there to be compared with, and says what its own loops are."""
    if run["controls"]["failed"]:
        return Outcome.INVALID
    outcomes = [Outcome(loop["outcome"]) for loop in run["loops"]]
    if Outcome.FAULT in outcomes:
        return Outcome.FAULT
    if not run["complete"] or not run["controls"]["complete"]:
        return Outcome.INCOMPLETE
    return worst([Outcome(loop["outcome"]) for loop in asked(run, judged) or run["loops"]])


def of_prompt(runs: Sequence[Record], judged: str) -> Outcome:
    outcomes = [Outcome(run["outcome"]) for run in runs]
    bad = [o for o in outcomes if o in (Outcome.INVALID, Outcome.FAULT, Outcome.INCOMPLETE)]
    decisive = [o for o, run in zip(outcomes, runs, strict=True) if asked(run, judged)]
    return worst(bad or decisive)


def worst(outcomes: Sequence[Outcome]) -> Outcome:
    return next((o for o in WORST_FIRST if o in outcomes), Outcome.INCOMPLETE)


def line(outcome: Outcome, runs: Sequence[Record], judged: str) -> str:
    """The last line: of the loops that were asked for, how many texts equal their AR run's."""
    loops = [loop for run in runs for loop in asked(run, judged)]
    equal = sum(loop["outcome"] == Outcome.EQUAL.value for loop in loops)
    tokens = sum(len(loop["ids"]) for loop in loops)
    n_faults = sum(len(loop["faults"]) for run in runs for loop in run["loops"])
    failed = any(run["controls"]["failed"] for run in runs)
    complete = all(run["controls"]["complete"] for run in runs) and bool(runs)
    state = "failed" if failed else "ok" if complete else "did not run"
    return (
        f"csb: {outcome.value}: {equal} of {len(loops)} texts ({tokens} tokens) equal AR's, "
        f"{n_faults} faults; controls {state}"
    )
