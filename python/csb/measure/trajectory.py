"""The AR trajectory: greedy tokens, one decode each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from csb.errors import InvalidMeasurement
from csb.measure.memory import Memory
from csb.native import rows
from csb.native.context import Rows
from csb.native.table import Row

RowSink = Callable[[int, Rows], None]  # position, its row [1, n_vocab], overwritten by the next


@dataclass
class Trajectory:
    """Tokens ar[0..n-1], their logits, the second best of each row, the first `width` rows whole, a
    digest of each if wanted."""

    ids: list[int] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)
    runners_up: list[tuple[int, float]] = field(default_factory=list)  # token, logit
    digests: list[bytes] = field(default_factory=list)
    first_rows: Rows = field(default_factory=lambda: np.empty((0, 0), np.float32))
    ended: bool = False  # by an end-of-generation token, which is kept


def digest(row: Rows) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def run(
    memory: Memory,
    prompt: Sequence[int],
    n: int,
    made: Trajectory,
    progress: Callable[[], None],
    digests: bool,
    sink: RowSink | None = None,
) -> None:
    """Decodes n tokens greedily from the prompt's last one on, into `made`.

    The memory holds the prompt without its last token. Stops after an end-of-generation token,
    which is kept. InvalidMeasurement on NaN or infinity.
    """
    context = memory.context
    row = np.empty((1, context.n_vocab), np.float32)
    token = prompt[-1]
    for p in range(n):
        memory.single([token], len(prompt) - 1 + p, row)
        summary = rows.summarise(row, [0], temperature=0)[0]
        if summary[Row.N_BAD]:
            raise InvalidMeasurement(
                f"{int(summary[Row.N_BAD])} logits of the AR run at position {p} "
                "are NaN or infinite"
            )
        if p < len(made.first_rows):
            made.first_rows[p] = row[0]
        if digests:
            made.digests.append(digest(row))
        if sink is not None:
            sink(p, row)
        token = int(summary[Row.ARGMAX])
        made.ids.append(token)
        made.logits.append(float(summary[Row.MAX]))
        made.runners_up.append((int(summary[Row.SECOND]), float(summary[Row.SECOND_L])))
        progress()
        if context.model.is_eog(token):
            made.ended = True
            break
    made.first_rows = made.first_rows[: len(made.ids)]
