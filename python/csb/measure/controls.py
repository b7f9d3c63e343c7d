"""The controls of every run: one pair that must be equal, one that must not.

They run on window 0, whose prefix is always prefilled afresh, so its single path replays the AR
run's graph whatever the prefix strategy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from csb.measure.memory import Memory, same_bits
from csb.measure.trajectory import Trajectory
from csb.native.context import Rows
from csb.native.library import has_hooks
from csb.nodes import observed
from csb.plan import Window


@dataclass
class Controls:
    """What was seen; None: did not run."""

    ar_equal: bool | None = None  # window 0's single rows have the AR run's bits
    repeat_equal: bool | None = None  # window 0's single and block path twice: same bits
    token_differs: bool | None = None  # one changed input token changes both paths' row
    incremental_equal: bool | None = None  # --prefix incremental: every single row is the AR row
    one_row_equal: bool | None = None  # windows that ran the single graph twice have its bits
    noise: dict[str, Any] = field(default_factory=dict)  # of the pairs that should be equal
    # What each path ran, from the second time, which so proves too that watching changed nothing
    kernels: dict[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return [name for name, value in asdict(self).items() if value is False]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed, "complete": self.complete}

    @property
    def complete(self) -> bool:
        return None not in (self.ar_equal, self.repeat_equal, self.token_differs)


def difference(a: Rows, b: Rows) -> dict[str, Any]:
    """The size of a difference that should not be."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b)
    return {
        "n_diff": int(np.count_nonzero(a.view(np.uint32) != b.view(np.uint32))),
        "n": int(a.size),
        "max_abs": None if np.isnan(gap).any() else float(gap.max(initial=0.0)),
    }


def run(
    seen: Controls,
    memory: Memory,
    window: Window,
    trajectory: Trajectory,
    single: Rows,
    block: Rows,
) -> None:
    """Checks window 0's rows, already measured, against the AR run and against a second time."""
    pairs = {"ar_equal": (single, trajectory.first_rows[: len(single)])}
    again = np.empty_like(single)
    watch = {"graph": False, "kernels": has_hooks()}
    with memory.context.trace(**watch) as singly:
        memory.rewind(window.prefix)
        pairs["repeat_equal"] = (single, memory.single(window.inputs, window.prefix, again))
    with memory.context.trace(**watch) as as_block:
        memory.rewind(window.prefix)
        again_block = memory.block(window.inputs, window.prefix, np.empty_like(block))
    seen.kernels = {"single": observed(singly.calls), "block": observed(as_block.calls)}
    seen.ar_equal = same_bits(*pairs["ar_equal"])
    seen.repeat_equal = same_bits(*pairs["repeat_equal"]) and same_bits(block, again_block)
    for name, (a, b) in pairs.items():
        if not same_bits(a, b):
            seen.noise[name] = difference(a, b)
    if not same_bits(block, again_block):
        seen.noise["repeat_block_equal"] = difference(block, again_block)

    other = (window.inputs[0] + 1) % memory.context.n_vocab
    changed = (other, *window.inputs[1:])
    memory.rewind(window.prefix)
    changed_block = memory.block(changed, window.prefix, np.empty_like(block))
    memory.rewind(window.prefix)
    changed_single = memory.single(changed[:1], window.prefix, np.empty_like(single[:1]))
    seen.token_differs = not same_bits(changed_block[:1], block[:1]) and not same_bits(
        changed_single, single[:1]
    )
