"""A saved comparison of another build as a line of a budget: the same tokens, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csb import budget_record, record
from csb.errors import FileError

Record = dict[str, Any]
Pairs = list[tuple[Record, Record]]
NEEDED = {"provenance", "prompt_tokens", "block_width", "ar", "cells", "config"}
SAME = ("flash_attn", "n_threads", "n_threads_batch", "n_ubatch", "type_k", "type_v", "prefix",
        "repack", "without", "exact_block")  # fmt: skip


def load(path: Path) -> Record:
    """A record of csb compare, or the baseline of one of csb budget. FileError otherwise."""
    found = record.load(path, record.SCHEMA, budget_record.SCHEMA)
    inside = found.get("baseline") if found["schema"] == budget_record.SCHEMA else found
    if not isinstance(inside, dict) or not inside.keys() >= NEEDED:
        raise FileError(f"{path}: is no whole record of csb compare or csb budget")
    return inside


def line(theirs: Record, ours: Record, name: str) -> Record:
    """Their cells against ours. Only the AR token's logit and the winners are in a record: a cell
    that is equal here may differ elsewhere in the vocabulary."""
    pairs, why_not = _pairs(theirs, ours)
    return {
        "family": "against",
        "name": f"against {name}",
        "memory": "its own",
        "differs": differs(theirs, ours),
        "why_not": why_not,
        "complete": not why_not,
        "scope": "logit",
        "summary": _summary(pairs) if pairs else None,
        "price": None,
        "cells": [],
    }


def _model(of: Record) -> list[str]:
    return [f["sha256"] for f in of["provenance"]["model"].get("files", [])]


def _pairs(theirs: Record, ours: Record) -> tuple[Pairs, str]:
    """Cells of the same windows, or why there are none."""
    if not _model(theirs) or _model(theirs) != _model(ours):
        return [], "it is of another model file"
    if theirs["prompt_tokens"] != ours["prompt_tokens"]:
        return [], "its prompt has other tokens"
    if theirs["block_width"] != ours["block_width"]:
        return [], f"its block width is {theirs['block_width']}, this one's {ours['block_width']}"
    a, b = ([x["id"] for x in of["ar"]] for of in (theirs, ours))
    same = next((p for p, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    same = min(len(a), len(b)) if same is None else same
    width = ours["block_width"]
    by_place = {(c["t"], c["j"]): c for c in theirs["cells"]}
    pairs = [
        (by_place[c["t"], c["j"]], c)
        for c in ours["cells"]
        if (c["t"], c["j"]) in by_place and c["t"] + _rows(c["t"], width, a, b) <= same
    ]
    if not pairs:
        return [], f"its trajectory parts from this one at position {same}: no window is the same"
    return pairs, ""


def _rows(t: int, width: int, a: Sequence[int], b: Sequence[int]) -> int:
    """Rows of window t, the more of the two: near a trajectory's end they are fewer."""
    return min(width, max(len(a), len(b)) - t)


def _bits_differ(x: float | None, y: float | None) -> bool:
    if x is None or y is None:
        return x is not y
    return x != y or math.copysign(1, x) != math.copysign(1, y)


def _changed(pairs: Pairs, path: str) -> Record:
    key = f"l_{path}"
    differ = [(x[key], y[key]) for x, y in pairs if _bits_differ(x[key], y[key])]
    bad = any(None in pair for pair in differ)
    return {
        "changed": len(differ),
        "max_abs": None if bad else max((abs(x - y) for x, y in differ), default=0.0),
        "argmax_changed": sum(x[f"amax_{path}"] != y[f"amax_{path}"] for x, y in pairs),
    }


def _summary(pairs: Pairs) -> Record:
    theirs = [x for x, _ in pairs]
    compared = [x for x in theirs if x["ubatch_rows"] > 1]
    gap, pair = ([abs(x[k]) for x in compared if x[k] is not None] for k in ("dlogit", "pair_gap"))
    return {
        "n_cells": len(pairs),
        "n_compared": len(compared),
        "n_equal": sum(x["n_diff"] == 0 for x in compared),
        "single": _changed(pairs, "s"),
        "block": _changed(pairs, "b"),
        "gap": {"median": _median(gap), "max": max(gap, default=None)},
        "pair_gap": {"median": _median(pair)},
        "n_flips": sum(x["amax_s"] != x["amax_b"] for x in theirs),
    }


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def differs(theirs: Record, ours: Record) -> dict[str, list[Any]]:
    """{what: [theirs, ours]} of builds, machines and settings: what a difference can come from."""
    build = {
        f"build.{key}": [of["provenance"].get("build", {}).get(key) for of in (theirs, ours)]
        for key in ("llama_commit", "compiler", "build_type", "cpu_flags", "cpu_features")
    }
    options = [of["provenance"].get("build", {}).get("options", {}) for of in (theirs, ours)]
    build |= {
        f"build.{key}": [of.get(key) for of in options]
        for key in sorted({*options[0], *options[1]})
    }
    machine = {
        "processor": [of["provenance"].get("processor", {}).get("name") for of in (theirs, ours)]
    }
    config = {key: [of["config"].get(key) for of in (theirs, ours)] for key in SAME}
    return {k: v for k, v in (build | machine | config).items() if v[0] != v[1]}
