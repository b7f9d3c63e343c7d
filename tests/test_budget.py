"""`csb budget`: each line's numbers against plain decodes, and what they are said to amount to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import against, budget, budget_record, conclusion, kernels, record
from csb.budget import BudgetPlan, Facts, Line
from csb.conclusion import Tried
from csb.errors import FileError, InvalidMeasurement
from csb.exit_codes import Exit
from csb.measure.budget import Budget
from csb.measure.line import Baseline, Measured
from csb.measure.memory import Memory, same_bits
from csb.measure.setups import Beside, Neighbours, Prefilled
from csb.measure.switches import SPOT, WRONG, SwitchGroup
from csb.measure.trajectory import Trajectory
from csb.native.library import quantize
from csb.plan import EXACT_SWITCHES, Window
from csb.render.budget import render
from csb.render.budget_plot import bars
from process import Result, Run, child
from test_hooks import X86
from test_seed import tokens

pytestmark = pytest.mark.native

PROMPT = [5, 17, 300, 42, 9, 88]
IDS = ("--tokens", ",".join(map(str, PROMPT)), "-t", "1", "-n", "12", "-W", "4", "-fa", "off")
ALL = ("--every", "1")
QUICK = "prefix,ubatch,slots,flash,cache,repack,switches"  # no second thread


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    yield
    assert kernels.in_force() == []


@pytest.fixture(scope="module")
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


def measure(run: Run, path: Path, *given: object) -> tuple[Result, dict[str, Any]]:
    saved = path.with_suffix(".budget.json")
    done = run("budget", "-m", path, *given, "--json", saved)
    assert done.code == Exit.DONE, done.err
    return done, json.loads(saved.read_text())


@pytest.fixture(scope="module")
def made(bf16: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The text and the record of one budget of the BF16 model."""
    saved = tmp_path_factory.mktemp("budget") / "b.json"
    done = child("budget", "-m", bf16, *IDS, "--lines", QUICK, *ALL, "--json", saved)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, json.loads(saved.read_text())


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    (line,) = (x for x in found["lines"] if x["name"] == name)
    return line


# ---- the lines' numbers ----


def test_the_table(made: tuple[str, dict[str, Any]]) -> None:
    names = [line["name"] for line in made[1]["lines"]]
    assert names == [
        "a second time",
        "--prefix incremental",
        *("-ub 1", "-ub 2"),
        *(f"--slots {n}" for n in (1, 2, 4, 8)),
        "-fa on",
        *(f"-ctk {kind} -ctv {kind}" for kind in ("f32", "bf16", "q8_0")),
        "--no-repack",
        *(f"--without {name}" for name in ("llamafile", "tiled", "split-kv", "reference")),
        "--without llamafile,tiled,split-kv",
    ]
    lines = made[0].splitlines()
    assert lines[11].startswith("line ") and lines[12].startswith("baseline ")
    for name, line in zip(names, lines[13:], strict=False):
        assert line.startswith(f"{name}  ")
    q8 = "-ctk q8_0 -ctv q8_0 +not measured: .*quantized V cache requires flash_attn"
    assert re.search(f"^{q8}", made[0], re.M)
    assert re.search("^--no-repack +not measured: nothing to repack$", made[0], re.M)
    assert render(made[1]) == made[0]


def test_the_baseline_is_what_compare_says(
    run: Run, bf16: Path, made: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert run("-m", bf16, *IDS, "--json", tmp_path / "r.json").code in (0, 1)
    alone = record.load(tmp_path / "r.json")
    baseline = made[1]["baseline"]
    for key in ("ar", "cells", "stats", "summary", "verdict", "flips", "controls"):
        assert baseline[key] == alone[key], key
    assert baseline["schema"] == alone["schema"]


Settings = dict[str, object]
SETTINGS: Settings = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "off"}


