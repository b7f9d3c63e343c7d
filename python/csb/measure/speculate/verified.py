"""Tokens with the rows that gave them."""

from __future__ import annotations

from dataclasses import dataclass

from csb.errors import InvalidMeasurement
from csb.measure.speculate.target import Target
from csb.native import rows as native_rows
from csb.native.context import Rows
from csb.native.rows import Table
from csb.native.table import Row


@dataclass(frozen=True)
class Verified:
    """A token and the row that it is taken from. row: float32 [1, n_vocab], overwritten by the next
    step; best: its argmax, lowest id among equals; alone: decoded alone, not in a block; call: the
    number of the target's call, and the row of that call."""

    token: int
    row: Rows
    best: int
    margin: float
    alone: bool
    call: tuple[int, int]

    @staticmethod
    def of(
        token: int, row: Rows, summary: Table, call: tuple[int, int], alone: bool = False
    ) -> Verified:
        margin = float(summary[Row.MAX] - summary[Row.SECOND_L])
        best = int(summary[Row.ARGMAX])
        return Verified(token, row.reshape(1, -1), best, margin, alone, call)


def read(rows: Rows) -> Table:
    """The rows' summaries. InvalidMeasurement on NaN or infinity."""
    table = native_rows.summarise(rows, [0] * len(rows), temperature=0)
    bad = int(table[:, Row.N_BAD].sum())
    if bad:
        raise InvalidMeasurement(f"{bad} logits of the loop are NaN or infinite")
    return table


def best_tokens(table: Table) -> list[int]:
    """Each row's argmax, the lowest id among equals."""
    return [int(best) for best in table[:, Row.ARGMAX]]


def alone(target: Target, token: int, start: int, out: Rows) -> Verified:
    """The target's choice after a token that is decoded alone."""
    call = len(target.calls)
    target.single(token, start, out)
    table = read(out)
    return Verified.of(best_tokens(table)[0], out, table[0], (call, 0), alone=True)
