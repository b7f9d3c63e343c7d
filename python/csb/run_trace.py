"""A whole trace, from plan to record: what `csb trace` calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from csb import kernels
from csb.errors import ArgumentError
from csb.measure.session import open_session
from csb.measure.trace import trace_rows
from csb.native import worker
from csb.plan import ContextPlan, ModelPlan, PromptPlan
from csb.prompt.resolve import resolve

SCHEMA = {"name": "csb.trace", "version": 1}


def run_trace(
    model: ModelPlan,
    context: ContextPlan,
    prompt: PromptPlan,
    rows: Sequence[int],
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """One traced call for each row count, each beside an untraced one. `perturbed` is true where
    their logits differ in a bit; `complete` is false where the recorded text did not fit or CUPTI
    dropped records of kernels."""
    with open_session(model, context) as session, kernels.without(*without):
        tokens = resolve(prompt, session.model).tokens
        n_batch, n_ctx = session.context.value("n_batch"), session.context.value("n_ctx_seq")
        if max(rows) > n_batch:
            raise ArgumentError(f"--rows {max(rows)} is more than -b {n_batch}")
        if len(tokens) + max(rows) > n_ctx:
            raise ArgumentError(
                f"{len(tokens)} prompt tokens and {max(rows)} rows are more than -c {n_ctx}"
            )
        memory = session.memory
        calls = worker.run(lambda: trace_rows(memory, tokens, rows), session.context.cancel)
        return {
            "schema": SCHEMA,
            "prompt_tokens": tokens,
            "prefix": len(tokens) - 1,
            "rows": list(rows),
            "without": list(without),
            "perturbed": any(c.perturbed for c in calls),
            "complete": not any(c.lost for c in calls),
            "calls": [asdict(c) for c in calls],
            "provenance": session.provenance(),
        }
