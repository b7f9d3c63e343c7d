"""A located window as text: who creates the difference, how it grows, where it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.render.table import columns
from csb.render.text import harmless

Record = dict[str, Any]
FUSION = {
    "CUDA": "GGML_CUDA_DISABLE_FUSION",
    "ROCm": "GGML_CUDA_DISABLE_FUSION",
    "Vulkan": "GGML_VK_DISABLE_FUSION",
    "MTL": "GGML_METAL_FUSION_DISABLE",
}


def render(record: Record, nodes: bool = False) -> str:
    return "\n".join(_lines(record, nodes)) + "\n"


def _lines(record: Record, nodes: bool) -> Iterator[str]:
    off = f"; without {', '.join(record['without'])}" if record["without"] else ""
    rows = record["equal_rows"]
    yield (
        f"window {record['window']}: {record['prefix']} tokens in the memory, {len(rows)} rows, "
        f"{sum(rows)} of them with the same bits; {len(record['nodes'])} nodes compared, "
        f"{record['not_compared']} not{off}"
    )
    if record["perturbed"]:  # what nodes gave is in the record, and worth nothing
        yield from _fusion(record["provenance"])
        yield from _export(record["export"])
        yield f"csb: {record['conclusion']}"
        return
    for change in record["expert_changes"]:
        ids = f"{change['n_diff']} of {change['n']} chosen ids differ"
        yield f"experts: {harmless(change['node'])}: {ids}"
    if nodes:
        yield from columns([NODE_HEADS, *map(_node, record["nodes"])])
    elif record["creating"]:
        yield from columns([GROUP_HEADS, *map(_group, record["creating"])])
    if record["creating"]:
        parts = ", ".join(f"{name} {100 * s:.1f} %" for name, s in record["shares"].items())
        yield f"created by themselves (share of the squares): {parts}"
        yield f"growth by layer: {_growth(record['growth'])}"
    yield from _export(record["export"])
    yield f"csb: {record['conclusion']}"


def _fusion(provenance: Record) -> Iterator[str]:
    """What most likely changed the bits, where it is still on."""
    for name in provenance["offload"]["backends"]:
        for kind, variable in FUSION.items():
            if name.startswith(kind) and variable not in provenance["switches"]:
                yield (
                    f"{name} computes several nodes as one, but not while they are watched: with "
                    f"{variable}=1 in the environment it never does (the gap may be another one)"
                )


def _export(done: Record | None) -> Iterator[str]:
    if done is None:
        return
    if done["folder"] is None:
        yield f"not exported: {harmless(done['why'])}"
        return
    where = f"exported to {harmless(done['folder'])}: "
    if not done["reproduced"]:
        yield f"{where}run alone it does NOT give the recorded bits: {harmless(done['why'])}"
        return
    n = f"{done['n_diff']} of {done['n_values']}"
    yield f"{where}run alone, {n} values of row {done['row']} differ, with the recorded bits"


GROUP_HEADS = ["created by", "what", "type", "nodes", "relative", "single path", "block"]


def _group(group: Record) -> list[str]:
    return [
        group["op"],
        harmless(group["what"]),
        group["type"],
        str(group["nodes"]),
        f"{group['created_relative']:.2g}",
        _kernels(group["single_kernels"]),
        _kernels(group["block_kernels"]),
    ]


NODE_HEADS = [
    "node",
    "op",
    "name",
    "inputs",
    "output",
    "creates",
    "differ",
    "of",
    "max",
    "relative",
]


def _node(node: Record) -> list[str]:
    """The rows' flags as a string of a character each: = equal, x not, c creates."""
    return [
        str(node["index"]),
        node["op"],
        harmless(node["name"]),
        "".join("x="[equal] for equal in node["inputs_equal"]),
        "".join("x="[equal] for equal in node["outputs_equal"]),
        "".join("-c"[made] for made in node["created"]),
        str(node["n_diff"]),
        str(node["n_values"]),
        f"{node['max_abs']:.3g}",
        f"{node['relative']:.3g}",
    ]


def _kernels(names: list[str]) -> str:
    return "+".join(names) or "not observable"


def _growth(layers: list[Record]) -> str:
    """The first, some between and the last."""
    step = max(1, (len(layers) - 1) // 6)
    shown = [*layers[:-1:step], layers[-1]]
    return ", ".join(
        f"{'head' if at['layer'] is None else at['layer']} {at['relative']:.2g}" for at in shown
    )
