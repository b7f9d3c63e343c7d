"""What the records of `tests/gpu/run measure` say together, and its report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kernel_table
from steps import RUNS, SWITCHES, TYPES, Step

SINGLE = ("l_s", "amax_s", "lmax_s", "margin_s", "p_s", "rank_s", "top2_s")
BLOCK = ("l_b", "amax_b", "lmax_b", "margin_b", "rank_b", "top2_b", "kl", "n_diff", "rms")
Records = Mapping[str, dict[str, Any]]


def load(steps: list[Step], out: Path) -> dict[str, dict[str, Any]]:
    """The records by step name; a step that was killed has none."""
    found = {}
    for step in steps:
        path = out / f"{step.name}.json"
        try:
            found[step.name] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return found


def digest(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """Of a comparison's values: floats round-trip in JSON, so equal text is equal bits."""
    values = [record["ar"], [[cell[k] for k in keys] for cell in record["cells"]]]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]


def find(records: Records, device: bool = True) -> dict[str, Any]:
    """kernels: the table; graphs: where CUDA graphs keep the kernels; repeats: digests of the
    runs that must be equal; switches: digests under each switch; watching: what changes bits."""
    kernels, graphs, repeats, switches, watching = {}, {}, {}, {}, {}
    for kind in TYPES:
        plain, default = (records.get(f"trace {kind} {s}") for s in ("no graphs", "default"))
        if plain and device:
            kernels[kind] = kernel_table.held(plain, kind)
        if plain and default and device:
            graphs[kind] = [
                {k["kernel"]: k["count"] for k in a["device_kernels"]}
                == {k["kernel"]: k["count"] for k in b["device_kernels"]}
                for a, b in zip(plain["calls"], default["calls"], strict=True)
            ]
        runs = [records.get(f"compare {kind} default {i}") for i in range(1, RUNS + 1)]
        repeats[kind] = [digest(r, SINGLE) + digest(r, BLOCK) for r in runs if r]
        switches[kind] = {
            name: {path: digest(r, keys) for path, keys in (("single", SINGLE), ("block", BLOCK))}
            for name in SWITCHES
            if (r := records.get(f"compare {kind} {name} 1"))
        }
        watching[kind] = {
            name: records[step]["perturbed"]
            for name, step in (
                ("trace", f"trace {kind} default"),
                ("trace, no graphs", f"trace {kind} no graphs"),
                ("locate", f"locate {kind} default"),
                ("locate, no fusion", f"locate {kind} no fusion"),
            )
            if step in records
        }
    return {
        "kernels": kernels,
        "graphs": graphs,
        "repeats": repeats,
        "switches": switches,
        "watching": watching,
    }


def report(found: Mapping[str, Any], steps: list[Step], records: Records) -> Iterator[str]:
    """The lines of the report."""
    yield from _kernels(found["kernels"])
    for kind, same in found["graphs"].items():
        rows = [str(n) for n, s in zip(kernel_table.ROWS, same, strict=True) if not s]
        yield f"{kind}: kernels with and without CUDA graphs: " + (
            f"differ at {', '.join(rows)} rows" if rows else "the same"
        )
    yield ""
    for kind, digests in found["repeats"].items():
        same = "the same bits" if len(set(digests)) == 1 else "DIFFERENT bits"
        made = f"{kind}: {len(digests)} of {RUNS} runs made"
        yield f"{made}, {same}" if len(digests) > 1 else made
    for kind, of in found["switches"].items():
        for name, paths in of.items():
            if name != "default" and "default" in of:
                same = [f"{p} path {_same(d == of['default'][p])}" for p, d in paths.items()]
                yield f"{kind}, {name}: {', '.join(same)} as by default"
    for kind, changed in found["watching"].items():
        said = ", ".join(f"{w} {'CHANGES' if c else 'keeps'}" for w, c in changed.items())
        yield f"{kind}: bits under watching: {said or 'not measured'}"
    yield ""
    for step in steps:
        yield f"{step.name}: {_ending(step)}{_more(records.get(step.name, {}))}"
    bad = [step.name for step in steps if not step.ok]
    yield f"tests/gpu/run: {len(steps) - len(bad)} of {len(steps)} steps ended as they should" + (
        f"; not so: {', '.join(bad)}" if bad else ""
    )


def _kernels(kernels: Mapping[str, Any]) -> Iterator[str]:
    if not kernels:
        yield "no trace of a device: nothing was held against the table"
        return
    heads = ["", *(f"{n} rows" for n in kernel_table.ROWS)]
    lines = [heads]
    for kind, of in kernels.items():
        for what in ("products", "attention"):
            lines.append([f"{kind} {what}", *(of[what][n].split(":")[0] for n in of[what])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        yield "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
    differs = [line for of in kernels.values() for line in of["differs"]]
    held = sum(len(of[what]) for of in kernels.values() for what in ("products", "attention"))
    yield f"cells that differ from the table: {len(differs)} of {held}"
    yield from (f"  {line}" for line in differs)


def _same(yes: bool) -> str:
    return "the same bits" if yes else "other bits"


def _ending(step: Step) -> str:
    if step.exit is None:
        return "not run: no time was left"
    lines = [step.said, *step.complaint.splitlines()[-2:]]
    return f"exit {step.exit}, {step.seconds:.1f} s: {' | '.join(filter(None, lines))}"


def _line(line: Mapping[str, Any]) -> str:
    """Of a budget: how far its rows move from the baseline's."""
    if line["why_not"]:
        return f"{line['name']}: {line['why_not']}"
    paths = (f"{path} {line['summary'][path]['max_abs']:.3g}" for path in ("single", "block"))
    return f"{line['name']}: by up to {', '.join(paths)}"


def _more(record: Mapping[str, Any]) -> str:
    if "rows_agree" in record:
        return f" | {record['rows_agree']}"
    if "lines" in record:
        return "".join(f" | {_line(line)}" for line in record["lines"])
    limits = record.get("summary", {}).get("quantiles", {}).get("abs_gap", {})
    if not limits:
        return ""
    equal, compared = record["summary"]["n_equal"], record["summary"]["n_compared"]
    return f" | |gap| median {limits['0.5']:.4g} max {limits['1.0']:.4g}, {equal}/{compared} equal"
