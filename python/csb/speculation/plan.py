"""What `csb speculate` is to do, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from csb.errors import ArgumentError
from csb.plan import ComparePlan, ContextPlan, ModelPlan, PromptPlan

DRAFTERS = ("oracle", "noisy", "ngram", "model", "dflash", "file")
WITH_FILE = ("model", "dflash", "file")  # drafters that take a path
WAYS = ("none", "margin", "repair", "kernels", "single", "f32")
GATED = ("margin", "repair")  # ways that take a TAU
TAUS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, math.inf)
AUDIT_EVERY = 16
EXACT_KERNELS = ("llamafile", "tiled", "split-kv")
"""Kernels whose rows depend on how many there are; see the README."""


@dataclass(frozen=True)
class DrafterPlan:
    """Who drafts. rate: of `noisy`; path: of WITH_FILE."""

    kind: str = "oracle"
    rate: float = 0.0
    path: Path = Path()

    def __str__(self) -> str:
        if self.kind == "noisy":
            return f"noisy:{self.rate:g}"
        return f"{self.kind}:{self.path}" if self.kind in WITH_FILE else self.kind


@dataclass(frozen=True)
class Way:
    """How the loop is kept on the AR trajectory: `none`, or one of WAYS. tau: of GATED."""

    kind: str = "none"
    tau: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.tau:g}" if self.kind in GATED else self.kind


@dataclass(frozen=True)
class SpeculatePlan:
    """The loop beside the AR run, for each prompt: ungated, and again with each of `ways`."""

    model: ModelPlan
    context: ContextPlan
    prompts: tuple[PromptPlan, ...] = (PromptPlan(),)
    n_gen: int = 100
    width: int = 5
    drafter: DrafterPlan = field(default_factory=DrafterPlan)
    seed: int = 0
    ways: tuple[Way, ...] = ()
    frontier: bool = False
    without: tuple[str, ...] = ()  # kernel switches of every decode

    @property
    def exact(self) -> str:
        """The kind of the ways, `none` where there are none."""
        return self.ways[0].kind if self.ways else "none"

    def compare_plan(self, prompt: PromptPlan, prefix: str) -> ComparePlan:
        """The comparison that tells how large rounding is on this prompt: each position once."""
        return ComparePlan(
            model=self.model,
            context=self.context,
            prompt=prompt,
            n_gen=self.n_gen,
            width=self.width,
            stride=self.width,
            prefix=prefix,
        )

    def check(self) -> None:
        if self.width < 2:
            raise ArgumentError("--block-width 1 drafts nothing: give 2 or more")


def frontier_ways(kind: str) -> tuple[Way, ...]:
    return tuple(Way(kind, tau) for tau in TAUS)
