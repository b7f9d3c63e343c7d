"""csb compare"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from csb import verdict
from csb.cli import options
from csb.exit_codes import Exit
from csb.plan import PREFIXES, ComparePlan


@click.command("compare")
@options.model_options
@options.context_options
@options.prompt_options
@click.option("-n", "--predict", "n_gen", type=options.COUNT, default=100, show_default=True)
@click.option("-W", "--block-width", "width", type=options.COUNT, default=5, show_default=True)
@click.option(
    "--stride", type=options.COUNT, default=1, help="every how many positions a window (1)"
)
@click.option("--prefix", type=click.Choice(PREFIXES), default="auto", show_default=True)
@click.option("--temp", "temperature", type=click.FloatRange(0, min_open=True), default=1.0)
@click.option(
    "--decided",
    type=click.FloatRange(0),
    default=2.0,
    help="margin from which a flip is suspicious (2.0)",
)
@click.option("--fail-on", type=click.Choice(verdict.FAIL_ON), default="flip", show_default=True)
@click.option("--verbose", "--full", "full", is_flag=True, help="trajectory, dlogit band, cells")
@click.option("--save-logits", type=options.Output(), metavar="FILE.npz", help="every row")
@options.json_option
def command(fail_on: str, full: bool, json_path: str | None, **given: Any) -> int:
    """Decode an AR trajectory's windows singly and as blocks, and measure the gap."""
    from csb.run import run_compare

    plan = ComparePlan(
        model=options.model_plan(given),
        context=options.context_plan(given),
        prompt=options.prompt_plan(given),
        n_gen=given["n_gen"],
        width=given["width"],
        stride=given["stride"],
        prefix=given["prefix"],
        temperature=given["temperature"],
        decided=given["decided"],
        save_logits=Path(given["save_logits"]) if given["save_logits"] else None,
    )
    record = run_compare(plan, json_path)
    if json_path != "-":
        from csb.render.compare import render

        click.echo(render(record, full), nl=False)
    if not record["complete"]:
        return Exit.INTERRUPTED
    return verdict.exit_code(verdict.Outcome(record["outcome"]), record["summary"], fail_on)
