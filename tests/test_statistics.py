"""Statistics, classes, verdicts and records of cells tables written by hand."""

from __future__ import annotations

import json
import statistics as plain
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csb import cells, record, statistics, verdict
from csb.errors import FileError
from csb.exit_codes import Exit
from csb.prompt.resolve import Prompt
from csb.verdict import Outcome
from handmade import controls, make_record, table

GAPS = 100  # other cells of the class tests, each with a pair gap of 0.5


def summary_of(made: cells.Cells) -> dict[str, Any]:
    return statistics.summarise(made, decided=2.0)


def flipped(margin: float, crossed: float, **columns: Any) -> cells.Cells:
    """GAPS quiet cells with a pair gap of 0.5, then one flip."""
    made = table(GAPS + 1, pair_gap=0.5, **columns)
    made["amax_b"][-1] = 7
    made["margin_s"][-1], made["crossed"][-1] = margin, crossed
    return made


# ---- the seed's statistics ----


def test_pairwise_moments() -> None:
    l_ar = [1.5, 2.25, -0.125, 40.0625]  # dyadic, so that the fractions are what the floats hold
    l_s = [1.25, 2.5, -0.125, 40.0]
    l_b = [1.75, 2.125, -0.25, 40.5]
    found = statistics.pairwise(table(4, l_ar=l_ar, l_s=l_s, l_b=l_b))
    pairs = {
        "l_ar-l_single": (l_ar, l_s),
        "l_ar-l_block": (l_ar, l_b),
        "l_single-l_block": (l_s, l_b),
    }
    assert list(found) == list(pairs)
    for name, (a, b) in pairs.items():
        d = [Fraction(x) - Fraction(y) for x, y in zip(a, b, strict=True)]
        size = [abs(x) for x in d]
        assert found[name] == {
            "n": 4,
            "mean": pytest.approx(float(plain.mean(d)), rel=1e-14),
            "var": pytest.approx(float(plain.pvariance(d)), rel=1e-14),
            "abs_mean": pytest.approx(float(plain.mean(size)), rel=1e-14),
            "abs_var": pytest.approx(float(plain.pvariance(size)), rel=1e-14),
        }


def test_pairwise_counts_one_row_cells_as_the_seed_does() -> None:
    found = statistics.pairwise(table(2, l_s=[1.0, 3.0], ubatch_rows=[5, 1]))
    assert found["l_single-l_block"]["n"] == 2
    assert found["l_single-l_block"]["mean"] == 2.0


def test_pairwise_of_nothing_is_no_number() -> None:
    nothing = {"n": 0, "mean": None, "var": None, "abs_mean": None, "abs_var": None}
    assert set(map(str, statistics.pairwise(cells.empty()).values())) == {str(nothing)}


def test_quantiles_interpolate() -> None:
    found = statistics.quantiles(np.arange(20.0, -1.0, -1.0))  # 20, 19 ... 0
    expected = {"0.05": 1, "0.25": 5, "0.5": 10, "0.75": 15, "0.95": 19, "0.99": 19.8, "1.0": 20}
    assert found == pytest.approx(expected)


def test_quantiles_of_nothing() -> None:
    assert set(statistics.quantiles(np.empty(0)).values()) == {None}


# ---- classes of flips ----


def test_near_tie_limit_is_the_95th_percentile_of_compared_cells() -> None:
    gaps = [(-1) ** k * k / 100 for k in range(21)]
    made = table(22, pair_gap=[*gaps, 9.0], ubatch_rows=[5] * 21 + [1])
    assert statistics.near_tie_limit(made) == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("margin", "crossed", "expected"),
    [
        (0.0, 0.0, "exact_tie"),
        (0.4999, 0.1, "near_tie"),
        (0.5, 0.1, "other"),
        (1.9999, 0.1, "other"),
        (2.0, 0.1, "decided"),
        (2.0, 2.0, "decided"),  # 4 times the largest other pair gap is not exceeded
        (2.0, 2.0001, "unexplained"),
        (1.0, 2.0001, "other"),  # unexplained is said of decided flips only
    ],
)
def test_class_of_a_flip(margin: float, crossed: float, expected: str) -> None:
    classes = statistics.classify(flipped(margin, crossed), decided=2.0)
    assert list(classes) == [""] * GAPS + [expected]


