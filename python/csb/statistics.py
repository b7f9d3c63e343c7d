"""Statistics of a table of cells: pure numpy, sums in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from csb import cells
from csb.cells import Cells

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
NEAR_TIE_QUANTILE = 0.95
UNEXPLAINED_FACTOR = 4.0
CLASSES = ("exact_tie", "near_tie", "other", "decided", "unexplained")

Floats = npt.NDArray[np.float64]


def pairwise(table: Cells) -> dict[str, dict[str, float | int | None]]:
    """The seed's three pairs over all cells. Variances are population variances."""
    pairs = {
        "l_ar-l_single": table["l_ar"] - table["l_s"],
        "l_ar-l_block": table["l_ar"] - table["l_b"],
        "l_single-l_block": table["l_s"] - table["l_b"],
    }
    return {name: _moments(d) for name, d in pairs.items()}


def _moments(d: Floats) -> dict[str, float | int | None]:
    if not len(d):
        return {"n": 0, "mean": None, "var": None, "abs_mean": None, "abs_var": None}
    size = np.abs(d)
    return {
        "n": len(d),
        "mean": _plain(d.mean()),
        "var": _plain(d.var()),
        "abs_mean": _plain(size.mean()),
        "abs_var": _plain(size.var()),
    }


def quantiles(values: Floats) -> dict[str, float | None]:
    """{"0.5": median, ...}; the 1.0 one is the maximum."""
    if not len(values):
        return {str(q): None for q in QUANTILES}
    found = np.quantile(values, QUANTILES)
    return {str(q): _plain(v) for q, v in zip(QUANTILES, found, strict=True)}


def _plain(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def exact_ties(table: Cells) -> npt.NDArray[np.bool_]:
    """The best two of either path are equal in value."""
    return np.asarray((table["margin_s"] == 0) | (table["margin_b"] == 0))


def classify(table: Cells, decided: float) -> npt.NDArray[np.str_]:
    """A class for each flip among compared cells, "" for every other cell."""
    names = np.full(len(table), "", dtype="U11")
    compared = cells.compared(table)
    size = np.abs(np.where(compared, table["pair_gap"], 0.0))
    near = near_tie_limit(table)
    for i in np.flatnonzero(cells.flips(table) & compared):
        others = np.delete(size, i)
        margin = table["margin_s"][i]
        if exact_ties(table[i : i + 1])[0]:
            names[i] = "exact_tie"
        elif margin >= decided:
            limit = UNEXPLAINED_FACTOR * others.max(initial=0.0)
            names[i] = "unexplained" if table["crossed"][i] > limit else "decided"
        else:
            names[i] = "near_tie" if margin < near else "other"
    return names


def near_tie_limit(table: Cells) -> float:
    """The run's 95th percentile of |pair gap|; 0 if nothing was compared."""
    size = np.abs(table["pair_gap"][cells.compared(table)])
    size = size[np.isfinite(size)]
    return float(np.quantile(size, NEAR_TIE_QUANTILE)) if len(size) else 0.0


def summarise(table: Cells, decided: float) -> dict[str, Any]:
    """Everything csb says of a run's cells beside the seed's statistics, as plain data."""
    compared = table[cells.compared(table)]
    flipped = cells.flips(table)
    classes = classify(table, decided)
    near = near_tie_limit(table)
    margin = compared["margin_s"]
    positions = len(np.unique(compared["pos"]))
    genuine = (classes != "") & (classes != "exact_tie")
    return {
        "n_cells": len(table),
        "n_compared": len(compared),
        "n_one_row": len(table) - len(compared),
        "n_equal": int(np.count_nonzero(compared["n_diff"] == 0)),
        "n_bad": int(np.count_nonzero(table["n_bad"])),
        "n_flips": int(np.count_nonzero(flipped)),
        "n_flip_positions": len(np.unique(table["pos"][flipped])),
        "flips_by_class": {c: int(np.count_nonzero(classes == c)) for c in CLASSES},
        "n_positions": positions,
        "n_genuine_flip_positions": len(np.unique(table["pos"][genuine])),
        "n_exact_ties": int(np.count_nonzero(exact_ties(compared))),
        "near_tie_limit": near,
        "n_near_ties": int(np.count_nonzero((margin > 0) & (margin < near))),
        "quantiles": {
            "abs_gap": quantiles(np.abs(compared["dlogit"])),
            "abs_pair_gap": quantiles(np.abs(compared["pair_gap"])),
            "abs_pair_drift": quantiles(np.abs(compared["pair_drift"])),
            "margin": quantiles(margin),
        },
        "max_abs": _largest(compared["max_abs"]),
        "mean_kl": _mean(compared["kl"]),
        "mean_tv": _mean(compared["tv"]),
        "max_tv": _largest(compared["tv"]),
        "mean_nll_difference": _mean(compared["nll_b"] - compared["nll_s"]),
        "bound": bound(positions) if not genuine.any() else None,
    }


def bound(n: int) -> float | None:
    """Rule of three: with none of n independent draws, the rate is under this with 95 %."""
    return min(1.0, 3.0 / n) if n else None


def _mean(values: Floats) -> float | None:
    return _plain(values.mean()) if len(values) else None


def _largest(values: Floats) -> float | None:
    return _plain(values.max()) if len(values) else None


def unequal_one_row(table: Cells) -> int:
    """Cells of windows whose every row ran the single path's graph, and whose bits still differ:
    with the same graph on the same memory there must be none."""
    alone = np.ones(len(table), bool)
    for t in np.unique(table["t"][cells.compared(table)]):
        alone &= table["t"] != t
    return int(np.count_nonzero(alone & (table["n_diff"] > 0)))
