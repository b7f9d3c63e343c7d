"""csb bench"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from csb.cli import options
from csb.render.output import save, say


@click.command("bench")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=100, help="tokens to generate (100)")
@options.count("-W", "--block-width", "width", default=5, help="rows of a block (5)")
@options.count("--runs", help="runs of every method (3), or pairs with --hooks (20)")
@click.option("--memory/--no-memory", default=True, help="peak memory, in two child processes (on)")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice(["reprefill", "shared", "auto"]),
    default=["reprefill", "shared", "auto"],
    help="a prefix strategy to time, may be repeated (all three)",
)
@click.option(
    "--hooks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="LIBCSB",
    help="instead: the hooks' cost against this library, which has none",
)
@options.without_option
@options.json_option
def command(
    runs: int | None,
    memory: bool,
    methods: tuple[str, ...],
    hooks: Path | None,
    json_path: str | None,
    **given: Any,
) -> None:
    """Time csb against the seed's method and against the decodes alone.

    "of bound": the part of the possible speedup that was reached, where possible means the seed's
    time over the unavoidable decodes, the probes and the controls.
    """
    from csb.bench import hooks as hooks_bench
    from csb.bench.run import run_bench
    from csb.render.bench import render_bench, render_hooks

    options.keep_apart(model=given["model"], json=json_path)
    plan = options.compare_plan(given)
    if hooks is None:
        record, render = run_bench(plan, runs or 3, memory, methods), render_bench
    else:
        record, render = hooks_bench.run_hooks(plan, hooks, runs or 20), render_hooks
    if json_path is not None:
        save(json.dumps(record) + "\n", json_path)
    if json_path != "-":
        say(render(record))
