"""A whole search for where the gap starts, from plan to record: what `csb locate` calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from csb import kernels, located
from csb.errors import ArgumentError
from csb.measure import trajectory
from csb.measure.locate import check_window, locate
from csb.measure.memory import Memory
from csb.measure.session import open_session
from csb.native import worker
from csb.plan import ComparePlan, Window, windows
from csb.prompt.resolve import resolve

SCHEMA = {"name": "csb.locate", "version": 1}


def run_locate(plan: ComparePlan, t: int = 0) -> dict[str, Any]:
    """Window t of the plan's trajectory, node by node. `perturbed` is true where watching changed a
    bit of the logits."""
    if plan.width < 2:
        raise ArgumentError("--block-width 1 is the single path: give 2 or more")
    with open_session(plan.model, plan.context) as session, kernels.without(*plan.without):
        tokens = resolve(plan.prompt, session.model).tokens
        context, memory = session.context, session.memory
        plan.check(len(tokens), context.value("n_batch"), context.value("n_ctx_seq"))
        check_window(memory, len(tokens) - 1 + t, plan.width)
        provenance = session.provenance()
        seen = worker.run(lambda: _locate(memory, plan, tokens, t), context.cancel)
    return {
        "schema": SCHEMA,
        "prompt_tokens": tokens,
        "window": t,
        "without": list(plan.without),
        **located.summary(seen),
        "provenance": provenance,
    }


def _locate(memory: Memory, plan: ComparePlan, tokens: list[int], t: int) -> dict[str, Any]:
    window, text = _window(memory, plan, tokens, t)
    found = locate(memory, text[: window.prefix], window.inputs).to_json()
    return {"inputs": list(window.inputs), "prefix": window.prefix, **found}


def _window(
    memory: Memory, plan: ComparePlan, tokens: list[int], t: int
) -> tuple[Window, list[int]]:
    """Window t and the whole text, from an AR run just long enough."""
    memory.prefill(tokens[:-1])
    memory.rewind(len(tokens) - 1)
    made = trajectory.Trajectory(first_rows=np.empty((0, memory.context.n_vocab), np.float32))
    trajectory.run(memory, tokens, t + plan.width, made, lambda: None, digests=False)
    if len(made.ids) < t + plan.width:
        raise ArgumentError(
            f"the text ends after {len(made.ids)} tokens: window {t} of {plan.width} is past it"
        )
    return windows(tokens, made.ids, plan.width)[t], tokens + made.ids
