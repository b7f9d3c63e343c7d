"""Speculative runs as a picture: how long texts stay on the AR trajectory and how fast they are
made, or a frontier's curve. Needs the extra `plot`."""

from __future__ import annotations

from typing import Any

from csb.errors import UnsupportedError
from csb.render.speculate import name_of

Record = dict[str, Any]


def draw(record: Record, path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'csb[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    if record["config"]["frontier"]:
        figure, axes = pyplot.subplots(3, 1, figsize=(7, 8), layout="constrained", sharex=True)
        _frontier(axes, record)
    else:
        figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
        _survival(axes[0], record)
        _speed(axes[1], record)
    title = f"W={record['block_width']}, drafter {record['config']['drafter']}"
    figure.suptitle(f"{title}, {len(record['prompts'])} prompts", fontsize=9)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def survival(loops: list[Record], n: int) -> list[int]:
    """How many texts are still the AR run's before each of n positions."""
    firsts = [loop["partings"][0]["pos"] if loop["partings"] else n for loop in loops]
    return [sum(first >= p for first in firsts) for p in range(n + 1)]


def _loops(record: Record) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for prompt in record["prompts"]:
        for run in prompt["runs"]:
            for loop in run["loops"]:
                found.setdefault(loop["way"], []).append(loop)
    return found


def _survival(axes: Any, record: Record) -> None:
    for way, loops in _loops(record).items():
        n = max(len(loop["ids"]) for loop in loops)
        axes.step(range(n + 1), survival(loops, n), where="post", label=name_of(way))
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("generated position")
    axes.set_ylabel("texts that are still AR's")
    axes.legend(fontsize=7)


def _speed(axes: Any, record: Record) -> None:
    runs = [run for p in record["prompts"] for run in p["runs"][:1] if run["ar"] is not None]
    tokens = sum(len(run["ar"]["ids"]) for run in runs)
    bars = {"AR run": tokens / sum(run["ar"]["seconds"] for run in runs)} if runs else {}
    bars |= {name_of(r["way"]): r["tokens_per_second"] for r in record["summary"]["ways"]}
    axes.barh(list(bars), list(bars.values()))
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second")


def _frontier(axes: Any, record: Record) -> None:
    rows = [row for row in record["summary"]["ways"] if ":" in row["way"]]
    labels = [row["way"].partition(":")[2] for row in rows]
    places = range(len(rows))
    n = max((row["n"] for row in rows), default=1)

    parted = [row["parted"] / row["n"] for row in rows]
    low = [p - row["parted_interval"][0] for p, row in zip(parted, rows, strict=True)]
    high = [row["parted_interval"][1] - p for p, row in zip(parted, rows, strict=True)]
    axes[0].errorbar(places, parted, yerr=[low, high], marker="o", capsize=3, label="in all")
    alone = [row["parted_alone"] / row["n"] for row in rows]
    axes[0].plot(places, alone, marker="x", linestyle="--", label="at a row decoded alone")
    axes[0].set_ylabel(f"share of {n} texts that part")
    axes[0].legend(fontsize=7)
    axes[1].plot(places, [row["alone_share"]["mean"] for row in rows], marker="o")
    axes[1].set_ylabel("share of rows decoded alone")
    axes[2].plot(places, [row["tokens_per_second"] for row in rows], marker="o")
    plain = next((r for r in record["summary"]["ways"] if r["way"] == "none"), None)
    if plain is not None:
        axes[2].axhline(plain["tokens_per_second"], linestyle=":", label="plain loop")
        axes[2].legend(fontsize=7)
    axes[2].set_ylabel("tokens per second")
    axes[2].set_xticks(list(places), labels)
    axes[2].set_xlabel("TAU")
