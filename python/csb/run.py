"""A whole comparison, from plan to saved record: what `csb compare` calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from csb import cells, kernels, record, unfinished
from csb.measure import reference
from csb.measure.compare import Measurement, compare
from csb.measure.reference import KeptRows
from csb.measure.session import Session, open_session
from csb.measure.trace import switch_effects
from csb.native import worker
from csb.native.context import Rows
from csb.plan import ComparePlan, Window
from csb.prompt.resolve import resolve
from csb.render.output import note, save
from csb.render.progress import Steps
from csb.save_logits import LogitsFile


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
            with unfinished.kept(json_path, unfinished.of(head, "cells")) as keep, Steps() as steps:

                def sink(window: Window, table: cells.Cells, single: Rows, block: Rows) -> None:
                    if json_path is not None:
                        keep(cells.to_json(table))
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
            piece = piece_of(session.model)
            made = record.build(plan, prompt, provenance, measured, piece, seconds)
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
        return reference.measure(plan, session.model, text, len(prompt), kept, steps)
    except KeyboardInterrupt as interrupt:
        measured.stopped = interrupt
        return None


class Stoppable(Protocol):
    stopped: BaseException | None


S = TypeVar("S", bound=Stoppable)


def interruptible(work: Callable[[], S], cancel: Callable[[], object]) -> S:
    """All of the work on the worker thread at once: handing over every single decode would cost
    more than the rest of csb. An interrupt cancels the decode that runs and ends in `stopped`."""
    done: list[S] = []
    try:
        worker.run(lambda: done.append(work()), cancel)
    except KeyboardInterrupt as interrupt:
        if not done:
            raise  # before it began
        done[0].stopped = interrupt
    return done[0]


def raise_error(measured: Stoppable) -> None:
    if measured.stopped is not None and not isinstance(measured.stopped, KeyboardInterrupt):
        raise measured.stopped


def piece_of(model: Any) -> Any:
    return model.piece if model.info["has_tokenizer"] else lambda token: b""
