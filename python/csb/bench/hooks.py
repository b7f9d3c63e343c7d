"""What hooks cost: the same decodes through a libcsb without them, with them off, and traced.

Each pair opens both contexts anew, because where memory lies costs as much as a hook. Within a pair
the ways take turns window by window, each round in another order, because the speed of a machine
wanders more within a second than a hook costs; a pair's time for a way is its median window.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from csb.errors import UnsupportedError
from csb.measure.session import open_session
from csb.native import worker
from csb.native.context import Context
from csb.native.library import has_hooks
from csb.native.model import Model
from csb.native.trace import Trace
from csb.plan import ComparePlan
from csb.prompt.resolve import resolve
from csb.render.progress import Steps

SCHEMA = {"name": "csb.bench.hooks", "version": 1}
ROUNDS = 4  # windows of every way in a pair; a multiple of the ways, so that each is first as often

Decode = Callable[[], None]


def run_hooks(plan: ComparePlan, without: Path, pairs: int) -> dict[str, Any]:
    """Seconds of the same decodes for each way and pair, and the ratios to the library `without`
    hooks: median and a 95 % interval of the median. `read` adds the reading of the trace."""
    if not has_hooks():
        raise UnsupportedError("this build has no hooks whose cost could be measured")
    seen: dict[str, list[float]] = {}
    read: dict[str, list[float]] = {}
    with (
        open_session(plan.model, plan.context) as session,
        Model(
            plan.model.path, use_extra_bufts=plan.model.repack, library_file=without
        ) as bare_model,
        Steps() as steps,
    ):
        tokens = resolve(plan.prompt, session.model).tokens
        plan.check(
            len(tokens), session.context.value("n_batch"), session.context.value("n_ctx_seq")
        )
        for pair in range(pairs):
            steps("bench", pair, pairs)
            with contextlib.ExitStack() as stack:
                bare_context = functools.partial(Context, bare_model, **asdict(plan.context))
                opens: list[Callable[[], Context]] = [bare_context, session.another_context]
                # the context opened first has another place in memory than the second
                turn = 1 if pair % 2 else -1
                contexts = [stack.enter_context(open()) for open in opens[::turn]]
                bare, hooked = contexts[::turn]
                for name, (decoded, all) in _pair(bare, hooked, tokens, plan.width).items():
                    seen.setdefault(name, []).append(decoded)
                    read.setdefault(name, []).append(all)
        provenance = session.provenance()
    return {
        "schema": SCHEMA,
        "prompt_tokens": tokens,
        "block_width": plan.width,
        "pairs": pairs,
        "ways": [_row(name, seen, read) for name in ("left out", "off", "kernels", "graph")],
        "provenance": provenance,
    }


Tracing = contextlib.AbstractContextManager[Any]
Way = tuple[str, Context, Callable[[], Tracing]]


def _ways(bare: Context, hooked: Context) -> Iterator[Way]:
    yield "left out", bare, contextlib.nullcontext
    yield "off", hooked, contextlib.nullcontext
    yield "kernels", hooked, lambda: Trace(hooked, graph=False, kernels=True)
    yield "graph", hooked, lambda: Trace(hooked, graph=True, kernels=False)


def _pair(
    bare: Context, hooked: Context, tokens: Sequence[int], width: int
) -> dict[str, tuple[float, float]]:
    """For each way the median seconds of a window, decoded singly and as a block after the prompt,
    and of one with its trace read out."""
    ways = list(_ways(bare, hooked))
    rows = np.empty((width, hooked.n_vocab), np.float32)
    start = len(tokens) - 1
    inputs = [tokens[-1], *(tokens[i % start] for i in range(width - 1))] if start else tokens
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in ways}

    def window(context: Context, tracing: Callable[[], Tracing]) -> tuple[float, float]:
        begin = time.perf_counter()
        with tracing():
            context.remove(start)
            context.steps(inputs, start, rows)
            context.remove(start)
            context.decode(inputs, start)
            decoded = time.perf_counter() - begin
        return decoded, time.perf_counter() - begin

    def run() -> None:
        for context in (bare, hooked):
            if start:
                context.decode(tokens[:-1], 0, outputs=False)
            window(context, contextlib.nullcontext)  # the first of each shape builds its graph
        for first in range(ROUNDS):
            for turn in range(len(ways)):
                name, context, tracing = ways[(first + turn) % len(ways)]
                window(context, tracing)  # the caches hold what another context left there
                times[name].append(window(context, tracing))

    def cancel() -> None:
        bare.cancel()
        hooked.cancel()

    worker.run(run, cancel)
    return {
        name: (statistics.median(d for d, _ in spent), statistics.median(a for _, a in spent))
        for name, spent in times.items()
    }


def _row(name: str, seen: dict[str, list[float]], read: dict[str, list[float]]) -> dict[str, Any]:
    reference = seen["left out"]
    ratios = sorted(a / b for a, b in zip(seen[name], reference, strict=True))
    low, high = median_interval(len(ratios))
    return {
        "way": name,
        "seconds": statistics.median(seen[name]),
        "ratio": statistics.median(ratios),
        "interval": [ratios[low], ratios[high]],
        "read_ratio": statistics.median(a / b for a, b in zip(read[name], reference, strict=True)),
        "all_seconds": seen[name],
    }


def median_interval(n: int) -> tuple[int, int]:
    """Ranks (from 0) of the sorted values between which the median lies with 95 % confidence or
    more, whatever the distribution; the outermost where n is too small for that."""
    outside, low = 0.0, 0
    for rank in range((n + 1) // 2):
        outside += 2 * math.comb(n, rank) / 2**n
        if outside > 0.05:
            break
        low = rank
    return low, n - 1 - low