def plain_rows(
    model: csb.Model, options: Settings, text: list[int], window: Window, written: int, *off: str
) -> tuple[np.ndarray, np.ndarray]:
    """A window's rows by csb.Context alone. written: tokens of the prefix that one prefill writes,
    the rest one by one. off: kernels refused in both paths, not in the prefill."""
    inputs, start, n = list(window.inputs), window.prefix, len(window.inputs)
    with csb.Context(model, **options) as context:  # type: ignore[arg-type]
        context.decode(text[:written], 0, outputs=False)
        for p in range(written, start):
            context.decode([text[p]], p)
        with kernels.exactly(*off):
            single = np.empty((n, model.n_vocab), np.float32)
            for k in range(n):
                context.decode([inputs[k]], start + k)
                context.logits([0], single[k : k + 1])
            context.remove(start)
            context.decode(inputs, start)
            return single, context.logits(range(n))


CASES: dict[str, tuple[Settings, bool, tuple[str, ...]]] = {
    "a second time": ({}, False, ()),
    "--prefix incremental": ({}, True, ()),
    "-ub 2": ({"n_ubatch": 2}, False, ()),
    "-fa on": ({"flash_attn": "on"}, False, ()),
    "-ctk f32 -ctv f32": ({"type_k": "f32", "type_v": "f32"}, False, ()),
    "--without llamafile": ({}, False, ("llamafile",)),
    "--without reference": ({}, False, ("reference",)),
    "--without llamafile,tiled,split-kv": ({}, False, EXACT_SWITCHES),
}


@pytest.mark.parametrize("name", CASES)
def test_lines_by_plain_decodes(bf16: Path, made: tuple[str, dict[str, Any]], name: str) -> None:
    options, singly, off = CASES[name]
    if name == "-ub 2":  # only the block is split: the memory is the baseline's
        memory: Settings = {}
    else:
        memory = options
    ids = [a["id"] for a in made[1]["baseline"]["ar"]]
    text, line = PROMPT + ids, named(made[1], name)
    places = {(c["t"], c["j"]): c for c in line["cells"]}
    assert len(places) == line["summary"]["n_cells"] == 42
    with csb.Model(bf16) as model:
        for t in (0, 5, 10):
            start = len(PROMPT) - 1 + t
            rows = min(4, 12 - t)
            window = Window(t, start, tuple(text[start : start + rows]), tuple(ids[t : t + rows]))
            written = len(PROMPT) - 1 if singly else start
            base = plain_rows(model, SETTINGS, text, window, start)
            if memory == options:
                found = plain_rows(model, {**SETTINGS, **options}, text, window, written, *off)
            else:
                found = base[0], split_block(model, text, window)
            for j, target in enumerate(window.targets):
                cell = places[t, j]
                assert (cell["l_s"], cell["l_b"]) == (found[0][j, target], found[1][j, target])
                for path, ours, theirs in zip(("single", "block"), found, base, strict=True):
                    bits = ours[j].view(np.uint32) != theirs[j].view(np.uint32)
                    gap = np.abs(ours[j].astype(np.float64) - theirs[j]).max()
                    assert cell[f"{path}_n_diff"] == np.count_nonzero(bits)
                    assert cell[f"{path}_max_abs"] == gap
                bits = found[0][j].view(np.uint32) != found[1][j].view(np.uint32)
                assert cell["n_diff"] == np.count_nonzero(bits)


def split_block(model: csb.Model, text: list[int], window: Window) -> np.ndarray:
    """The block as calls of two rows."""
    with csb.Context(model, **SETTINGS) as context:  # type: ignore[arg-type]
        context.decode(text[: window.prefix], 0, outputs=False)
        rows = []
        for k in range(0, len(window.inputs), 2):
            part = list(window.inputs[k : k + 2])
            context.decode(part, window.prefix + k)
            rows.append(context.logits(range(len(part))))
        return np.concatenate(rows)


