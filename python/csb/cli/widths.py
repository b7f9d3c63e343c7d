"""csb widths"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from csb.cli import options
from csb.errors import ArgumentError, FileError
from csb.exit_codes import Exit
from csb.plan import OpPlan, PromptPlan, WidthsPlan
from csb.render.output import save, say

OUTPUTS = {"saved", "against", "plot", "json_path"}
BOTH = {"widths", "places", "threads", "repack", "devices", "without", "op"}
OPS = {"mul_mat": {"shape"}, "flash_attn": {"head_size", "heads", "kv_heads", "cells"}}
OP_ONLY = {"op_type", "seed"}.union(*OPS.values())


@click.command("widths")
@click.argument("saved", required=False, metavar="[RECORD]")
@options.model_options
@options.context_options
@options.prompt_options
@click.option(
    "--widths", type=options.RowCounts(), default="1..16", help="rows of the calls (1..16)"
)
@options.count(
    "--places", default=3, help="places in the text, or draws of random numbers with --op (3)"
)
@click.option("--prompts", metavar="FILE", help="several prompts, one a line")
@click.option("--op", type=click.Choice(list(OPS)), help="one op alone, without a model")
@click.option(
    "--type", "op_type", metavar="TYPE", help="--op: of weights (bf16) or keys and values (f16)"
)
@click.option(
    "--shape", type=options.Shape(), default="512,2048", help="--op mul_mat: weights (512,2048)"
)
@options.count("--head-size", default=64, help="--op flash_attn: length of a head (64)")
@options.count("--heads", default=8, help="and heads (8)")
@options.count("--kv-heads", help="and heads of keys and values (as --heads)")
@click.option(
    "--cells",
    type=options.RowCounts(),
    default="256,512,1024",
    help="and cells of the cache (256,512,1024)",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31), metavar="N", default=0, help="--op: of the numbers (0)"
)
@options.without_option
@click.option("--against", metavar="FILE", help="what changed since this saved map")
@options.plot_option("classes by width and offset")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    saved: str | None,
    against: str | None,
    plot: str | None,
    json_path: str | None,
    **given: Any,
) -> int:
    """Map the widths whose rows are bit-identical, and what changes between them.

    With RECORD: show a saved map instead of measuring one.
    """
    from csb.run_widths import load_widths

    files = {name: given[name] for name in ("model", "prompts")}
    options.keep_apart(json=json_path, plot=plot, against=against, record=saved, **files)
    _check(ctx, saved, given)
    other = load_widths(Path(against)) if against else None
    record = load_widths(Path(saved)) if saved else _measure(ctx, given, other, against, json_path)
    if other is not None:
        record["against"] = _against(other, record)
    if json_path is not None:
        from csb.record import dumps

        save(dumps(record), json_path)
    if plot is not None:
        from csb.render.widths_plot import draw

        draw(record, plot)
    if json_path != "-":
        from csb.render.widths import render

        say(render(record))
    if not record["complete"]:
        return Exit.INTERRUPTED
    if record["problems"]:
        return Exit.INVALID
    if other is None:
        return Exit.DONE
    if why := record["against"]["why_not"]:
        raise ArgumentError(f"--against {against}: the maps can't be compared: {why}")
    return Exit.DIFFERENT if record["against"]["changed"] else Exit.DONE


def _check(ctx: click.Context, saved: str | None, given: dict[str, Any]) -> None:
    """Raises UsageError for an option that would do nothing."""
    source = click.core.ParameterSource.COMMANDLINE
    named = {p.name: p.opts[-1] for p in ctx.command.params if p.name}
    set_here = {name for name in named if ctx.get_parameter_source(name) is source}
    if saved:
        allowed, why = OUTPUTS, "with a saved RECORD"
    elif given["op"] is None:
        allowed, why = set(named) - OP_ONLY, "without --op"
    else:
        allowed = OUTPUTS | BOTH | {"op_type", "seed"} | OPS[given["op"]]
        why = f"with --op {given['op']}"
    for name in named:
        if name in set_here - allowed:
            raise click.UsageError(f"{named[name]} does nothing {why}", ctx)
    if not saved and len(set(given["widths"])) < 2:
        raise click.UsageError("--widths: give at least two", ctx)


def _measure(
    ctx: click.Context,
    given: dict[str, Any],
    other: dict[str, Any] | None,
    against: str | None,
    json_path: str | None,
) -> dict[str, Any]:
    from csb.run_widths import run_op_widths, run_widths

    widths = tuple(sorted(set(given["widths"])))
    mode = "model" if given["op"] is None else "op"
    if other is not None:  # found out before a long run
        for what, of in (
            ("mode", mode),
            ("widths", list(widths)),
            ("places", given["places"]),
        ):
            if (other["config"] if what == "places" else other)[what] != of:
                raise ArgumentError(
                    f"--against {against}: the maps can't be compared: its {what} are "
                    f"{other[what] if what != 'places' else other['config'][what]}, not {of}"
                )
    if given["op"] is not None:
        return run_op_widths(_op_plan(given, widths))
    prompt = options.prompt_plan(given)
    prompts: tuple[PromptPlan, ...] = (prompt,)
    if given["prompts"] is not None:
        if any(given[name] is not None for name in ("prompt", "file", "tokens")):
            raise click.UsageError("--prompts can't go with -p, -f or --tokens", ctx)
        prompts = tuple(replace(prompt, text=line) for line in _lines(given["prompts"]))
    plan = WidthsPlan(
        model=options.model_plan(given),
        context=options.context_plan(given),
        prompts=prompts,
        widths=widths,
        places=given["places"],
        without=given["without"],
    )
    return run_widths(plan, other, json_path)


def _lines(name: str) -> list[str]:
    try:
        text = Path(name).read_text("utf-8")
    except OSError as error:
        raise FileError(f"--prompts {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"--prompts {name}: is not UTF-8 text") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ArgumentError(f"--prompts {name}: holds no prompt")
    return lines


def _op_plan(given: dict[str, Any], widths: tuple[int, ...]) -> OpPlan:
    from csb.provenance import physical_cores

    op = given["op"]
    cells = given["cells"]
    if op == "flash_attn" and min(cells) < widths[-1]:
        raise ArgumentError(
            f"--cells {min(cells)} is less than the widest call's {widths[-1]} rows"
        )
    return OpPlan(
        op=op,
        type=given["op_type"] or ("bf16" if op == "mul_mat" else "f16"),
        shape=given["shape"],
        head_size=given["head_size"],
        heads=given["heads"],
        kv_heads=given["kv_heads"] or given["heads"],
        cells=cells,
        widths=widths,
        places=given["places"],
        seed=given["seed"],
        device=given["devices"] or "CPU",
        n_threads=given["threads"] or physical_cores(),
        repack=given["repack"],
        without=given["without"],
    )


def _against(other: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    from csb.width_changes import changes, why_not

    why = why_not(other, record)
    return {"why_not": why, **({} if why else changes(other, record))}
