"""The acceptance run of csb speculate, at full size on the default model: `pytest -m acceptance`.

It prints a report. CSB_ACCEPTANCE_OUT: a folder for its records; CSB_ACCEPTANCE_PROMPTS, _TOKENS
and _THREADS make it smaller (10, 200, the physical cores).
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from csb import record as records
from csb.measure.memory import Memory
from csb.measure.speculate import loop as loops
from csb.measure.speculate.drafters import Noisy
from csb.measure.speculate.measure import Speculated, speculate
from csb.plan import ComparePlan, ContextPlan, ModelPlan, PromptPlan
from csb.prompt.resolve import resolve
from csb.provenance import physical_cores
from csb.render.speculate import render
from csb.run import run_compare
from csb.run_speculate import run_speculate
from csb.speculation.plan import DrafterPlan, SpeculatePlan, Way, frontier_ways
from csb.speculation.texts import accept
from planted_loop import OffByOne, Planted, RowsOffByOne, StaleRow, TailKept, TailLeft
from test_speculate_faults import outcome
from test_speculate_loop import plan as compare_plan

pytestmark = [pytest.mark.native, pytest.mark.model, pytest.mark.acceptance]

PROMPTS = (Path(__file__).parent / "prompts.txt").read_text("utf-8").splitlines()
WIDTHS = (2, 5, 8, 16)


def setting(name: str, default: int) -> int:
    return int(os.environ.get(f"CSB_ACCEPTANCE_{name}", default))


N_PROMPTS, N_TOKENS = setting("PROMPTS", 10), setting("TOKENS", 200)
Report = Callable[[str], None]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    lines: list[str] = []
    yield lines.append
    plugins = request.config.pluginmanager
    terminal, capture = (
        plugins.get_plugin(name) for name in ("terminalreporter", "capturemanager")
    )
    assert terminal is not None and capture is not None
    with capture.global_and_fixture_disabled():
        terminal.write_line("")
        for line in lines:
            terminal.write_line(line)


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], None]:
    given = os.environ.get("CSB_ACCEPTANCE_OUT")
    folder = Path(given) if given else tmp_path_factory.mktemp("acceptance")
    folder.mkdir(parents=True, exist_ok=True)

    def save(name: str, record: dict[str, Any]) -> None:
        (folder / f"{name}.json").write_text(records.dumps(record), "utf-8")
        if "prompts" in record:
            (folder / f"{name}.txt").write_text(render(record), "utf-8")

    return save


def context(**changes: Any) -> ContextPlan:
    threads = setting("THREADS", physical_cores())
    given = {"n_ctx": 1024, "flash_attn": "off", "n_threads": threads, "n_threads_batch": threads}
    return ContextPlan(**{**given, **changes})


def plan(path: Path, **changes: Any) -> SpeculatePlan:
    made = SpeculatePlan(
        model=ModelPlan(path),
        context=context(),
        prompts=tuple(PromptPlan(text) for text in PROMPTS[:N_PROMPTS]),
        n_gen=N_TOKENS,
    )
    return replace(made, **changes)


def loop_of(prompt: dict[str, Any], way: str) -> dict[str, Any]:
    (run,) = prompt["runs"]
    found: dict[str, Any] = next(loop for loop in run["loops"] if loop["way"] == way)
    return found


def row_of(record: dict[str, Any], way: str) -> dict[str, Any]:
    found: dict[str, Any] = next(r for r in record["summary"]["ways"] if r["way"] == way)
    return found


def assert_exact(record: dict[str, Any]) -> None:
    assert record["outcome"] == "equal to AR", record["verdict"]
    for prompt in record["prompts"]:
        (run,) = prompt["runs"]
        exact = loop_of(prompt, "kernels")
        assert exact["ids"] == run["ar"]["ids"]
        assert exact["equal_rows"] == len(exact["ids"])


def told(record: dict[str, Any]) -> str:
    plain, exact = (row_of(record, way) for way in ("none", "kernels"))
    price = exact["seconds_per_token"] / plain["seconds_per_token"] - 1
    return (
        f"{exact['tokens']} tokens of {exact['n']} prompts; exact kernels part {exact['parted']}, "
        f"the plain loop {plain['parted']} (at {plain['parted_at']}); a token takes "
        f"{1e3 * plain['seconds_per_token']:.2f} ms, with exact kernels "
        f"{1e3 * exact['seconds_per_token']:.2f} ({100 * price:+.1f} %); speed over AR "
        f"{plain['speed']['mean']:.2f} and {exact['speed']['mean']:.2f}"
    )


@pytest.fixture(scope="module")
def by_width(default_model: Path, keep: Any) -> Callable[[int], dict[str, Any]]:
    made: dict[int, dict[str, Any]] = {}

    def get(width: int) -> dict[str, Any]:
        if width not in made:
            made[width] = run_speculate(plan(default_model, width=width, ways=(Way("kernels"),)))
            keep(f"kernels-W{width}", made[width])
        return made[width]

    return get


@pytest.mark.parametrize("width", WIDTHS)
def test_1_exact_kernels_give_the_ar_text(
    by_width: Callable[[int], dict[str, Any]], report: Report, width: int
) -> None:
    record = by_width(width)
    report(f"1. W={width}, fa off: {told(record)}")
    assert_exact(record)


def test_1_exact_kernels_with_flash_attention(
    default_model: Path, keep: Any, report: Report
) -> None:
    made = plan(
        default_model,
        context=context(flash_attn="on"),
        prompts=tuple(PromptPlan(text) for text in PROMPTS[: min(3, N_PROMPTS)]),
        n_gen=max(2 * N_TOKENS + 20, 260),
        ways=(Way("kernels"),),
    )
    record = run_speculate(made)
    keep("kernels-fa-on", record)
    report(f"1. W=5, fa on, without {record['config']['without']}: {told(record)}")
    assert record["config"]["without"] == ["split-kv"]
    assert_exact(record)


def test_2_a_parting_is_named_and_bridged(
    default_model: Path, by_width: Callable[[int], dict[str, Any]], keep: Any, report: Report
) -> None:
    """By what csb compare measures on that prompt, with every window."""
    parted = [
        (width, prompt)
        for width in WIDTHS
        for prompt in by_width(width)["prompts"]
        if loop_of(prompt, "none")["partings"]
    ]
    assert parted
    for width, prompt in parted:
        loop = loop_of(prompt, "none")
        first = loop["partings"][0]
        report(
            f"2. W={width}, {prompt['prompt']!r} at {first['pos']}: AR {first['ar_id']} loop "
            f"{first['id']}, AR's margin {first['ar_margin']:.4g} = drift {first['drift']:+.4g}, "
            f"gap {first['gap']:+.4g}, {-first['loop']:.4g} to the other side; NLL "
            f"{loop['nll']['text'] - loop['nll']['ar']:+.4f}"
        )
        assert loop["faults"] == []
    width, prompt = parted[0]
    compared = run_compare(
        ComparePlan(
            ModelPlan(default_model),
            context(),
            PromptPlan(prompt["prompt"]),
            n_gen=N_TOKENS,
            width=width,
        )
    )
    keep("compare-of-the-parting", compared)
    gap, drift = (
        compared["summary"]["quantiles"][name]["1.0"] for name in ("abs_pair_gap", "abs_pair_drift")
    )
    report(f"2. csb compare on the first of them: pair gap at most {gap:.4g}, drift {drift:.4g}")
    assert loop_of(prompt, "none")["partings"][0]["ar_margin"] <= gap + drift


@pytest.mark.parametrize("kind", ["margin", "repair"])
def test_3_gating(default_model: Path, keep: Any, report: Report, kind: str) -> None:
    made = plan(default_model, ways=frontier_ways(kind), frontier=True)
    record = run_speculate(made)
    keep(f"frontier-{kind}", record)
    for row in record["summary"]["ways"]:
        low, high = row["parted_interval"]
        share = row["alone_share"]
        report(
            f"3. {row['way']}: {row['parted']} of {row['n']} texts part ({low:.2f}..{high:.2f}), "
            f"{row['parted_alone']} of them at a row decoded alone; rows alone "
            f"{100 * share['mean']:.1f} % "
            f"({', '.join(f'{100 * x:.1f}' for x in share['interval'] or [])}); "
            f"{row['tokens_per_second']:.1f} tokens/s"
        )
    report(f"3. {kind}: smallest TAU {record['frontier']['smallest']}")
    assert record["outcome"] in ("equal to AR", "parted, all rounding")
    for prompt in record["prompts"]:
        controls = prompt["runs"][0]["controls"]
        assert controls["all_alone_equals_ar"] is True and controls["gate_0_equals_ungated"] is True
    assert row_of(record, f"{kind}:inf")["parted"] == 0


# ---- 4. planted faults, honest runs ----


def planted(
    path: Path, plant: Callable[[csb.Context], Planted], n: int
) -> tuple[Speculated, Planted]:
    options = vars(context())
    with csb.Model(path) as model, csb.Context(model, **options) as opened:
        under = plant(opened)
        memory = Memory(under)  # type: ignore[arg-type]

        def make(ar: Any) -> Noisy:
            under.on = True
            return Noisy(ar, 0.3, [0], model.n_vocab)

        prompt = resolve(PromptPlan(PROMPTS[0]), model).tokens
        return speculate(memory, compare_plan(memory, n, 5), prompt, False, make, [Way()]), under


@pytest.mark.parametrize("at", [2, 5, 9, 13])
@pytest.mark.parametrize("fault", [TailLeft, OffByOne, StaleRow])
def test_4_planted_once(default_model: Path, report: Report, fault: Any, at: int) -> None:
    made, under = planted(default_model, lambda opened: fault(opened, at), 100)
    assert under.fired == 1 and made.stopped is None
    found = made.loops[0].faults
    report(f"4. {fault.__name__} at rollback or block {at}: {found[0] if found else 'MISSED'}")
    assert outcome(made) == "not rounding"


@pytest.mark.parametrize("fault", [TailKept, RowsOffByOne])
def test_4_planted_always(default_model: Path, report: Report, fault: Any) -> None:
    made, under = planted(default_model, fault, 60)
    found = made.loops[0].faults
    report(f"4. {fault.__name__}: {found[0] if found else 'MISSED'}")
    assert under.fired and outcome(made) == "not rounding"


def test_4_a_draft_accepted_unverified(
    default_model: Path, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(draft: list[int], best: list[int]) -> list[int]:
        right = accept(draft, best)
        return [*draft[: len(right)], best[len(right)]] if len(right) <= len(draft) else right

    monkeypatch.setattr(loops, "accept", careless)
    made, _ = planted(default_model, Planted, 60)
    found = made.loops[0].faults
    report(f"4. a draft accepted unverified: {found[0] if found else 'MISSED'}")
    assert outcome(made) == "not rounding"


def honest() -> list[dict[str, Any]]:
    """50 runs, 10 of them with a quantized cache."""
    random = np.random.default_rng(0)
    runs = []
    for i in range(50):
        cache: dict[str, Any] = {"flash_attn": ("off", "on")[i % 2]}
        if i < 10:
            kind = ("q8_0", "q4_0")[i // 5]
            cache = {"flash_attn": "on", "type_k": kind, "type_v": kind}
        way = (None, "margin", "repair", "kernels", "single")[i % 5]
        runs.append(
            {
                "prompt": PROMPTS[int(random.integers(len(PROMPTS)))],
                "width": WIDTHS[int(random.integers(len(WIDTHS)))],
                "drafter": (DrafterPlan("noisy", 0.3), DrafterPlan(), DrafterPlan("ngram"))[i % 3],
                "ways": (Way(way, 0.4 if way in ("margin", "repair") else 0.0),) if way else (),
                "seed": i,
                "context": cache,
            }
        )
    return runs


def test_4_honest_runs(default_model: Path, report: Report, keep: Any) -> None:
    parted = twice = outliers = n = 0
    runs = honest()[: 5 * N_PROMPTS]
    for i, how in enumerate(runs):
        record = run_speculate(
            plan(
                default_model,
                prompts=(PromptPlan(how["prompt"]),),
                n_gen=min(80, N_TOKENS),
                width=how["width"],
                drafter=how["drafter"],
                ways=how["ways"],
                seed=how["seed"],
                context=context(**how["context"]),
            )
        )
        found = record["prompts"][0]["runs"][0]["loops"]
        if record["outcome"] == "not rounding":
            keep(f"honest-{i}", record)
        assert record["outcome"] in ("equal to AR", "parted, all rounding", "nothing compared"), (
            json.dumps([loop["faults"] for loop in found])
        )
        n += len(found)
        parted += sum(bool(loop["partings"]) for loop in found)
        twice += sum(loop["looked_twice"] for loop in found)
        outliers += sum(bool(loop["outliers"]) for loop in found)
    report(
        f"4. {len(runs)} honest runs, {n} loops: no fault; {parted} part, {twice} looked at twice, "
        f"{outliers} with an outlier"
    )


def test_5_overhead(by_width: Callable[[int], dict[str, Any]], report: Report) -> None:
    for width in WIDTHS:
        found = [loop_of(prompt, "none")["overhead"] for prompt in by_width(width)["prompts"]]
        median = statistics.median(found)
        report(f"5. W={width}: overhead over its decodes {100 * median:.2f} % (median of prompts)")
        assert median < 0.05
