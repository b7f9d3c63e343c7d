"""Both paths' rows against a CPU run in F32 on the same tokens: whether the paths are nearer to
each other than to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from csb import cells, kernels
from csb.measure.capture import Spill
from csb.measure.f32 import f32_file
from csb.measure.memory import Memory
from csb.measure.session import open_session
from csb.native import rows, worker
from csb.native.context import Rows
from csb.native.model import Model
from csb.native.table import Pair
from csb.plan import ComparePlan, Window

Progress = Callable[[str, int, int], None]


class KeptRows:
    """A comparison's logits rows, in a temporary file until the reference's are there."""

    def __init__(self) -> None:
        self._spill = Spill()

    def add(self, window: Window, table: cells.Cells, single: Rows, block: Rows) -> None:
        for cell, s, b in zip(table, single, block, strict=True):
            if cell["ubatch_rows"] > 1:  # one-row cells are no comparisons
                self._spill.put((int(cell["pos"]), int(cell["t"])), np.stack([s, b]))

    def at(self, position: int, width: int) -> list[Rows]:
        """[single, block] of every window that has the position, float32 [2, n_vocab] each."""
        starts = range(max(0, position - width + 1), position + 1)
        return [self._spill.get((position, t)) for t in starts if (position, t) in self._spill]

    def close(self) -> None:
        self._spill.close()


@dataclass
class Distances:
    """RMS over the vocabulary, a value for each cell, and mean KL divergences in nats."""

    n: int
    single_block: list[float]
    single_reference: list[float]
    block_reference: list[float]
    kl_single_reference: float | None
    kl_block_reference: float | None
    parameters: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        pair, s, b = map(np.array, (self.single_block, self.single_reference, self.block_reference))
        return {
            **asdict(self),
            "medians": {
                "single_block": _median(pair),
                "single_reference": _median(s),
                "block_reference": _median(b),
            },
            "n_nearer_to_each_other": int(np.count_nonzero(pair < np.minimum(s, b))),
        }


def _median(values: np.ndarray[Any, Any]) -> float | None:
    return float(np.median(values)) if len(values) else None


def measure(
    plan: ComparePlan,
    compared: Model,
    text: list[int],
    n_prompt: int,
    kept: KeptRows,
    progress: Progress,
) -> Distances:
    """Decodes the trajectory once more, token by token, on the CPU in F32 throughout."""
    with f32_file(compared, "--reference cpu") as path:
        model = replace(plan.model, path=path, devices="none", n_gpu_layers=0, repack=False)
        context = replace(plan.context, flash_attn="off", type_k="f32", type_v="f32")
        with kernels.exactly(), open_session(model, context) as session:
            memory = session.memory

            def work() -> Distances:
                return _distances(memory, text, n_prompt, plan.width, kept, progress)

            found = worker.run(work, session.context.cancel)
            found.parameters = session.parameters()
            return found


def _distances(
    memory: Memory,
    text: list[int],
    n_prompt: int,
    width: int,
    kept: KeptRows,
    progress: Progress,
) -> Distances:
    memory.prefill(text[: n_prompt - 1])
    memory.rewind(n_prompt - 1)
    row = np.empty((1, memory.context.n_vocab), np.float32)
    tables = []
    n = len(text) - n_prompt
    for position in range(n):
        at = n_prompt - 1 + position
        memory.single([text[at]], at, row)
        for single, block in (pair[:, None] for pair in kept.at(position, width)):
            tables.append(
                [
                    rows.compare(a, b, 1.0)[0]
                    for a, b in ((single, block), (row, single), (row, block))
                ]
            )
        progress("reference", position + 1, n)
    table = np.array(tables).reshape(-1, 3, Pair.N_FIELDS)
    rms, kl = table[:, :, Pair.RMS], table[:, :, Pair.KL]
    return Distances(
        n=len(table),
        single_block=rms[:, 0].tolist(),
        single_reference=rms[:, 1].tolist(),
        block_reference=rms[:, 2].tolist(),
        kl_single_reference=float(kl[:, 1].mean()) if len(kl) else None,
        kl_block_reference=float(kl[:, 2].mean()) if len(kl) else None,
        parameters={},
    )
