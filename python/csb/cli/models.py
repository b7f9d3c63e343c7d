"""csb models"""

from __future__ import annotations

import json
from typing import Any

import click

from csb.cli import options
from csb.models import catalog, store
from csb.render.output import save, say
from csb.render.text import harmless


@click.command("models")
@click.option("--fetch", "name", metavar="NAME", help="fetch this model (all its variants)")
@options.json_option
def command(name: str | None, json_path: str | None) -> None:
    """List the models csb can fetch, and fetch them into the cache folder."""
    if name is not None:
        entry = catalog.find(name)
        _fetch(entry)
    rows = [_row(entry, v) for entry in catalog.ENTRIES for v in catalog.status(entry)]
    if json_path is not None:
        save(json.dumps(rows, indent=1) + "\n", json_path)
    if json_path != "-":
        say("".join(_line(row) for row in rows) + f"cache: {harmless(str(store.cache_dir()))}\n")


def _line(row: dict[str, Any]) -> str:
    size = f"{row['size'] / 1e6:.0f} MB" if row["size"] else ""
    return (
        f"{row['name']}  {row['variant']:<5} {row['state']:<8} {size:>7}  "
        f"{harmless(row['path'] or '')}".rstrip()
        + "\n"
    )


def _row(entry: catalog.Entry, status: catalog.VariantStatus) -> dict[str, Any]:
    return {
        "name": entry.name,
        "variant": status.variant.name,
        "state": status.state.value,
        "path": str(status.path) if status.path else None,
        "size": status.size,
        "description": entry.description,
        "licence": entry.licence,
    }


def _fetch(entry: catalog.Entry) -> None:
    from csb.native.library import build_info, quantize
    from csb.render.progress import Steps

    with Steps() as steps:
        store.fetch(entry, steps)
        for variant in entry.variants:
            store.make(
                entry,
                variant.name,
                lambda source, target, kind: quantize(source, target, kind.lower()),
                steps,
                commit=build_info()["llama_commit"],
            )