def test_lines_that_are_no_switch_are_thinned(
    run: Run, bf16: Path, made: tuple[str, dict[str, Any]]
) -> None:
    """One of two windows unless asked otherwise, with the cells that they have in the whole run."""
    names = "ubatch,repack,switches"
    done, found = measure(run, bf16, *IDS, "--lines", names)
    assert "lines with fewer rows: in one of 2 windows (--every 1: in all)" in done.out
    assert "--every" not in made[0]
    for line in found["lines"]:
        whole = named(made[1], line["name"])["cells"]
        thinned = line["family"] == "ubatch"
        assert line["cells"] == [c for c in whole if not (thinned and c["t"] % 2)]
        if line["summary"]:
            assert line["complete"] and line["n_windows"] == (6 if thinned else 12)


def test_a_summary_is_of_its_cells(made: tuple[str, dict[str, Any]]) -> None:
    for line in made[1]["lines"]:
        if (s := line["summary"]) is None:
            continue
        compared = [c for c in line["cells"] if c["ubatch_rows"] > 1]
        assert s["n_compared"] == len(compared)
        assert s["n_equal"] == sum(c["n_diff"] == 0 for c in compared)
        for path in ("single", "block"):
            sizes = [c[f"{path}_max_abs"] for c in line["cells"]]
            assert s[path]["changed"] == sum(c[f"{path}_n_diff"] > 0 for c in line["cells"])
            assert s[path]["max_abs"] == max(sizes)
        if compared:
            gaps = [abs(c["l_s"] - c["l_b"]) for c in compared]
            assert s["gap"] == {"median": float(np.median(gaps)), "max": max(gaps)}
        assert s["n_flips"] == sum(c["amax_s"] != c["amax_b"] for c in line["cells"])


@X86
def test_bf16_comes_from_llamafile(made: tuple[str, dict[str, Any]]) -> None:
    text, found = made
    base = found["baseline_summary"]
    assert (base["n_compared"], base["n_equal"]) == (41, 0)
    assert found["conclusion"]["removed_by"] == {"switches": ["llamafile"], "no_repack": False}
    assert found["conclusion"]["noise"] == ""
    start = "csb: on this build all of the gap in 41 cells comes from llamafile_sgemm; without it "
    last = text.splitlines()[-1]
    assert last.startswith(f"{start}single and block are bit-identical and a block costs ")
    assert last.endswith(" (use --without llamafile)")
    off = named(found, "--without llamafile")
    assert (off["summary"]["n_equal"], off["summary"]["single"]["changed"]) == (41, 0)
    assert off["nodes_changed"] > 0 and off["proven"] == 12
    for name in ("tiled", "split-kv"):
        line = named(found, f"--without {name}")
        assert (line["nodes_changed"], line["summary"]["block"]["changed"]) == (0, 0)
        assert line["summary"]["gap"] == base["gap"]


@X86
def test_other_sequences_bring_the_blocks_kernel(made: tuple[str, dict[str, Any]]) -> None:
    """One row with others in the call is a product of several rows, whose value does not depend on
    their number: a single row then has the bits of the baseline's block."""
    blocks = {(c["t"], c["j"]): c["l_b"] for c in made[1]["baseline"]["cells"]}
    for n in (1, 2, 4, 8):
        line = named(made[1], f"--slots {n}")
        assert line["summary"]["n_equal"] == 41
        many = [c for c in line["cells"] if c["ubatch_rows"] > 1]
        assert all(c["l_s"] == c["l_b"] == blocks[c["t"], c["j"]] for c in many)


