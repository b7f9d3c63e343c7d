"""A whole search for where the gap starts, from plan to record: what `csb locate` calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csb import kernels, located
from csb.errors import ArgumentError, CancelledError, CsbError
from csb.export_op import check_folder
from csb.export_op import export as export_op
from csb.measure import trajectory
from csb.measure.export import capture
from csb.measure.locate import check_window, locate
from csb.measure.memory import Memory
from csb.measure.session import open_session
from csb.native import worker
from csb.plan import ComparePlan, Window, windows
from csb.prompt.resolve import resolve

SCHEMA = {"name": "csb.locate", "version": 1}


def run_locate(plan: ComparePlan, t: int = 0, export: Path | None = None) -> dict[str, Any]:
    """Window t of the plan's trajectory, node by node. `perturbed` is true where watching changed a
    bit of the logits. export: a new folder for the op where the difference starts, as a program."""
    if plan.width < 2:
        raise ArgumentError("--block-width 1 is the single path: give 2 or more")
    if export is not None:
        check_folder(export)
    with open_session(plan.model, plan.context) as session, kernels.without(*plan.without):
        tokens = resolve(plan.prompt, session.model).tokens
        context, memory = session.context, session.memory
        plan.check(len(tokens), context.value("n_batch"), context.value("n_ctx_seq"))
        check_window(memory, len(tokens) - 1 + t, plan.width)
        provenance = session.provenance()
        found = worker.run(lambda: _locate(memory, plan, tokens, t, export), context.cancel)
    return {
        "schema": SCHEMA,
        "prompt_tokens": tokens,
        "window": t,
        "without": list(plan.without),
        **found,
        "provenance": provenance,
    }


def _locate(
    memory: Memory, plan: ComparePlan, tokens: list[int], t: int, export: Path | None
) -> dict[str, Any]:
    window, text = _window(memory, plan, tokens, t)
    prefix, inputs = text[: window.prefix], window.inputs
    found = located.summary(locate(memory, prefix, inputs).to_json())
    return {
        "inputs": list(inputs),
        "prefix": window.prefix,
        **found,
        "export": None if export is None else _export(memory, plan, prefix, inputs, found, export),
    }


def _export(
    memory: Memory,
    plan: ComparePlan,
    prefix: Sequence[int],
    inputs: Sequence[int],
    found: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """What became of it; `folder` None: nothing was written, and why."""
    if found["perturbed"] or found["first"] is None:
        return {"folder": None, "why": found["conclusion"]}
    try:
        op = capture(memory, plan, prefix, inputs, found["first"])
    except CancelledError:
        raise
    except CsbError as error:  # what was located is worth its record all the same
        return {"folder": None, "why": str(error)}
    return export_op(op, folder)


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
