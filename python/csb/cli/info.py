"""csb info"""

from __future__ import annotations

import json

import click

from csb.provenance import environment
from csb.render.info import render_info
from csb.render.output import say


@click.command("info")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def command(as_json: bool) -> None:
    """Say what this csb was built from, how, and what it runs on here."""
    info = environment()
    say(json.dumps(info, indent=1) + "\n" if as_json else render_info(info))