@X86
@pytest.mark.parametrize("n", [1, 4])
def test_other_sequences_alone_change_nothing(bf16: Path, n: int) -> None:
    """Without llamafile a row does not depend on the rows beside it, so all that could differ is
    the memory: sequence 0's must be what it is alone, and the others' must be there."""
    text, start = tokens(40), 30
    options = {**SETTINGS, "flash_attn": "off"}
    window = Window(0, start, tuple(text[start : start + 4]), (0, 0, 0, 0))
    with csb.Model(bf16) as model:
        with csb.Context(model, **options) as context:  # type: ignore[arg-type]
            alone = Memory(context)
            alone.prefill(text[:start])
            state = alone.state(start)
        expected = plain_rows(model, options, text, window, start, "llamafile")
        crowded = {**options, "n_seq_max": 6, "kv_unified": True}
        with csb.Context(model, **crowded) as context:  # type: ignore[arg-type]
            memory = Beside(Neighbours(context, text, 5), n)
            assert [context.bounds(i + 1)[1] for i in range(5)] == [15 + i for i in range(5)]
            rows = [np.empty((4, model.n_vocab), np.float32) for _ in range(4)]
            for i, names in enumerate((("llamafile",), ())):
                for k, path in enumerate((memory.single, memory.block)):
                    memory.adopt(state, start)
                    with kernels.exactly(*names):
                        path(window.inputs, start, rows[2 * i + k])
            assert [context.bounds(i + 1)[1] for i in range(5)] == [15 + i for i in range(5)]
    assert same_bits(rows[0], expected[0]) and same_bits(rows[1], expected[1])
    assert not same_bits(rows[2], expected[0])  # with it the same calls do differ


@pytest.mark.parametrize(("width", "removed_by"), [(5, []), (8, ["tiled"])])
@X86
def test_q4_k_comes_from_repacking(
    run: Run, tiny_model: TinyModel, tmp_path: Path, width: int, removed_by: list[str]
) -> None:
    """Repacked Q4_K has GEMM for fours of rows and GEMV for the rest, whatever is refused. In plain
    weights vec_dot computes all up to seven rows, from eight on the tiled product."""
    path = tmp_path / "q4k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=2), path, "q4_k_s", pure=True)
    given = ("--tokens", "5,17,300,42,9,88", "-t", "1", "-n", "10", "-W", width, "-fa", "on")
    done, found = measure(run, path, *given, "--lines", "repack,switches")
    n = found["baseline_summary"]["n_compared"]
    assert found["baseline_summary"]["n_equal"] < n
    alone = named(found, "--without llamafile,tiled,split-kv")["summary"]
    assert alone["n_equal"] == found["baseline_summary"]["n_equal"]
    assert found["conclusion"]["removed_by"] == {"switches": removed_by, "no_repack": True}
    assert "comes from the repacked weights' kernels" in done.last
    assert done.last.endswith(f"(use --no-repack{' --without tiled' * len(removed_by)})")
    assert (named(found, "--no-repack")["summary"]["n_equal"] == n) == (not removed_by)


@X86
def test_threads_and_split_kv(run: Run, tiny_model: TinyModel) -> None:
    """Past 256 tokens, two threads: one row attends by split-KV, in as many parts as threads. With
    one thread it is one part, which is what runs without split-KV."""
    path = tiny_model("llama", "q4_1", n_layer=1)
    text = ",".join(map(str, tokens(260)))
    given = ("--tokens", text, "-t", "2", "-n", "2", "-W", "2", "-fa", "on")
    done, found = measure(run, path, *given, *ALL, "--lines", "threads,switches")
    assert found["baseline_summary"]["n_equal"] == 0
    one, off = named(found, "-t 1"), named(found, "--without split-kv")
    for line in (one, off):
        assert line["summary"]["single"]["changed"] == line["summary"]["n_cells"] == 3
        assert line["summary"]["block"]["changed"] == 1  # the last window's, which is one row
        assert line["summary"]["n_equal"] == 2
    assert [c["l_s"] for c in one["cells"]] == [c["l_s"] for c in off["cells"]]
    assert found["conclusion"]["removed_by"] == {"switches": ["split-kv"], "no_repack": False}
    assert "comes from split-KV attention; without it" in done.last


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "gemma3", "moe"])
def test_families(run: Run, tiny_model: TinyModel, arch: str) -> None:
    lines = "prefix,ubatch,slots,cache,switches"
    given = (*IDS[:4], "-n", "5", "-W", "3", "-fa", "off", "--slots", "2", "--lines", lines)
    done, found = measure(run, tiny_model(arch, "bf16"), *given)
    assert named(found, "a second time")["summary"]["single"]["changed"] == 0
    recurrent = arch in ("mamba", "lfm2")
    for name in ("--prefix incremental", "--slots 2"):
        line = named(found, name)
        assert ("can't be cut back bit for bit" in line["why_not"]) == recurrent
        assert (line["summary"] is None) == recurrent
    assert named(found, "--without llamafile")["complete"]
    if arch == "mamba":
        none = "^-ctk f32 -ctv f32 +not measured: the model has no attention cache$"
        assert re.search(none, done.out, re.M)


