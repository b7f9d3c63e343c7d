"""`csb speculate --drafter dflash:FILE`: what it drafts is numpy's, turn by turn, and the loop with
it is an honest one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import csb
import dflash_method
import numpy as np
import pytest
import tiny
from conftest import TinyModel
from csb import kernels
from csb.native.library import library
from csb.native.table import KernelSwitch
from csb.speculation.plan import DrafterPlan
from process import Run

pytestmark = pytest.mark.native

MASK, BLOCK = 300, 8
PROMPT = [1, 2, 3, 4, 5]
SETTINGS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "off"}
COMMON = ("--tokens", "1,2,3,4,5", "-c", "256", "-t", "1", "-fa", "off")


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", tokenizer="bpe", seed=1)


def leaning(path: Path, target: Path, text: Path, constant: bool = False) -> Path:
    """A draft for `target` that leans to the token which the AR text of `text`, another file of the
    same weights, has most often; constant: that says nothing else."""
    with csb.Model(text) as model, csb.Context(model, **SETTINGS) as context:
        context.decode(PROMPT, 0)
        ids = [int(context.logits([len(PROMPT) - 1]).argmax())]
        row = np.empty((1, context.n_vocab), np.float32)
        for i in range(59):
            ids.append(int(context.steps(ids[-1:], len(PROMPT) + i, row).argmax()))
    often = Counter(ids).most_common(1)[0][0]
    shared = dflash_method.weights(target)
    mask, head = shared["token_embd.weight"][MASK], shared["output.weight"][often]
    values = {"output_norm.weight": (20 * mask * head).astype(np.float32)}
    if constant:
        for i in (0, 1):
            values[f"blk.{i}.attn_output.weight"] = np.zeros((256, 256), np.float32)
            values[f"blk.{i}.ffn_down.weight"] = np.zeros((256, 512), np.float32)
    return tiny.write(path, "dflash", tokenizer="bpe", mask=MASK, values=values)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    """Some of what it says is accepted."""
    return leaning(tmp_path_factory.mktemp("draft") / "draft.gguf", target, target)


def speculated(run: Run, saved: Path, target: Path, draft: Path, *given: object) -> dict[str, Any]:
    done = run(
        *("speculate", "-m", target, *COMMON, "--drafter", f"dflash:{draft}", "--json", saved),
        *given,
    )
    record: dict[str, Any] = json.loads(saved.read_text("utf-8"))
    assert done.code == (0 if record["outcome"] == "equal to AR" else 1), done.err
    return record


@pytest.mark.hooks
@pytest.mark.parametrize("width", [2, 5, 12])
def test_drafts_are_numpys(run: Run, target: Path, draft: Path, tmp_path: Path, width: int) -> None:
    record = speculated(run, tmp_path / "r", target, draft, "-n", "40", "-W", width)
    (loop,) = record["prompts"][0]["runs"][0]["loops"]
    assert_numpys(loop, target, draft, min(width, BLOCK) - 1)
    drafted = [token for turn in loop["turns"] for token in turn["draft"]]
    assert len(set(drafted)) > 5  # they depend on what the target has read
    assert 0 < loop["acceptance"]["accepted"] < len(drafted)
    assert loop["faults"] == []


@pytest.mark.hooks
def test_a_vocabulary_of_its_own(run: Run, target: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(5).permutation(512)[:384]
    draft = tiny.write(
        tmp_path / "draft.gguf",
        "dflash",
        tokenizer="bpe",
        mask=MASK,
        tensors={"d2t": "f", "output.weight": "f e"},
        values={"d2t": ids},
        n_ff=384,
    )
    record = speculated(run, tmp_path / "r", target, draft, "-n", "20")
    (loop,) = record["prompts"][0]["runs"][0]["loops"]
    assert_numpys(loop, target, draft, 4)
    assert {token for turn in loop["turns"] for token in turn["draft"]} <= set(ids.tolist())


def assert_numpys(loop: dict[str, Any], target: Path, draft: Path, n_masks: int) -> None:
    """Each turn's draft, where rounding can't turn it."""
    checked = drafted = 0
    with csb.Model(target) as model:
        whole = dflash_method.layer_inputs(model, PROMPT + loop["ids"], **SETTINGS)
    for turn in loop["turns"]:
        text = PROMPT + loop["ids"][: turn["pos"]]
        features = whole[: len(text) - 1]
        rows = dflash_method.forward(draft, target, features, text[-1], [MASK] * n_masks)
        for said, row in zip(turn["draft"], rows[1:], strict=False):
            second, best = np.partition(row, -2)[-2:]
            if best - second > 5e-3 * best:
                assert said == row.argmax(), turn["pos"]
                checked += 1
        drafted += len(turn["draft"])
        assert len(turn["draft"]) == min(n_masks, len(loop["ids"]) - turn["pos"] - 1)
    assert checked > 0.8 * drafted


@pytest.mark.hooks
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_exact_kernels(
    run: Run, tiny_model: TinyModel, target: Path, tmp_path: Path, dtype: str, flash: str
) -> None:
    path = tiny_model("llama", dtype, tokenizer="bpe", seed=1)
    draft = leaning(tmp_path / "draft.gguf", target, path, constant=True)
    given = ("-n", "60", "-W", "5", "-fa", flash, "--exact", "kernels")
    record = speculated(run, tmp_path / "r", path, draft, *given)
    (made,) = record["prompts"][0]["runs"]
    plain, exact = made["loops"]
    assert exact["ids"] == made["ar"]["ids"] and exact["equal_rows"] == 60
    assert exact["acceptance"]["accepted"] > 0
    assert plain["faults"] == exact["faults"] == [] and record["outcome"] == "equal to AR"


@pytest.mark.parametrize("exact", ["single", "margin:0.2", "margin:inf", "repair:0.2"])
def test_other_ways(run: Run, target: Path, draft: Path, tmp_path: Path, exact: str) -> None:
    """Rows that are decoded again, and earlier ones too, are no gaps for the draft."""
    saved = tmp_path / "r"
    record = speculated(run, saved, target, draft, "-n", "40", "--exact", exact)
    (made,) = record["prompts"][0]["runs"]
    assert [loop["way"] for loop in made["loops"]] == ["none", exact]
    assert all(loop["faults"] == [] and len(loop["ids"]) == 40 for loop in made["loops"])
    assert made["loops"][1]["alone"] > 0
    if exact in ("single", "margin:inf"):
        assert made["controls"]["all_alone_equals_ar"] is True


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_honest_runs_are_no_faults(
    run: Run, tiny_model: TinyModel, draft: Path, tmp_path: Path, cache: str
) -> None:
    path = tiny_model("llama", "bf16", tokenizer="bpe", seed=1)
    lines = tmp_path / "prompts"
    lines.write_text("\n".join(["a", "one and two", "x" * 70, '{"tokens": [7]}']))
    done = run(
        *("speculate", "-m", path, "--prompts", lines, "-c", "256", "-t", "1", "-fa", "on"),
        *("-ctk", cache, "-ub", "16", "-b", "32", "-n", "40", "--drafter", f"dflash:{draft}"),
        *("--json", tmp_path / "r"),
    )
    assert done.code in (0, 1), done.err
    record = json.loads((tmp_path / "r").read_text("utf-8"))
    loops = [prompt["runs"][0]["loops"][0] for prompt in record["prompts"]]
    assert len(loops) == 4 and all(loop["faults"] == [] for loop in loops)
    assert sum(len(turn["draft"]) for loop in loops for turn in loop["turns"]) > 200
    assert record["draft"]["target_bits_unchanged"] is True


def test_the_record_and_the_text_name_the_draft(
    run: Run, target: Path, draft: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "r"
    done = run(
        *("speculate", "-m", target, *COMMON, "-n", "4", "-W", "3", "--json", saved),
        *("--drafter", f"dflash:{draft}"),
    )
    record = json.loads(saved.read_text("utf-8"))
    assert record["config"]["drafter"] == f"dflash:{draft}"
    assert record["draft"]["sha256"] == hashlib.sha256(draft.read_bytes()).hexdigest()
    facts = {"block_size": BLOCK, "mask": MASK, "causal": False, "layers": [0, 2]}
    assert record["draft"].items() >= facts.items()
    (line,) = (s for s in done.out.splitlines() if s.startswith("draft: "))
    assert line == (
        f"draft: {record['draft']['description']} on CPU, blocks of 8, reads the target's layers "
        "0, 2, which changes no bit of its rows"
    )


@pytest.mark.hooks
def test_bits_that_reading_changes_are_said(
    run: Run, target: Path, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = csb.Context.tap

    def disturbed(context: csb.Context, layers: list[int]) -> None:
        tap(context, layers)
        library().csb_kernels_set(0 if layers else KernelSwitch.WITHOUT_LLAMAFILE)

    monkeypatch.setattr(csb.Context, "tap", disturbed)
    saved = tmp_path / "r"
    given = ("speculate", "-m", target, *COMMON, "-n", "4", "--drafter", f"dflash:{draft}")
    with kernels.exactly():
        done = run(*given, "--json", saved)
    assert json.loads(saved.read_text("utf-8"))["draft"]["target_bits_unchanged"] is False
    assert "which CHANGES bits of its rows" in done.out


def test_to_the_end_of_the_context(run: Run, target: Path, draft: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(str(i % 250) for i in range(226)))
    given = ("-n", "30", "-W", "8", "--tokens", prompt)
    record = speculated(run, tmp_path / "r", target, draft, *given)
    assert len(record["prompts"][0]["runs"][0]["loops"][0]["ids"]) == 30
    prompt.write_text(" ".join(str(i % 250) for i in range(254)))
    given = ("-n", "2", "-W", "8", "--tokens", prompt)
    record = speculated(run, tmp_path / "r", target, draft, *given)
    assert len(record["prompts"][0]["runs"][0]["loops"][0]["ids"]) == 2


def test_f32(
    run: Run, tiny_model: TinyModel, draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model in F32 has a draft of its own beside it."""
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "cache"))
    path = tiny_model("llama", "bf16", tokenizer="bpe", seed=1)
    record = speculated(run, tmp_path / "r", path, draft, "-n", "30", "--exact", "f32")
    _, precise = record["prompts"][0]["runs"]
    assert precise["loops"][0]["faults"] == [] and precise["loops"][0]["way"] == "f32"
    assert precise["loops"][0]["acceptance"]["drafted"] > 0


