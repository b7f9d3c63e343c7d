"""The record of a budget: a whole comparison as the baseline, and a line for everything that was
changed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from csb import cells, conclusion, statistics
from csb.budget import Line
from csb.measure.line import CHANGES, Measured
from csb.price import price
from csb.verdict import Outcome

SCHEMA = {"name": "csb.budget", "version": 1}
Record = dict[str, Any]
COLUMNS = (
    "t", "j", "ubatch_rows", "l_s", "l_b", "amax_s", "amax_b", "n_diff", "max_abs", "pair_gap",
)  # fmt: skip


def head(baseline: Record) -> Record:
    """What is known before the first decode."""
    return {"schema": SCHEMA, "complete": False, "baseline": baseline}


def build(
    baseline: Record,
    measured: Sequence[Measured],
    n_windows: int,
    nodes_changed: dict[str, int],
    repeats: Record,
    out_of_reach: Sequence[str],
    against: Record | None,
    seconds: dict[str, float],
) -> Record:
    """measured: the table's lines in its order, then the combinations that are not in it. repeats:
    rows of the baseline that were decoded once more, `n`, and how many had its bits, `n_equal`.
    out_of_reach: backends beside the CPU that products and attention ran on."""
    lines = [_line(m, n_windows, nodes_changed) for m in measured if _shown(m.line)]
    combinations = [_tried(m, n_windows) for m in measured if _is_tried(m)]
    summary = of_baseline(baseline)
    return {
        **head(baseline),
        "complete": baseline["complete"],
        "outcome": baseline["outcome"],
        "valid": baseline["outcome"] not in (Outcome.INVALID.value, Outcome.NOTHING.value),
        "n_windows": n_windows,
        "baseline_summary": summary,
        "repeats": repeats,
        "out_of_reach": list(out_of_reach),
        "lines": [*lines, *([against] if against else [])],
        "combinations": [asdict(t) for t in combinations],
        "conclusion": conclusion.conclude(
            summary, _noise(lines), repeats, combinations, _why_none(lines), out_of_reach
        ),
        "seconds": seconds,
    }


def _shown(line: Line) -> bool:
    return line.family != "combinations"


def _is_tried(m: Measured) -> bool:
    return m.line.family in ("switches", "repack", "combinations") and bool(m.parts)


def _line(m: Measured, n_windows: int, nodes_changed: dict[str, int]) -> Record:
    line = m.line
    table, changes = m.by_place()
    return {
        "family": line.family,
        "name": line.name,
        "memory": line.memory,
        "options": line.context,
        "switches": list(line.switches),
        "no_repack": not line.repack,
        "slots": line.slots,
        "why_not": m.why_not,
        "n_windows": len(m.parts),
        "every": m.every,
        "complete": m.whole(n_windows),
        "proven": m.proven,
        "nodes_changed": nodes_changed.get(line.name),
        "summary": summarise(table, changes) if len(table) else None,
        "price": price(m.seconds, m.reference),
        "cells": _cells(table, changes),
    }


def summarise(table: cells.Cells, changes: npt.NDArray[np.float64]) -> Record:
    """A line's cells in numbers. changes: columns CHANGES."""
    compared = table[cells.compared(table)]
    gap = statistics.quantiles(np.abs(compared["dlogit"]))
    pair = statistics.quantiles(np.abs(compared["pair_gap"]))
    return {
        "n_cells": len(table),
        "n_compared": len(compared),
        "n_equal": int(np.count_nonzero(compared["n_diff"] == 0)),
        "n_bad": int(np.count_nonzero(table["n_bad"])),
        "single": _changed(changes[:, 0], changes[:, 1]),
        "block": _changed(changes[:, 2], changes[:, 3]),
        "gap": {"median": gap["0.5"], "max": gap["1.0"]},
        "pair_gap": {"median": pair["0.5"]},
        "n_flips": int(np.count_nonzero(cells.flips(table))),
    }


def _changed(n_diff: npt.NDArray[np.float64], size: npt.NDArray[np.float64]) -> Record:
    """Cells that have other bits than the baseline's, and the largest difference of a logit."""
    worst = size.max(initial=0.0)
    return {
        "changed": int(np.count_nonzero(n_diff)),
        "max_abs": float(worst) if np.isfinite(worst) else None,
    }


def of_baseline(baseline: Record) -> Record:
    """The same numbers of the baseline itself."""
    s = baseline["summary"]
    gap, pair = s["quantiles"]["abs_gap"], s["quantiles"]["abs_pair_gap"]
    return {
        **{key: s[key] for key in ("n_cells", "n_compared", "n_equal", "n_bad", "n_flips")},
        "gap": {"median": gap["0.5"], "max": gap["1.0"]},
        "pair_gap": {"median": pair["0.5"]},
    }


def _cells(table: cells.Cells, changes: npt.NDArray[np.float64]) -> list[Record]:
    rows = []
    for cell, change in zip(table, changes, strict=True):
        row = {name: cells.number(cell[name]) for name in COLUMNS}
        for name, value in zip(CHANGES, change, strict=True):
            row[name] = int(value) if name.endswith("n_diff") else cells.number(value)
        rows.append(row)
    return rows


def _tried(m: Measured, n_windows: int) -> conclusion.Tried:
    table, changes = m.by_place()
    s = summarise(table, changes)
    ended = m.until_unequal and m.first_unequal is not None
    return conclusion.Tried(
        switches=m.line.switches,
        repack=m.line.repack,
        n_compared=s["n_compared"],
        n_equal=s["n_equal"],
        whole=not ended and m.whole(n_windows),
        gap=None if ended else s["gap"]["median"],
        gap_max=None if ended else s["gap"]["max"],
        price=price(m.seconds, m.reference),
    )


def _noise(lines: Sequence[Record]) -> Record | None:
    return next((x["summary"] for x in lines if x["family"] == "noise" and x["complete"]), None)


def _why_none(lines: Sequence[Record]) -> str:
    reasons = [x["why_not"] for x in lines if x["family"] in ("switches", "repack")]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or "--lines left the switches out"
