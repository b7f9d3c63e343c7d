"""`csb locate` as a user sees it: text, JSON, picture, bad input and endings."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
import tiny
from conftest import TinyModel
from csb.exit_codes import Exit
from csb.measure import locate as measure
from csb.measure.capture import SinglePass
from csb.native import model as native_model
from csb.native.library import load
from planted import Fault, Planted
from process import Run
from test_hooks import X86

pytestmark = pytest.mark.native

IDS = ("--tokens", "1,2,3,4,5", "-c", "256", "-t", "1", "-fa", "off")
NODES = 1 + 2 * 20 + 2 + 3  # the embedding, two layers, the gathered rows of the last, the head


@pytest.fixture
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


@X86
def test_text(run: Run, bf16: Path) -> None:
    many = ",".join(map(str, range(60)))  # over few cells kqv is equal
    done = run("locate", "-m", bf16, *IDS, "--tokens", many)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0] == (
        "window 0: 59 tokens in the memory, 5 rows, 0 of them with the same bits; "
        f"{NODES} nodes compared, 4 not"
    )
    assert lines[1].split()[:4] == ["created", "by", "what", "type"]
    table = [line.split() for line in lines[2:-3]]
    whats = ["attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    assert [row[1] for row in table] == [
        *(f"{w}.weight" for w in whats[:3]),
        *("kq", "kqv"),
        *(f"{w}.weight" for w in [*whats[3:], "output"]),
    ]
    for row in table:
        kind = "f16" if row[1].startswith("kq") else "bf16"
        n = "1" if row[1] == "output.weight" else "2"
        assert row[0] == "MUL_MAT" and row[2:4] == [kind, n]
        assert row[5:] == [f"ggml_vec_dot_{kind}", "llamafile_sgemm"]
    assert lines[-3].startswith("created by themselves (share of the squares): attention ")
    parts = [float(p.split()[-2]) for p in lines[-3].split(": ")[1].split(",")]
    assert sum(parts) == pytest.approx(100, abs=0.2)
    assert lines[-2].startswith("growth by layer: 0 ") and " head " in lines[-2]
    assert lines[-1] == (
        "csb: the difference starts at Qcur-0 (MUL_MAT, blk.0.attn_q.weight): "
        "single path ggml_vec_dot_bf16, block llamafile_sgemm"
    )


@X86
def test_nothing_to_locate(run: Run, bf16: Path) -> None:
    done = run("locate", "-m", bf16, *IDS, "--without", "llamafile", "-W", "3")
    assert done.code == 0
    first, last = done.out.splitlines()
    assert "3 rows, 3 of them with the same bits" in first and first.endswith("without llamafile")
    assert last == "csb: single and block have the same bits in every row: nothing to locate"


@X86
def test_nodes(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each node, with a character for each row."""
    Planted(monkeypatch, [Fault("MUL_MAT", "ffn_up-1", (0, 0, 2, 5))])
    done = run("locate", "-m", bf16, *IDS, "--without", "llamafile", "--nodes")
    heads, *lines = done.out.splitlines()[1:-3]
    assert heads.split()[:3] == ["node", "op", "name"] and len(lines) == NODES
    (line,) = (line.split() for line in lines if " ffn_up-1 " in line)
    assert line[1:][:7] == ["MUL_MAT", "ffn_up-1", "=====", "==x==", "--c--", "1", "2560"]
    assert sum("c" in line.split()[5] for line in lines) == 1


def test_json(run: Run, bf16: Path, tmp_path: Path) -> None:
    """To a file beside the text; alone with -; the same record."""
    text = run("locate", "-m", bf16, *IDS, "--json", tmp_path / "l.json")
    saved = json.loads((tmp_path / "l.json").read_text())
    alone = run("locate", "-m", bf16, *IDS, "--nodes", "--json", "-")
    assert text.out.splitlines()[-1].startswith("csb: ") and (text.code, alone.code) == (0, 0)
    record = json.loads(alone.out)
    for timed in (saved, record):
        del timed["provenance"]
    assert record == saved
    assert record["schema"] == {"name": "csb.locate", "version": 1}
    assert (record["prompt_tokens"], record["window"], record["prefix"]) == ([1, 2, 3, 4, 5], 0, 4)
    assert record["inputs"][0] == 5 and len(record["inputs"]) == len(record["equal_rows"]) == 5
    assert (record["perturbed"], record["export"]) == (False, None)
    assert len(record["nodes"]) == NODES and record["not_compared"] == 4
    assert record["conclusion"] in text.out


