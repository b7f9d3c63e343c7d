"""Both texts once more under the single path alone: what each costs in nats, and the AR run's row
where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from csb.measure.speculate.target import Target
from csb.measure.trajectory import digest
from csb.native import rows
from csb.native.context import Rows
from csb.native.table import Row


@dataclass
class Replay:
    """nll_*: -log p of each token, nats, temperature 1. digests: of the AR run's rows up to `row`,
    the one after the last token that both texts have; float32 [1, n_vocab]."""

    row: Rows
    nll_ar: list[float] = field(default_factory=list)
    nll_text: list[float] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


def replay(
    target: Target, prompt: Sequence[int], ar: Sequence[int], text: Sequence[int], parted: int
) -> Replay:
    """Decodes the prompt as the AR run does, what both texts share, then the rest of each."""
    made = Replay(np.empty((1, target.context.n_vocab), np.float32))
    start = len(prompt) - 1
    target.begin(prompt[:-1])
    for p in range(parted + 1):
        target.single(prompt[-1] if p == 0 else text[p - 1], start + p, made.row)
        made.digests.append(digest(made.row))
        for nll, ids in ((made.nll_ar, ar), (made.nll_text, text)):
            if p < len(ids):
                nll.append(_nll(made.row, ids[p]))
    branch = target.mark(start + parted + 1)
    row = np.empty_like(made.row)
    for nll, ids in ((made.nll_ar, ar), (made.nll_text, text)):
        target.back(branch)
        for p in range(parted + 1, len(ids)):
            nll.append(_nll(target.single(ids[p - 1], start + p, row), ids[p]))
    return made


def _nll(row: Rows, token: int) -> float:
    (summary,) = rows.summarise(row, [token])
    return float(summary[Row.LOGSUMEXP] - summary[Row.TARGET_L])
