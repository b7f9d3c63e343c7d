"""csb info"""

from __future__ import annotations

import json

import click

from csb.provenance import environment
from csb.render.info import render_info
from csb.render.output import say


@click.command("info")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
@click.option("--rpc", metavar="HOST:PORT,..", help="with the devices of these RPC servers")
def command(as_json: bool, rpc: str | None) -> None:
    """Say what this csb was built from, how, and what it runs on here."""
    if rpc is not None:
        from csb.native import worker
        from csb.native.rpc import add_rpc

        worker.run(lambda: add_rpc(rpc), lambda: None)
    info = environment()
    say(json.dumps(info, indent=1) + "\n" if as_json else render_info(info))
