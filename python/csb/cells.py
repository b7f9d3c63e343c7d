"""The table of cells: one list of columns gives names, types, order and JSON keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.void]


@dataclass(frozen=True)
class Column:
    name: str
    dtype: str
    doc: str
    json: str | None = ""  # "" the name itself; None: part of another key


COLUMNS = (
    Column("pos", "i4", "position p = t + j in the trajectory that the row predicts"),
    Column("t", "i4", "the window's start"),
    Column("j", "i4", "the row's offset in the window"),
    Column("ubatch_rows", "i4", "rows of the ubatch that computed the block row; 1: no comparison"),
    Column("id", "i4", "the AR trajectory's token at pos", None),
    Column("l_ar", "f8", "its logit in the AR run", None),
    Column("l_s", "f8", "its logit in the single path"),
    Column("l_b", "f8", "its logit in the block path"),
    Column("dlogit", "f8", "gap: l_s - l_b"),
    Column("amax_s", "i4", "the single path's best token, lowest id among equals"),
    Column("amax_b", "i4", "the block path's"),
    Column("lmax_s", "f8", "its logit"),
    Column("lmax_b", "f8", "its logit"),
    Column("second_s", "i4", "the single path's second token", None),
    Column("second_b", "i4", "the block path's", None),
    Column("lsecond_s", "f8", "its logit", None),
    Column("lsecond_b", "f8", "its logit", None),
    Column("margin_s", "f8", "best minus second logit of the single path"),
    Column("margin_b", "f8", "and of the block path"),
    Column("p_s", "f8", "probability of the AR token in the single path"),
    Column("p_b", "f8", "and in the block path"),
    Column("nll_s", "f8", "-log of p_s, nats", None),
    Column("nll_b", "f8", "-log of p_b, nats", None),
    Column("kl", "f8", "KL(single || block), nats"),
    Column("tv", "f8", "total variation distance of the two distributions"),
    Column("max_abs", "f8", "largest difference of a logit over the vocabulary"),
    Column("rms", "f8", "root mean square of the differences"),
    Column("n_diff", "i4", "vocabulary entries whose bits differ"),
    Column("rank_s", "i4", "the AR token's rank in the single path, 0 is best"),
    Column("rank_b", "i4", "and in the block path"),
    Column("pair_gap", "f8", "gap of the two winners' difference: what can turn the argmax"),
    Column("pair_drift", "f8", "drift of the difference of the AR run's best two"),
    Column("crossed", "f8", "at a flip: l_single of its winner minus that of the block's", None),
    Column("n_bad", "i4", "entries of either row that are NaN or infinite", None),
)

DTYPE = np.dtype([(c.name, c.dtype) for c in COLUMNS])


def empty(n: int = 0) -> Cells:
    return np.zeros(n, DTYPE)


def flips(cells: Cells) -> npt.NDArray[np.bool_]:
    return np.asarray(cells["amax_s"] != cells["amax_b"])


def compared(cells: Cells) -> npt.NDArray[np.bool_]:
    """Cells whose block row was computed with other rows: the others ran the single graph."""
    return np.asarray(cells["ubatch_rows"] > 1)


def number(value: Any) -> int | float | None:
    """A numpy scalar as JSON: NaN and infinities are null."""
    plain = value.item()
    if isinstance(plain, float) and not np.isfinite(plain):
        return None
    return plain  # type: ignore[no-any-return]


def to_json(cells: Cells) -> list[dict[str, Any]]:
    """Each cell under the seed's keys and csb's. top2_s and top2_b are [id, logit] of the second
    best; the best is amax and lmax."""
    rows = []
    for cell in cells:
        row: dict[str, Any] = {
            c.json or c.name: number(cell[c.name]) for c in COLUMNS if c.json is not None
        }
        for path in ("s", "b"):
            row[f"top2_{path}"] = [
                number(cell[f"second_{path}"]),
                number(cell[f"lsecond_{path}"]),
            ]
        rows.append(row)
    return rows
