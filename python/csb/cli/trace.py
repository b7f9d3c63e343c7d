"""csb trace"""

from __future__ import annotations

import json
from typing import Any

import click

from csb.cli import options
from csb.exit_codes import Exit
from csb.render.output import save, say


@click.command("trace")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-W", "--block-width", "width", default=5, help="rows of a block (5)")
@click.option("--rows", type=options.RowCounts(), help="row counts to trace (1 and W)")
@click.option("--nodes", is_flag=True, help="every node, not a line for each group")
@click.option("--diff", is_flag=True, help="only what differs between the row counts")
@options.without_option
@options.plot_option("kernels by weight and rows")
@options.json_option
def command(nodes: bool, diff: bool, plot: str | None, json_path: str | None, **given: Any) -> int:
    """Show which kernels a call of one row and a call of W rows really run."""
    from csb.render.trace import render
    from csb.run_trace import run_trace

    options.keep_apart(model=given["model"], json=json_path, plot=plot)
    prompt = options.prompt_plan(given)
    record = run_trace(
        options.model_plan(given),
        options.context_plan(given),
        prompt,
        given["rows"] or tuple(sorted({1, given["width"]})),
        given["without"],
    )
    if plot is not None:
        from csb.render.trace_plot import draw

        draw(record, plot)
    if json_path is not None:
        save(json.dumps(record) + "\n", json_path)
    if json_path != "-":
        say(render(record, nodes, diff))
    return Exit.INVALID if record["perturbed"] or not record["complete"] else Exit.DONE
