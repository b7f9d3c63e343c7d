"""The loop on the default model: two prompts, short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
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


@pytest.mark.parametrize("flash", ["on", "off"])
def test_a_draft_that_reads_its_layers(
    run: Run, default_model: Path, tmp_path: Path, flash: str
) -> None:
    """Of the shape of a real one, with noise for weights: what it drafts is hardly ever right."""
    draft = tiny.write(
        tmp_path / "draft.gguf",
        "dflash",
        dtype="bf16",
        tokenizer=default_model,
        mask=5,
        keys={"block_size": 16, "target_layers": [1, 27], "rope.freq_base": 100000.0},
        **{"n_layer": 3, "n_vocab": 49152, "n_ctx": 8192},
        **{"n_embd": 576, "n_ff": 1536, "n_head": 9, "n_head_kv": 3},
    )
    done = run(
        *("speculate", "-m", default_model, "-n", "12", "-W", "4", "-c", "512", "-t", "1"),
        *("-fa", flash, "--drafter", f"dflash:{draft}", "--exact", "kernels"),
        *("--json", tmp_path / "r.json"),
    )
    record = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert done.code == 0, done.out
    assert record["draft"]["target_bits_unchanged"] is True
    (made,) = record["prompts"][0]["runs"]
    plain, exact = made["loops"]
    assert exact["ids"] == made["ar"]["ids"] and exact["equal_rows"] == 12
    assert plain["faults"] == exact["faults"] == []
    drafted = [token for turn in exact["turns"] for token in turn["draft"]]
    assert len(set(drafted)) > 1 and exact["acceptance"]["drafted"] == len(drafted)
