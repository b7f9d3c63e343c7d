"""The controls can fail: each fault planted here must be seen, none may end as a clean run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import statistics, verdict
from csb.errors import InvalidMeasurement
from csb.exit_codes import Exit
from csb.measure.compare import Measurement, compare
from csb.measure.memory import Memory
from csb.plan import ComparePlan, ContextPlan, ModelPlan
from csb.verdict import Outcome

pytestmark = pytest.mark.native

PROMPT = [5, 17, 300, 42, 9, 88]
Rows = np.ndarray


class Faulty:
    """A context with one thing wrong. A fault gets (the calls so far, the call's tokens, rows)."""

    def __init__(self, context: csb.Context, **faults: Callable[..., Any]) -> None:
        self._context, self._faults = context, faults
        self._tokens: list[int] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return self._faults.get(name) or getattr(self._context, name)

    def decode(self, tokens: Any, start: Any, **options: Any) -> None:
        self.calls += 1
        self._tokens = list(tokens)
        if "tokens" in self._faults and options.get("outputs", True):  # prefill wants none
            tokens = self._faults["tokens"](self.calls, self._tokens)
        self._context.decode(tokens, start, **options)

    def steps(self, tokens: Any, start: int, out: Rows) -> Rows:
        for k, token in enumerate(tokens):
            self.decode([token], start + k)
            self.logits([0], out[k : k + 1])
        return out

    def logits(self, entries: Any = None, out: Rows | None = None) -> Rows:
        rows = self._context.logits(entries, out)
        if "rows" in self._faults:
            self._faults["rows"](self.calls, self._tokens, rows)
        return rows


def run(
    path: Any,
    *,
    n: int = 12,
    width: int = 4,
    prefix: str = "reprefill",
    options: dict[str, Any] | None = None,
    **faults: Callable[..., Any],
) -> tuple[Measurement, Outcome, dict[str, Any]]:
    plan = ComparePlan(ModelPlan(path), ContextPlan(), n_gen=n, width=width, prefix=prefix)
    with (
        csb.Model(path) as model,
        csb.Context(model, **{"n_ctx": 256, "n_threads": 1, **(options or {})}) as context,
    ):
        measured = compare(Memory(Faulty(context, **faults)), plan, PROMPT, False)  # type: ignore[arg-type]
    summary = statistics.summarise(measured.cells, plan.decided)
    outcome = verdict.judge(summary, measured.controls.to_json(), measured.stopped is None)
    return measured, outcome, summary


def code(outcome: Outcome, summary: dict[str, Any]) -> Exit:
    return verdict.exit_code(outcome, summary, "flip")


@pytest.fixture
def model(tiny_model: TinyModel) -> Any:
    return tiny_model("llama", "f32", n_layer=2)


def test_without_a_fault_they_pass(model: Any) -> None:
    measured, outcome, _ = run(model)
    assert measured.controls.complete and not measured.controls.failed
    assert measured.controls.one_row_equal is True
    assert outcome in (Outcome.FLIP, Outcome.NO_FLIP)


def one_ulp(rows: Rows) -> None:
    rows[0, 3] = np.nextafter(rows[0, 3], np.float32(np.inf))


def test_noise_in_the_single_path(model: Any) -> None:
    noisy = lambda calls, tokens, rows: one_ulp(rows) if len(tokens) == 1 and calls % 2 else None  # noqa: E731
    measured, outcome, summary = run(model, rows=noisy)
    assert "ar_equal" in measured.controls.failed or "repeat_equal" in measured.controls.failed
    assert measured.controls.noise
    assert all(size["n_diff"] >= 1 for size in measured.controls.noise.values())
    assert (outcome, code(outcome, summary)) == (Outcome.INVALID, Exit.INVALID)


def test_noise_in_the_block_path(model: Any) -> None:
    seen: list[int] = []

    def noisy(calls: int, tokens: list[int], rows: Rows) -> None:
        if len(tokens) > 1:
            seen.append(calls)
            if len(seen) % 2:
                one_ulp(rows)

    measured, outcome, summary = run(model, rows=noisy)
    assert measured.controls.failed == ["repeat_equal"]
    assert measured.controls.noise["repeat_block_equal"]["n_diff"] == 1
    assert code(outcome, summary) == Exit.INVALID


def test_rows_that_ignore_their_input(model: Any) -> None:
    """A path that answers from somewhere else than its tokens: every equality holds."""

    def frozen(calls: int, tokens: list[int], rows: Rows) -> None:
        rows[:] = np.arange(rows.shape[1], dtype=np.float32)

    measured, outcome, _ = run(model, rows=frozen)
    assert measured.controls.failed == ["token_differs"]
    assert outcome is Outcome.INVALID


def test_a_wrong_token_in_the_block(tiny_model: TinyModel) -> None:
    """Deterministic, so no control fires: it must end among the decided flips."""
    sharp = tiny_model("llama", "f32", n_layer=2, sharp=24.0)

    def shifted(calls: int, tokens: list[int]) -> list[int]:
        return [tokens[0], *tokens[:-1]] if len(tokens) > 1 else tokens

    clean = run(sharp, n=16)[2]
    assert clean["n_flips"] == 0
    measured, outcome, summary = run(sharp, n=16, tokens=shifted)
    assert outcome is Outcome.FLIP
    by_class = summary["flips_by_class"]
    assert by_class["decided"] + by_class["unexplained"] > 0
    assert code(outcome, summary) == Exit.DIFFERENT
    assert verdict.exit_code(outcome, summary, "decided") == Exit.DIFFERENT
    assert measured.controls.failed == []


def test_one_row_far_off_is_unexplained(tiny_model: TinyModel) -> None:
    sharp = tiny_model("llama", "f32", n_layer=2, sharp=24.0)

    clean = run(sharp, n=16)[0]
    table = clean.cells[clean.cells["t"] > 0]  # not the window that the controls run on
    decided = table[(table["margin_s"] >= 2) & (table["j"] == 1)]
    assert len(decided)
    t = int(decided["t"][0])
    inputs = (PROMPT + clean.trajectory.ids)[len(PROMPT) + t - 1 :][:4]

    def spoiled(calls: int, tokens: list[int], rows: Rows) -> None:
        if tokens == inputs:
            rows[1, np.argmax(rows[1])] -= 1000

    _, outcome, summary = run(sharp, n=16, rows=spoiled)
    assert summary["flips_by_class"]["unexplained"] == 1
    assert outcome is Outcome.FLIP


@pytest.mark.parametrize("where", ["single", "block"])
def test_nan(model: Any, where: str) -> None:
    def broken(calls: int, tokens: list[int], rows: Rows) -> None:
        if calls > 60 and (len(tokens) == 1) == (where == "single"):
            rows[0, 7] = np.nan

    measured, outcome, summary = run(model, rows=broken)
    assert summary["n_bad"] > 0
    assert measured.stopped is None
    assert code(outcome, summary) == Exit.INVALID


def test_nan_in_the_ar_run(model: Any) -> None:
    def broken(calls: int, tokens: list[int], rows: Rows) -> None:
        if calls == 5:
            rows[0, 7] = np.inf

    measured, outcome, summary = run(model, rows=broken)
    assert isinstance(measured.stopped, InvalidMeasurement)
    assert "position 3" in str(measured.stopped)
    assert code(outcome, summary) == Exit.INVALID


def test_stale_memory(model: Any) -> None:
    """A memory that says it was cut back and was not."""
    kept = lambda *arguments, **options: True  # noqa: E731
    measured, outcome, summary = run(model, remove=kept)
    assert isinstance(measured.stopped, InvalidMeasurement)
    assert "stale" in str(measured.stopped)
    assert code(outcome, summary) == Exit.INVALID


def test_stale_state(tiny_model: TinyModel) -> None:
    """A recurrent memory whose saved state is not put back."""
    mamba = tiny_model("mamba", "f32", n_layer=1)
    clean = run(mamba)
    assert clean[0].controls.complete and not clean[0].controls.failed
    measured, outcome, summary = run(mamba, restore=lambda *a, **o: None)
    assert isinstance(measured.stopped, InvalidMeasurement)
    assert code(outcome, summary) == Exit.INVALID


@pytest.mark.parametrize(
    ("width", "options"), [(1, {}), (4, {"n_ubatch": 1})], ids=["W=1", "-ub 1"]
)
def test_only_one_row_cells(model: Any, width: int, options: dict[str, Any]) -> None:
    measured, outcome, summary = run(model, width=width, options=options)
    assert len(measured.cells) > 0
    assert not measured.cells["n_diff"].any()  # the same graph on the same memory
    assert summary["n_compared"] == 0
    assert (outcome, code(outcome, summary)) == (Outcome.NOTHING, Exit.INVALID)


def test_one_row_windows_that_differ(model: Any) -> None:
    """The last window is one row: the single graph run twice on one memory."""
    last: list[int] = []

    def off(calls: int, tokens: list[int], rows: Rows) -> None:
        last.append(calls)
        if calls == total:
            one_ulp(rows)

    total = -1
    run(model, rows=off)
    total = last[-1]
    last.clear()
    measured, outcome, _ = run(model, rows=off)
    assert measured.controls.failed == ["one_row_equal"]
    assert outcome is Outcome.INVALID


def test_incremental_memory_that_is_not_the_ar_runs(model: Any) -> None:
    n, width = 12, 4

    def off(calls: int, tokens: list[int], rows: Rows) -> None:
        if calls == 1 + 9:  # the AR run's position 8, past the rows that window 0 checks
            one_ulp(rows)

    measured, outcome, _ = run(model, n=n, width=width, prefix="incremental", rows=off)
    assert measured.controls.failed == ["incremental_equal"]
    assert outcome is Outcome.INVALID


def test_a_run_cut_short_is_incomplete(model: Any) -> None:
    def stop(calls: int, tokens: list[int], rows: Rows) -> None:
        if calls == 60:
            raise KeyboardInterrupt

    measured, outcome, summary = run(model, rows=stop)
    assert isinstance(measured.stopped, KeyboardInterrupt)
    assert len(measured.cells) > 0
    assert (outcome, code(outcome, summary)) == (Outcome.INCOMPLETE, Exit.INVALID)
