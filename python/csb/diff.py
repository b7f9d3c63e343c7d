"""Two saved comparisons held against each other: settings first, then what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from csb import record
from csb.errors import ArgumentError, FileError

Record = dict[str, Any]
SCHEMA = {"name": "csb.diff", "version": 1}
UNSEEN = "not observable"


def load(path: Path) -> Record:
    """A record of csb compare that has an AR run. FileError otherwise."""
    found = record.load(path)
    if "ar" not in found:
        raise FileError(f"{path}: llama.cpp aborted this run, so it holds no AR run to compare")
    return found


def compare_records(a: Record, b: Record) -> Record:
    """What differs between two records of csb compare. ArgumentError where they are no two
    measurements of the same thing: other prompt ids, another vocabulary, another W."""
    _refuse(a, b)
    facts_a, facts_b = _facts(a), _facts(b)
    parted = parting(a["ar"], b["ar"])
    cells = _common_cells(a, b, parted)
    both = {
        "schema": SCHEMA,
        "block_width": a["block_width"],
        "prompt_tokens": a["prompt_tokens"],
        "settings": [
            {"name": name, "a": x, "b": y}
            for name, x, y in _differences(_beside(facts_a, facts_b), _beside(facts_b, facts_a))
        ],
        "n_gen": [a["n_gen"], b["n_gen"]],
        "parted": parted,
        "n_common": len(cells),
        "n_only": [len(a["cells"]) - len(cells), len(b["cells"]) - len(cells)],
        "first_cell": _first_changed(cells),
        "single": _change(cells, "l_s"),
        "block": _change(cells, "l_b"),
        "gap": [_gap(cells, 0), _gap(cells, 1)],
        "flips": _flips(cells),
    }
    # a difference of settings alone is none: it is what the records were made for
    measured = both["single"]["n_changed"] + both["block"]["n_changed"] + sum(both["n_only"])
    return {**both, "changed": bool(measured or parted)}


def _refuse(a: Record, b: Record) -> None:
    def vocabulary(of: Record) -> Any:
        return of["provenance"]["model"]["n_vocab"]

    for what, x, y in (
        ("prompt ids", a["prompt_tokens"], b["prompt_tokens"]),
        ("vocabulary", vocabulary(a), vocabulary(b)),
        ("block width", a["block_width"], b["block_width"]),
    ):
        if x != y:
            shown = "" if what == "prompt ids" else f": {x} and {y}"
            raise ArgumentError(f"the two records have not the same {what}{shown}")


# ---- settings -----------------------------------------------------------------------------------


def _facts(of: Record) -> dict[str, Any]:
    """{name: value} of everything that says under what a record was measured."""
    p, config = of["provenance"], of["config"]
    build = {k: v for k, v in p["build"].items() if k not in ("csb", "options", "hooks")}
    known = ("name", "description", "type", "driver", "api")
    devices = [{k: d[k] for k in known if k in d} for d in p["system"]["devices"]]
    facts: dict[str, Any] = {
        "csb": p["csb"],
        **build,
        **p["build"]["options"],
        "hooks": p["build"]["hooks"],
        "devices_here": devices,
        "cuda_here": p["system"].get("cuda", {}),
        "layers": _placed([*p["offload"]["layers"], p["offload"]["output"]]),
        "processor": p["processor"],
        "switches": p["switches"],
        "kernel_switches": p["kernel_switches"],
        "model": [f["sha256"][:12] for f in p["model"]["files"]],
        "model_type": p["model"]["type"],
        **{name: found["value"] for name, found in p["parameters"].items()},
        **{f"{path}_kernels": ran for path, ran in of.get("kernels", {}).items()},
    }
    facts |= {k: v for k, v in config.items() if k not in ("model", "model_name", "rendered")}
    return facts


def _beside(facts: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """With every kernel that only the other run names, where this one could not see all of its own:
    there it is unknown, not absent."""
    made = dict(facts)
    for name in ("single_kernels", "block_kernels"):
        mine, theirs = facts.get(name), others.get(name)
        if isinstance(mine, dict) and isinstance(theirs, dict) and mine["not_observable"]:
            kernels = {**dict.fromkeys(theirs["kernels"], UNSEEN), **mine["kernels"]}
            made[name] = {**mine, "n_threads": mine["n_threads"] or UNSEEN, "kernels": kernels}
    return made


def _placed(devices: list[str]) -> str:
    """Which layers lie where, the output last: `0..15 CPU, 16..30 CUDA0`."""
    runs = [(d, [i for i, _ in group]) for d, group in groupby(enumerate(devices), lambda x: x[1])]
    return ", ".join(f"{i[0]}..{i[-1]} {d}" if len(i) > 1 else f"{i[0]} {d}" for d, i in runs)


def _differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Names and both values; of lists and tables only what is not in both."""
    for name in dict.fromkeys([*a, *b]):
        x, y = a.get(name), b.get(name)
        if x == y:
            continue
        if isinstance(x, dict) and isinstance(y, dict):
            for key, inner_x, inner_y in _differences(x, y):
                yield f"{name}.{key}", inner_x, inner_y
        elif isinstance(x, list) and isinstance(y, list):
            only_x, only_y = [v for v in x if v not in y], [v for v in y if v not in x]
            same_values = not only_x and not only_y  # in another order, or another number of times
            yield (name, x, y) if same_values else (name, only_x, only_y)
        else:
            yield name, x, y


