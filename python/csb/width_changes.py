"""What changed between two saved maps of widths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.widths import kernel_changes, make_map, places_of

Record = dict[str, Any]
PROVENANCE = {
    "csb": ("csb",),
    "llama.cpp": ("build", "llama_commit"),
    "compiler": ("build", "compiler"),
    "processor": ("processor", "name"),
    "environment": ("switches",),
}


def why_not(old: Record, new: Record) -> str | None:
    """Why two maps can't be compared; None: they can."""
    if old["mode"] != new["mode"]:
        return "one is of a model, the other of an op"
    if old["widths"] != new["widths"]:
        return "they have other widths"
    if old["mode"] == "op":
        same = ("op", "type", "shape", "head_size", "heads", "kv_heads", "cells", "seed")
        if any(old["op"][key] != new["op"][key] for key in same):
            return "they are of other ops, types, shapes or seeds"
    elif [p["tokens"] for p in old["prompts"]] != [p["tokens"] for p in new["prompts"]]:
        return "they have other prompt tokens"
    if [(p["where"], p["inputs"]) for p in old["places"]] != [
        (p["where"], p["inputs"]) for p in new["places"]
    ]:
        return "they have other places or other tokens at them"
    for record in (old, new):
        if record["problems"] or not record["complete"]:
            return "one of them is no valid or no whole measurement"
    return None


def changes(old: Record, new: Record) -> Record:
    """{"changed", "map": {part: [old, new]}, "borders": {"gone", "new"}, "kernels": [...], "bits":
    {"compared", "why", "widths"}, "settings": {name: [old, new]}} of two maps that can be compared.
    Settings that differ are no change."""
    before, after = (make_map(places_of(r)) for r in (old, new))
    parts = {
        name: [was, now]
        for name in ("classes", "also", "offsets", "dependent")
        if (was := getattr(before, name)) != (now := getattr(after, name))
    }
    was, now = ({(b.low, b.high): b.offsets for b in m.borders} for m in (before, after))
    borders = {
        "gone": [list(pair) for pair in was if pair not in now],
        "new": [list(pair) for pair in now if pair not in was],
        "other_offsets": [list(p) for p in was if p in now and was[p] != now[p]],
    }
    kernels = list(_kernels(old, new))
    bits = _bits(old, new)
    return {
        "changed": bool(parts or any(borders.values()) or kernels or bits["widths"]),
        "map": parts,
        "borders": borders,
        "kernels": kernels,
        "kernels_compared": bool(_traced(old) & _traced(new)),
        "bits": bits,
        "settings": dict(_settings(old, new)),
    }


def _traced(record: Record) -> set[tuple[int, str]]:
    return {(i, w) for i, p in enumerate(record["places"]) for w in p["kernels"]}


def _kernels(old: Record, new: Record) -> Iterator[Record]:
    """The changes of kernels at each width, alike ones together with their widths."""
    found: dict[str, Record] = {}
    for i, width in sorted(_traced(old) & _traced(new), key=lambda key: (key[0], int(key[1]))):
        pair = (r["places"][i]["kernels"][width] for r in (old, new))
        for change in kernel_changes(*pair):
            key = repr([change[k] for k in ("op", "type", "before", "after")])
            entry = found.setdefault(key, {**change, "widths": []})
            entry["what"] += [w for w in change["what"] if w not in entry["what"]]
            if int(width) not in entry["widths"]:
                entry["widths"].append(int(width))
    yield from found.values()


def _bits(old: Record, new: Record) -> Record:
    """Widths whose rows have other bits, where the same numbers went in."""
    models = [[f["sha256"] for f in _model(r)] for r in (old, new)]
    if models[0] != models[1]:
        return {"compared": False, "why": "they are of other model files", "widths": []}
    pairs = list(zip(places_of(old), places_of(new), strict=True))
    widths = [w for w in new["widths"] if any(a[w] != b[w] for a, b in pairs)]
    return {"compared": True, "why": None, "widths": widths}


def _model(record: Record) -> list[Record]:
    files: list[Record] = record["provenance"].get("model", {}).get("files", [])
    return files


def _settings(old: Record, new: Record) -> Iterator[tuple[str, list[Any]]]:
    for key in dict.fromkeys([*old["config"], *new["config"]]):
        pair = [r["config"].get(key) for r in (old, new)]
        if pair[0] != pair[1]:
            yield key, pair
    for name, path in PROVENANCE.items():
        values = [_at(r["provenance"], path) for r in (old, new)]
        if values[0] != values[1]:
            yield name, values


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