def test_a_draft_of_nans(run: Run, target: Path, tmp_path: Path) -> None:
    path = tiny.write(
        tmp_path / "d.gguf",
        "dflash",
        tokenizer="bpe",
        mask=MASK,
        values={"output_norm.weight": np.full(256, np.nan, np.float32)},
    )
    done = run("speculate", "-m", target, *COMMON, "-n", "8", "--drafter", f"dflash:{path}")
    assert done.code == 3 and "logits of the draft are NaN" in done.err


def test_a_memory_that_is_not_cut_back(run: Run, tiny_model: TinyModel, draft: Path) -> None:
    path = tiny_model("lfm2", tokenizer="bpe")
    done = run("speculate", "-m", path, *COMMON, "-n", "4", "--drafter", f"dflash:{draft}")
    assert done.code == 2 and "a hybrid memory can't be" in done.err
    assert done.err.count("\n") == 1


def test_wrong_files(
    run: Run, target: Path, draft: Path, tiny_model: TinyModel, tmp_path: Path
) -> None:
    def said(model: Path, file: object) -> str:
        done = run("speculate", "-m", model, *COMMON, "-n", "4", "--drafter", f"dflash:{file}")
        assert done.code == 2 and done.out == "" and done.err.count("\n") == 1, done.err
        return done.err

    def written(name: str, **options: Any) -> Path:
        given = {"tokenizer": "bpe", "mask": MASK, **options}
        return tiny.write(tmp_path / name, "dflash", **given)

    assert "no such file" in said(target, tmp_path / "none").lower()
    cut = tiny.truncate(draft, tmp_path / "cut", 5000)
    assert str(cut) in said(target, cut)
    assert "is no DFlash draft" in said(target, target)
    assert "has no mask token" in said(target, written("mask", mask=None))
    assert "embedding length is 512" in said(target, written("wide", n_embd=512))
    assert "layer 7 of a target" in said(target, written("deep", keys={"target_layers": [0, 7]}))
    assert "another vocabulary" in said(target, written("words", n_vocab=900))
    assert "another vocabulary" in said(tiny_model("llama"), draft)
    assert "vocabulary size is 544" in said(target, written("near", n_vocab=544))
    gemma = tiny_model("gemma3", tokenizer="bpe")
    assert "architecture (gemma3) does not give" in said(gemma, draft)
    done = run("speculate", "-m", draft, *COMMON)
    assert done.code == 2 and "is a DFlash draft" in done.err
    for text in ("dflash", "dflash:"):
        done = run("speculate", "-m", target, *COMMON, "--drafter", text)
        assert done.code == 2 and "dflash:FILE" in done.err


def test_the_plan_names_it() -> None:
    assert str(DrafterPlan("dflash", path=Path("a/b"))) == "dflash:a/b"