# ---- what was measured --------------------------------------------------------------------------


def parting(a: list[Record], b: list[Record]) -> Record | None:
    """Where the AR trajectories part: position, both tokens and their logits."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x["id"] != y["id"]:
            return {"position": position, "ids": [x["id"], y["id"]]} | {
                "logits": [x["logit"], y["logit"]]
            }
    return None


def _common_cells(a: Record, b: Record, parted: Record | None) -> list[tuple[Record, Record]]:
    """Cells whose inputs and target are the same tokens in both runs."""
    end = parted["position"] if parted else float("inf")
    others = {(c["t"], c["j"]): c for c in b["cells"]}
    found = [(c, others.get((c["t"], c["j"]))) for c in a["cells"] if c["pos"] < end]
    return [(x, y) for x, y in found if y is not None]


def _bits(value: float | None) -> bytes:
    return np.float64(np.nan if value is None else value).tobytes()


def _first_changed(cells: list[tuple[Record, Record]]) -> Record | None:
    for x, y in sorted(cells, key=lambda c: (c[0]["t"], c[0]["j"])):
        paths = [
            name
            for name, key in (("single", "l_s"), ("block", "l_b"))
            if _bits(x[key]) != _bits(y[key])
        ]
        if paths:
            return {key: x[key] for key in ("t", "j", "pos")} | {"paths": paths}
    return None


def _change(cells: list[tuple[Record, Record]], key: str) -> Record:
    """How many of the trajectory's logits changed between the two runs, and by how much."""
    changed = [(x[key], y[key]) for x, y in cells if _bits(x[key]) != _bits(y[key])]
    sizes = np.array([abs(x - y) for x, y in changed if x is not None and y is not None])
    return {
        "n": len(cells),
        "n_changed": len(changed),
        "median": float(np.median(sizes)) if len(sizes) else 0.0,
        "max": float(sizes.max(initial=0.0)),
    }


def _gap(cells: list[tuple[Record, Record]], which: int) -> Record:
    """One run's |gap| over the common cells that are comparisons."""
    compared = [pair[which] for pair in cells if pair[which]["ubatch_rows"] > 1]
    sizes = np.abs([c["dlogit"] for c in compared if c["dlogit"] is not None])
    return {
        "n": len(compared),
        "n_equal": sum(c["n_diff"] == 0 for c in compared),
        "mean": float(sizes.mean()) if len(sizes) else None,
        "median": float(np.median(sizes)) if len(sizes) else None,
        "max": float(sizes.max()) if len(sizes) else None,
    }


def _flips(cells: list[tuple[Record, Record]]) -> Record:
    """Cells that flip in both runs and in one alone."""
    flipped = [(x["amax_s"] != x["amax_b"], y["amax_s"] != y["amax_b"]) for x, y in cells]
    return {
        "both": flipped.count((True, True)),
        "a": flipped.count((True, False)),
        "b": flipped.count((False, True)),
    }
