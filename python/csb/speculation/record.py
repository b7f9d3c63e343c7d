"""The record of speculative runs: the JSON that is saved, and what text is rendered from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from csb import cells, record
from csb.measure.speculate.audit import Audit
from csb.measure.speculate.baseline import Baseline
from csb.measure.speculate.measure import Looped, Speculated
from csb.prompt.resolve import Prompt
from csb.speculation import texts, verdict
from csb.speculation.counts import acceptance
from csb.speculation.plan import SpeculatePlan

SCHEMA = {"name": "csb.speculate", "version": 1}
Record = dict[str, Any]
Detokenize = Callable[[Sequence[int]], str]
AROUND = (8, 24)  # tokens shown before and after a parting


def head(plan: SpeculatePlan, provenance: Record, without: Sequence[str]) -> Record:
    """What is known before the first decode. without: switches of every decode, the plan's and
    those that an exact way needs in the AR run too."""
    return {
        "schema": SCHEMA,
        "block_width": plan.width,
        "config": {
            **record.settings(plan.model, provenance),
            "n_gen": plan.n_gen,
            "drafter": str(plan.drafter),
            "seed": plan.seed,
            "ways": [str(way) for way in plan.ways],
            "frontier": plan.frontier,
            "without": list(without),
            "without_asked": list(plan.without),
        },
        "provenance": provenance,
    }


def of_run(made: Speculated, setting: str, judged: str, text: Detokenize) -> Record:
    """One AR run and its loops. setting: `as given`, or what was changed."""
    base = made.baseline
    built: Record = {"setting": setting, "complete": made.stopped is None}
    if base is None:
        nothing: Record = {"failed": [], "complete": False}
        return built | {"ar": None, "controls": nothing, "loops": [], "outcome": "incomplete"}
    controls = base.compared.controls.to_json()
    observed = controls.pop("kernels")
    controls |= made.gates
    controls["failed"] += [name for name, held in made.gates.items() if held is False]
    nll = float(base.compared.cells["nll_s"].mean()) if len(base.compared.cells) else None
    built |= {
        "ar": {
            "ids": base.ids,
            "text": text(base.ids),
            "ended": base.compared.trajectory.ended,
            "seconds": base.seconds,
            "nll": nll,
        },
        "sizes": asdict(base.sizes),
        "controls": controls,
        "kernels": {path: seen or "not observable" for path, seen in observed.items()},
        "loops": [_loop(looped, base, text) for looped in made.loops],
    }
    return built | {"outcome": verdict.of_run(built, judged).value}


def of_prompt(prompt: Prompt, runs: Sequence[Record], judged: str) -> Record:
    return {
        "prompt": prompt.text,
        "prompt_tokens": prompt.tokens,
        **prompt.to_json(),
        "outcome": verdict.of_prompt(runs, judged).value,
        "runs": list(runs),
    }


def _loop(looped: Looped, base: Baseline, text: Detokenize) -> Record:
    run, ar = looped.run, base.ids
    first = looped.partings[0].pos if looped.partings else None
    meets = None if first is None else texts.meeting(ar, run.ids, first)
    before = [turn for turn in run.turns if first is None or turn.pos + turn.given <= first]
    made: Record = {
        "way": str(looped.way),
        "ids": run.ids,
        "text": text(run.ids),
        "ended": run.ended,
        "n_equal": texts.n_equal(ar, run.ids),
        "equal_rows": looped.equal_rows,
        "alone": sum(run.alone),
        "late": looped.late,
        "blocks": looped.blocks,
        "calls": run.count,
        "seconds": run.seconds,
        "decode_seconds": run.decode_seconds,
        "overhead": 1 - run.decode_seconds / run.seconds if run.seconds else None,
        "acceptance": acceptance(run.turns),
        "acceptance_before": acceptance(before),
        "partings": [
            {**parting.to_json(base.sizes), **_around(ar, run.ids, parting.pos, text)}
            for parting in looped.partings
        ],
        "meets": meets,
        "nll": _nll(looped),
        "audits": [_audit(audit) for audit in looped.audits],
        "looked_twice": looped.looked_twice,
        "deficit": max(looped.deficits, default=None),
        "n_turned": sum(deficit > 0 for deficit in looped.deficits),
        "faults": [asdict(fault) for fault in looped.faults],
        "outliers": [asdict(fault) for fault in looped.outliers],
        "margins": run.margins,
        "offsets": run.offsets,
        "turns": [turn.to_json() for turn in run.turns],
    }
    return made | {"outcome": verdict.of_loop(ar, made).value}


def _around(ar: Sequence[int], ids: Sequence[int], pos: int, text: Detokenize) -> Record:
    """Both texts around a parting, side by side."""
    begin, end = max(0, pos - AROUND[0]), pos + AROUND[1]
    return {
        "before": text(ids[begin:pos]),
        "ar_text": text(ar[pos:end]),
        "text": text(ids[pos:end]),
    }


def _nll(looped: Looped) -> Record | None:
    """Mean -log p of a token under the single path, nats, of both texts; None for equal ones."""
    if looped.replay is None:
        return None
    return {"ar": fmean(looped.replay.nll_ar), "text": fmean(looped.replay.nll_text)}


def _audit(audit: Audit) -> Record:
    assert audit.gap is not None and audit.drift is not None
    gap, drift = audit.gap[0], audit.drift[0]
    return {
        "pos": audit.pos,
        "why": audit.why,
        "offset": audit.offset,
        "alone": audit.alone,
        "mixed": audit.mixed,
        "spread": audit.spread,
        "gap": _cell(gap),
        "drift": _cell(drift),
    }


def _cell(cell: Any) -> Record:
    names = ("pair_gap", "rms", "max_abs", "n_diff", "kl", "tv")
    return {name: cells.number(cell[name]) for name in names}


def build(
    plan: SpeculatePlan, begun: Record, prompts: Sequence[Record], summary: Record, complete: bool
) -> Record:
    """begun: what `head` gave."""
    outcomes = [verdict.Outcome(prompt["outcome"]) for prompt in prompts]
    outcome = verdict.worst(outcomes)
    if not complete and outcome not in (verdict.Outcome.INVALID, verdict.Outcome.FAULT):
        outcome = verdict.Outcome.INCOMPLETE
    runs = [run for prompt in prompts for run in prompt["runs"]]
    return {
        **begun,
        "complete": complete,
        "outcome": outcome.value,
        "verdict": verdict.line(outcome, runs, plan.exact),
        "prompts": list(prompts),
        **summary,
    }
