"""A budget as a picture: the median gap that each line leaves. Needs the extra `plot`."""

from __future__ import annotations

import math
from typing import Any

from csb.errors import UnsupportedError
from csb.render.text import harmless

LINE = "tab:blue"
BASELINE = "tab:gray"


def bars(record: dict[str, Any]) -> list[tuple[str, float | None, bool]]:
    """(name, median |gap|, equal in every bit) of the baseline and of every measured line."""
    summaries = [("baseline", record["baseline_summary"])]
    summaries += [(harmless(line["name"]), line["summary"]) for line in record["lines"]]
    return [
        (name, s["gap"]["median"], s["n_equal"] == s["n_compared"])
        for name, s in summaries
        if s is not None and s["n_compared"]
    ]


def draw(record: dict[str, Any], path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'csb[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    shown = bars(record)
    sizes = [size for _, size, _ in shown if size]
    floor = 10.0 ** math.floor(math.log10(min(sizes, default=1.0)) - 0.3)
    top = 10.0 ** math.ceil(math.log10(max(sizes, default=1.0)) + 0.1)
    figure, axes = pyplot.subplots(figsize=(8, 0.25 * len(shown) + 1.5), layout="constrained")
    for place, (name, size, equal) in enumerate(shown):
        if size:
            axes.barh(place, size, left=0, color=LINE if name != "baseline" else BASELINE)
        note = "equal" if equal else "NaN" if size is None else "median 0" if not size else ""
        axes.text(floor, place, f" {note}", va="center", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(floor, top)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("median |gap| (logits)")
    axes.set_title(f"{shown[0][0] if shown else ''} and what is changed beside it", fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
