"""csb bench"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from csb.cli import options
from csb.plan import ComparePlan


@click.command("bench")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=100, help="tokens to generate (100)")
@options.count("-W", "--block-width", "width", default=5, help="rows of a block (5)")
@options.count("--runs", default=3, help="runs of every method (3)")
@click.option("--memory/--no-memory", default=True, help="peak memory, in two child processes (on)")
@options.json_option
def command(runs: int, memory: bool, json_path: str | None, **given: Any) -> None:
    """Time csb against the seed's method and against the decodes alone.

    "of bound": the part of the possible speedup that was reached, where possible means the seed's
    time over the unavoidable decodes, the probes and the controls.
    """
    from csb.bench.run import run_bench
    from csb.render.bench import render_bench

    plan = ComparePlan(
        model=options.model_plan(given),
        context=options.context_plan(given),
        prompt=options.prompt_plan(given),
        n_gen=given["n_gen"],
        width=given["width"],
    )
    record = run_bench(plan, runs, memory)
    text = json.dumps(record) + "\n"
    if json_path not in (None, "-"):
        Path(str(json_path)).write_text(text, "utf-8")
    click.echo(text if json_path == "-" else render_bench(record), nl=False)
