"""What one line of a budget saw, window by window."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from csb import cells
from csb.budget import Line
from csb.measure.memory import Memory
from csb.measure.score import score
from csb.measure.trajectory import Trajectory
from csb.native import rows
from csb.native.context import Rows
from csb.native.table import Pair
from csb.plan import Window

Floats = npt.NDArray[np.float64]
CHANGES = ("single_n_diff", "single_max_abs", "block_n_diff", "block_max_abs")


@dataclass(frozen=True)
class Baseline:
    """The baseline's window: what every line's rows are held against."""

    window: Window
    single: Rows
    block: Rows
    ar: Trajectory
    temperature: float
    whole: bool  # not one of the shorter windows at the trajectory's end


@dataclass
class Measured:
    """Cells, changes against the baseline's rows (float64 [n, len(CHANGES)]) and blocks' times.

    until_unequal: a combination that is of no use once a cell is unequal, and ends there. every:
    measured in the first window and every N-th after it.
    """

    line: Line
    until_unequal: bool = False
    every: int = 1
    why_not: str = ""  # why it could not be had, or not to the end
    parts: list[cells.Cells] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)
    proven: int = 0  # windows whose single path was proven unchanged instead of decoded
    seconds: list[float] = field(default_factory=list)  # of whole blocks
    reference: list[float] = field(default_factory=list)  # the baseline's, of the same windows
    first_unequal: tuple[int, int] | None = None  # t, j of a compared cell

    def __post_init__(self) -> None:
        self.why_not = self.why_not or self.line.why_not

    @property
    def goes_on(self) -> bool:
        return not self.why_not and not (self.until_unequal and self.first_unequal)

    def whole(self, n_windows: int) -> bool:
        """Whether that is all there is of a baseline of so many windows."""
        return not self.why_not and len(self.parts) >= -(-n_windows // self.every)

    def add(self, base: Baseline, memory: Memory, single: Rows, block: Rows) -> None:
        """One window's rows of both paths. single may be the baseline's own, where it is proven."""
        n = len(base.window.inputs)
        table = score(base.window, base.ar, single, block, memory.ubatch_rows(n), base.temperature)
        change = np.zeros((n, len(CHANGES)))
        pairs = ((0, single, base.single), (2, block, base.block))
        for column, ours, theirs in pairs:
            if ours is not theirs:
                pair = rows.compare(ours, theirs, base.temperature)
                change[:, column] = pair[:, Pair.N_DIFF]
                change[:, column + 1] = pair[:, Pair.MAX_ABS]
        self.parts.append(table)
        self.changes.append(change)
        unequal = np.flatnonzero(cells.compared(table) & (table["n_diff"] > 0))
        if len(unequal) and self.first_unequal is None:
            self.first_unequal = base.window.t, int(unequal[0])

    def time(self, base: Baseline, seconds: float, reference: float | None) -> None:
        if base.whole and reference is not None:
            self.seconds.append(seconds)
            self.reference.append(reference)

    def by_place(self) -> tuple[cells.Cells, Floats]:
        """Cells and changes in the order of windows and offsets."""
        if not self.parts:
            return cells.empty(), np.zeros((0, len(CHANGES)))
        table, change = np.concatenate(self.parts), np.concatenate(self.changes)
        order = np.lexsort((table["j"], table["t"]))
        return table[order], change[order]
