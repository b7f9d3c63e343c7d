"""csb speculate"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from csb.cli import options
from csb.errors import FileError
from csb.exit_codes import Exit
from csb.plan import PromptPlan
from csb.render.output import say
from csb.speculation.plan import (
    DRAFTERS,
    GATED,
    WAYS,
    WITH_FILE,
    DrafterPlan,
    SpeculatePlan,
    Way,
    frontier_ways,
)
from csb.speculation.verdict import CODES, Outcome


class Drafter(click.ParamType):
    name = "oracle|noisy:P|ngram|model:FILE|dflash:FILE|file:TOKENS"

    def convert(self, value: Any, param: Any, ctx: Any) -> DrafterPlan:
        if isinstance(value, DrafterPlan):
            return value
        kind, colon, tail = str(value).partition(":")
        takes = kind in ("noisy", *WITH_FILE)
        if kind not in DRAFTERS or takes != bool(colon and tail):
            self.fail(f"{value!r}: must be {self.name}", param, ctx)
        if kind == "noisy":
            rate = _float(tail)
            if not 0 <= rate <= 1:
                self.fail(f"{value!r}: P must be a share from 0 to 1", param, ctx)
            return DrafterPlan(kind, rate=rate)
        return DrafterPlan(kind, path=Path(tail)) if takes else DrafterPlan(kind)


class Exact(click.ParamType):
    name = "margin:TAU|repair:TAU|kernels|single|f32"

    def convert(self, value: Any, param: Any, ctx: Any) -> Way:
        if isinstance(value, Way):
            return value
        kind, colon, tail = str(value).partition(":")
        if kind not in WAYS[1:] or (colon and kind not in GATED):
            self.fail(f"{value!r}: must be {self.name}", param, ctx)
        if not colon:
            return Way(kind, math.nan if kind in GATED else 0.0)
        tau = _float(tail)
        if not tau >= 0:
            self.fail(f"{value!r}: TAU must be a margin from 0 on, or inf", param, ctx)
        return Way(kind, tau)


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _ways(exact: Way | None, frontier: bool) -> tuple[Way, ...]:
    context = click.get_current_context()
    if frontier:
        if exact is not None and (exact.kind not in GATED or not math.isnan(exact.tau)):
            raise click.UsageError("--frontier takes --exact margin or --exact repair", context)
        return frontier_ways("margin" if exact is None else exact.kind)
    if exact is None:
        return ()
    if math.isnan(exact.tau):
        raise click.UsageError(f"--exact {exact.kind} needs a TAU, as {exact.kind}:0.4", context)
    return (exact,)


def _prompts(given: dict[str, Any]) -> tuple[PromptPlan, ...]:
    one = options.prompt_plan(given)
    if given["prompts"] is None:
        return (one,)
    if any(given[name] is not None for name in ("prompt", "file", "tokens")):
        raise click.UsageError(
            "give either --prompts or one of -p, -f and --tokens", click.get_current_context()
        )
    found = tuple(
        _prompt(one, line, f"--prompts {given['prompts']}, line {number}")
        for number, line in enumerate(
            options.read_text("--prompts", given["prompts"]).splitlines(), 1
        )
        if line.strip()
    )
    if not found:
        raise FileError(f"--prompts {given['prompts']}: holds no prompts")
    return found


def _prompt(one: PromptPlan, line: str, where: str) -> PromptPlan:
    """A line as it is, or a JSON object: {"prompt": TEXT} or {"tokens": [IDS]}, and "system"."""
    if not line.startswith("{"):
        return replace(one, text=line)
    try:
        entry = json.loads(line)
        text, tokens = entry.get("prompt"), entry.get("tokens")
        system = entry.get("system", one.system)
    except (ValueError, AttributeError):
        text = tokens = system = None
    good = isinstance(tokens, list) and tokens and all(type(t) is int for t in tokens)
    if good and text is None:
        return replace(one, tokens=tuple(tokens), system=system)
    if not isinstance(text, str) or tokens is not None or not isinstance(system, str | None):
        raise FileError(f'{where}: must be {{"prompt": TEXT}} or {{"tokens": [IDS]}}')
    return replace(one, text=text, system=system)


@click.command("speculate")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=100, help="tokens to generate (100)")
@options.count("-W", "--block-width", "width", default=5, help="rows of a verify decode (5)")
@click.option(
    "--drafter",
    type=Drafter(),
    default="oracle",
    help="who proposes tokens: the AR run's own (oracle), with wrong ones at rate P, prompt "
    "lookup, a smaller model, a DFlash draft of this one, or a file",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="of noisy (0)")
@click.option(
    "--exact",
    type=Exact(),
    help="a way back to the AR trajectory, beside the plain loop: decode alone what has a margin "
    "under TAU (repair: and all since the last such row), the switches for exact kernels, every "
    "row alone, F32",
)
@click.option(
    "--frontier", is_flag=True, help="a loop for each TAU of a grid: what it costs and what parts"
)
@click.option(
    "--prompts", metavar="FILE", help='prompts, one a line or JSONL {"prompt"} or {"tokens"}'
)
@click.option("--verbose", "--full", "full", is_flag=True, help="also whole texts and every step")
@options.plot_option("where texts part and tokens per second; of a frontier the curve")
@options.without_option
@options.json_option
def command(
    exact: Way | None, full: bool, plot: str | None, json_path: str | None, **given: Any
) -> int:
    """Run a speculative loop beside the AR run: where the texts part, why, and what helps."""
    from csb.render.speculate import render
    from csb.run_speculate import run_speculate

    options.keep_apart(model=given["model"], json=json_path, plot=plot, prompts=given["prompts"])
    ways, prompts = _ways(exact, given["frontier"]), _prompts(given)
    plan = SpeculatePlan(
        model=options.model_plan(given),
        context=options.context_plan(given),
        prompts=prompts,
        ways=ways,
        **{
            name: given[name]
            for name in ("n_gen", "width", "drafter", "seed", "frontier", "without")
        },
    )
    record = run_speculate(plan, json_path)
    if plot is not None:
        from csb.render.speculate_plot import draw

        draw(record, plot)
    if json_path != "-":
        say(render(record, full))
    return Exit.INTERRUPTED if not record["complete"] else CODES[Outcome(record["outcome"])]
