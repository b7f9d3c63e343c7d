"""csb info"""

from __future__ import annotations

import json

import click

from csb.provenance import environment
from csb.render.info import render_info


@click.command("info")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def command(as_json: bool) -> None:
    """What this csb was built from and with, and what it runs on here."""
    info = environment()
    click.echo(json.dumps(info, indent=1) if as_json else render_info(info), nl=as_json)
