"""A whole comparison, from plan to saved record: what `csb compare` calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from csb import cells, kernels, record
from csb.measure import reference
from csb.measure.compare import Measurement, Sink, compare
from csb.measure.reference import KeptRows
from csb.measure.session import Session, open_session
from csb.measure.trace import switch_effects
from csb.native import net, worker
from csb.native.context import Rows
from csb.plan import ComparePlan, Window
from csb.prompt.resolve import resolve
from csb.render.output import note, save
from csb.render.progress import Steps
from csb.save_logits import LogitsFile

CELLS = "CELLS"


def run_compare(plan: ComparePlan, json_path: str | None = None) -> dict[str, Any]:
    """Opens, measures, builds the record and writes it to json_path ("-": stdout).

    An interrupt ends in a record with `complete` false; an error raises after it was written.
    """
    switches = tuple(dict.fromkeys((*plan.without, *(plan.exact_block or ()))))
    with kernels.without(*switches):
        pass  # a build without hooks says so before a model is loaded
    with kernels.without(*plan.without), open_session(plan.model, plan.context) as session:
        prompt = resolve(plan.prompt, session.model)
        memory = session.memory
        plan.check(
            len(prompt.tokens), session.context.value("n_batch"), session.context.value("n_ctx_seq")
        )
        for text in prompt.notes:
            note(text)
        provenance = session.provenance()
        seconds = {"load": session.load_seconds, "hash": provenance.pop("hash_seconds")}
        head = record.head(plan, prompt, provenance)
        with (
            LogitsFile(plan.save_logits, prompt.tokens) as logits,
            contextlib.closing(KeptRows()) as kept,
        ):
            with net_under(json_path, unfinished(head)) as keep, Steps() as steps:

                def sink(window: Window, table: cells.Cells, single: Rows, block: Rows) -> None:
                    keep(window, table, single, block)
                    logits.add(window, single, block)
                    if plan.reference:
                        kept.add(window, table, single, block)

                measured = interruptible(
                    lambda: compare(memory, plan, prompt.tokens, session.quantized, steps, sink),
                    session.context.cancel,
                )
                distances = None
                if plan.reference and measured.stopped is None:
                    distances = _reference(plan, session, prompt.tokens, measured, kept, steps)
            if switches and measured.stopped is None:
                ran = [*prompt.tokens, *measured.trajectory.ids][: -plan.width or None]
                provenance["switch_effects"] = worker.run(
                    lambda: switch_effects(memory, ran, plan.width, switches),
                    session.context.cancel,
                )
            made = record.build(
                plan, prompt, provenance, measured, piece_of(session.model), seconds
            )
            if distances is not None:
                made["reference"] = distances.to_json()
            if json_path is not None:
                save(record.dumps(made), json_path)
    raise_error(measured)
    return made


def _reference(
    plan: ComparePlan,
    session: Session,
    prompt: list[int],
    measured: Measurement,
    kept: KeptRows,
    steps: Steps,
) -> reference.Distances | None:
    """None where it was interrupted: what was measured before is saved all the same."""
    text = prompt + measured.trajectory.ids
    try:
        n_params = session.model.info["n_params"]
        return reference.measure(plan, n_params, text, len(prompt), kept, steps)
    except KeyboardInterrupt as interrupt:
        measured.stopped = interrupt
        return None


def interruptible(work: Callable[[], Measurement], cancel: Callable[[], object]) -> Measurement:
    """All of the work on the worker thread at once: handing over every single decode would cost
    more than the rest of csb. An interrupt cancels the decode that runs."""
    done: list[Measurement] = []
    try:
        worker.run(lambda: done.append(work()), cancel)
    except KeyboardInterrupt as interrupt:
        if not done:
            raise  # before it began
        done[0].stopped = interrupt
    return done[0]


def raise_error(measured: Measurement) -> None:
    if measured.stopped is not None and not isinstance(measured.stopped, KeyboardInterrupt):
        raise measured.stopped


def piece_of(model: Any) -> Any:
    return model.piece if model.info["has_tokenizer"] else lambda token: b""


def unfinished(head: dict[str, Any]) -> dict[str, Any]:
    """The record of a run that llama.cpp aborts, with CELLS where the cells belong."""
    return {**head, "complete": False, "outcome": "aborted", "cells": CELLS}


@contextlib.contextmanager
def net_under(json_path: str | None, aborted: dict[str, Any]) -> Iterator[Sink]:
    """If llama.cpp aborts, `aborted` with the cells measured so far is written to json_path."""
    if json_path is None:
        yield lambda window, table, single, block: None
        return
    before, after = record.dumps(aborted).rsplit(f'"{CELLS}"', 1)
    net.arm(json_path, f"{before}[", f"]{after}")
    try:
        yield lambda window, table, single, block: net.append(
            ",".join(record.compact(c) for c in cells.to_json(table))
        )
    finally:
        net.disarm()
