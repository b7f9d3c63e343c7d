"""The AR run of a prompt, and how large rounding is on it: the comparison of the single and the
block path along the same trajectory, each position once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from csb import cells
from csb.cells import Cells
from csb.measure.compare import Measurement, Progress, compare
from csb.measure.memory import Memory
from csb.measure.trajectory import digest
from csb.native import rows
from csb.native.context import Rows
from csb.native.table import Pair
from csb.plan import ComparePlan, Window
from csb.speculation.faults import Sizes
from csb.statistics import Floats

KEPT = 64  # rows of the AR run that are kept to be held against the single path's


@dataclass
class Baseline:
    """compared: with the trajectory, the cells and the controls. digests: of the AR run's rows.
    watching: seconds of the AR run that went into them."""

    compared: Measurement
    digests: list[bytes] = field(default_factory=list)
    rms_drifts: list[float] = field(default_factory=list)
    watching: float = 0.0

    @property
    def ids(self) -> list[int]:
        return self.compared.trajectory.ids

    @property
    def seconds(self) -> float:
        """Of the AR run, from the first decode to its last token."""
        return self.compared.seconds.get("ar", 0.0) - self.watching

    @property
    def sizes(self) -> Sizes:
        table = self.compared.cells
        blocks = table[cells.compared(table)]
        return Sizes(
            n_gap=len(blocks),
            pair_gap=_largest(blocks["pair_gap"]),
            rms_gap=_largest(blocks["rms"]),
            mean_gap=_mean(blocks["rms"]),
            n_drift=len(table),
            pair_drift=_largest(table["pair_drift"]),
            rms_drift=_largest(np.array(self.rms_drifts)),
            mean_drift=_mean(np.array(self.rms_drifts)),
        )


def _largest(values: Floats) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _mean(values: Floats) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else 0.0


def measure(
    memory: Memory, plan: ComparePlan, prompt: list[int], quantized: bool, progress: Progress
) -> Baseline:
    """The AR run and the comparison. An interrupt or error ends in `compared.stopped`."""
    digests: list[bytes] = []
    kept: dict[int, Rows] = {}
    rms: list[float] = []
    every = -(-plan.n_gen // KEPT)
    watching = 0.0

    def ar_row(p: int, row: Rows) -> None:
        nonlocal watching
        begin = time.perf_counter()
        digests.append(digest(row))
        if p % every == 0:
            kept[p] = row.copy()
        watching += time.perf_counter() - begin

    def window(at: Window, table: Cells, single: Rows, block: Rows) -> None:
        for j, p in enumerate(range(at.t, at.t + len(at.targets))):
            if p in kept:
                (pair,) = rows.compare(kept.pop(p), single[j : j + 1])
                rms.append(float(pair[Pair.RMS]))

    compared = compare(memory, plan, prompt, quantized, progress, window, ar_sink=ar_row)
    return Baseline(compared, digests, rms, watching)
