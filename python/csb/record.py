"""The record of a comparison: the JSON that is saved, and what text is rendered from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from csb import cells, statistics, verdict
from csb.errors import FileError
from csb.measure.compare import Measurement
from csb.plan import ComparePlan, ModelPlan
from csb.prompt.resolve import Prompt
from csb.render.text import harmless

SCHEMA = {"name": "csb.compare", "version": 1}
Record = dict[str, Any]


def build(
    plan: ComparePlan,
    prompt: Prompt,
    provenance: dict[str, Any],
    measured: Measurement,
    piece: Callable[[int], bytes],
    seconds: dict[str, float],
) -> Record:
    """The seed's keys and csb's. `piece` gives a token's bytes."""
    table = measured.cells
    controls = measured.controls.to_json()
    observed = controls.pop("kernels")
    summary = statistics.summarise(table, plan.decided)
    complete = measured.stopped is None
    outcome = verdict.judge(summary, controls, complete)
    ar = measured.trajectory
    return {
        **head(plan, prompt, provenance),
        "complete": complete,
        "outcome": outcome.value,
        "verdict": verdict.line(outcome, summary, controls),
        "n_gen": len(ar.ids),
        "ended": ar.ended,
        "ar": [{"id": i, "logit": logit} for i, logit in zip(ar.ids, ar.logits, strict=False)],
        "n_flips": summary["n_flips"],
        "n_flip_positions": summary["n_flip_positions"],
        "flips_by_class": summary["flips_by_class"],
        "flips": _flips(table, statistics.classify(table, plan.decided)),
        "stats": statistics.pairwise(table),
        "summary": summary,
        "controls": controls,
        "kernels": {path: seen or "not observable" for path, seen in observed.items()},
        "prefix": measured.prefix.to_json(),
        "exact_block": measured.exact and measured.exact.to_json(),
        "seconds": {**seconds, **measured.seconds},
        "pieces": _pieces(table, ar.ids, piece),
        "cells": cells.to_json(table),
    }


def head(plan: ComparePlan, prompt: Prompt, provenance: dict[str, Any]) -> Record:
    """What is known before the first decode."""
    return {
        "schema": SCHEMA,
        "prompt": prompt.text,
        "prompt_tokens": prompt.tokens,
        "block_width": plan.width,
        "config": {
            **settings(plan.model, provenance),
            "n_gen": plan.n_gen,
            "stride": plan.stride,
            "prefix": plan.prefix,
            "temperature": plan.temperature,
            "decided": plan.decided,
            "without": list(plan.without),
            "exact_block": plan.exact_block and list(plan.exact_block),
            **prompt.to_json(),
        },
        "provenance": provenance,
    }


def settings(model: ModelPlan, provenance: dict[str, Any]) -> Record:
    """What every record's `config` begins with."""
    value = {name: p["value"] for name, p in provenance["parameters"].items()}
    names = (
        *("flash_attn", "n_gpu_layers", "n_threads", "n_threads_batch", "n_batch", "n_ubatch"),
        *("n_ctx", "type_k", "type_v"),
    )
    return {
        "model": str(model.path),
        "model_name": model.name,
        **{name: value[name] for name in names},
        "repack": model.repack,
    }


def _flips(table: cells.Cells, classes: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    return [
        {
            "t": cells.number(cell["t"]),
            "j": cells.number(cell["j"]),
            "pos": cells.number(cell["pos"]),
            "single_id": cells.number(cell["amax_s"]),
            "block_id": cells.number(cell["amax_b"]),
            "l_single_max": cells.number(cell["lmax_s"]),
            "l_block_max": cells.number(cell["lmax_b"]),
            "l_s": cells.number(cell["l_s"]),
            "l_b": cells.number(cell["l_b"]),
            "ar_id": cells.number(cell["id"]),
            "margin": cells.number(cell["margin_s"]),
            "crossed": cells.number(cell["crossed"]),
            "class": str(name) or "one_row",
        }
        for cell, name in zip(table, classes, strict=True)
        if cell["amax_s"] != cell["amax_b"]
    ]


def _pieces(table: cells.Cells, ids: list[int], piece: Callable[[int], bytes]) -> dict[str, str]:
    """Texts of the tokens that the record names, so that it can be read without the model."""
    named = {*ids, *map(int, table["amax_s"]), *map(int, table["amax_b"])}
    return {str(i): harmless(piece(i)) for i in sorted(named) if i >= 0}


def dumps(record: Record) -> str:
    """One line per element of the long lists: readable, and no longer than need be."""
    long = {"ar", "cells", "flips", "lines", "places"}
    parts = []
    for key, value in record.items():
        if key in long and value and isinstance(value, list):
            items = ",\n".join("  " + compact(v) for v in value)
            parts.append(f" {compact(key)}: [\n{items}\n ]")
        else:
            parts.append(f" {compact(key)}: {compact(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def compact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # bytes of a path or prompt that are no UTF-8 are lone surrogates, which no file can hold
    return re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", text)


def load(path: Path, *schemas: Record) -> Record:
    """A saved record of one of these schemas, or of csb compare. FileError if it is no JSON, or of
    another one."""
    schemas = schemas or (SCHEMA,)
    known = " or ".join(str(s["name"]) for s in schemas)
    try:
        record: Record = json.loads(path.read_text("utf-8"))
        schema = record["schema"]
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: not a record of {known.replace('.', ' ')}") from error
    if schema not in schemas:
        wanted = " or ".join(f"{s['name']} {s['version']}" for s in schemas)
        raise FileError(f"{path}: has schema {schema}, this csb reads {wanted}")
    return record
