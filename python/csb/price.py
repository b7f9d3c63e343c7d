"""What a block costs against another one, from pairs of decodes of the same windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Price = dict[str, Any]


def price(seconds: Sequence[float], reference: Sequence[float]) -> Price | None:
    """Medians in ms, their ratio - 1 as `change`, and the quartiles of the pairs' own changes. None
    without a pair."""
    if not seconds:
        return None
    ours, theirs = np.asarray(seconds), np.asarray(reference)
    low, high = np.quantile(ours / theirs - 1, (0.25, 0.75))
    return {
        "n": len(ours),
        "median_ms": 1e3 * float(np.median(ours)),
        "reference_ms": 1e3 * float(np.median(theirs)),
        "change": float(np.median(ours) / np.median(theirs) - 1),
        "quartiles": [float(low), float(high)],
    }


def percent(change: float) -> str:
    return f"{100 * change:+.0f} %"


def said(found: Price | None) -> str:
    """ "a block costs 4 % more"; "about the same" where the pairs' quartiles lie on both sides."""
    if found is None:
        return "what a block costs was not measured"
    change, (low, high) = found["change"], found["quartiles"]
    if low <= 0 <= high:
        return f"a block costs about the same, {percent(low)} to {percent(high)}"
    return f"a block costs {abs(100 * change):.0f} % {'more' if change > 0 else 'less'}"


def medians(found: Price | None) -> str:
    """The numbers behind it, in brackets."""
    if found is None:
        return ""
    return (
        f" (median {found['median_ms']:.3g} ms against {found['reference_ms']:.3g} ms, "
        f"{found['n']} pairs)"
    )