def test_a_tie_of_either_path_is_a_tie() -> None:
    made = flipped(3.0, 3.0)
    made["margin_b"][-1] = 0.0
    assert statistics.classify(made, 2.0)[-1] == "exact_tie"


def test_a_flip_is_no_evidence_for_itself() -> None:
    made = flipped(2.0, 2.0001)
    made["pair_gap"][-1] = 100.0
    assert statistics.classify(made, 2.0)[-1] == "unexplained"


def test_another_flip_is_evidence() -> None:
    made = flipped(2.0, 2.0001)
    made["pair_gap"][0], made["amax_b"][0] = 0.6, 7
    assert statistics.classify(made, 2.0)[-1] == "decided"


def test_one_row_cells_are_no_evidence() -> None:
    made = flipped(2.0, 2.0001)
    made["pair_gap"][0], made["ubatch_rows"][0] = 100.0, 1
    assert statistics.classify(made, 2.0)[-1] == "unexplained"


def test_decided_is_an_option() -> None:
    assert statistics.classify(flipped(1.5, 0.1), decided=1.5)[-1] == "decided"


def test_a_lone_flip_has_nothing_to_explain_it() -> None:
    made = table(1, amax_b=7, margin_s=2.0, crossed=0.001, pair_gap=0.1)
    assert statistics.classify(made, 2.0)[0] == "unexplained"


# ---- the summary ----


def test_one_row_flips_count_as_the_seeds_and_have_no_class() -> None:
    made = table(4, pos=[3, 3, 4, 5], amax_b=[9, 9, 9, 0], ubatch_rows=[5, 5, 1, 1])
    found = summary_of(made)
    assert (found["n_flips"], found["n_flip_positions"]) == (3, 2)
    assert sum(found["flips_by_class"].values()) == 2
    assert (found["n_cells"], found["n_compared"], found["n_one_row"]) == (4, 2, 2)
    assert found["n_positions"] == 1


def test_one_row_cells_are_left_out_of_equality_and_sizes() -> None:
    made = table(3, n_diff=[0, 2, 0], ubatch_rows=[5, 5, 1], max_abs=[0, 0.25, 8], kl=[1, 3, 99])
    made["dlogit"], made["tv"], made["nll_b"] = [-0.5, 0.25, 9], [0.25, 0.5, 1], [3, 4, 99]
    found = summary_of(made)
    assert found["n_equal"] == 1
    assert found["quantiles"]["abs_gap"]["1.0"] == 0.5
    assert (found["max_abs"], found["mean_kl"], found["max_tv"]) == (0.25, 2.0, 0.5)
    assert found["mean_nll_difference"] == 3.5


def test_near_ties_are_counted_without_exact_ones() -> None:
    margins = [0.0, 0.1, 0.4999, 0.5, 3.0]
    assert summary_of(table(5, pair_gap=-0.5, margin_s=margins))["n_near_ties"] == 2


@pytest.mark.parametrize(("n", "expected"), [(0, None), (1, 1.0), (3, 1.0), (4, 0.75), (100, 0.03)])
def test_rule_of_three(n: int, expected: float | None) -> None:
    assert statistics.bound(n) == expected


