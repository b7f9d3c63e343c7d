"""A trace as text: a line for each group of nodes, or for each node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.nodes import PRODUCTS, group_of
from csb.render.table import columns
from csb.render.text import harmless

Record = dict[str, Any]
UNSEEN = "not observable"
BELOW = "kernels below"  # of a device, whose records know the call but not the node
GLANCE = (*PRODUCTS, "FLASH_ATTN_EXT", "SOFT_MAX", "RMS_NORM", "NORM")


def render(record: Record, nodes: bool = False, diff: bool = False) -> str:
    rows = record["rows"]
    lines = [_head(record)]
    body = list(_nodes(record) if nodes else _groups(record))
    if diff:
        body = [line for line in body if line[0]]
    heads = ["", "op", "what", "type", "m x k", "nodes", *(_rows(n) for n in rows)]
    lines += columns([heads, *(["*" if d else "", *cells] for d, *cells in body)])
    launches = list(_launches(record))
    if launches:
        shown = [line for line in launches if line[0] or not diff]
        heads = ["", "kernel on the devices", *(_rows(n) for n in rows)]
        lines += columns([heads, *(["*" if d else "", *cells] for d, *cells in shown)])
    lines += _foot(record, body, nodes, launches)
    return "\n".join(lines) + "\n"


def _head(record: Record) -> str:
    splits = ", ".join(
        f"{c['rows']}: {c['n_ubatches']} ubatches, {c['n_splits']} splits" for c in record["calls"]
    )
    off = f"; without {', '.join(record['without'])}" if record["without"] else ""
    return f"{record['prefix']} tokens in the memory; calls by rows {splits}{off}"


def _rows(n: int) -> str:
    return "1 row (GEMV)" if n == 1 else f"{n} rows (GEMM)"


Seen = tuple[Record, set[str]]  # a call, and the backends on which its nodes' kernels were seen


def _seen(record: Record) -> list[Seen]:
    return [
        (call, {"CPU", *(n["backend"] for n in call["nodes"] if n["kernels"])})
        for call in record["calls"]
    ]


def _kernels(found: set[str], backend: str | None, seen: Seen) -> str:
    call, named = seen
    if found:
        return "+".join(sorted(found))
    if (backend or "").startswith("CUDA") and call["device_kernels"]:
        return BELOW
    if backend in named:  # none of its own: fused into another node's, or one that is not hooked
        return ""
    return f"{UNSEEN} on {backend}" if backend else UNSEEN


def _launches(record: Record) -> Iterator[tuple[Any, ...]]:
    """(differs, kernel, launches at each row count ...) of what ran on devices."""
    counts = [{k["kernel"]: k["count"] for k in call["device_kernels"]} for call in record["calls"]]
    for name in dict.fromkeys(name for one in counts for name in one):
        found = [one.get(name, 0) for one in counts]
        yield len(set(found)) > 1, harmless(name), *(str(n) for n in found)


def _groups(record: Record) -> Iterator[tuple[Any, ...]]:
    """(differs, op, what, type, shape, nodes, kernels at each row count ...)"""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    seen = _seen(record)
    for column, call in enumerate(record["calls"]):
        for node in call["nodes"]:
            if node["op"] not in GLANCE:
                continue
            entry = found.setdefault(
                group_of(node),
                [{"n": 0, "kernels": set(), "backend": None} for _ in record["rows"]],
            )[column]
            entry["n"] += 1
            entry["kernels"] |= set(node["kernels"])
            entry["backend"] = node["backend"]
    for (op, what, kind, shape), entries in found.items():
        calls = zip(entries, seen, strict=True)
        shown = [_kernels(e["kernels"], e["backend"], c) if e["n"] else "-" for e, c in calls]
        yield len(set(shown)) > 1, op, what, kind, shape, str(entries[0]["n"]), *shown


def _nodes(record: Record) -> Iterator[tuple[Any, ...]]:
    """The first call's nodes, with the same node of the others beside them."""
    others = [
        {(n["ubatch"], n["op"], n["name"], _nth): n for _nth, n in _occurrences(call["nodes"])}
        for call in record["calls"]
    ]
    seen = _seen(record)
    for nth, node in _occurrences(record["calls"][0]["nodes"]):
        key = (node["ubatch"], node["op"], node["name"], nth)
        same = [o.get(key) for o in others]
        calls = zip(same, seen, strict=True)
        shown = [_kernels(set(s["kernels"]), s["backend"], c) if s else "-" for s, c in calls]
        shape = f"{node['m']}x{node['k']}" if "m" in node else ""
        name = harmless(node["name"])
        yield len(set(shown)) > 1, node["op"], name, node["type"], shape, "1", *shown


def _occurrences(nodes: list[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Names repeat in a graph: the nodes of one name are told apart by their order."""
    seen: dict[tuple[Any, ...], int] = {}
    for node in nodes:
        key = (node["ubatch"], node["op"], node["name"])
        seen[key] = seen.get(key, -1) + 1
        yield seen[key], node


def _foot(
    record: Record, body: list[tuple[Any, ...]], nodes: bool, launches: list[tuple[Any, ...]]
) -> Iterator[str]:
    for why in dict.fromkeys(call["device_not_observable"] for call in record["calls"]):
        if why:
            yield f"kernels on the device are not observable: {harmless(why)}"
    what = "nodes" if nodes else "groups"
    unseen = (UNSEEN, BELOW)
    seen = [ln for ln in body if not all(k.startswith(unseen) for k in ln[-len(record["rows"]) :])]
    differ = f"{sum(line[0] for line in seen)} of {len(seen)} {what}"
    if len(seen) < len(body):
        differ += f" ({len(body) - len(seen)} not observable one by one)"
    if launches:
        differ += f" and {sum(line[0] for line in launches)} of {len(launches)} device kernels"
    yield f"csb: kernels differ between row counts in {differ}; " + (
        "tracing CHANGED the logits: this trace is not valid"
        if record["perturbed"]
        else "the traced calls have the untraced calls' bits"
    )
