"""A budget as text: the baseline, a table of lines, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.price import percent
from csb.render.compare import run_config
from csb.render.table import columns
from csb.render.text import harmless

Record = dict[str, Any]
HEADS = (
    "line", "memory", "single changed", "by up to", "block changed", "by up to", "equal",
    "median |gap|", "max |gap|", "median |pair gap|", "flips", "block time", "nodes",
)  # fmt: skip
PROVEN = "*"


def render(record: Record) -> str:
    baseline = record["baseline"]
    lines = [*run_config(baseline), "", *_table(record), "", *_notes(record)]
    lines += [baseline["verdict"].replace("csb:", "baseline:", 1), f"csb: {_closing(record)}"]
    return "\n".join(lines) + "\n"


def _closing(record: Record) -> str:
    if not record["valid"]:
        return f"the baseline is {record['outcome']}, so no line says anything"
    unfinished = "" if record["complete"] else "not finished: "
    return f"{unfinished}{record['conclusion']['text']}"


def _table(record: Record) -> Iterator[str]:
    base = record["baseline_summary"]
    asked = record["baseline"]["prefix"]["asked"]
    rows = [list(HEADS), ["baseline", asked, "", "", "", "", *_gap(base), "", ""]]
    names = [harmless(line["name"]) for line in record["lines"]]
    width = max(map(len, names), default=0)
    rows += [_line(line) for line in record["lines"] if line["summary"]]
    rows[0][0] = rows[0][0].ljust(width)
    measured = iter(columns(rows))
    yield next(measured)
    yield next(measured)
    for name, line in zip(names, record["lines"], strict=True):
        if line["summary"]:
            yield next(measured)
        else:
            why_not = harmless(line["why_not"]) or "the run ended before"
            yield f"{name.ljust(width)}  not measured: {why_not}"


def _line(line: Record) -> list[str]:
    name = harmless(line["name"])
    summary = line["summary"]
    single = _changed(summary["single"], summary["n_cells"], line.get("proven", 0) > 0)
    price, nodes = line["price"], line.get("nodes_changed")
    return [
        name,
        line["memory"],
        *single,
        *_changed(summary["block"], summary["n_cells"], False),
        *_gap(summary),
        percent(price["change"]) if price else "",
        "" if nodes is None else str(nodes) if nodes else "0: no effect",
    ]


def _changed(path: Record, n: int, proven: bool) -> tuple[str, str]:
    return f"{path['changed']} of {n}{PROVEN if proven else ''}", _number(path["max_abs"])


def _gap(s: Record) -> tuple[str, ...]:
    """equal, median and max |gap|, median |pair gap|, flips."""
    if not s["n_compared"]:
        return "one-row cells", "", "", "", str(s["n_flips"])
    return (
        f"{s['n_equal']} of {s['n_compared']}",
        _number(s["gap"]["median"]),
        _number(s["gap"]["max"]),
        _number(s["pair_gap"]["median"]),
        str(s["n_flips"]),
    )


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.4g}"


def _notes(record: Record) -> Iterator[str]:
    found, lines = record["conclusion"], record["lines"]
    yield (
        "changed: rows with other bits than the baseline's; equal: cells whose single and block "
        "row have the same bits; block time: against the baseline's block in the same window"
    )
    if any(line.get("proven") for line in lines):
        yield (
            f"{PROVEN} not decoded in every window: the records show that none of the kernels ran "
            "there, or the block itself was computed one row at a time"
        )
    every = max((line.get("every", 1) for line in lines if line["summary"]), default=1)
    if every > 1:
        yield f"lines with fewer rows: in one of {every} windows (--every 1: in all)"
    if any(line["family"] == "slots" and line["summary"] for line in lines):
        yield (
            "slots: each other sequence has a prefix of its own and one token in every call, all "
            "in one cache (kv_unified, as llama-server has it unless -np is given); the measured "
            "sequence keeps its cells"
        )
    for line in lines:
        if line["summary"] is not None and line["why_not"]:
            yield f"{line['name']}: ended after {line['n_windows']} windows: {line['why_not']}"
        yield from _against(line)
    if found["noise"]:
        yield f"noise: {found['noise']}"
    yield f"together: {found['interaction']}"
    if found["also_by"]:
        yield f"also without a gap: {', '.join(found['also_by'])}"


def _against(line: Record) -> Iterator[str]:
    if line["family"] != "against" or line["summary"] is None:
        return
    s = line["summary"]
    yield (
        f"{harmless(line['name'])}: the AR token's logit and the winners only; the winner differs "
        f"in {s['single']['argmax_changed']} single and {s['block']['argmax_changed']} block rows"
    )
    if line["differs"]:
        named = ", ".join(f"{k} {_short(a)} / {_short(b)}" for k, (a, b) in line["differs"].items())
        yield f"{harmless(line['name'])}: differs in (its / here) {harmless(named)}"


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
