"""`csb diff`: what differs between two saved comparisons, and what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyModel
from csb.diff import compare_records
from csb.errors import ArgumentError
from process import Run

pytestmark = pytest.mark.native

IDS = ("--tokens", "1,2,3,4,5", "-c", "256", "-t", "1", "-n", "12", "-W", "3")


@pytest.fixture(scope="module")
def saved(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from csb.cli import main

    folder, model = tmp_path_factory.mktemp("diff"), tiny_model("llama", "bf16", n_layer=2)
    made = {}
    for name, options in {
        "off": ("-fa", "off"),
        "again": ("-fa", "off"),
        "on": ("-fa", "on"),
        "without": ("-fa", "off", "--without", "llamafile"),
        "wide": ("-fa", "off", "-W", "4"),
        "other prompt": ("-fa", "off", "--tokens", "1,2,3,4,6"),
    }.items():
        made[name] = folder / f"{name}.json"
        main(["-m", str(model), *IDS, *options, "--json", str(made[name])])
    return made


def record(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_same_measurement_twice(run: Run, saved: dict[str, Path]) -> None:
    done = run("diff", saved["off"], saved["again"])
    assert done.code == 0
    assert "settings, build and machine: the same" in done.out
    assert done.out.splitlines()[-1] == "csb: the same measurements"


def test_layers_elsewhere_and_devices_in_another_order_are_said(saved: dict[str, Path]) -> None:
    a = record(saved["off"])
    a["provenance"]["offload"]["layers"] = ["CPU", "X0"]
    a["provenance"]["offload"]["output"] = "X0"
    a["provenance"]["parameters"]["devices"]["value"] = ["X0", "X1"]
    b = copy.deepcopy(a)
    assert compare_records(a, b)["settings"] == []
    b["provenance"]["offload"]["layers"] = ["CPU", "CPU"]
    b["provenance"]["parameters"]["devices"]["value"] = ["X1", "X0"]
    assert compare_records(a, b)["settings"] == [
        {"name": "layers", "a": "0 CPU, 1..2 X0", "b": "0..1 CPU, 2 X0"},
        {"name": "devices", "a": ["X0", "X1"], "b": ["X1", "X0"]},
    ]


def test_a_kernel_that_could_not_be_seen_is_not_absent(saved: dict[str, Path]) -> None:
    a = record(saved["off"])
    b = copy.deepcopy(a)
    name, n = next(iter(a["kernels"]["single"]["kernels"].items()))
    b["kernels"]["single"] = {"n_threads": 0, "kernels": {}, "not_observable": {"X0": "why"}}
    found = {s["name"]: (s["a"], s["b"]) for s in compare_records(a, b)["settings"]}
    assert found[f"single_kernels.kernels.{name}"] == (n, "not observable")
    assert found["single_kernels.n_threads"] == (1, "not observable")
    assert found["single_kernels.not_observable.X0"] == (None, "why")
    b["kernels"]["single"] |= {"n_threads": 1, "kernels": {"mine": 2, name: n}}
    found = {s["name"]: (s["a"], s["b"]) for s in compare_records(a, b)["settings"]}
    assert f"single_kernels.kernels.{name}" not in found
    assert found["single_kernels.kernels.mine"] == (None, 2)


def test_settings_come_first(run: Run, saved: dict[str, Path]) -> None:
    done = run("diff", saved["off"], saved["on"])
    assert done.code == 1
    lines = done.out.splitlines()
    assert "flash_attn: off -> on" in lines
    assert lines.index("flash_attn: off -> on") < next(
        i for i, line in enumerate(lines) if line.startswith("AR trajectories")
    )


def test_a_switch_changes_the_block_path_alone(run: Run, saved: dict[str, Path]) -> None:
    a, b = record(saved["off"]), record(saved["without"])
    done = run("diff", saved["off"], saved["without"], "--json", "-")
    found = json.loads(done.out)
    changed = sum(x["l_b"] != y["l_b"] for x, y in zip(a["cells"], b["cells"], strict=True))
    assert found["single"]["n_changed"] == 0
    assert found["block"]["n_changed"] == changed > 0
    sizes = [abs(x["l_b"] - y["l_b"]) for x, y in zip(a["cells"], b["cells"], strict=True)]
    assert found["block"]["max"] == max(sizes)
    first = next(i for i, s in enumerate(sizes) if s)
    cell = a["cells"][first]
    assert found["first_cell"] == {**{k: cell[k] for k in ("t", "j", "pos")}, "paths": ["block"]}
    compared = [c for c in a["cells"] if c["ubatch_rows"] > 1]
    assert found["gap"][0]["n"] == len(compared)
    assert found["gap"][1]["n_equal"] == len(compared)
    assert {s["name"] for s in found["settings"]} >= {"kernel_switches", "without"}


def test_cells_past_a_parting_are_not_compared(saved: dict[str, Path]) -> None:
    a = record(saved["off"])
    b = copy.deepcopy(a)
    b["ar"][4]["id"] += 1
    found = compare_records(a, b)
    assert found["parted"]["position"] == 4
    assert found["parted"]["ids"] == [a["ar"][4]["id"], a["ar"][4]["id"] + 1]
    assert found["n_common"] == sum(c["pos"] < 4 for c in a["cells"])
    assert found["changed"]


@pytest.mark.parametrize(("path", "key"), [("single", "l_s"), ("block", "l_b")])
def test_minus_zero_is_a_change(saved: dict[str, Path], path: str, key: str) -> None:
    a = record(saved["off"])
    b = copy.deepcopy(a)
    a["cells"][3][key], b["cells"][3][key] = 0.0, -0.0
    found = compare_records(a, b)
    assert found[path]["n_changed"] == 1 and found["changed"]


def test_flips(saved: dict[str, Path]) -> None:
    a = record(saved["without"])
    b = copy.deepcopy(a)
    for cells, i in ((a["cells"], 0), (b["cells"], 0), (a["cells"], 2), (b["cells"], 5)):
        cells[i]["amax_b"] = cells[i]["amax_s"] + 1
    assert compare_records(a, b)["flips"] == {"both": 1, "a": 1, "b": 1}


@pytest.mark.parametrize(
    ("other", "said"),
    [("wide", "block width: 3 and 4"), ("other prompt", "the same prompt ids")],
)
def test_refuses_other_measurements(
    run: Run, saved: dict[str, Path], other: str, said: str
) -> None:
    done = run("diff", saved["off"], saved[other])
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


def test_refuses_a_run_that_was_aborted(run: Run, saved: dict[str, Path], tmp_path: Path) -> None:
    made = record(saved["off"])
    kept = ("schema", "prompt", "prompt_tokens", "block_width", "config", "provenance", "cells")
    path = tmp_path / "aborted.json"
    path.write_text(json.dumps({k: made[k] for k in kept} | {"outcome": "aborted"}))
    done = run("diff", saved["off"], path)
    assert (done.code, done.out) == (2, "")
    said = "llama.cpp aborted this run, so it holds no AR run to compare"
    assert done.err == f"csb: {path}: {said}\n"


def test_refuses_another_vocabulary_and_other_files(
    run: Run, saved: dict[str, Path], tmp_path: Path
) -> None:
    b = record(saved["off"])
    b["provenance"]["model"]["n_vocab"] += 1
    with pytest.raises(ArgumentError, match="the same vocabulary: 512 and 513"):
        compare_records(record(saved["off"]), b)
    other = tmp_path / "other.json"
    for text in ('{"schema": {"name": "csb.trace", "version": 1}}', "{}", "no json"):
        other.write_text(text)
        done = run("diff", saved["off"], other)
        assert (done.code, done.err.count("\n")) == (2, 1)
    assert run("diff", saved["off"], tmp_path / "missing.json").code == 2
    assert run("diff", saved["off"]).code == 2