def test_bound_counts_compared_positions() -> None:
    made = table(120, pos=[k // 3 for k in range(120)], ubatch_rows=[5] * 60 + [1] * 60)
    assert summary_of(made)["bound"] == 3 / 20


def test_a_flip_leaves_no_bound_and_an_exact_tie_does() -> None:
    assert summary_of(flipped(0.1, 0.1))["bound"] is None
    assert summary_of(flipped(0.0, 0.0))["bound"] == 3 / (GAPS + 1)


def test_one_row_windows_must_be_equal() -> None:
    made = table(4, t=[0, 0, 1, 2], ubatch_rows=[4, 1, 1, 1], n_diff=[5, 5, 0, 5])
    assert statistics.unequal_one_row(made) == 1


# ---- outcome, exit code, line ----


def judged(
    made: cells.Cells, complete: bool = True, **changes: bool | None
) -> tuple[Outcome, dict[str, Any]]:
    seen = controls(**changes)
    summary = summary_of(made)
    state = {"failed": seen.failed, "complete": seen.complete}
    return verdict.judge(summary, state, complete), summary


@pytest.mark.parametrize(
    ("made", "how", "expected"),
    [
        (table(2, n_diff=0), {}, Outcome.EQUAL),
        (table(2, n_diff=[0, 1]), {}, Outcome.NO_FLIP),
        (table(2, n_diff=[0, 1], ubatch_rows=[5, 1]), {}, Outcome.EQUAL),
        (flipped(0.1, 0.1), {}, Outcome.FLIP),
        (table(0), {}, Outcome.NOTHING),
        (table(2, ubatch_rows=1), {}, Outcome.NOTHING),
        (table(0), {"complete": False}, Outcome.INCOMPLETE),
        (flipped(0.1, 0.1), {"complete": False}, Outcome.INCOMPLETE),
        (table(2), {"token_differs": None}, Outcome.INCOMPLETE),
        (table(2), {"token_differs": False}, Outcome.INVALID),
        (table(2), {"repeat_equal": False, "complete": False}, Outcome.INVALID),
        (table(2), {"incremental_equal": False}, Outcome.INVALID),
        (flipped(0.1, 0.1), {"ar_equal": False}, Outcome.INVALID),
        (table(2, n_bad=[0, 1], l_b=[0, np.nan]), {}, Outcome.INVALID),
        (table(2, n_bad=[0, 1], ubatch_rows=[5, 1]), {}, Outcome.INVALID),
    ],
)
def test_outcome(made: cells.Cells, how: dict[str, Any], expected: Outcome) -> None:
    assert judged(made, **how)[0] is expected


@pytest.mark.parametrize(
    ("margin", "crossed", "codes"),
    [
        (0.0, 0.0, {"flip": 0, "decided": 0, "none": 0}),  # an exact tie alone
        (0.1, 0.1, {"flip": 1, "decided": 0, "none": 0}),
        (0.6, 0.1, {"flip": 1, "decided": 0, "none": 0}),
        (2.0, 0.1, {"flip": 1, "decided": 1, "none": 0}),
        (2.0, 9.0, {"flip": 1, "decided": 1, "none": 0}),
    ],
)
def test_exit_code(margin: float, crossed: float, codes: dict[str, int]) -> None:
    outcome, summary = judged(flipped(margin, crossed))
    assert {f: verdict.exit_code(outcome, summary, f) for f in verdict.FAIL_ON} == codes


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.NOTHING, Outcome.INCOMPLETE])
def test_no_flag_makes_an_invalid_run_pass(outcome: Outcome) -> None:
    summary = summary_of(flipped(0.1, 0.1))
    assert {verdict.exit_code(outcome, summary, f) for f in verdict.FAIL_ON} == {Exit.INVALID}


def test_verdict_line() -> None:
    made = flipped(2.0, 0.1)
    made["amax_b"][:2], made["margin_b"][:2] = 7, 0.0
    made["ubatch_rows"][3] = 1
    outcome, summary = judged(made)
    state = {"failed": [], "complete": True}
    assert verdict.line(outcome, summary, state) == (
        "csb: flip: 3 flips at 3 of 100 positions (100 cells), 2 exact ties, 1 decided; controls ok"
    )


# ---- the record ----

