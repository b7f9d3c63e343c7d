"""Cells tables and records written by hand, for everything that works without the native side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from csb import cells, record
from csb.measure.compare import Measurement
from csb.measure.controls import Controls
from csb.measure.prefix import PrefixRecord
from csb.measure.trajectory import Trajectory
from csb.plan import ComparePlan, ContextPlan, ModelPlan
from csb.prompt.resolve import Prompt

PARAMETERS = {
    "flash_attn": False,
    "n_gpu_layers": 0,
    "n_threads": 32,
    "n_threads_batch": 32,
    "n_batch": 512,
    "n_ubatch": 512,
    "n_ctx": 4096,
    "type_k": "f16",
    "type_v": "f16",
    "devices": [],
}
SECONDS = {"span": 2.0, "own_share": 0.01, "probes": 0.5}


def table(n: int, **columns: Any) -> cells.Cells:
    """n compared cells of one window with clear margins and equal winners, but for `columns`."""
    made = cells.empty(n)
    made["ubatch_rows"] = 5
    made["pos"] = made["j"] = range(n)
    made["margin_s"] = made["margin_b"] = 1.0
    made["n_diff"] = 1
    for name, values in columns.items():
        made[name] = values
    return made


def controls(**changes: bool | None) -> Controls:
    return Controls(**{"ar_equal": True, "repeat_equal": True, "token_differs": True} | changes)


def make_record(
    made: cells.Cells,
    ar: list[tuple[int, float]],
    pieces: dict[int, bytes],
    prompt: Prompt | None = None,
    stopped: BaseException | None = None,
) -> dict[str, Any]:
    """What csb would record of these cells."""
    trajectory = Trajectory([i for i, _ in ar], [logit for _, logit in ar])
    measured = Measurement(
        trajectory, PrefixRecord("reprefill"), controls(), [made], dict(SECONDS), stopped
    )
    provenance = {
        "model": {"description": "qwen3 4B BF16"},
        "parameters": {n: {"value": v, "source": "getter"} for n, v in PARAMETERS.items()},
    }
    return record.build(
        ComparePlan(ModelPlan(Path("m.gguf")), ContextPlan(), n_gen=len(ar)),
        prompt or Prompt("Hi", [1, 2, 3]),
        provenance,
        measured,
        lambda i: pieces.get(i, b"?"),
        {"load": 1.0, "hash": 0.0},
    )
