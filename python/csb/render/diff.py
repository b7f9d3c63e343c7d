"""Two comparisons side by side, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from csb.render.table import columns
from csb.render.text import harmless

Record = dict[str, Any]


def render(diff: Record, names: tuple[str, str]) -> str:
    return "\n".join(_lines(diff, *(harmless(n) for n in names))) + "\n"


def _lines(diff: Record, a: str, b: str) -> Iterator[str]:
    yield f"A: {a}"
    yield f"B: {b}"
    for setting in diff["settings"]:
        yield f"{setting['name']}: {_value(setting['a'])} -> {_value(setting['b'])}"
    if not diff["settings"]:
        yield "settings, build and machine: the same"
    if parted := diff["parted"]:
        x, y = parted["ids"]
        yield f"AR trajectories part at position {parted['position']}: token {x} -> {y}"
    else:
        shorter = min(diff["n_gen"])
        yield f"AR trajectories: the same {shorter} tokens" + _length(diff["n_gen"])
    only_a, only_b = diff["n_only"]
    yield f"cells in both: {diff['n_common']}; only in A {only_a}, in B {only_b}"
    if first := diff["first_cell"]:
        yield (
            f"the first that differs: t={first['t']} j={first['j']} position {first['pos']}, "
            f"{' and '.join(first['paths'])} path"
        )
    rows = [["", "changed", "of", "median |A-B|", "max |A-B|"]]
    for path in ("single", "block"):
        found = diff[path]
        rows.append(
            [f"{path} path", str(found["n_changed"]), str(found["n"])]
            + [f"{found[key]:.4g}" for key in ("median", "max")]
        )
    yield from columns(rows)
    rows = [["|gap| in", "cells", "equal bits", "mean", "median", "max"]]
    for name, gap in zip("AB", diff["gap"], strict=True):
        sizes = ["-" if gap[k] is None else f"{gap[k]:.4g}" for k in ("mean", "median", "max")]
        rows.append([name, str(gap["n"]), str(gap["n_equal"]), *sizes])
    yield from columns(rows)
    flips = diff["flips"]
    yield f"flips: in both {flips['both']}, only in A {flips['a']}, only in B {flips['b']}"
    yield "csb: " + ("the measurements differ" if diff["changed"] else "the same measurements")


def _length(n: list[int]) -> str:
    return "" if n[0] == n[1] else f" (A has {n[0]}, B {n[1]})"


def _value(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return " ".join(f"{k}={_value(v)}" for k, v in value.items())
    return harmless(str(value)) or "none"
