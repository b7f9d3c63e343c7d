"""The pair drift of compare's cells, against rows decoded by hand."""

from __future__ import annotations

import csb
import numpy as np
import pytest
from conftest import TinyModel
from test_seed import by_csb, settings, tokens

pytestmark = pytest.mark.native


def rows_of(context: csb.Context, text: list[int], prefix: int) -> np.ndarray:
    """The prefix in one call, then every token alone: the rows after it."""
    context.clear()
    context.decode(text[:prefix], 0, outputs=False)
    made = []
    for place in range(prefix, len(text)):
        context.decode([text[place]], place)
        made.append(context.logits()[0])
    return np.array(made)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_pair_drift(tiny_model: TinyModel, dtype: str) -> None:
    prompt, n = tokens(40), 12
    with csb.Model(tiny_model("llama", dtype, n_layer=2)) as model:
        measured = by_csb(
            model, settings(n_threads=1, n_threads_batch=1), prompt, n, 3, "reprefill"
        )
        text = prompt + measured.trajectory.ids
        with csb.Context(model, **settings(n_threads=1, n_threads_batch=1)) as context:  # type: ignore[arg-type]
            ar = rows_of(context, text[:-1], len(prompt) - 1)
            for cell in measured.cells:
                t, p = int(cell["t"]), int(cell["pos"])
                if cell["j"] == 0:
                    single = rows_of(context, text[:-1], len(prompt) - 1 + t)
                x, y = np.argsort(-ar[p], kind="stable")[:2]
                of = lambda row, x=x, y=y: float(row[x]) - float(row[y])  # noqa: E731
                assert cell["pair_drift"] == of(ar[p]) - of(single[p - t])
    drift = np.abs(measured.cells["pair_drift"])
    assert not drift[measured.cells["t"] == 0].any()  # window 0 replays the AR run
    assert (drift[measured.cells["t"] > 0] > 0).any()


def test_incremental_has_no_drift(tiny_model: TinyModel) -> None:
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        measured = by_csb(
            model, settings(n_threads=1, n_threads_batch=1), tokens(40), 12, 3, "incremental"
        )
    assert not measured.cells["pair_drift"].any()
