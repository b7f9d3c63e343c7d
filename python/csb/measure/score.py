"""Two paths' rows of one window become cells."""

from __future__ import annotations

import numpy as np

from csb import cells
from csb.measure.trajectory import Trajectory
from csb.native import rows
from csb.native.context import Rows
from csb.native.table import Pair, Row
from csb.plan import Window


def score(
    window: Window,
    ar: Trajectory | None,
    single: Rows,
    block: Rows,
    ubatch_rows: list[int],
    temperature: float,
) -> cells.Cells:
    """The window's cells. single and block: float32 [rows, n_vocab]. Without a trajectory there is
    no drift in them.

    p, KL and total variation are of softmax(row / temperature).
    """
    n = len(window.targets)
    s = rows.summarise(single, window.targets, temperature=0)
    b = rows.summarise(block, window.targets, temperature=0)
    pair = rows.compare(single, block, temperature)
    made = cells.empty(n)
    made["t"] = window.t
    made["j"] = np.arange(n)
    made["pos"] = window.t + made["j"]
    made["ubatch_rows"] = ubatch_rows
    made["id"] = window.targets
    made["n_bad"] = s[:, Row.N_BAD] + b[:, Row.N_BAD]
    made["n_diff"] = pair[:, Pair.N_DIFF]
    for measure in (Pair.KL, Pair.TV, Pair.MAX_ABS, Pair.RMS):
        made[measure.name.lower()] = pair[:, measure]
    for path, table, lse in (("s", s, Pair.LSE_A), ("b", b, Pair.LSE_B)):
        good = np.where(table[:, Row.N_BAD : Row.N_BAD + 1] == 0, table, np.nan)
        for name, column in (("amax", Row.ARGMAX), ("second", Row.SECOND), ("rank", Row.RANK)):
            made[f"{name}_{path}"] = np.nan_to_num(good[:, column], nan=-1)
        made[f"l_{path}"] = good[:, Row.TARGET_L]
        made[f"lmax_{path}"] = good[:, Row.MAX]
        made[f"lsecond_{path}"] = good[:, Row.SECOND_L]
        made[f"margin_{path}"] = good[:, Row.MAX] - good[:, Row.SECOND_L]
        made[f"nll_{path}"] = pair[:, lse] - good[:, Row.TARGET_L] / temperature
        made[f"p_{path}"] = np.exp(-made[f"nll_{path}"])
    made["dlogit"] = made["l_s"] - made["l_b"]

    # x, y: the two winners, or the single path's best two where they agree
    flipped = cells.flips(made)
    x, y = made["amax_s"], np.where(flipped, made["amax_b"], made["second_s"])
    index = np.arange(n)
    s_xy = single[index, x].astype(np.float64) - single[index, y]
    b_xy = block[index, x].astype(np.float64) - block[index, y]
    bad = (made["n_bad"] > 0) | (y < 0)
    made["pair_gap"] = np.where(bad, np.nan, s_xy - b_xy)
    made["crossed"] = np.where(flipped & ~bad, s_xy, np.nan)
    made["l_ar"], made["pair_drift"] = np.nan, np.nan
    if ar is not None:
        _add_drift(made, ar, single)
    return made


def _add_drift(made: cells.Cells, ar: Trajectory, single: Rows) -> None:
    """What the AR run's best two tokens have in the single path."""
    for i, p in enumerate(made["pos"]):
        best, (second, l_second) = ar.ids[p], ar.runners_up[p]
        made["l_ar"][i] = ar.logits[p]
        if second >= 0 and not made["n_bad"][i]:
            now = float(single[i, best]) - float(single[i, second])
            made["pair_drift"][i] = ar.logits[p] - l_second - now
