"""Recorded calls as plain rows: each node with its shape class and the kernels that ran for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

Node = dict[str, Any]
PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
SEEN = ("CPU", "CUDA", "Vulkan")  # backends whose kernels csb has hooks for
NO_HOOK = "csb has no hook for this backend"
OBSERVED = (*PRODUCTS, "FLASH_ATTN_EXT")  # ops whose kernel the CPU hooks always name


def nodes_of(call: dict[str, Any]) -> list[Node]:
    """The nodes of every ubatch of a call in execution order.

    Products and attention have m, n, k and the class: GEMV for one row, GEMM above, "" where no row
    is computed (the last layer of a call that wants no logits). `kernels` are the names of those
    that ran, `refused` of those that were asked and said no; of experts a kernel can be in both.
    `counts` are the calls of those that ran; a vec_dot, which is not hooked, has 1.
    """
    rows = []
    for number, ubatch in enumerate(call["ubatches"]):
        nodes = ubatch["nodes"]
        ran: list[Counter[str]] = [Counter() for _ in nodes]
        refused: list[Counter[str]] = [Counter() for _ in nodes]
        for event in ubatch.get("kernels", []):
            if event["node"] >= 0:
                into = ran if event["accepted"] else refused
                into[event["node"]][event["kernel"]] += event["count"]
        for i, node in enumerate(nodes):
            rows.append(
                {
                    "ubatch": number,
                    **node,
                    **shape_of(node),
                    "kernels": specific(ran[i]),
                    "refused": sorted(refused[i]),
                    "counts": dict(ran[i]),
                }
            )
    return rows


def device_kernels_of(call: dict[str, Any]) -> tuple[dict[str, int], str | None, int]:
    """What ran on CUDA devices in a call: ({kernel: launches} in order of first run, why they are
    not observable, records that were lost). Where one ubatch is not observable, the call is not."""
    counts: dict[str, int] = {}
    why_not = None
    for ubatch in call["ubatches"]:
        why_not = why_not or ubatch.get("device_not_observable")
        for event in ubatch.get("device_kernels", []):
            counts[event["kernel"]] = counts.get(event["kernel"], 0) + event["count"]
    lost = sum(ubatch.get("device_lost", 0) for ubatch in call["ubatches"])
    return ({} if why_not else counts), why_not, lost


def observed(calls: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What ran in recorded calls of one shape; None where nothing was recorded.

    {"n_threads": as a kernel saw them, "kernels": {name: nodes it ran for}, "not_observable":
    {backend that ran nodes unseen: why}}, and on CUDA devices "device_kernels": {name:
    launches}.
    """
    if not calls:
        return None
    ran: dict[tuple[int, int], set[str]] = {}
    unseen: dict[str, str] = {}
    n_threads = 0
    for number, ubatch in enumerate(calls[0]["ubatches"]):
        n_threads = max(n_threads, ubatch["n_threads"])
        unseen |= unseen_in(ubatch)
        for event in ubatch["kernels"]:
            if event["accepted"]:
                ran.setdefault((number, event["node"]), set()).add(event["kernel"])
    counts = Counter(name for names in ran.values() for name in specific(names))
    found: dict[str, Any] = {
        "n_threads": n_threads,
        "kernels": {name: counts[name] for name in sorted(counts)},
        "not_observable": unseen,
    }
    launches = device_kernels_of(calls[0])[0]
    return found | ({"device_kernels": launches} if launches else {})


def unseen_in(ubatch: dict[str, Any]) -> dict[str, str]:
    """{backend that ran nodes of it: why its kernels could not be seen}."""
    why = ubatch.get("device_not_observable")
    return {
        name: why or NO_HOOK
        for name in ubatch["backends"]
        if not name.startswith(SEEN) or (why and not name.startswith("CPU"))
    }


def specific(names: Iterable[str]) -> list[str]:
    """Without the buffer's name where the kernels in it were seen themselves."""
    own = sorted({n for n in names if n.startswith("ggml_") or n == "llamafile_sgemm"})
    return own or sorted(set(names))


def ran_kernels(events: list[dict[str, Any]]) -> list[str]:
    """Names of the kernels that did the work, not of those that were asked and said no."""
    return specific(e["kernel"] for e in events if e["accepted"])


def load_time(names: Iterable[str]) -> list[str]:
    """Of kernels' names those that a weight has from load time, by the buffer it was laid out anew
    for (repacked, AMX): no switch refuses them."""
    own = ("ggml_gemv_", "ggml_gemm_")
    return [
        n
        for n in names
        if n.startswith(own) or not (n.startswith("ggml_") or n == "llamafile_sgemm")
    ]


def shape_of(node: Node) -> dict[str, Any]:
    """m, n, k and the class of products and attention, nothing of other nodes."""
    if node["op"] == "MUL_MAT":
        m, n, k = node["ne"][0], node["ne"][1], node["src"][0]["ne"][0]
    elif node["op"] == "MUL_MAT_ID":
        m, n, k = node["ne"][0], node["ne"][2], node["src"][0]["ne"][0]
    elif node["op"] == "FLASH_ATTN_EXT":
        q, key = node["src"][0]["ne"], node["src"][1]["ne"]
        m, n, k = key[1], q[1], q[0]
    else:
        return {}
    return {"m": m, "n": n, "k": k, "class": ("", "GEMV", "GEMM")[min(n, 2)]}


def weight_of(node: Node) -> str | None:
    """The weight's name where the node multiplies by one."""
    if node["op"] in PRODUCTS and node["src"] and node["src"][0]["name"].endswith(".weight"):
        return str(node["src"][0]["name"])
    return None


def group_of(node: Node) -> tuple[str, str, str, str]:
    """(op, what, type, shape): what a line of the table stands for."""
    weight = weight_of(node)
    if weight is not None:
        what = re.sub(r"^blk\.\d+\.", "", weight)
        return node["op"], what, node["src"][0]["type"], f"{node['m']}x{node['k']}"
    name = re.sub(r"(-\d+)? ?(\(.*\))?$", "", node["name"])
    if node["op"] == "MUL_MAT":
        return node["op"], name, node["src"][0]["type"], ""
    kind = node["src"][1]["type"] if node["op"] == "FLASH_ATTN_EXT" else node["type"]
    return node["op"], "" if node["op"] not in PRODUCTS else name, kind, ""


def groups_of(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """A call's nodes by group: {"op", "what", "type", "shape", "nodes", "kernels", "backend"}, with
    every kernel that ran for one of its nodes. Only products, attention and what has kernels."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for node in nodes:
        if not node["kernels"] and node["op"] not in (*PRODUCTS, "FLASH_ATTN_EXT"):
            continue
        op, what, kind, shape = group_of(node)
        group = found.setdefault(
            (op, what, kind, shape),
            {"op": op, "what": what, "type": kind, "shape": shape, "nodes": 0, "kernels": []},
        )
        group["nodes"] += 1
        group["kernels"] = sorted({*group["kernels"], *node["kernels"]})
        group["backend"] = node["backend"]
    return list(found.values())


def layer_of(node: Node) -> int | None:
    found = re.match(r"blk\.(\d+)\.", weight_of(node) or "") or re.search(
        r"-(\d+)(?: |$)", node["name"]
    )
    return int(found[1]) if found else None
