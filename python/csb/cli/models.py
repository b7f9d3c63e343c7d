"""csb models"""

from __future__ import annotations

import json
from typing import Any

import click

from csb.models import catalog, store
from csb.render.text import harmless


@click.command("models")
@click.option("--fetch", "name", metavar="NAME", help="fetch this model (all its variants)")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def command(name: str | None, as_json: bool) -> None:
    """List the models csb can fetch, and fetch them into the cache folder."""
    if name is not None:
        entry = catalog.find(name)
        _fetch(entry)
    rows = [_row(entry, v) for entry in catalog.ENTRIES for v in catalog.status(entry)]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        size = f"{row['size'] / 1e6:.0f} MB" if row["size"] else ""
        click.echo(
            f"{row['name']}  {row['variant']:<5} {row['state']:<8} {size:>7}  "
            f"{harmless(row['path'] or '')}".rstrip()
        )
    click.echo(f"cache: {harmless(str(store.cache_dir()))}")


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
