"""Speculative decoding without a model: the accept rule, partings, drafters, intervals, limits."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csb import intervals
from csb.errors import FileError
from csb.measure.speculate.drafters import Ngram, Noisy, Oracle, Recorded
from csb.speculation import counts, faults, recorded, summary, texts, verdict
from csb.speculation.counts import Turn
from csb.speculation.faults import Fault, Seen, Sizes
from csb.speculation.partings import Parting
from csb.speculation.verdict import Outcome

# ---- the accept rule ----


@pytest.mark.parametrize(
    ("draft", "best", "given"),
    [
        ([], [7], [7]),
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3, 4], [1, 9]),
        ([1, 2, 3], [9, 2, 3, 4], [9]),
        ([1, 2, 3], [1, 2, 9, 4], [1, 2, 9]),
    ],
)
def test_accept(draft: list[int], best: list[int], given: list[int]) -> None:
    assert texts.accept(draft, best) == given


@pytest.mark.parametrize(
    ("tau", "expected"), [(0.0, None), (0.1, None), (0.11, 2), (0.5, 1), (math.inf, 0)]
)
def test_first_under(tau: float, expected: int | None) -> None:
    assert texts.first_under([0.6, 0.3, 0.1], tau) == expected


def test_a_tie_is_not_under_zero() -> None:
    assert texts.first_under([0.0], 0.0) is None


# ---- texts that part ----

AR = list(range(40))


def test_equal_texts_do_not_part() -> None:
    assert texts.partings(AR, AR) == []
    assert texts.n_equal(AR, AR) == 40


def test_it_parts_once_while_the_texts_differ() -> None:
    text = [*AR[:10], 99, 98, 12, 97, *range(200, 226)]  # one token agrees by chance
    assert texts.partings(AR, text) == [10]
    assert texts.n_equal(AR, text) == 11


def test_it_parts_again_after_eight_equal_tokens() -> None:
    text = list(AR)
    text[5], text[14], text[22] = 99, 98, 97  # 8 equal ones between the first two, 7 after
    assert texts.partings(AR, text) == [5, 14]


def test_a_first_token_that_differs() -> None:
    assert texts.partings(AR, [99, *AR[1:]]) == [0]


def test_they_meet_at_the_same_place_or_another() -> None:
    same = [*AR[:5], 99, *AR[6:]]
    assert texts.meeting(AR, same, 5) == (6, 6)
    longer = [*AR[:5], 99, 98, 97, *AR[6:38]]
    assert texts.meeting(AR, longer, 5) == (8, 6)
    assert texts.meeting(AR, [*AR[:5], *range(100, 135)], 5) is None
    short = [*AR[:33], 99, *AR[34:]]  # six equal tokens to the end say nothing
    assert texts.meeting(AR, short, 33) is None


# ---- what turns add up to ----


def test_acceptance_by_width() -> None:
    turns = [
        Turn(0, [1, 2, 3], 3, 4, 0),
        Turn(4, [1, 2, 3], 1, 2, 0),
        Turn(6, [1], 0, 1, 1),
        Turn(7, [], 0, 1, 0),
    ]
    found = counts.acceptance(turns)
    assert (found["steps"], found["drafted"], found["accepted"]) == (4, 7, 4)
    assert found["rate"] == 4 / 7
    assert [(w["width"], w["steps"], w["mean_accepted"]) for w in found["by_width"]] == [
        (0, 1, 0.0),
        (1, 1, 0.0),
        (3, 2, 2.0),
    ]
    assert found["by_width"][2]["tokens_per_step"] == 3.0
    assert counts.acceptance([])["rate"] is None


# ---- drafters ----


def drafted(drafter: Any, prompt: list[int], given: list[int], n: int) -> list[int]:
    drafter.begin(prompt)
    return list(drafter.draft(prompt + given, n))


def test_the_oracle_goes_by_position() -> None:
    oracle = Oracle([10, 11, 12, 13])
    assert drafted(oracle, [1, 2], [], 3) == [10, 11, 12]
    assert drafted(oracle, [1, 2], [99, 98, 97], 3) == [13]
    assert drafted(oracle, [1, 2], [0] * 4, 3) == []
    assert drafted(oracle, [1, 2], [], 0) == []


def test_noise_has_its_rate_and_its_places() -> None:
    right = list(np.random.default_rng(3).integers(0, 50, 4000))
    noisy = drafted(Noisy(right, 0.3, [5], 50), [1], [], 4000)
    changed = np.flatnonzero(np.array(noisy) != right)
    assert abs(len(changed) / 4000 - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 4000)
    assert min(noisy) >= 0 and max(noisy) < 50
    assert drafted(Noisy(right, 0.3, [5], 50), [1], right[:100], 50) == noisy[100:150]
    assert drafted(Noisy(right, 0.3, [6], 50), [1], [], 4000) != noisy
    assert drafted(Noisy(right, 0.0, [5], 50), [1], [], 4000) == right
    everywhere = drafted(Noisy(right, 1.0, [5], 50), [1], [], 4000)
    assert all(a != b for a, b in zip(everywhere, right, strict=True))


def lookup(text: list[int], n: int) -> list[int]:
    """Prompt lookup by brute force."""
    for size in (3, 2, 1):
        tail = text[-size:]
        for end in range(len(text) - 1, size - 1, -1):
            if len(text) >= size and text[end - size : end] == tail:
                return text[end : end + n]
    return []


def test_ngram_is_prompt_lookup() -> None:
    random = np.random.default_rng(0)
    for trial in range(60):
        text = [int(t) for t in random.integers(0, 2 + trial % 7, 60)]
        ngram = Ngram()
        ngram.begin(text[:10])
        at = 10
        while at <= len(text):
            assert ngram.draft(text[:at], 4) == lookup(text[:at], 4), text[:at]
            at += int(random.integers(1, 5))
    assert drafted(Ngram(), [7], [], 4) == []


def test_recorded_drafts_go_by_position() -> None:
    drafter = Recorded({0: [5, 6, 7], 2: [8]})
    assert drafted(drafter, [1], [], 2) == [5, 6]
    assert drafted(drafter, [1], [4], 2) == []
    assert drafted(drafter, [1], [4, 4], 2) == [8]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, 2 3\n4", [1, 2, 3, 4]),
        ("[1, 2, 3]", [1, 2, 3]),
        ('[{"pos": 0, "draft": [1, 2]}, {"pos": 3, "draft": []}]', {0: [1, 2], 3: []}),
        (
            '{"prompts": [{"runs": [{"loops": [{"turns": [{"pos": 2, "draft": [9]}]}]}]}]}',
            {2: [9]},
        ),
    ],
)
def test_reading_drafts(tmp_path: Path, text: str, expected: Any) -> None:
    path = tmp_path / "d"
    path.write_text(text)
    assert recorded.read(path) == expected
    with pytest.raises(FileError, match="vocabulary"):
        recorded.check(recorded.read(path), 2, path)
    recorded.check(recorded.read(path), 10, path)


@pytest.mark.parametrize("text", ["", "1 two", "[1.5]", '{"prompts": []}', '[{"pos": 1}]', "[]"])
def test_no_drafts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "d"
    path.write_text(text)
    with pytest.raises(FileError, match="--drafter file:"):
        recorded.read(path)
    with pytest.raises(FileError, match="No such file"):
        recorded.read(tmp_path / "none")


# ---- intervals ----


def at_least(k: int, n: int, p: Fraction) -> Fraction:
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1)), Fraction(0))


@pytest.mark.parametrize(("k", "n"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 200)])
def test_clopper_pearson_by_exact_sums(k: int, n: int) -> None:
    """At its ends what was seen is just as unlikely as it may be: 2.5 % on either side."""
    low, high = intervals.clopper_pearson(k, n)
    if k > 0:
        assert float(at_least(k, n, Fraction(low))) == pytest.approx(0.025, rel=1e-6)
    else:
        assert low == 0
    if k < n:
        below = 1 - at_least(k + 1, n, Fraction(high))
        assert float(below) == pytest.approx(0.025, rel=1e-6)
    else:
        assert high == 1


def test_clopper_pearson_of_a_table() -> None:
    assert intervals.clopper_pearson(2, 20) == pytest.approx((0.01235, 0.31698), abs=1e-5)


def student_between(q: float, freedom: int) -> float:
    """P(|T| < q), by integrating the density over x = tan(u)."""
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    u = np.linspace(0, math.atan(q), 100001)
    square = np.tan(u) ** 2
    density = (1 + square / freedom) ** (-(freedom + 1) / 2) * (1 + square)
    area = float(np.sum((density[1:] + density[:-1]) / 2 * np.diff(u)))
    return 2 * area * math.exp(log) / math.sqrt(freedom * math.pi)


def test_students_points() -> None:
    for freedom, point in enumerate(intervals.STUDENT, 1):
        assert student_between(point, freedom) == pytest.approx(0.95, abs=1e-4)


def test_mean_over_prompts() -> None:
    found = intervals.mean_over([1.0, 2.0, 3.0, 6.0])
    error = math.sqrt((4 + 1 + 0 + 9) / 3 / 4)
    assert (found["n"], found["mean"]) == (4, 3.0)
    assert found["interval"] == pytest.approx([3 - 3.182 * error, 3 + 3.182 * error])
    assert intervals.mean_over([3.0]) == {"n": 1, "mean": 3.0, "interval": None}
    assert intervals.mean_over([])["mean"] is None


# ---- what is not rounding ----

SIZES = Sizes(100, 0.1, 0.05, 0.02, 100, 0.2, 0.06, 0.03)


def seen(pos: int = 15, **changes: Any) -> Seen:
    quiet = {"pair_gap": 0.05, "rms_gap": 0.02, "pair_drift": 0.1, "rms_drift": 0.03}
    return Seen(pos, **{**quiet, "spread": 1.0, **changes})


def judged(*audits: Seen, deficits: list[float] | None = None) -> tuple[list[Fault], list[Fault]]:
    return faults.of_size(faults.by_size(audits, deficits or [], SIZES))


@pytest.mark.parametrize(
    ("name", "limit", "kind"),
    [
        ("pair_gap", 0.4, "loop"),  # 4 times the largest pair gap
        ("rms_gap", 0.2, "loop"),
        ("pair_drift", 0.8, "memory"),  # 4 times the larger of pair gap and pair drift
        ("rms_drift", 0.24, "memory"),
    ],
)
def test_limits(name: str, limit: float, kind: str) -> None:
    within = [seen(p, **{name: limit}) for p in (15, 31)]
    assert judged(*within) == ([], [])
    beyond = [seen(p, **{name: limit + 1e-9}) for p in (15, 31)]
    found, outliers = judged(*beyond)
    assert [(f.kind, f.pos) for f in found] == [(kind, 15), (kind, 31)] and not outliers
    found, outliers = judged(beyond[0], seen(31))
    assert not found and [f.kind for f in outliers] == [kind]


def test_signs_do_not_matter_and_nan_is_beyond() -> None:
    assert judged(*[seen(p, pair_gap=-0.5) for p in (1, 2)])[0]
    assert judged(*[seen(p, rms_drift=math.nan) for p in (1, 2)])[0]


def test_a_row_of_another_text_needs_no_second_place() -> None:
    assert judged(seen(rms_gap=0.91))[0] and not judged(seen(rms_gap=0.89))[0]
    assert judged(seen(rms_drift=0.91))[0] and not judged(seen(rms_drift=0.89))[0]


def test_where_rounding_was_not_seen_a_floor_holds() -> None:
    quiet = {"pair_gap": 0.0, "rms_gap": 0.0, "pair_drift": 0.0, "rms_drift": 0.0}
    for name in quiet:
        for size, expected in ((0.05, 0), (0.051, 2)):
            audits = [Seen(p, **{**quiet, name: size}, spread=1.0) for p in (1, 2)]
            assert len(faults.of_size(faults.by_size(audits, [], Sizes()))[0]) == expected


def test_a_memory_that_stays_a_little_wrong() -> None:
    """Each under its limit, four in a row over three times what is usual: 0.09."""
    a_little = [seen(p, rms_drift=0.1) for p in (15, 31, 47, 63)]
    assert judged(*a_little[:3]) == ([], [])
    found, _ = judged(*a_little)
    assert [(f.kind, f.pos) for f in found] == [("memory", 63)]
    assert judged(*a_little[:3], seen(63, rms_drift=0.059)) == ([], [])


def test_a_memory_written_again_has_drift_in_its_gap() -> None:
    """4 times the largest pair gap and pair drift together."""
    for size, expected in ((1.2, 0), (1.21, 2)):
        assert len(judged(*[seen(p, pair_gap=size, mixed=True) for p in (1, 2)])[0]) == expected


def test_tokens_that_no_rounding_chooses() -> None:
    limit = 4 * (0.1 + 0.2)
    assert judged(seen(spread=2.0), deficits=[0.0, limit, limit]) == ([], [])
    found, _ = judged(seen(spread=2.0), deficits=[0.0, limit + 0.01, 0.0, limit + 0.01])
    assert [(f.kind, f.pos) for f in found] == [("text", 1), ("text", 3)]
    found, outliers = judged(seen(spread=2.0), deficits=[0.0, limit + 0.01])
    assert not found and [f.kind for f in outliers] == ["text"]


def test_a_row_decoded_alone_must_have_the_same_bits() -> None:
    assert faults.not_alone([seen(alone=True, equal=True), seen(equal=False)]) == []
    assert [f.kind for f in faults.not_alone([seen(alone=True, equal=False)])] == ["loop"]


@pytest.mark.parametrize(
    ("again", "kind"),
    [
        ("====", None),
        ("=x==", "loop"),
        ("=x=x", "loop"),
        ("=xxx", "memory"),
        ("===x", "loop"),
    ],
)
def test_calls_made_again(again: str, kind: str | None) -> None:
    found = faults.not_again([c == "=" for c in again])
    assert [f.kind for f in found] == ([kind] if kind else [])
    if kind:
        assert found[0].pos == again.index("x")


def test_unverified() -> None:
    assert faults.unverified(3, [1, 2], [1, 2]) is None
    found = faults.unverified(3, [1, 2], [1, 9])
    assert found is not None and (found.kind, found.pos) == ("loop", 4)


# ---- partings in numbers ----


def test_a_parting_adds_up() -> None:
    parting = Parting(5, 1, 2, 3, False, ar_margin=0.25, single=0.125, loop=-0.0625)
    assert (parting.drift, parting.gap) == (0.125, 0.1875)
    assert parting.ar_margin == parting.drift + parting.gap + parting.loop
    assert parting.to_json(SIZES)["bridged"] is True
    assert Parting(5, 1, 2, 3, False, 0.31, 0.1, -0.1).to_json(SIZES)["bridged"] is False
    assert not parting.exact_tie
    assert Parting(5, 1, 2, 3, False, 0.0, 0.0, -0.1).exact_tie
    later = Parting(9, 1, 2, 0, False, None, 0.1, 0.0)
    assert later.exact_tie and later.drift is None and later.to_json(SIZES)["bridged"] is None


# ---- outcomes ----


def loop(way: str = "none", parted: bool = False, **changes: Any) -> dict[str, Any]:
    ids = [1, 2, 9] if parted else [1, 2, 3]
    parting = {"pos": 2, "alone": False, "exact_tie": False}
    made: dict[str, Any] = {
        "way": way,
        "ids": ids,
        "faults": [],
        "blocks": 2,
        "partings": [parting] if parted else [],
        "seconds": 0.5,
        "alone": 1,
        "n_equal": 2 if parted else 3,
        "equal_rows": 1,
        "overhead": 0.02,
        "looked_twice": False,
        "nll": {"ar": 1.0, "text": 1.5} if parted else None,
        "calls": {"blocks": 2, "block_rows": 4, "singles": 0, "again": 0},
        "acceptance": {"drafted": 4, "accepted": 3, "steps": 2, "rate": 0.75},
        **changes,
    }
    return made | {"outcome": verdict.of_loop([1, 2, 3], made).value}


def run(*loops: dict[str, Any], **changes: Any) -> dict[str, Any]:
    controls = {"failed": changes.pop("failed", []), "complete": changes.pop("controlled", True)}
    return {
        "setting": "as given",
        "complete": True,
        "controls": controls,
        "ar": {"ids": [1, 2, 3], "seconds": 1.5},
        "loops": list(loops),
        **changes,
    }


FAULTY = {"faults": [{"kind": "loop", "pos": 1, "what": "x"}]}


@pytest.mark.parametrize(
    ("made", "judged", "expected"),
    [
        (run(loop()), "none", Outcome.EQUAL),
        (run(loop(parted=True)), "none", Outcome.PARTED),
        (run(loop(parted=True), loop("kernels")), "kernels", Outcome.EQUAL),
        (run(loop(), loop("margin:0.4", parted=True)), "margin", Outcome.PARTED),
        (run(loop(**FAULTY)), "none", Outcome.FAULT),
        (run(loop(**FAULTY), loop("kernels")), "kernels", Outcome.FAULT),
        (run(loop(blocks=0)), "none", Outcome.NOTHING),
        (run(loop(**FAULTY), failed=["ar_equal"]), "none", Outcome.INVALID),
        (run(loop(**FAULTY), complete=False), "none", Outcome.FAULT),
        (run(loop(), complete=False), "none", Outcome.INCOMPLETE),
        (run(loop(), controlled=False), "none", Outcome.INCOMPLETE),
        (run(), "none", Outcome.INCOMPLETE),
    ],
)
def test_outcome_of_a_run(made: dict[str, Any], judged: str, expected: Outcome) -> None:
    assert verdict.of_run(made, judged) is expected


def test_a_run_to_compare_with_does_not_decide() -> None:
    """--exact f32: the model as given parts, in F32 it does not."""
    given, precise = run(loop(parted=True)), run(loop("f32"))
    for made in (given, precise):
        made["outcome"] = verdict.of_run(made, "f32").value
    assert verdict.of_prompt([given, precise], "f32") is Outcome.EQUAL
    given["outcome"] = Outcome.FAULT.value
    assert verdict.of_prompt([given, precise], "f32") is Outcome.FAULT


def test_codes() -> None:
    assert {o.name: int(verdict.CODES[o]) for o in Outcome} == {
        "EQUAL": 0,
        "PARTED": 1,
        "FAULT": 4,
        "NOTHING": 3,
        "INVALID": 3,
        "INCOMPLETE": 3,
    }


# ---- over prompts ----


def prompts(*runs: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"runs": [made]} for made in runs]


def test_summary_by_way() -> None:
    found = summary.of_prompts(
        prompts(
            run(loop(), loop("margin:0.4")),
            run(loop(parted=True, seconds=1.0), loop("margin:0.4")),
        )
    )
    plain, gated = found["ways"]
    assert (plain["way"], plain["n"], plain["parted"], plain["parted_at"]) == ("none", 2, 1, [2])
    assert plain["parted_interval"] == list(intervals.clopper_pearson(1, 2))
    assert (plain["bound"], gated["bound"]) == (None, 0.5)
    assert plain["tokens_per_second"] == 6 / 1.5
    assert plain["speed"]["mean"] == pytest.approx((0.5 / (0.5 / 3) + 0.5 / (1 / 3)) / 2)
    assert plain["nll_difference"]["mean"] == 0.5 and gated["nll_difference"]["mean"] is None
    assert (plain["drafted"], plain["accepted"], plain["acceptance"]["mean"]) == (8, 6, 0.75)
    assert gated["alone_share"]["mean"] == pytest.approx(1 / 3)


def frontier(parted: dict[str, bool], ungated: bool = True) -> dict[str, Any]:
    loops = [loop(f"margin:{tau}", parted=p) for tau, p in parted.items()]
    rows = summary.of_prompts(prompts(run(loop(parted=ungated), *loops)))["ways"]
    return summary.frontier(rows)


def test_a_frontier_names_a_tau_only_if_no_larger_one_parts() -> None:
    assert frontier({"0": True, "0.1": False, "0.4": True, "0.8": False, "inf": False})[
        "smallest"
    ] == pytest.approx(0.8)
    found = frontier({"0": True, "0.1": False, "inf": False})
    assert (found["smallest"], found["taus"]) == (0.1, [0.0, 0.1, "inf"])
    assert found["interval"] == list(intervals.clopper_pearson(0, 1))
    assert frontier({"0": True, "0.1": True, "inf": True})["smallest"] is None
    assert frontier({"0": True, "0.1": True, "inf": False})["smallest"] == "inf"


def test_a_frontier_where_nothing_parts_names_none() -> None:
    assert frontier({"0": False, "inf": False}, ungated=False)["smallest"] is None
    assert json.dumps(frontier({"0": False, "inf": False}, ungated=False), allow_nan=False)
