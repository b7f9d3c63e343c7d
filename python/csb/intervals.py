"""Intervals for what was counted: exact ones for shares, Student's for means over prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

CONFIDENCE = 0.95
# 97.5 % points of Student's t for 1 to 30 degrees of freedom; beyond, 4 % too wide at most
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def clopper_pearson(k: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a share of which k in n independent draws were seen. Never too narrow:
    it covers the true share with at least that confidence."""
    if not 0 <= k <= n:
        raise ValueError(f"{k} of {n}")
    half = (1 - confidence) / 2
    low = 0.0 if k == 0 else _root(lambda p: 1 - _at_most(k - 1, n, p) - half)
    high = 1.0 if k == n else _root(lambda p: half - _at_most(k, n, p))
    return low, high


def _at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of a binomial X."""
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    ]
    return math.fsum(map(math.exp, logs))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def mean_over(
    values: Sequence[float], least: float = -math.inf, most: float = math.inf
) -> dict[str, object]:
    """{"n", "mean", "interval"}: the mean of one number for each prompt, and Student's 95 %
    interval of it, which ends where the numbers can't go. Of fewer than two there is none."""
    numbers = np.asarray(values, np.float64)
    n = len(numbers)
    if not n:
        return {"n": 0, "mean": None, "interval": None}
    mean, interval = float(numbers.mean()), None
    if n > 1:
        half = STUDENT[min(n - 1, len(STUDENT)) - 1] * float(numbers.std(ddof=1)) / math.sqrt(n)
        interval = [max(least, mean - half), min(most, mean + half)]
    return {"n": n, "mean": mean, "interval": interval}
