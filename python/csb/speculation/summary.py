"""Over prompts and ways: what a loop costs and how often its text parts, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from csb.intervals import clopper_pearson, mean_over
from csb.statistics import bound

Record = dict[str, Any]


def of_prompts(prompts: Sequence[Record]) -> Record:
    """{"ways": a row for each way, in the order they ran}, over the prompts that have it."""
    found: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    for prompt in prompts:
        for run in prompt["runs"]:
            for loop in run["loops"]:
                found.setdefault((run["setting"], loop["way"]), []).append((run, loop))
    return {
        "n_prompts": len(prompts),
        "ways": [_row(setting, way, pairs) for (setting, way), pairs in found.items()],
    }


def _row(setting: str, way: str, pairs: Sequence[tuple[Record, Record]]) -> Record:
    """parted: prompts whose text leaves the AR run's, with the exact interval of their share;
    parted_alone: of them, at a row that was decoded alone. alone_share: of the tokens, those whose
    row was decoded alone. speed: the AR run's time for a token over the loop's."""
    loops = [loop for _, loop in pairs]
    parted = [loop["partings"][0] for loop in loops if loop["partings"]]
    tokens = sum(len(loop["ids"]) for loop in loops)
    seconds = sum(loop["seconds"] for loop in loops)
    equal = [loop["nll"] for loop in loops if loop["nll"]]
    return {
        "setting": setting,
        "way": way,
        "n": len(loops),
        "tokens": tokens,
        "parted": len(parted),
        "parted_interval": list(clopper_pearson(len(parted), len(loops))),
        "parted_alone": sum(parting["alone"] for parting in parted),
        "parted_at": [parting["pos"] for parting in parted],
        "exact_ties": sum(parting["exact_tie"] for parting in parted),
        "bound": bound(tokens) if not parted else None,
        "faults": sum(len(loop["faults"]) for loop in loops),
        "looked_twice": sum(loop["looked_twice"] for loop in loops),
        "n_equal": sum(loop["n_equal"] for loop in loops),
        "equal_rows": sum(loop["equal_rows"] for loop in loops),
        "alone_share": mean_over(
            [loop["alone"] / len(loop["ids"]) for loop in loops if loop["ids"]],
            least=0.0,
            most=1.0,
        ),
        "calls": {name: sum(loop["calls"][name] for loop in loops) for name in loops[0]["calls"]},
        "drafted": sum(loop["acceptance"]["drafted"] for loop in loops),
        "accepted": sum(loop["acceptance"]["accepted"] for loop in loops),
        "acceptance": mean_over(
            [loop["acceptance"]["rate"] for loop in loops if loop["acceptance"]["drafted"]],
            least=0.0,
            most=1.0,
        ),
        "seconds_per_token": seconds / tokens if tokens else None,
        "tokens_per_second": tokens / seconds if seconds else None,
        "speed": mean_over([_speed(run, loop) for run, loop in pairs if loop["ids"]], least=0.0),
        "overhead": mean_over([loop["overhead"] for loop in loops if loop["seconds"]]),
        "nll_difference": mean_over([nll["text"] - nll["ar"] for nll in equal]),
    }


def _speed(run: Record, loop: Record) -> float:
    single = run["ar"]["seconds"] / len(run["ar"]["ids"])
    return float(single / (loop["seconds"] / len(loop["ids"])))


def frontier(rows: Sequence[Record]) -> Record:
    """smallest: the least TAU of the grid from which on no text parted; None where the ungated loop
    did not part either, or every one did. A statement about these prompts, not a promise."""
    gated = sorted(
        ((float(row["way"].partition(":")[2]), row) for row in rows if ":" in row["way"]),
        key=lambda pair: pair[0],
    )
    plain_parts = any(row["parted"] for row in rows if row["way"] == "none")
    smallest = None
    for tau, row in reversed(gated):
        if row["parted"]:
            break
        smallest = tau
    named = smallest if smallest != 0 and plain_parts else None
    at = next((row for tau, row in gated if tau == named), None)
    return {
        "taus": [_number(tau) for tau, _ in gated],
        "smallest": _number(named),
        "interval": at["parted_interval"] if at else None,
        "bound": at["bound"] if at else None,
    }


def _number(tau: float | None) -> float | str | None:
    return "inf" if tau == float("inf") else tau
