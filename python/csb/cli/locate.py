"""csb locate"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from csb.cli import options
from csb.exit_codes import Exit
from csb.render.output import save, say


@click.command("locate")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-W", "--block-width", "width", default=5, help="rows of the block (5)")
@click.option(
    "--window",
    "t",
    type=click.IntRange(min=0),
    metavar="T",
    default=0,
    help="the window that begins T tokens after the prompt (0)",
)
@click.option("--nodes", is_flag=True, help="every node, not a line for each kind")
@options.without_option
@options.plot_option("growth and shares by layer")
@click.option(
    "--export", metavar="DIR", help="the first op that creates it, as a program that needs no model"
)
@options.json_option
def command(
    t: int,
    nodes: bool,
    plot: str | None,
    export: str | None,
    json_path: str | None,
    **given: Any,
) -> int:
    """Find the first op whose output differs between the single and the block path."""
    from csb.render.locate import render
    from csb.run_locate import run_locate

    options.keep_apart(model=given["model"], json=json_path, plot=plot)
    plan = options.compare_plan({**given, "n_gen": t + given["width"]})
    record = run_locate(plan, t, Path(export) if export is not None else None)
    if plot is not None:
        from csb.render.locate_plot import draw

        draw(record, plot)
    if json_path is not None:
        save(json.dumps(record) + "\n", json_path)
    if json_path != "-":
        say(render(record, nodes))
    return Exit.INVALID if record["perturbed"] else Exit.DONE
