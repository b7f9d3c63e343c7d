"""csb bench"""

from __future__ import annotations

import json
from typing import Any

import click

from csb.cli import options
from csb.plan import ComparePlan
from csb.render.output import save, say


@click.command("bench")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=100, help="tokens to generate (100)")
@options.count("-W", "--block-width", "width", default=5, help="rows of a block (5)")
@options.count("--runs", default=3, help="runs of every method (3)")
@click.option("--memory/--no-memory", default=True, help="peak memory, in two child processes (on)")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(["reprefill", "shared", "auto"]),
    default=["reprefill", "shared", "auto"],
    help="a prefix strategy to time, may be repeated (all three)",
)
@options.without_option
@options.json_option
def command(
    runs: int, memory: bool, methods: tuple[str, ...], json_path: str | None, **given: Any
) -> None:
    """Time csb against the seed's method and against the decodes alone.

    "of bound": the part of the possible speedup that was reached, where possible means the seed's
    time over the unavoidable decodes, the probes and the controls.
    """
    from csb.bench.run import run_bench
    from csb.render.bench import render_bench

    options.keep_apart(model=given["model"], json=json_path)
    prompt = options.prompt_plan(given)  # before a model is fetched for nothing
    plan = ComparePlan(
        model=options.model_plan(given),
        context=options.context_plan(given),
        prompt=prompt,
        n_gen=given["n_gen"],
        width=given["width"],
        without=given["without"],
    )
    record = run_bench(plan, runs, memory, methods)
    if json_path is not None:
        save(json.dumps(record) + "\n", json_path)
    if json_path != "-":
        say(render_bench(record))
