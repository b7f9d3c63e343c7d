"""Kernel switches on one memory: blocks under every combination, and the single paths that they
change.

A switch refuses a kernel. Where the records of a window's single path show that no kernel of a
combination ran, refusing it can't change that path, and it is not decoded again; every SPOT-th
window it is decoded all the same and must then have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from csb.measure.exact import SPLIT, SPLIT_KERNEL
from csb.measure.line import Baseline, Measured
from csb.measure.memory import Memory, same_bits
from csb.native.context import Rows
from csb.plan import Window

SPOT = 10
REFERENCE = "reference"
WRONG = "its single path changed where the kernel records say that it can't"
RAN = {
    "llamafile": {"llamafile_sgemm"},
    "tiled": {"ggml_compute_forward_mul_mat_tiled", "ggml_compute_forward_mul_mat_id_tiled"},
    SPLIT: {SPLIT_KERNEL},
}


def acting(calls: Sequence[dict[str, Any]]) -> set[str] | None:
    """The switches that would have refused a kernel of these recorded calls; None where no kernel
    could be observed."""
    ran = {
        event["kernel"]
        for call in calls
        for ubatch in call["ubatches"]
        for event in ubatch["kernels"]
        if event["accepted"]
    }
    return {name for name, kernels in RAN.items() if ran & kernels} if ran else None


class SwitchGroup:
    """The combinations measured on one memory."""

    def __init__(self, memory: Memory, measured: list[Measured], rows: int) -> None:
        self.memory, self.measured = memory, measured
        self._blocks = [self._rows(rows) for _ in measured]
        self._single: dict[tuple[str, ...], Rows] = {}
        self._n_rows = rows

    def _rows(self, n: int) -> Rows:
        return np.empty((n, self.memory.context.n_vocab), np.float32)

    def blocks(self, window: Window) -> list[float]:
        """Every combination's block, one right after the other so that all find the graph built.
        Seconds of each; 0 for those that have ended."""
        took = []
        for m, out in zip(self.measured, self._blocks, strict=True):
            took.append(0.0)
            if m.goes_on:
                names, n = m.line.switches, len(window.inputs)
                with self.memory.switched(single=names, block=names):
                    took[-1] = self.memory.timed_block(window.inputs, window.prefix, out[:n])
        return took

    def add(self, base: Baseline, plain: Rows, ran: set[str] | None, nth: int) -> None:
        """The window's cells, after `blocks`. plain: this memory's single path without a switch;
        ran: the switches whose kernels ran in it, None where that is not known."""
        n = len(base.window.inputs)
        decoded: dict[tuple[str, ...], Rows] = {}
        for m, block in zip(self.measured, self._blocks, strict=True):
            if not m.goes_on:
                continue
            single = plain
            if names := _changing(m.line.switches, ran):
                if names not in decoded:
                    decoded[names] = self._decode(names, base.window)
                single = decoded[names]
            elif m.line.switches:
                m.proven += 1
                if nth % SPOT == 0:
                    again = self._decode(m.line.switches, base.window)
                    if not same_bits(again, plain):
                        m.why_not = WRONG
                        continue
            m.add(base, self.memory, single, block[:n])

    def _decode(self, names: tuple[str, ...], window: Window) -> Rows:
        out = self._single.setdefault(names, self._rows(self._n_rows))[: len(window.inputs)]
        self.memory.rewind(window.prefix)
        with self.memory.switched(single=names, block=names):
            return self.memory.single(window.inputs, window.prefix, out)


def _changing(names: tuple[str, ...], ran: set[str] | None) -> tuple[str, ...]:
    """The switches under which a single path must be decoded; none where it can't change.

    Those of the combination; split-kv alone where the others would refuse nothing. (A product
    whose kernel is refused goes to another one, which may be refused too: only attention, which
    decides by itself, can be told apart.)
    """
    if ran is None or REFERENCE in names:
        return names
    changing = tuple(n for n in names if n in ran)
    return changing if changing in ((), (SPLIT,)) else names
