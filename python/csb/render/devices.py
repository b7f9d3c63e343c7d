"""Devices in text: what they are, what ran on them and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.render.text import harmless

Record = dict[str, Any]


def about(device: Record) -> str:
    """Its name by its maker, with driver and version where they are known."""
    return ", ".join(device[k] for k in ("description", "driver", "api") if device.get(k))


def ran_on(provenance: Record) -> str:
    """The devices that layers were given to, and beside the CPU its helpers (BLAS)."""
    offload = provenance.get("offload")
    if not offload:
        return ",".join(provenance["parameters"]["devices"]["value"] or ["CPU"])
    devices = provenance.get("system", {}).get("devices", [])
    helpers = [d["name"] for d in devices if d["type"] == "accel"]
    used = [*offload["layers"], offload["output"]]
    if "CPU" in used:
        used += [name for name in offload["backends"] if name in helpers]
    return ",".join(dict.fromkeys(used))


def holdings(provenance: Record) -> Iterator[str]:
    """What each device holds; nothing where all is in the machine's own memory."""
    offload = provenance.get("offload")
    if not offload or all(b["host"] for b in offload["buffers"]):
        return
    known = {d["name"]: d for d in provenance["system"]["devices"]}
    layers = [*offload["layers"], offload["output"]]
    for name in dict.fromkeys(b["device"] or b["name"] for b in offload["buffers"]):
        held = [b for b in offload["buffers"] if (b["device"] or b["name"]) == name]
        sizes = {k: sum(b[k] for b in held) / 2**20 for k in ("model", "memory", "compute")}
        said = f" ({harmless(about(known[name]))})" if name in known else ""
        yield (
            f"device {name}{said}: "
            f"{layers.count(name)} of {len(layers)} layers; MiB of weights {sizes['model']:.1f}, "
            f"memory {sizes['memory']:.1f}, compute {sizes['compute']:.1f}"
        )


def effect(n_changed: int, provenance: Record) -> str:
    """What a kernel switch did that changed the kernels of so many nodes."""
    placed = provenance["offload"]
    there = dict.fromkeys(d for d in (*placed["layers"], placed["output"]) if d != "CPU")
    out = f"; kernels on {', '.join(there)} are out of its reach" if there else ""
    if n_changed:
        return f"changes the kernels of {n_changed} nodes{out}"
    return f"had NO effect on the kernels that ran{out}"
