"""`csb budget`: runs that go wrong, are cut short, or whose numbers must not be believed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from budgets import ALL, IDS, PROMPT, measure, named
from conftest import TinyModel
from csb import kernels
from csb.budget import Line
from csb.errors import InvalidMeasurement
from csb.exit_codes import Exit
from csb.measure.budget import Budget
from csb.measure.line import Baseline, Measured
from csb.measure.memory import Memory
from csb.measure.setups import Beside, Prefilled
from csb.measure.switches import SPOT, WRONG, SwitchGroup
from csb.measure.trajectory import Trajectory
from csb.plan import Window
from process import Run

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    yield
    assert kernels.in_force() == []


@pytest.fixture(scope="module")
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


def one_ulp(rows: np.ndarray) -> None:
    rows[0, 3] = np.nextafter(rows[0, 3], np.float32(np.inf))


def test_noise_is_said(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Prefilled.block

    def noisy(self: Prefilled, window: Window, out: np.ndarray) -> float:
        took = plain(self, window, out)
        one_ulp(out)
        return took

    monkeypatch.setattr(Prefilled, "block", noisy)
    done, found = measure(run, bf16, *IDS, "--lines", "noise")
    assert named(found, "a second time")["summary"]["block"]["changed"] == 12
    assert "noise: the same decodes a second time differ in 12 of 84 rows, by up to " in done.out


def test_a_baseline_that_changes_is_noise(
    run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Memory.timed_block

    def noisy(self: Memory, inputs: Any, prefix: int, out: np.ndarray) -> float:
        took = plain(self, inputs, prefix, out)
        one_ulp(out)
        return took

    monkeypatch.setattr(Memory, "timed_block", noisy)
    done, _ = measure(run, bf16, *IDS, "--lines", "noise")
    assert "noise: 24 of 84 rows of the baseline came out otherwise" in done.out


def test_failed_controls_end_it(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csb.measure.controls.same_bits", lambda a, b: False)
    done = run("budget", "-m", bf16, *IDS, "--lines", "noise")
    assert done.code == Exit.INVALID
    assert done.last == "csb: the baseline is not valid, so no line says anything"


def test_nothing_compared(run: Run, bf16: Path) -> None:
    done = run("budget", "-m", bf16, *IDS, "-W", "1", "--lines", "noise,switches")
    assert done.code == Exit.INVALID
    assert done.last == "csb: the baseline is nothing compared, so no line says anything"


def test_a_line_that_fails_ends_alone(
    run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Memory.adopt

    def stale(self: Memory, state: np.ndarray, length: int) -> None:
        if length > len(PROMPT) + 3:
            raise InvalidMeasurement("stale")
        plain(self, state, length)

    monkeypatch.setattr(Memory, "adopt", stale)
    done, found = measure(
        run, bf16, *IDS, *ALL, "--prefix", "reprefill", "--lines", "ubatch,prefix"
    )
    split, written = named(found, "-ub 2"), named(found, "--prefix incremental")
    assert (split["n_windows"], split["complete"], split["why_not"]) == (5, False, "stale")
    assert (written["n_windows"], written["complete"]) == (12, True)
    assert "-ub 2: ended after 5 windows: stale" in done.out


def test_a_memory_that_is_not_the_baselines(bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with csb.Model(bf16) as model, csb.Context(model, n_ctx=256, n_threads=1) as context:
        memory = Memory(context)
        memory.prefill([1, 2, 3])
        state = memory.state(3)
        memory.prefill([3, 2, 1])
        monkeypatch.setattr(memory, "context", Stuck(context))
        with pytest.raises(InvalidMeasurement, match="bit for bit"):
            memory.adopt(state, 3)


class Stuck:
    """A context that takes a state and keeps its own."""

    def __init__(self, context: csb.Context) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def restore(self, state: np.ndarray) -> None:
        self._context.decode([3, 2, 1], 0, outputs=False)


def test_records_that_are_wrong_are_found() -> None:
    """A switch that changes the single path though no kernel of it was recorded."""

    class Changing:
        n_vocab = 4
        names: tuple[str, ...] = ()
        context = property(lambda self: self)

        def switched(self, *, single: tuple[str, ...], block: tuple[str, ...]) -> Any:
            self.names = single
            return contextlib.nullcontext()

        def rewind(self, length: int) -> None: ...

        def timed_block(self, inputs: Any, prefix: int, out: np.ndarray) -> float:
            out[:] = 1
            return 1.0

        def single(self, inputs: Any, start: int, out: np.ndarray) -> np.ndarray:
            out[:] = 2 if "tiled" in self.names else 1
            return out

        def ubatch_rows(self, n: int) -> list[int]:
            return [n] * n

    plain = np.ones((2, 4), np.float32)
    ar = Trajectory([2, 3], [0.0, 0.0], [(1, 0.0), (1, 0.0)])
    base = Baseline(Window(0, 1, (1, 2), (2, 3)), plain, plain, ar, 1.0, True)
    wrong, right = (Measured(Line("switches", n, switches=(n,))) for n in ("tiled", "llamafile"))
    group = SwitchGroup(Changing(), [wrong, right], 2)  # type: ignore[arg-type]
    for nth in range(1, 3):
        group.blocks(base.window)
        group.add(base, plain, set(), nth)
    assert (wrong.why_not, right.why_not, wrong.proven) == ("", "", 2)
    group.blocks(base.window)
    group.add(base, plain, set(), SPOT)
    assert (wrong.why_not, right.why_not) == (WRONG, "")
    known = Measured(Line("switches", "tiled", switches=("tiled",)))
    group = SwitchGroup(Changing(), [known], 2)  # type: ignore[arg-type]
    group.blocks(base.window)
    group.add(base, plain, {"tiled"}, 1)
    assert known.changes[0][:, 0].tolist() == [4, 4]


def test_without_hooks(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("csb.run_budget", "csb.measure.budget"):
        monkeypatch.setattr(f"{module}.has_hooks", lambda: False)
    done, found = measure(run, bf16, *IDS, "--lines", "switches,repack,ubatch")
    assert named(found, "-ub 2")["complete"]
    assert named(found, "--without llamafile")["why_not"] == "this build has no hooks"
    assert done.last == (
        "csb: what the gap comes from was not measured: nothing to repack; this build has no hooks"
    )


def test_an_interrupt_keeps_what_is_done(
    run: Run, bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Budget.window

    def stop(self: Budget, *arguments: Any) -> None:
        if self.n_windows == 3:
            raise KeyboardInterrupt
        plain(self, *arguments)

    monkeypatch.setattr(Budget, "window", stop)
    saved = tmp_path / "b.json"
    given = ("--lines", "ubatch,switches", "--json", saved)
    done = run("budget", "-m", bf16, *IDS, *ALL, *given)
    assert (done.code, done.err) == (Exit.INTERRUPTED, "")
    found = json.loads(saved.read_text())
    assert (found["complete"], found["baseline"]["complete"]) == (False, False)
    assert {x["n_windows"] for x in found["lines"]} == {3}
    assert done.last.startswith("csb: not finished: ")


@pytest.mark.parametrize("where", ["crowd", "baseline"])
def test_ctrl_c(
    run: Run, bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In the middle of a window, whichever context decodes then."""
    owner = Beside if where == "crowd" else SwitchGroup
    name = "block" if where == "crowd" else "blocks"
    plain, calls = getattr(owner, name), iter(range(1000))

    def stop(self: Any, *arguments: Any) -> Any:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return plain(self, *arguments)

    monkeypatch.setattr(owner, name, stop)
    saved = tmp_path / "b.json"
    given = ("--slots", "2", "--lines", "slots,switches", "--json", saved)
    done = run("budget", "-m", bf16, *IDS, *ALL, *given)
    assert (done.code, done.err) == (Exit.INTERRUPTED, "")
    found = json.loads(saved.read_text())
    assert found["complete"] is False
    # a decode of so small a model may end between two attempts to cancel it
    assert 4 <= found["n_windows"] == named(found, "--slots 2")["n_windows"] < 12
    assert named(found, "--slots 2")["why_not"] == ""
    assert done.last.startswith("csb: not finished: ")
