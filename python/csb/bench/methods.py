"""The ways to measure that the bench times, each from the prompt to the last cell.

The seed's method and the plain decodes use csb.Context alone, nothing of csb.measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from csb.measure.compare import compare
from csb.measure.session import Session
from csb.native import worker
from csb.native.context import Context
from csb.plan import ComparePlan

Cell = tuple[int, int, float, float]  # t, j, l_s, l_b


@dataclass
class Timed:
    """One run of one method."""

    seconds: float
    cells: list[Cell] = field(default_factory=list)
    probes: float = 0.0
    controls: float = 0.0
    own_share: float | None = None


Method = Callable[[Session, ComparePlan, list[int]], Timed]


def _prefill(context: Context, tokens: list[int], n_batch: int) -> None:
    context.remove(0)
    for i in range(0, len(tokens), n_batch):
        context.decode(tokens[i : i + n_batch], i, outputs=False)


def _ar(context: Context, prompt: list[int], n: int, n_batch: int) -> list[int]:
    _prefill(context, prompt[:-1], n_batch)
    ids: list[int] = []
    row = np.empty((1, context.n_vocab), np.float32)
    token = prompt[-1]
    for p in range(n):
        context.decode([token], len(prompt) - 1 + p)
        token = int(np.argmax(context.logits([0], row)[0]))
        ids.append(token)
        if context.model.is_eog(token):
            break
    return ids


def _inputs(prompt: list[int], ar: list[int], t: int, width: int) -> tuple[list[int], int]:
    text = prompt + ar
    start = len(prompt) - 1 + t
    return text[start : start + min(width, len(ar) - t)], start


def seed(session: Session, plan: ComparePlan, prompt: list[int]) -> Timed:
    """The seed's method: two contexts, both wiped and prefilled anew before every window."""
    context = session.context
    with session.another_context() as other:
        n_batch = context.value("n_batch")
        rows: npt.NDArray[np.float32] = np.empty((plan.width, context.n_vocab), np.float32)
        cells: list[Cell] = []
        begin = time.perf_counter()
        ar = _ar(context, prompt, plan.n_gen, n_batch)
        for t in range(0, len(ar), plan.stride):
            inputs, start = _inputs(prompt, ar, t, plan.width)
            for c in (context, other):
                _prefill(c, (prompt + ar)[:start], n_batch)
            singles = []
            for k, token in enumerate(inputs):
                context.decode([token], start + k)
                row = context.logits([0], rows[:1])[0]
                singles.append((int(np.argmax(row)), float(row[ar[t + k]])))
            other.decode(inputs, start)
            block = other.logits(range(len(inputs)), rows[: len(inputs)])
            best = np.argmax(block, axis=1)
            cells += [(t, j, singles[j][1], float(block[j, ar[t + j]])) for j in range(len(best))]
        return Timed(time.perf_counter() - begin, cells)


def decodes(session: Session, plan: ComparePlan, prompt: list[int]) -> Timed:
    """The decodes that no method can avoid: one AR run, one prefill, n*W singles, n blocks. No
    row is read but the AR run's."""
    context = session.context
    n_batch = context.value("n_batch")
    begin = time.perf_counter()
    ar = _ar(context, prompt, plan.n_gen, n_batch)
    starts = range(0, len(ar), plan.stride)
    _prefill(context, (prompt + ar)[: len(prompt) - 1 + starts[-1]], n_batch)
    for t in reversed(starts):
        inputs, start = _inputs(prompt, ar, t, plan.width)
        context.remove(start)
        for k, token in enumerate(inputs):
            context.decode([token], start + k)
        context.remove(start)
        context.decode(inputs, start)
    return Timed(time.perf_counter() - begin)


def by_prefix(prefix: str) -> Method:
    def run(session: Session, plan: ComparePlan, prompt: list[int]) -> Timed:
        this = replace(plan, prefix=prefix)
        begin = time.perf_counter()
        measured = compare(session.memory, this, prompt, session.quantized)
        seconds = time.perf_counter() - begin
        if measured.stopped is not None:
            raise measured.stopped
        table = measured.cells
        return Timed(
            seconds,
            [(int(c["t"]), int(c["j"]), float(c["l_s"]), float(c["l_b"])) for c in table],
            measured.seconds["probes"],
            measured.seconds["controls"],
            measured.seconds["own_share"],
        )

    return run


METHODS: dict[str, Method] = {
    "seed": seed,
    "reprefill": by_prefix("reprefill"),
    "shared": by_prefix("shared"),
    "auto": by_prefix("auto"),
    "decodes": decodes,
}


def on_worker(method: Method, session: Session, plan: ComparePlan, prompt: list[int]) -> Timed:
    """As `csb compare` runs: on the worker thread from the first decode to the last cell."""
    return worker.run(lambda: method(session, plan, prompt), session.context.cancel)


def interleaved(
    session: Session,
    plan: ComparePlan,
    prompt: list[int],
    runs: int,
    names: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> Iterator[tuple[str, Timed]]:
    """Every named method `runs` times, in turns: a slow spell of the machine hits all."""
    for run in range(runs):
        for done, name in enumerate(names):
            progress("bench", run * len(names) + done, runs * len(names))
            yield name, on_worker(METHODS[name], session, plan, prompt)
