"""The loop on the default model: two prompts, short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from process import Run

pytestmark = [pytest.mark.native, pytest.mark.model]


def test_two_prompts(run: Run, default_model: Path, tmp_path: Path) -> None:
    lines, saved = tmp_path / "p", tmp_path / "r.json"
    lines.write_text("Explain the Pythagorean theorem\nWhat is photosynthesis?\n")
    done = run(
        *("speculate", "-m", default_model, "--prompts", lines, "-n", "20", "-c", "512"),
        *("-fa", "off", "-t", "1", "--drafter", "noisy:0.2", "--exact", "kernels"),
        *("--json", saved),
    )
    assert done.code == 0, done.out
    record = json.loads(saved.read_text("utf-8"))
    for prompt in record["prompts"]:
        (made,) = prompt["runs"]
        plain, exact = made["loops"]
        assert exact["ids"] == made["ar"]["ids"] and exact["equal_rows"] == 20
        assert plain["equal_rows"] == 0  # every row of a block is another one than AR's
        assert plain["faults"] == exact["faults"] == []
        assert [audit["pos"] for audit in exact["audits"]] == [15, 19]
        assert all(audit["gap"]["n_diff"] == 0 for audit in exact["audits"])
        assert 0 < made["sizes"]["pair_gap"] < 1
    text = record["prompts"][0]["runs"][0]["ar"]["text"]
    assert "Pythagorean" in text
