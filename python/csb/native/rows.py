"""Summaries of logits rows in C: csb_rows_summarise and csb_rows_compare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError
from csb.native.checks import float_rows, whole_array
from csb.native.library import library
from csb.native.table import Pair, Row

Rows = npt.NDArray[np.float32]
Table = npt.NDArray[np.float64]


def summarise(rows: Rows, targets: Sequence[int], temperature: float = 1.0) -> Table:
    """float64 [n_rows, len(Row)-1] for rows float32 [n_rows, n_vocab]; columns are `Row`.

    temperature 0: without LOGSUMEXP, which costs as much as all the rest.
    """
    rows = float_rows(rows, "rows")
    n_rows, n_vocab = rows.shape
    wanted = whole_array(targets, "targets")
    if len(wanted) != n_rows:
        raise ArgumentError(f"targets has {len(wanted)} entries for {n_rows} rows")
    table = np.empty((n_rows, Row.N_FIELDS), np.float64)
    library().csb_rows_summarise(n_rows, n_vocab, rows, wanted, temperature, table)
    return table


def compare(a: Rows, b: Rows, temperature: float = 1.0) -> Table:
    """float64 [n_rows, len(Pair)-1] for two float32 [n_rows, n_vocab]; columns are `Pair`."""
    a, b = float_rows(a, "a"), float_rows(b, "b")
    if a.shape != b.shape:
        raise ArgumentError(f"rows of shape {a.shape} and {b.shape} can't be compared")
    n_rows, n_vocab = a.shape
    table = np.empty((n_rows, Pair.N_FIELDS), np.float64)
    library().csb_rows_compare(n_rows, n_vocab, a, b, temperature, table)
    return table
