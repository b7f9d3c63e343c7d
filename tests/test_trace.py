"""`csb trace` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import TinyModel
from csb.exit_codes import Exit
from process import Run

pytestmark = [pytest.mark.native, pytest.mark.hooks]

IDS = ("--tokens", "1,2,3,4,5", "-c", "256", "-t", "1", "-fa", "off")


def test_a_line_for_each_group(run: Run, tiny_model: TinyModel) -> None:
    done = run("trace", "-m", tiny_model("llama", "f32", n_layer=2), *IDS, "--rows", "1,2,9")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[1].split("  ")[-1].strip() == "9 rows (GEMM)"
    assert sum("attn_q.weight" in line for line in lines) == 1
    assert " 2 " in next(line for line in lines if "attn_q.weight" in line)  # two layers
    assert lines[-1].endswith("the traced calls have the untraced calls' bits")


def test_nodes_and_diff(run: Run, tiny_model: TinyModel) -> None:
    path = tiny_model("llama", "f32", n_layer=2)
    every = run("trace", "-m", path, *IDS, "--nodes").out.splitlines()
    assert sum("Qcur-" in line for line in every) >= 2
    differ = run("trace", "-m", path, *IDS, "--nodes", "--diff").out.splitlines()
    assert [line for line in every[2:-1] if line.startswith("*")] != []
    assert all(line.startswith("*") for line in differ[2:-1])


def test_json(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    saved = tmp_path / "t.json"
    path = tiny_model("llama", "f32", n_layer=1)
    run("trace", "-m", path, *IDS, "-W", "3", "--without", "llamafile", "--json", saved)
    record = json.loads(saved.read_text())
    assert (record["rows"], record["prefix"], record["perturbed"]) == ([1, 3], 4, False)
    assert record["provenance"]["kernel_switches"] == ["llamafile"]
    nodes = record["calls"][1]["nodes"]
    assert not any("llamafile_sgemm" in n["kernels"] for n in nodes)
    assert any("llamafile_sgemm" in n["refused"] for n in nodes)


def test_plot(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, magic in (("p.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        path = tmp_path / name
        run("trace", "-m", tiny_model("llama", "f32", n_layer=2), *IDS, "--plot", path)
        assert path.read_bytes()[: len(magic)] == magic


def test_perturbed_is_exit_3(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csb.measure import trace

    monkeypatch.setattr(trace, "same_bits", lambda a, b: False)
    done = run("trace", "-m", tiny_model("llama", "f32", n_layer=1), *IDS)
    assert done.code == Exit.INVALID
    assert "CHANGED" in done.out.splitlines()[-1]


@pytest.mark.parametrize("rows", ["0", "a", "1,,2", ""])
def test_bad_rows(run: Run, tiny_model: TinyModel, rows: str) -> None:
    done = run("trace", "-m", tiny_model("llama", "f32", n_layer=1), *IDS, "--rows", rows)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_an_unknown_switch(run: Run, tiny_model: TinyModel) -> None:
    done = run("trace", "-m", tiny_model("llama", "f32", n_layer=1), *IDS, "--without", "sgemm")
    assert done.code == 2 and "llamafile" in done.err


def test_compare_says_what_a_switch_did(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    path, saved = tiny_model("llama", "bf16", n_layer=2), tmp_path / "r.json"
    done = run("-m", path, *IDS, "-n", "8", "--without", "llamafile,tiled", "--json", saved)
    assert done.code == 0
    assert "without llamafile: changes the kernels of" in done.out
    assert "without tiled: had NO effect" in done.out
    record = json.loads(saved.read_text())
    assert record["outcome"] == "equal bits"
    assert record["provenance"]["switch_effects"]["tiled"] == 0
