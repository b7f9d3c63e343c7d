"""`csb bench` on a tiny model: the numbers' relations, no absolute time."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from conftest import TinyModel
from csb.bench import run as bench
from csb.bench.hooks import median_interval
from csb.bench.methods import METHODS, Timed
from csb.cli.app import main

pytestmark = pytest.mark.native


def test_bench(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny_model("llama", "bf16", n_layer=2)
    command = ["bench", "-m", str(path), "--tokens", "1,2,3,4,5", "-n", "6", "-W", "3"]
    assert main([*command, "-c", "256", "-t", "1", "-fa", "off", "--runs", "2", "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in record["methods"]}
    assert list(rows) == list(METHODS)
    assert record["n_ar"] == record["n_gen"] == 6
    for name in ("reprefill", "shared", "auto"):
        row = rows[name]
        assert row["same_bits"] is True
        extra = row["probes_and_controls"] * row["seconds"]
        bound = rows["seed"]["seconds"] / (rows["decodes"]["seconds"] + extra)
        speedup = rows["seed"]["seconds"] / row["seconds"]
        assert row["of_bound"] == pytest.approx(speedup / bound)
        assert 0 < row["own_share"] < 1
    memory = record["peak_memory"]
    assert memory["over"] == pytest.approx(memory["compare"] / memory["decodes"] - 1)


def test_hooks(tiny_model: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    bare = Path(__file__).parents[1] / "build/default/csrc/libcsb_without_hooks.so"
    command = ["bench", "-m", str(tiny_model("llama", "bf16", n_layer=2)), "--tokens", "1,2,3"]
    command += ["-c", "256", "-t", "1", "--hooks", str(bare), "--runs", "6"]
    assert main([*command, "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    ways = {row["way"]: row for row in record["ways"]}
    assert list(ways) == ["left out", "off", "kernels", "graph"]
    assert ways["left out"]["ratio"] == 1
    for row in ways.values():
        ratios = [
            a / b for a, b in zip(row["all_seconds"], ways["left out"]["all_seconds"], strict=True)
        ]
        assert row["ratio"] == pytest.approx(statistics.median(ratios))
        assert row["interval"] == [min(ratios), max(ratios)]  # six values give no narrower one
    assert ways["graph"]["read_ratio"] > 1
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("hooks", "seconds", "ratio", "interval", "with", "reading", "it")
    ]


def test_median_interval() -> None:
    """Against the table in every book: of 20 values the 6th and the 15th, of 6 the outermost."""
    assert [median_interval(n) for n in (1, 5, 6, 9, 20, 30)] == [
        *((0, 0), (0, 4), (0, 5), (1, 7), (5, 14), (9, 20))
    ]


def test_same_bits_can_fail() -> None:
    reference = Timed(1.0, [(0, 0, 1.5, -0.0)])
    assert bench.same_bits([Timed(1.0, [(0, 0, 1.5, -0.0)])], reference)
    assert not bench.same_bits([Timed(1.0, [(0, 0, 1.5, 0.0)])], reference)
    assert not bench.same_bits([Timed(1.0, [])], reference)
    assert not bench.same_bits([Timed(1.0, [])], Timed(1.0, []))
