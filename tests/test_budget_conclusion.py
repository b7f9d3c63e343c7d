"""`csb budget`: what measured lines are said to amount to. Pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csb import conclusion
from csb.conclusion import Tried
from csb.plan import EXACT_SWITCHES

SUMMARY = {"n_compared": 40, "n_equal": 3, "gap": {"median": 0.02, "max": 0.2}}
QUIET = {"single": {"changed": 0}, "block": {"changed": 0}, "n_cells": 44}


def tried(*switches: str, gap: float | None = 0.0, n_equal: int = 40, **changes: Any) -> Tried:
    price = {
        "n": 9,
        "median_ms": 1.04,
        "reference_ms": 1.0,
        "change": 0.04,
        "quartiles": [0.03, 0.05],
    }
    made = Tried(switches, True, 40, n_equal, gap is not None, gap, gap and 2 * gap, price)
    return replace(made, **changes)


def conclude(*made: Tried, summary: dict[str, Any] = SUMMARY) -> dict[str, Any]:
    repeats = {"n": 10, "n_equal": 10}
    return conclusion.conclude(summary, QUIET, repeats, made, "why")


def some(*switches: str, gap: float = 0.01) -> Tried:
    return tried(*switches, gap=gap, n_equal=5)


def test_the_smallest_set_wins() -> None:
    found = conclude(
        tried(*EXACT_SWITCHES), tried("llamafile", "tiled"), tried("llamafile"), some("tiled")
    )
    assert found["removed_by"] == {"switches": ["llamafile"], "no_repack": False}
    assert found["text"] == (
        "on this build all of the gap in 40 cells comes from llamafile_sgemm; without it single "
        "and block are bit-identical and a block costs 4 % more (use --without llamafile)"
    )


def test_kernels_out_of_reach_are_said_where_no_switch_removes_the_gap() -> None:
    repeats = {"n": 10, "n_equal": 10}
    for made, ends in (
        ([some("tiled")], "; the kernels on X0, X1 can't be switched"),
        ([some("tiled", gap=0.03)], "; the kernels on X0, X1 can't be switched"),
        ([tried("tiled")], "(use --without tiled)"),
    ):
        found = conclusion.conclude(SUMMARY, QUIET, repeats, made, "why", ("X0", "X1"))
        assert found["text"].endswith(ends)


def test_two_together() -> None:
    both = ("llamafile", "split-kv")
    found = conclude(some("llamafile"), some("split-kv", gap=0.03), tried(*both))
    assert (
        "comes from llamafile_sgemm and split-KV attention together; without both" in found["text"]
    )
    assert found["interaction"] == (
        "llamafile alone leaves a median |gap| of 0.01; split-kv alone leaves a median |gap| of "
        "0.03; together 0"
    )


def test_all_three_together() -> None:
    found = conclude(some("llamafile"), tried(*EXACT_SWITCHES))
    names = "llamafile_sgemm, ggml_compute_forward_mul_mat_tiled and split-KV attention together"
    assert f"comes from {names}; without all of them" in found["text"]


def test_without_repack_only_where_it_must_be() -> None:
    found = conclude(tried("tiled"), tried(repack=False))
    assert found["removed_by"] == {"switches": ["tiled"], "no_repack": False}
    assert found["also_by"] == ["--no-repack"]
    alone = conclude(some("tiled"), tried(repack=False))
    assert "the repacked weights' kernels; without them single" in alone["text"]
    assert alone["text"].endswith("(use --no-repack)")


def test_reference_comes_last() -> None:
    found = conclude(tried("reference"), tried(*EXACT_SWITCHES))
    assert found["removed_by"]["switches"] == list(EXACT_SWITCHES)
    alone = conclude(tried("reference"), some("llamafile"))
    assert "goes with the reference kernels for the whole graph, many at once" in alone["text"]


def test_what_leaves_least() -> None:
    found = conclude(some("tiled", gap=0.015), some("llamafile"), tried("split-kv", gap=None))
    assert found["removed_by"] is None
    assert found["text"] == (
        "no switch removes the gap: --without llamafile leaves least, a median |gap| of 0.01 where "
        "the baseline has 0.02 (5 of 40 cells equal in every bit)"
    )
    nothing = conclude(some("tiled", gap=0.1))
    assert nothing["text"] == "no switch removes the gap, and none makes it smaller"


@pytest.mark.parametrize(
    "made",
    [
        tried("llamafile", whole=False),
        tried("llamafile", n_equal=39),
        tried("llamafile", n_compared=0, n_equal=0, gap=None),
    ],
)
def test_no_claim_beyond_the_cells(made: Tried) -> None:
    assert conclude(made)["removed_by"] is None


def test_no_gap_needs_no_switch() -> None:
    none = {**SUMMARY, "n_equal": 40}
    found = conclude(tried("llamafile"), summary=none)
    assert found["removed_by"] is None
    assert found["text"] == (
        "on this build there is no gap: single and block are bit-identical in all 40 cells"
    )
    nothing = conclude(summary={**SUMMARY, "n_compared": 0, "n_equal": 0})
    assert nothing["text"] == "nothing was compared"
    assert conclude()["text"] == "what the gap comes from was not measured: why"
