"""A whole map of widths, from plan to record: what `csb widths` calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from csb import kernels, unfinished
from csb.errors import ArgumentError
from csb.measure.op_widths import measure_op
from csb.measure.session import check_devices, open_session
from csb.measure.widths import Measured, measure
from csb.native import worker
from csb.native.library import build_info
from csb.plan import OpPlan, WidthsPlan
from csb.prompt.resolve import Prompt, resolve
from csb.provenance import environment
from csb.record import dumps, load, settings
from csb.render.output import note
from csb.render.progress import Steps
from csb.widths import make_map, places_of, summary

SCHEMA = {"name": "csb.widths", "version": 1}
Record = dict[str, Any]


def load_widths(path: Path) -> Record:
    """A saved map. FileError if it is none."""
    return load(path, SCHEMA)


def run_widths(
    plan: WidthsPlan, like: Record | None = None, json_path: str | None = None
) -> Record:
    """Opens, measures and builds the record. like: a map whose texts are taken where its prompts
    are the same tokens, so that both are of the same inputs. json_path: where the places go that
    were measured before llama.cpp aborted.

    An interrupt ends in a record with `complete` false; an error raises.
    """
    with kernels.without(*plan.without), open_session(plan.model, plan.context) as session:
        prompts = [resolve(p, session.model) for p in plan.prompts]
        for text in dict.fromkeys(line for p in prompts for line in p.notes):
            note(text)
        n_batch, n_ctx = (session.context.value(name) for name in ("n_batch", "n_ctx_seq"))
        for prompt in prompts:
            plan.check(len(prompt.tokens), n_batch, n_ctx)
        texts = _texts_of(like, prompts)
        memory, tokens = session.memory, [p.tokens for p in prompts]
        observe = bool(build_info()["hooks"]["kernels"])
        provenance = session.provenance()
        provenance.pop("hash_seconds")
        asked = [{"text": p.text, "tokens": p.tokens, **p.to_json()} for p in prompts]
        given = {
            "prompts": asked,
            "config": {
                **settings(plan.model, provenance),
                "places": plan.places,
                "without": list(plan.without),
            },
            "provenance": provenance,
        }
        done: list[Measured] = []
        head = {**_head("model", plan.widths), **given}
        with unfinished.kept(json_path, unfinished.of(head, "places")) as keep, Steps() as steps:
            try:
                worker.run(
                    lambda: done.append(measure(memory, plan, tokens, observe, texts, steps, keep)),
                    session.context.cancel,
                )
            except KeyboardInterrupt as interrupt:
                if not done:
                    raise  # before it began
                done[0].stopped = interrupt
        made = done[0]
        _raise_error(made)
        return _plain(
            {
                **head,
                "prompts": [
                    {**p, "ar": text[len(p["tokens"]) :]}
                    for p, text in zip(asked, made.texts, strict=False)
                ],
                "seconds": {"load": session.load_seconds, **made.seconds},
                **_body(made, observe, session.context.value("n_ubatch")),
            }
        )


def run_op_widths(plan: OpPlan) -> Record:
    """The same of one op alone, on random numbers."""
    check_devices(plan.device)
    with kernels.without(*plan.without), Steps() as steps:
        observe = bool(build_info()["hooks"]["kernels"])
        made = measure_op(plan, observe, steps)
        _raise_error(made)
        return _plain(
            {
                **_head("op", plan.widths),
                "op": asdict(plan),
                "config": {
                    "device": plan.device,
                    "n_threads": plan.n_threads,
                    "repack": plan.repack,
                    "places": plan.places,
                    "without": list(plan.without),
                },
                "seconds": made.seconds,
                **_body(made, observe, max(plan.widths)),
                "provenance": {**environment(), "kernel_switches": kernels.in_force()},
            }
        )


def _plain(record: Record) -> Record:
    """As it will be read again: keys are texts, tuples are lists."""
    made: Record = json.loads(dumps(record))
    return made


def _texts_of(like: Record | None, prompts: Sequence[Prompt]) -> list[list[int]] | None:
    if like is None:
        return None
    if [p["tokens"] for p in like["prompts"]] != [p.tokens for p in prompts]:
        raise ArgumentError("--against: the maps can't be compared: they have other prompt tokens")
    return [[*p["tokens"], *p["ar"]] for p in like["prompts"]]


def _raise_error(made: Measured) -> None:
    if made.stopped is not None and not isinstance(made.stopped, KeyboardInterrupt):
        raise made.stopped


def _head(mode: str, widths: Sequence[int]) -> Record:
    return {"schema": SCHEMA, "mode": mode, "widths": sorted(set(widths))}


def _body(made: Measured, observe: bool, n_ubatch: int) -> Record:
    places = [p.to_json() for p in made.places]
    rows = places_of({"places": places})
    whole = make_map(rows) if rows else None
    return {
        "complete": made.stopped is None,
        "rows_agree": summary(whole) if whole else None,
        "map": asdict(whole) if whole else None,
        "observed": observe,
        "controls": made.controls.to_json(),
        "problems": _problems(made, n_ubatch),
        "places": places,
    }


def _problems(made: Measured, n_ubatch: int) -> list[str]:
    """Why the measurement is not valid."""
    found = [f"control {name} failed" for name in made.controls.to_json()["failed"]]
    if noise := made.controls.noise:
        size = noise["max_abs"]
        found.append(
            f"the same call twice differs in {noise['n_diff']} of {noise['n']} logits, by up to "
            f"{float('nan') if size is None else size:.3g}"
        )
    if any(p.perturbed for p in made.places):
        found.append("tracing changed the rows' bits")
    if any(p.lost for p in made.places):
        found.append("the trace did not fit into its memory")
    if n_ubatch == 1:
        found.append("-ub 1 computes every row alone: nothing was compared")
    if not made.places and made.stopped is None:
        found.append("nothing was compared")
    return found
