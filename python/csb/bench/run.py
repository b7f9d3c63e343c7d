"""Runs the bench and sums it up as plain data."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from csb import kernels
from csb.bench.methods import METHODS, Timed, interleaved
from csb.errors import LibraryError
from csb.measure.session import open_session
from csb.plan import ComparePlan
from csb.prompt.resolve import resolve
from csb.render.progress import Steps

SCHEMA = {"name": "csb.bench", "version": 1}


def run_bench(
    plan: ComparePlan, runs: int, memory: bool, others: Sequence[str] = tuple(METHODS)
) -> dict[str, Any]:
    """Medians over `runs` interleaved runs of the seed's method, the decodes and `others`, and
    whether all gave the same bits. memory: also the peak memory of two child processes."""
    names = [name for name in METHODS if name in ("seed", "decodes", *others)]
    seen: dict[str, list[Timed]] = {name: [] for name in names}
    with (
        kernels.without(*plan.without),
        open_session(plan.model, plan.context) as session,
        Steps() as steps,
    ):
        prompt = resolve(plan.prompt, session.model)
        plan.check(
            len(prompt.tokens), session.context.value("n_batch"), session.context.value("n_ctx_seq")
        )
        for name, timed in interleaved(session, plan, prompt.tokens, runs, names, steps):
            seen[name].append(timed)
        provenance = session.provenance()
    median = {name: statistics.median(t.seconds for t in all) for name, all in seen.items()}
    rows = [_row(name, seen[name], median, seen["seed"][0]) for name in names]
    return {
        "schema": SCHEMA,
        "prompt_tokens": prompt.tokens,
        "n_gen": plan.n_gen,
        "n_ar": 1 + max(t + j for t, j, *_ in seen["seed"][0].cells),  # the text may end before
        "block_width": plan.width,
        "runs": runs,
        "methods": rows,
        "peak_memory": _memory(plan) if memory else None,
        "provenance": provenance,
    }


def _row(name: str, all: list[Timed], median: dict[str, float], reference: Timed) -> dict[str, Any]:
    """`bound` is what is possible: the seed's time over unavoidable decodes, probes, controls."""
    extra = statistics.median(t.probes + t.controls for t in all)
    own = [t.own_share for t in all if t.own_share is not None]
    speedup = median["seed"] / median[name]
    bound = median["seed"] / (median["decodes"] + extra)
    measured = name not in ("seed", "decodes")
    return {
        "method": name,
        "seconds": median[name],
        "all_seconds": [t.seconds for t in all],
        "speedup": speedup,
        "of_bound": speedup / bound if measured else None,
        "own_share": statistics.median(own) if own else None,
        "probes_and_controls": extra / median[name] if measured else None,
        "same_bits": None if name == "decodes" else same_bits(all, reference),
    }


def same_bits(all: list[Timed], reference: Timed) -> bool:
    """Every run's cells are the reference's. repr, because 0.0 == -0.0 while their bits differ."""
    wanted = repr(reference.cells)
    return bool(reference.cells) and [repr(t.cells) for t in all] == [wanted] * len(all)


def _memory(plan: ComparePlan) -> dict[str, Any]:
    """Peak resident bytes of a process that compares, and of one that only decodes the same."""
    peak = {}
    for what in ("compare", "decodes"):
        argument = json.dumps(asdict(plan), default=os.fspath)
        child = subprocess.Popen([sys.executable, "-m", "csb.bench.child", what, argument])
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise LibraryError(f"the memory bench's child ended with code {child.returncode}")
        scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in KiB on Linux
        peak[what] = usage.ru_maxrss * scale
    return {**peak, "over": peak["compare"] / peak["decodes"] - 1}
