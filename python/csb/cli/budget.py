"""csb budget"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from csb.budget import FAMILIES, MOST_SLOTS, SLOTS, BudgetPlan
from csb.cli import options
from csb.exit_codes import Exit
from csb.plan import PREFIXES
from csb.render.output import say


@click.command("budget")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=50, help="tokens of the trajectory (50)")
@options.count("-W", "--block-width", "width", default=5, help="tokens of a block (5)")
@options.count("--stride", default=1, help="a window at every N-th position (1)")
@options.count("--every", default=2, help="lines that are no switch: one of N windows (2)")
@click.option(
    "--prefix",
    type=click.Choice(PREFIXES),
    default="auto",
    help="how each window of the baseline gets its memory (auto)",
)
@click.option(
    "--slots",
    type=options.Counts(MOST_SLOTS),
    default=SLOTS,
    help=f"other sequences in the same call ({','.join(map(str, SLOTS))})",
)
@click.option(
    "--lines",
    "families",
    type=options.Names(FAMILIES),
    default=FAMILIES,
    help=f"only these lines: {', '.join(FAMILIES)} (all)",
)
@click.option(
    "--against", metavar="RECORD", help="also the cells that csb compare or budget saved elsewhere"
)
@options.plot_option("the median gap of each line")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    every: int,
    slots: tuple[int, ...],
    families: tuple[str, ...],
    against: str | None,
    plot: str | None,
    json_path: str | None,
    **given: Any,
) -> int:
    """Find how much of the gap comes from what: one thing changed a line, on the same tokens.

    Every line has a context of its own. Without -c they are as small as the run allows.
    """
    from csb.against import load
    from csb.render.budget import render
    from csb.run_budget import run_budget

    options.keep_apart(model=given["model"], against=against, json=json_path, plot=plot)
    other = (against, load(Path(against))) if against is not None else None
    fit = ctx.get_parameter_source("n_ctx") is ParameterSource.DEFAULT
    plan = BudgetPlan(options.compare_plan(given), slots, families, fit, every)
    record = run_budget(plan, json_path, other)
    if plot is not None:
        from csb.render.budget_plot import draw

        draw(record, plot)
    if json_path != "-":
        say(render(record))
    if not record["complete"]:
        return Exit.INTERRUPTED
    return Exit.DONE if record["valid"] else Exit.INVALID
