"""csb compare"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from csb import verdict
from csb.cli import options
from csb.exit_codes import Exit
from csb.plan import EXACT_SWITCHES, PREFIXES
from csb.render.output import say


@click.command("compare")
@options.model_options
@options.context_options
@options.prompt_options
@options.count("-n", "--predict", "n_gen", default=100, help="tokens of the trajectory (100)")
@options.count("-W", "--block-width", "width", default=5, help="tokens of a block (5)")
@options.count("--stride", default=1, help="a window at every N-th position (1)")
@click.option(
    "--prefix",
    type=click.Choice(PREFIXES),
    default="auto",
    help="how each window gets its memory (auto)",
)
@click.option(
    "--temp",
    "temperature",
    type=options.Number(0, min_open=True),
    metavar="X",
    default=1.0,
    help="temperature of the probabilities that are compared (1.0)",
)
@click.option(
    "--decided",
    type=options.Number(0),
    metavar="X",
    default=2.0,
    help="margin from which a flip is suspicious (2.0)",
)
@click.option(
    "--fail-on",
    type=click.Choice(verdict.FAIL_ON),
    default="flip",
    help="which flips make the exit code 1 (flip)",
)
@click.option(
    "--verbose", "--full", "full", is_flag=True, help="also trajectory, dlogit band and all cells"
)
@click.option(
    "--save-logits",
    type=options.Output(),
    metavar="FILE.npz",
    help="save every logits row of both paths",
)
@click.option(
    "--reference",
    type=click.Choice(["cpu"]),
    help="also hold both paths against a CPU run of the same tokens in F32",
)
@options.without_option
@click.option(
    "--exact-block",
    type=options.Switches(),
    is_flag=False,
    flag_value=",".join(EXACT_SWITCHES),
    metavar="[NAMES]",
    help=f"refuse kernels in block decodes alone, and prove that a block then has the single "
    f"path's bits ({', '.join(EXACT_SWITCHES)})",
)
@options.json_option
def command(fail_on: str, full: bool, json_path: str | None, **given: Any) -> int:
    """Decode an AR trajectory's windows singly and as blocks, and measure the gap."""
    from csb.run import run_compare

    options.keep_apart(model=given["model"], json=json_path, save_logits=given["save_logits"])
    if given["save_logits"] is not None:
        given["save_logits"] = Path(given["save_logits"])
    plan = options.compare_plan(given)
    record = run_compare(plan, json_path)
    if json_path != "-":
        from csb.render.compare import render

        say(render(record, full))
    if not record["complete"]:
        return Exit.INTERRUPTED
    return verdict.exit_code(verdict.Outcome(record["outcome"]), record["summary"], fail_on)