def test_windows_are_those_of_compare(run: Run, bf16: Path) -> None:
    """Window 7's inputs and prefix, from the trajectory as csb.Context alone gives it."""
    ids = [1, 2, 3, 4, 5]
    with csb.Model(bf16) as model, csb.Context(model, n_ctx=256, flash_attn="off") as context:
        context.decode(ids[:-1], 0)
        for i in range(4, 4 + 12):
            context.decode(ids[-1:], i)
            ids.append(int(np.argmax(context.logits()[0])))
    record = json.loads(
        run("locate", "-m", bf16, *IDS, "--window", "7", "-W", "4", "--json", "-").out
    )
    assert (record["window"], record["prefix"], record["inputs"]) == (7, 11, ids[11:15])


@X86
def test_experts_come_before_values(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_model("moe", "bf16", n_layer=2)
    router = Fault("MUL_MAT", "ffn_moe_logits-0", (0, 0, 2, 3), change=lambda v: v + 50)
    Planted(monkeypatch, [router])
    lines = run("locate", "-m", path, *IDS, "--without", "llamafile").out.splitlines()
    assert lines[1].startswith("experts: ffn_moe_topk-0: ")
    assert lines[1].endswith(" of 10 chosen ids differ")
    assert lines[2].startswith(("experts: ", "created by"))
    assert lines[-1].startswith("csb: the difference starts at ffn_moe_logits-0 (MUL_MAT")


def test_plot(run: Run, bf16: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, magic in (("p.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        done = run("locate", "-m", bf16, *IDS, "--plot", tmp_path / name)
        assert done.code == 0
        assert (tmp_path / name).read_bytes()[: len(magic)] == magic
    equal = tmp_path / "equal.png"  # no difference has no place on a logarithmic axis
    assert run("locate", "-m", bf16, *IDS, "--without", "llamafile", "--plot", equal).code == 0
    assert equal.stat().st_size > 1000


def test_what_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bars and points by hand: a layer's regions stand on each other."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    from csb.render.locate_plot import draw

    def node(layer: int | None, region: str, created: float) -> dict[str, Any]:
        made = {"layer": layer, "region": region, "created_relative": created}
        return {**made, "created": [created > 0]}

    record = {
        "window": 3,
        "equal_rows": [False] * 5,
        "without": ["tiled"],
        "growth": [
            {"layer": 0, "node": "l_out-0", "relative": 0.0},
            {"layer": 1, "node": "l_out-1", "relative": 1e-6},
            {"layer": None, "node": "result_output", "relative": 1e-3},
        ],
        "nodes": [
            node(0, "attention", 0.0),
            node(1, "attention", 0.1),
            node(1, "feed-forward", 0.2),
            node(None, "head", 0.1),
        ],
    }
    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    draw(record, str(tmp_path / "p.png"))
    above, below = figures[0].axes
    assert above.get_yscale() == "log"
    (line,) = above.lines
    assert np.array_equal(line.get_ydata(), [np.nan, 1e-6, 1e-3], equal_nan=True)
    assert above.get_title() == "window 3, 5 rows, without tiled"
    bars = {c.get_label(): [(b.get_y(), b.get_height()) for b in c] for c in below.containers}
    parts = 100 / 6
    assert np.allclose(bars["attention"], [(0, 0), (0, parts), (0, 0)])
    assert np.allclose(bars["feed-forward"], [(0, 0), (parts, 4 * parts), (0, 0)])
    assert np.allclose(bars["head"], [(0, 0), (5 * parts, 0), (0, parts)])
    assert [t.get_text() for t in below.get_xticklabels()] == ["0", "1", "head"]
    assert below.get_ylim()[1] > 5 * parts


# ---- bad input ----------------------------------------------------------------------------------

LONG = ",".join(str(i % 500) for i in range(253))
BAD = {
    "one row": (("-W", "1"), "--block-width 1 is the single path: give 2 or more"),
    "no row": (("-W", "0"), "0 is not in the range"),
    "window -1": (("--window", "-1"), "-1 is not in the range"),
    "window x": (("--window", "x"), "'x' is not a valid integer"),
    "past the context": (("--window", "250"), "are more than the context's 256"),
    "across 256 cells": (
        ("--tokens", LONG, "-c", "512"),
        "the window's positions 252..256 cross a multiple of 256",
    ),
    "a split block": (("-ub", "4"), "-ub 4 splits a block of 5 rows: give a larger -ub"),
    "more than a call": (("-b", "4"), "--block-width 5 is more than -b 4"),
    "an unknown switch": (("--without", "sgemm"), "no kernel switch 'sgemm'"),
    "a picture to stdout": (("--plot", "-"), "-: must be a file"),
    "no such folder": (("--plot", "/nowhere/p.png"), "can't be written"),
    "no folder for the op": (("--export", "/nowhere/x"), "--export /nowhere/x: No such file"),
    "a file as folder": (("--export", __file__), "must be a new or empty folder"),
    "a full folder": (("--export", str(Path(__file__).parent)), "must be a new or empty folder"),
    "two prompts": (("-p", "x"), "only one of -p, -f and --tokens"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(run: Run, bf16: Path, case: str) -> None:
    given, said = BAD[case]
    done = run("locate", "-m", bf16, *IDS, *given)
    assert (done.code, done.out, done.err.count("\n")) == (Exit.ERROR, "", 1)
    assert done.err.startswith("csb: ") and said in done.err


def test_two_options_of_one_file(run: Run, bf16: Path, tmp_path: Path) -> None:
    done = run(
        "locate", "-m", bf16, *IDS, "--json", tmp_path / "x.svg", "--plot", tmp_path / "x.svg"
    )
    assert done.code == 2 and "--json and --plot name the same file" in done.err


def test_past_the_text_s_end(run: Run, tmp_path: Path) -> None:
    """A text that ends after three tokens has no window that is longer, or begins later."""
    options = {"n_layer": 1, "tokenizer": "bpe"}
    tiny.write(tmp_path / "a.gguf", **options)  # type: ignore[arg-type]
    arguments = ("locate", *IDS, "-W", "3", "--json", "-", "-m")
    inputs = json.loads(run(*arguments, tmp_path / "a.gguf").out)["inputs"]
    with csb.Model(tmp_path / "a.gguf") as model, csb.Context(model, n_ctx=256) as context:
        context.decode([1, 2, 3, 4, *inputs], 0)
        third = int(np.argmax(context.logits([6])[0]))
    assert third not in inputs
    path = tiny.write(tmp_path / "b.gguf", **options, eos=third)  # type: ignore[arg-type]
    assert run(*arguments, path).code == 0
    for given in (("-W", "4"), ("--window", "1"), ("--window", "90")):
        done = run(*arguments, path, *given)
        assert (done.code, done.out) == (2, "")
        assert "the text ends after 3 tokens: window" in done.err


def test_without_hooks(
    run: Run, bf16: Path, without_hooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_model, "library", lambda: load(without_hooks))
    done = run("locate", "-m", bf16, *IDS)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("csb: this build has no hooks")


# ---- endings ------------------------------------------------------------------------------------


def test_perturbed_is_exit_3(
    run: Run, bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watching that changes a bit of one logit: whatever it found is void, and is not exported."""
    after = SinglePass.after

    def change(self: SinglePass, node: Any) -> None:
        if node.info["name"] == "result_output" and self.call == 3:
            values = node.read(node.OUTPUT)
            values[0, 0, 0, 7] = np.nextafter(values[0, 0, 0, 7], np.float32(np.inf))
            node.write(values, node.OUTPUT)
        after(self, node)

    monkeypatch.setattr(SinglePass, "after", change)
    given = ("locate", "-m", bf16, *IDS, "--export", tmp_path / "x")
    done = run(*given)
    assert done.code == Exit.INVALID
    assert done.out.splitlines()[-2:] == [
        "not exported: watching CHANGED the logits: this run is not valid",
        "csb: watching CHANGED the logits: this run is not valid",
    ]
    assert not (tmp_path / "x").exists()
    record = json.loads(run(*given, "--json", "-").out)
    assert record["perturbed"] and record["export"]["folder"] is None


def test_no_node_is_no_answer(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no node's rows can be told apart nothing was compared."""
    monkeypatch.setattr(measure, "token_axis", lambda *given: None)
    done = run("locate", "-m", bf16, *IDS)
    assert (done.code, done.out) == (Exit.INVALID, "")
    assert done.err == "csb: none of the block's nodes could be compared\n"


def test_ctrl_c(run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a watched call."""
    after, cancel, seen = SinglePass.after, csb.Context.cancel, []
    cancelled = threading.Event()

    def note(context: csb.Context) -> None:
        cancel(context)
        cancelled.set()

    def interrupt(self: SinglePass, node: Any) -> None:
        seen.append(node.info["name"])
        if len(seen) == 20:
            os.kill(os.getpid(), signal.SIGINT)
            assert cancelled.wait(60)  # the main thread has seen it
        after(self, node)

    monkeypatch.setattr(SinglePass, "after", interrupt)
    monkeypatch.setattr(csb.Context, "cancel", note)
    done = run("locate", "-m", bf16, *IDS)
    assert (done.code, done.out, done.err) == (Exit.INTERRUPTED, "", "csb: interrupted\n")
    assert 20 <= len(seen) <= 21
