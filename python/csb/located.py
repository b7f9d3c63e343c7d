"""What a located window says: where the difference starts, who creates it, how it grows. Pure."""

from __future__ import annotations

import math
from typing import Any

from csb.nodes import group_of, layer_of, weight_of

Record = dict[str, Any]
KERNELS = ("single_kernels", "block_kernels")
REGIONS = ("attention", "feed-forward", "head")


def summary(seen: Record) -> Record:
    """What was seen of every node, with the answers drawn from it."""
    nodes = seen["nodes"]
    place_nodes(nodes)
    record = {
        **{key: value for key, value in seen.items() if key != "nodes"},
        "first": first_created(nodes),
        "creating": creating_groups(nodes),
        "shares": shares(nodes),
        "growth": growth(nodes),
        "expert_changes": expert_changes(nodes),
        "nodes": nodes,
    }
    return {**record, "conclusion": conclusion(record)}


def place_nodes(nodes: list[Record]) -> None:
    """Gives every node its layer (None: outside the layers), region and weight. A node without a
    layer in its name belongs where the one before it did."""
    layers = [layer_of(node) for node in nodes]
    last = max((i for i, layer in enumerate(layers) if layer is not None), default=-1)
    layer, region = None, "attention"
    for i, node in enumerate(nodes):
        if i > last:
            layer, region = None, "head"
        elif layers[i] is not None and layers[i] != layer:
            layer, region = layers[i], "attention"
        if region == "attention" and _feeds_forward(node):
            region = "feed-forward"
        node["layer"] = layer
        node["region"] = "input" if layer is None and region != "head" else region
        node["weight"] = weight_of(node)


def _feeds_forward(node: Record) -> bool:
    return node["name"].startswith("ffn") or ".ffn" in (weight_of(node) or "")


def first_created(nodes: list[Record]) -> Record | None:
    """The first node that had some row's inputs equal and its output not."""
    for node in nodes:
        if any(i and c for i, c in zip(node["inputs_equal"], node["created"], strict=True)):
            return node
    return None


def creating_groups(nodes: list[Record]) -> list[Record]:
    """The nodes that create a difference by themselves, a line for each kind of node."""
    groups: dict[tuple[Any, ...], Record] = {}
    for node in nodes:
        if not any(node["created"]):
            continue
        kernels = (tuple(node["single_kernels"]), tuple(node["block_kernels"]))
        group = groups.setdefault(
            (*group_of(node), *kernels),
            {
                "op": node["op"],
                "what": group_of(node)[1],
                "type": group_of(node)[2],
                "region": node["region"],
                "nodes": 0,
                "created_relative": 0.0,
                "single_kernels": node["single_kernels"],
                "block_kernels": node["block_kernels"],
            },
        )
        group["nodes"] += 1
        group["created_relative"] = max(group["created_relative"], node["created_relative"])
    return list(groups.values())


def shares(nodes: list[Record]) -> dict[str, float]:
    """Each region's part of the squared relative differences that nodes create by themselves."""
    by_layer = layer_shares(nodes).values()
    return {region: math.fsum(layer[region] for layer in by_layer) for region in REGIONS}


def layer_shares(nodes: list[Record]) -> dict[int | None, dict[str, float]]:
    """{layer: {region: its part of the same}}; None is what is outside the layers."""
    energy: dict[int | None, dict[str, float]] = {}
    for node in nodes:
        regions = energy.setdefault(node["layer"], dict.fromkeys(REGIONS, 0.0))
        if any(node["created"]) and node["region"] in regions:
            regions[node["region"]] += node["created_relative"] ** 2
    total = math.fsum(e for regions in energy.values() for e in regions.values())
    return {
        layer: {region: e / total if total else 0.0 for region, e in regions.items()}
        for layer, regions in energy.items()
    }


def growth(nodes: list[Record]) -> list[Record]:
    """The relative difference at each layer's last node, and behind it the head's."""
    ends: dict[int | None, Record] = {}
    for node in nodes:
        if node["region"] != "input":
            ends[node["layer"]] = node
    return [
        {"layer": layer, "node": node["name"], "relative": node["relative"]}
        for layer, node in ends.items()
    ]


def expert_changes(nodes: list[Record]) -> list[Record]:
    """Of models with experts the layers whose chosen ids differ: there other weights multiply, and
    values tell nothing. `node` is the one that chose."""
    changes = {}
    for node in nodes:
        if node["ids_diff"]:
            name = node["src"][2]["name"]
            change = {"node": name, "n_diff": node["ids_diff"], "n": node["n_ids"]}
            changes[node["layer"], name] = {"layer": node["layer"], **change}
    return list(changes.values())


def conclusion(record: Record) -> str:
    """The last line: node, op, weight and both kernels."""
    if record["perturbed"]:
        return "watching CHANGED the logits: this run is not valid"
    first = record["first"]
    if first is None:
        if all(record["equal_rows"]):
            return "single and block have the same bits in every row: nothing to locate"
        return "no compared node starts the difference: it comes from one that can't be compared"
    single, block = ("+".join(first[k]) or "not observable" for k in KERNELS)
    weight = f", {first['weight']}" if first["weight"] else ""
    return (
        f"the difference starts at {first['name']} ({first['op']}{weight}): single path {single}, "
        f"block {block}"
    )
