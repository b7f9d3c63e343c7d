"""`csb budget`: each line's numbers against plain decodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from budgets import ALL, IDS, PROMPT, measure, named
from conftest import TinyModel
from csb import against, budget_record, kernels, record
from csb.budget import BudgetPlan
from csb.errors import FileError
from csb.measure.memory import Memory, same_bits
from csb.measure.setups import Beside, Neighbours
from csb.native.library import quantize
from csb.plan import EXACT_SWITCHES, Window
from csb.render.budget import render
from csb.render.budget_plot import bars
from process import Run, child
from test_hooks import X86
from test_seed import tokens

pytestmark = pytest.mark.native


QUICK = "prefix,ubatch,slots,flash,cache,repack,switches"  # no second thread


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    yield
    assert kernels.in_force() == []


@pytest.fixture(scope="module")
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


@pytest.fixture(scope="module")
def made(bf16: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The text and the record of one budget of the BF16 model."""
    saved = tmp_path_factory.mktemp("budget") / "b.json"
    done = child("budget", "-m", bf16, *IDS, "--lines", QUICK, *ALL, "--json", saved)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, json.loads(saved.read_text())


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
