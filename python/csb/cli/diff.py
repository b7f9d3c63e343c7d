"""csb diff"""

from __future__ import annotations

import json
from pathlib import Path

import click

from csb.cli import options
from csb.exit_codes import Exit
from csb.render.output import save, say


@click.command("diff")
@click.argument("a", metavar="A.json", type=click.Path(path_type=Path))
@click.argument("b", metavar="B.json", type=click.Path(path_type=Path))
@options.json_option
def command(a: Path, b: Path, json_path: str | None) -> int:
    """Hold two saved comparisons of one prompt against each other.

    Other settings, builds, devices, models of one vocabulary are what it is for; the exit code is 1
    where a measured value or the text differs.
    """
    from csb.diff import compare_records, load
    from csb.render.diff import render

    options.keep_apart(A=str(a), json=json_path)
    options.keep_apart(B=str(b), json=json_path)
    found = compare_records(load(a), load(b))
    if json_path is not None:
        save(json.dumps(found) + "\n", json_path)
    if json_path != "-":
        say(render(found, (str(a), str(b))))
    return Exit.DIFFERENT if found["changed"] else Exit.DONE