# ---- what can fail ----


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


# ---- another build ----


@pytest.fixture(scope="module")
def compared(bf16: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("other") / "r.json"
    done = child("-m", bf16, *IDS, "--json", saved)
    assert done.returncode in (0, 1), done.stderr
    return saved


def test_against_a_record(
    run: Run, bf16: Path, compared: Path, made: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    changed = json.loads(compared.read_text())
    first, second, third = changed["cells"][:3]
    first["l_s"] += 0.5
    first["amax_s"] += 1
    second["l_b"] -= 0.25
    third["l_s"] = -third["l_s"]  # sets a sign, and with it the largest difference
    changed["provenance"]["build"]["llama_commit"] = "0" * 40
    changed["config"]["n_threads"] = 8
    other = tmp_path / "other.json"
    other.write_text(json.dumps(changed))
    done, found = measure(run, bf16, *IDS, "--lines", "noise", "--against", other)
    line = found["lines"][-1]
    s = line["summary"]
    assert (line["family"], s["n_cells"], s["n_compared"]) == ("against", 42, 41)
    assert (s["single"]["changed"], s["single"]["argmax_changed"]) == (2, 1)
    assert (s["block"]["changed"], s["block"]["max_abs"]) == (1, 0.25)
    assert s["single"]["max_abs"] == max(0.5, 2 * abs(third["l_s"]))
    assert line["differs"]["build.llama_commit"][0] == "0" * 40
    assert line["differs"]["n_threads"] == [8, 1]
    assert "n_threads 8 / 1" in done.out
    same = against.line(against.load(compared), made[1]["baseline"], "x")
    assert [same["summary"][p]["changed"] for p in ("single", "block")] == [0, 0]
    assert same["differs"] == {}
    assert same["summary"]["gap"] == made[1]["baseline_summary"]["gap"]


def test_against_a_budget(made: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    saved = tmp_path / "b.json"
    saved.write_text(json.dumps(made[1]))
    assert against.load(saved) == made[1]["baseline"]


def test_against_says_why_not(compared: Path) -> None:
    ours = against.load(compared)

    def why_not(**changes: Any) -> str:
        line = against.line({**ours, **changes}, ours, "x")
        assert (line["summary"] is None) == bool(line["why_not"])
        return str(line["why_not"])

    ids = [dict(a) for a in ours["ar"]]
    ids[2]["id"] += 1
    other_model = {**ours["provenance"], "model": {"files": [{"sha256": "0"}]}}
    assert why_not() == ""
    assert why_not(provenance=other_model) == "it is of another model file"
    assert why_not(prompt_tokens=[1]) == "its prompt has other tokens"
    assert why_not(block_width=8) == "its block width is 8, this one's 4"
    assert why_not(ar=ids).startswith("its trajectory parts from this one at position 2: no window")
    assert why_not(cells=[]).startswith("its trajectory parts")
    ids[2]["id"] -= 1
    ids[9]["id"] += 1
    part = against.line({**ours, "ar": ids}, ours, "x")["summary"]
    assert part["n_cells"] == 4 * 6  # the windows that end before position 9


@pytest.mark.parametrize("text", ["{}", "no", '{"schema": {"name": "csb.compare", "version": 1}}'])
def test_against_what_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FileError, match=r"x.json: (not a|is no whole) record of csb compare"):
        against.load(path)


# ---- the plan ----

FACTS = Facts(
    context={
        "n_threads": 4,
        "n_ubatch": 512,
        "n_batch": 512,
        "flash_attn": True,
        "type_k": "f16",
        "type_v": "f16",
        "memory": "attention",
    },
    width=5,
    prefix="auto",
    cuts_back=True,
    hooks=True,
    repack=True,
    load_time=False,
)


def names(facts: Facts, *families: str) -> dict[str, str]:
    """{name: why not}"""
    return {x.name: x.why_not for x in budget.lines(facts, (1, 4), families) if x.family != "noise"}


@pytest.mark.parametrize(
    ("n", "others"), [(1, ["-t 2"]), (2, ["-t 1"]), (3, ["-t 1"]), (8, ["-t 1", "-t 4"])]
)
def test_thread_counts(n: int, others: list[str]) -> None:
    facts = replace(FACTS, context={**FACTS.context, "n_threads": n})
    assert list(names(facts, "threads")) == others


@pytest.mark.parametrize(
    ("width", "n_ubatch", "expected"),
    [
        (5, 512, {"-ub 1": "", "-ub 2": ""}),
        (2, 512, {"-ub 1": ""}),
        (16, 512, {"-ub 1": "", "-ub 8": ""}),
        (5, 2, {"-ub 1": "", "-ub 2": "the baseline has -ub 2"}),
    ],
)
def test_ubatches(width: int, n_ubatch: int, expected: dict[str, str]) -> None:
    facts = replace(FACTS, width=width, context={**FACTS.context, "n_ubatch": n_ubatch})
    assert names(facts, "ubatch") == expected


def test_caches_by_flash_attention() -> None:
    off = replace(FACTS, context={**FACTS.context, "flash_attn": False, "type_k": "bf16"})
    kinds = {"-ctk bf16 -ctv bf16", "-ctk q8_0 -ctv q8_0"}
    assert set(names(FACTS, "cache", "flash")) == {*kinds, "-fa off"}
    more = {"-ctk f16 -ctv f16", "-ctk f32 -ctv f32"}
    assert set(names(off, "cache", "flash")) == {*kinds, *more, "-fa on"}


def test_repacked_or_not() -> None:
    assert names(FACTS, "repack") == {"--no-repack": "nothing to repack"}
    floats = replace(FACTS, tensor_types=("f16", "f32"), load_time=None)
    assert names(floats, "repack") == {"--no-repack": "nothing to repack"}
    assert names(replace(floats, load_time=True), "repack")["--no-repack"] == ""  # AMX takes F16
    quantized = replace(FACTS, tensor_types=("q4_K",))
    assert names(replace(quantized, load_time=True), "repack") == {
        "--no-repack": "",
        "--no-repack --without llamafile,tiled,split-kv": "",
    }
    unseen = replace(quantized, load_time=None, hooks=False)
    assert names(unseen, "repack") == {"--no-repack": ""}
    off = names(replace(quantized, repack=False), "repack")
    assert off == {"--no-repack": "the baseline is without repacked weights already"}


def test_the_noise_is_always_there() -> None:
    for prefix, memory in (("auto", "prefilled again"), ("incremental", "baseline")):
        (line,) = budget.lines(replace(FACTS, prefix=prefix), (1,), ())
        assert (line.family, line.memory) == ("noise", memory)


def test_all_combinations_of_the_three_are_tried() -> None:
    tried = {x.switches for x in budget.lines(FACTS, (), ("switches",))}
    tried |= {x.switches for x in budget.combinations(repack=True)}
    facts = replace(FACTS, load_time=True, tensor_types=("q4_K",))
    unpacked = [x.switches for x in budget.lines(facts, (), ("repack",)) if not x.repack]
    unpacked += [x.switches for x in budget.combinations(repack=False)]
    assert len(tried - {(), ("reference",)}) == 7
    assert len(unpacked) == len(set(unpacked)) == 8


# ---- the conclusion ----

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


def test_the_plot(run: Run, bf16: Path, made: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from csb.render.budget_plot import draw

    for name, magic in (("p.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        draw(made[1], str(tmp_path / name))
        assert (tmp_path / name).read_bytes()[: len(magic)] == magic
    shown = {name: (size, equal) for name, size, equal in bars(made[1])}
    assert "--no-repack" not in shown and "-ub 1" not in shown  # not measured, nothing compared
    assert shown["baseline"] == (made[1]["baseline_summary"]["gap"]["median"], False)
    assert shown["--without llamafile"] == (0.0, True)


# ---- bad input ----

BAD = {
    "slots 0": ("--slots 0", "'0': must be numbers from 1 to 255, as 1,2,4"),
    "slots x": ("--slots 1,x", "must be numbers from 1"),
    "no slots": ("--slots ,", "must be numbers from 1"),
    "too many slots": ("--slots 256", "must be numbers from 1 to 255"),
    "lines": ("--lines noise,colour", "'colour': must be of noise, threads, prefix"),
    "no lines": ("--lines ''", "'': must be of noise"),
    "no record": ("--against {missing}", "{missing}: No such file"),
    "no record's text": ("--against {text}", "{text}: not a record of csb compare or csb budget"),
    "another schema": ("--against {trace}", "this csb reads csb.compare 1 or csb.budget 1"),
    "plot to stdout": ("--plot -", "-: must be a file"),
    "plot in no folder": ("--plot {missing}/p.png", "can't be written"),
    "one file twice": (
        "--plot {text}.svg --json {text}.svg",
        "--json and --plot name the same file",
    ),
    "a plot of no kind": ("--plot {text}", "{text}: must end in .png or .svg"),
    "json over the record": ("--against {text} --json {text}", "name the same file"),
    "prefix": ("--prefix fresh", "'fresh' is not one of"),
    "width": ("-W 0", "is not in the range x>=1"),
    "stride": ("--stride 0", "is not in the range x>=1"),
    "length": ("-n 0", "is not in the range x>=1"),
    "too long": ("-c 256 -n 300", "give a larger -c or a smaller -n"),
    "wide block": ("-b 64 -W 65", "--block-width 65 is more than -b 64"),
    "huge": ("-n 99999999", "n_ctx = 100"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    run: Run, bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, expected = BAD[case]
    files = {name: tmp_path / name for name in ("missing", "text", "trace")}
    files["text"].write_text("precious")
    files["trace"].write_text('{"schema": {"name": "csb.trace", "version": 1}}')
    monkeypatch.setattr("csb.native.context.Context.decode", pytest.fail)
    arguments = [part.strip("'").format(**files) for part in given.split(" ")]
    done = run("budget", "-m", bf16, "--tokens", "1,2", "-t", "1", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (Exit.ERROR, "", 1)
    escaped = {name: re.escape(str(path)) for name, path in files.items()}
    assert re.search(expected.format(**escaped), done.err), done.err
    assert files["text"].read_text() == "precious"


def test_too_small_a_context_ends_the_slots_alone(run: Run, bf16: Path) -> None:
    _, found = measure(run, bf16, *IDS, "-c", "256", "--slots", "1,32", "--lines", "slots")
    reason = "text and 32 others need 1058 cells: give a larger -c"
    assert [x["why_not"] for x in found["lines"]] == ["", reason, reason]


def test_contexts_fit_the_run(made: tuple[str, dict[str, Any]], run: Run, bf16: Path) -> None:
    """Without -c as small as may be, and -b what it is; with it as asked."""
    config = made[1]["baseline"]["config"]
    assert (config["n_ctx"], config["n_batch"], config["n_ubatch"]) == (512, 512, 512)
    _, found = measure(run, bf16, *IDS, "-c", "1024", "--lines", "noise")
    assert found["baseline"]["config"]["n_ctx"] == 1024
    assert BudgetPlan.__dataclass_fields__["fit"].default is True


def test_rendering_needs_no_native_library(
    made: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(json.dumps(made[1]))
    code = "import json, sys; from csb.render.budget import render; import csb.budget_record;"
    code += "sys.stdout.write(render(json.load(open(sys.argv[1]))))"
    source = Path(__file__).parents[1] / "python"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "b.json"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (made[0], "")
    assert made[1]["schema"] == budget_record.SCHEMA
