"""What a budget's numbers amount to: the smallest set of switches that leaves no gap, or what
leaves least. Never more than the cells that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from csb.price import Price, said

KERNELS = {
    "llamafile": "llamafile_sgemm",
    "tiled": "ggml_compute_forward_mul_mat_tiled",
    "split-kv": "split-KV attention",
}
REPACKED = "the repacked weights' kernels"
REFERENCE = "reference"
WEAKER = "no line says more than that, and a gap of 0 may be luck"


@dataclass(frozen=True)
class Tried:
    """A combination of switches: compared cells, those equal in every bit, and |gap| of the cells.
    whole: measured in every window of the baseline. gap None: stopped at the first unequal cell."""

    switches: tuple[str, ...]
    repack: bool
    n_compared: int
    n_equal: int
    whole: bool
    gap: float | None  # median
    gap_max: float | None
    price: Price | None

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def removes(self) -> bool:
        return self.whole and 0 < self.n_compared == self.n_equal

    @property
    def members(self) -> list[str]:
        return [*([] if self.repack else ["--no-repack"]), *self.switches]

    @property
    def parts(self) -> list[str]:
        names = [KERNELS.get(name, name) for name in self.switches]
        return names if self.repack else [REPACKED, *names]

    @property
    def option(self) -> str:
        """How to have it."""
        without = f"--without {','.join(self.switches)}" if self.switches else ""
        return " ".join(filter(None, ("" if self.repack else "--no-repack", without)))


def _rank(t: Tried) -> tuple[Any, ...]:
    """Fewest first; what can be switched while csb runs before what needs another load."""
    cost = t.price["change"] if t.price else 0.0
    return REFERENCE in t.switches, t.size, not t.repack, cost


def conclude(
    baseline: dict[str, Any],
    noise: dict[str, Any] | None,
    repeats: dict[str, int],
    tried: Sequence[Tried],
    why_none: str,
    out_of_reach: Sequence[str] = (),
) -> dict[str, Any]:
    """`text` is the closing line; `interaction` what the lines do together; `noise` what a second
    time that differs takes from them. baseline, noise: summaries of their cells, as
    csb.budget_record makes them; why_none: why nothing was tried; out_of_reach: backends whose
    kernels can't be switched."""
    removing = sorted((t for t in tried if t.removes), key=_rank)
    found: Tried | None = removing[0] if removing else None
    if not baseline["n_compared"]:
        found, text = None, "nothing was compared"
    elif baseline["n_equal"] == baseline["n_compared"]:
        found, text = None, _no_gap(baseline["n_compared"])
    elif found is not None:
        text = _removed(found)
    elif not tried:
        text = f"what the gap comes from was not measured: {why_none}"
    else:
        text = _least(baseline, tried)
        if out_of_reach:
            text += f"; the kernels on {', '.join(out_of_reach)} can't be switched"
    return {
        "text": text,
        "removed_by": found and {"switches": list(found.switches), "no_repack": not found.repack},
        "also_by": [t.option for t in removing[1:] if found and t.size == found.size],
        "n_cells": found.n_compared if found else None,
        "price": found.price if found else None,
        "interaction": interaction(found, tried),
        "noise": weaker(noise, repeats),
    }


def _no_gap(n: int) -> str:
    return f"on this build there is no gap: single and block are bit-identical in all {n} cells"


def _removed(t: Tried) -> str:
    cost = f"single and block are bit-identical and {said(t.price)} (use {t.option})"
    if REFERENCE in t.switches:
        return (
            f"on this build all of the gap in {t.n_compared} cells goes with the reference kernels "
            f"for the whole graph, many at once: which of them it is they do not tell; {cost}"
        )
    parts = t.parts
    if len(parts) == 1:
        names, all_of_them = parts[0], "it"
    else:
        names = f"{', '.join(parts[:-1])} and {parts[-1]} together"
        all_of_them = "both" if len(parts) == 2 else "all of them"
    if not t.repack and len(parts) == 1:
        all_of_them = "them"
    return (
        f"on this build all of the gap in {t.n_compared} cells comes from {names}; "
        f"without {all_of_them} {cost}"
    )


def _least(baseline: dict[str, Any], tried: Sequence[Tried]) -> str:
    measured = [t for t in tried if t.gap is not None and t.gap_max is not None]
    before = baseline["gap"]
    if not measured:
        return "no switch was measured in every cell"
    least = min(measured, key=lambda t: (t.gap, t.gap_max))
    if (least.gap, least.gap_max) >= (before["median"], before["max"]):
        return "no switch removes the gap, and none makes it smaller"
    return (
        f"no switch removes the gap: {least.option} leaves least, a median |gap| of "
        f"{least.gap:.4g} where the baseline has {before['median']:.4g} "
        f"({least.n_equal} of {least.n_compared} cells equal in every bit)"
    )


def interaction(found: Tried | None, tried: Sequence[Tried]) -> str:
    """What the switches do together that they do not do alone."""
    alone = {t.members[0]: t for t in tried if t.size == 1 and t.gap is not None}
    together = found
    if together is None:
        whole = [t for t in tried if t.gap is not None and t.size > 1]
        together = max(whole, key=lambda t: t.size, default=None)
    if together is None or together.size < 2 or REFERENCE in together.switches:
        return (
            "the lines need not add up: each is measured alone, and what a kernel parts another "
            "one can part further or hide"
        )
    shown = [
        f"{name} alone leaves a median |gap| of {alone[name].gap:.4g}"
        for name in together.members
        if name in alone
    ]
    left = 0 if together.removes else together.gap
    return "; ".join([*shown, f"together {left:.4g}"])


def weaker(noise: dict[str, Any] | None, repeats: dict[str, int]) -> str:
    """What it means that a second time was not the same."""
    if repeats["n_equal"] < repeats["n"]:
        return (
            f"{repeats['n'] - repeats['n_equal']} of {repeats['n']} rows of the baseline came out "
            f"otherwise when they were decoded again on the same memory: {WEAKER}"
        )
    if noise is None:
        return f"a second time was not measured to the end: {WEAKER}"
    changed = noise["single"]["changed"] + noise["block"]["changed"]
    if not changed:
        return ""
    worst = [noise[path]["max_abs"] for path in ("single", "block")]
    size = "NaN" if None in worst else f"{max(worst):.4g}"
    return (
        f"the same decodes a second time differ in {changed} of {2 * noise['n_cells']} rows, by up "
        f"to {size}: {WEAKER}"
    )