SEED_KEYS = {"pos", "t", "j", "l_s", "l_b", "dlogit", "amax_s", "amax_b", "lmax_s", "lmax_b"}
CSB_KEYS = {
    "top2_s", "top2_b", "margin_s", "margin_b", "p_s", "p_b", "kl", "tv", "max_abs", "rms",
    "n_diff", "rank_s", "rank_b", "pair_gap", "pair_drift", "ubatch_rows",
}  # fmt: skip


def round_trip(made: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "r.json"
    path.write_text(record.dumps(made), "utf-8")
    return record.load(path)


def test_cells_have_the_seeds_keys_and_csbs() -> None:
    (cell,) = cells.to_json(table(1, second_s=4, lsecond_s=1.5))
    assert set(cell) == SEED_KEYS | CSB_KEYS
    assert cell["top2_s"] == [4, 1.5]


def test_flips_have_the_seeds_keys(tmp_path: Path) -> None:
    made = table(1, pos=6, t=4, j=2, amax_s=1, amax_b=2, lmax_s=3.5, lmax_b=3.25, l_s=1, l_b=2)
    (flip,) = round_trip(make_record(made, [(1, 3.5)], {}), tmp_path)["flips"]
    seed = {"t": 4, "j": 2, "pos": 6, "single_id": 1, "block_id": 2}
    seed |= {"l_single_max": 3.5, "l_block_max": 3.25, "l_s": 1.0, "l_b": 2.0}
    assert flip.items() >= seed.items()


def test_a_one_row_flip_is_called_so(tmp_path: Path) -> None:
    made = make_record(table(1, amax_b=2, ubatch_rows=1), [(1, 3.5)], {})
    assert [f["class"] for f in made["flips"]] == ["one_row"]


def test_floats_survive_the_file(tmp_path: Path) -> None:
    hard = [0.1 + 0.2, 5e-324, -0.0, 1e150, float(np.float32(0.1)), 2 / 3]
    names = [c.name for c in cells.COLUMNS if c.dtype == "f8" and c.json is not None]
    made = table(6, **dict.fromkeys(names, hard))
    found = round_trip(make_record(made, [(1, 0.1)], {}), tmp_path)
    for name in names:
        assert [c[name].hex() for c in found["cells"]] == [x.hex() for x in hard], name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_becomes_null(value: float, tmp_path: Path) -> None:
    made = table(1, lmax_b=value, amax_b=-1, n_bad=3, kl=value)
    found = round_trip(make_record(made, [(1, 0.5)], {}), tmp_path)
    assert found["cells"][0]["kl"] is found["cells"][0]["lmax_b"] is None
    assert found["flips"][0]["l_block_max"] is None
    assert (found["outcome"], found["summary"]["n_bad"]) == ("not valid", 1)


@pytest.mark.parametrize("text", ["CELLS", "é 日本", 'a "b" \\ \n\x1b\x00', "bad \udcff byte"])
def test_any_text_survives_the_file(text: str, tmp_path: Path) -> None:
    made = make_record(table(1), [(1, 0.5)], {}, prompt=Prompt(text, [1]))
    assert round_trip(made, tmp_path)["prompt"] == text


def test_an_interrupted_run_is_incomplete(tmp_path: Path) -> None:
    made = make_record(flipped(0.1, 0.1), [(1, 0.5)], {}, stopped=KeyboardInterrupt())
    found = round_trip(made, tmp_path)
    assert (found["complete"], found["outcome"], len(found["cells"])) == (
        False,
        "incomplete",
        GAPS + 1,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("", "not a record"),
        ("{", "not a record"),
        ("[1, 2]", "not a record"),
        ('{"cells": []}', "not a record"),
        (json.dumps({"schema": {"name": "csb.trace", "version": 1}}), "csb.trace"),
        (json.dumps({"schema": {"name": "csb.compare", "version": 99}}), "99"),
    ],
)
def test_what_is_no_comparison_is_refused(text: str | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FileError, match=why) as caught:
        record.load(path)
    assert str(path) in str(caught.value)
