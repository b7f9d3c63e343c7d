"""`csb speculate` as a user sees it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import TinyModel
from csb.exit_codes import Exit
from csb.render.progress import Steps
from csb.render.speculate import render
from process import Run

pytestmark = pytest.mark.native

COMMON = ("-c", "256", "-t", "1", "-fa", "off")
IDS = ("--tokens", "1,2,3,4,5", *COMMON)


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def model(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


@pytest.fixture(scope="module")
def words(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2, tokenizer="bpe")


def test_one_prompt(run: Run, words: Path, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    done = run(
        *("speculate", "-m", words, "-p", "hello", "-n", "24", "-W", "4", *COMMON),
        *("--drafter", "noisy:0.3", "--seed", "7", "--json", saved),
    )
    record = load(saved)
    assert done.code == (0 if record["outcome"] == "equal to AR" else 1)
    assert done.last == record["verdict"]
    assert record["schema"] == {"name": "csb.speculate", "version": 1}
    assert (record["config"]["drafter"], record["config"]["seed"]) == ("noisy:0.3", 7)
    assert (record["block_width"], record["complete"]) == (4, True)
    assert record["provenance"]["model"]["architecture"] == "llama"
    (prompt,) = record["prompts"]
    assert (prompt["prompt"], prompt["prompt_tokens"]) == ("hello", list(b"hello"))
    (made,) = prompt["runs"]
    (loop,) = made["loops"]
    assert len(made["ar"]["ids"]) == len(loop["ids"]) == 24
    assert made["controls"]["complete"] and made["controls"]["failed"] == []
    assert sum(turn["given"] for turn in loop["turns"]) == 24
    assert all(len(turn["draft"]) <= 3 for turn in loop["turns"])
    assert loop["calls"]["block_rows"] == sum(len(t["draft"]) + 1 for t in loop["turns"])
    for name in ("plain loop:", "AR run, as given:", "accepted:", "audits:", "rounding here:"):
        assert name in done.out
    assert done.out == render(record)
    full = render(record, full=True)
    assert loop["text"] in full and full.count("drafted, ") == len(loop["turns"]) + 0


def test_json_alone(run: Run, model: Path) -> None:
    done = run("speculate", "-m", model, *IDS, "-n", "8", "--json", "-")
    assert json.loads(done.out)["prompts"][0]["prompt_tokens"] == [1, 2, 3, 4, 5]


def test_the_same_seed_drafts_the_same(run: Run, model: Path) -> None:
    def turns(seed: str) -> Any:
        given = ("--drafter", "noisy:0.4", "--seed", seed, "--json", "-")
        done = run("speculate", "-m", model, *IDS, "-n", "40", *given)
        return json.loads(done.out)["prompts"][0]["runs"][0]["loops"][0]["turns"]

    assert turns("1") == turns("1") != turns("2")


@pytest.mark.parametrize("exact", ["kernels", "single", "margin:inf", "repair:inf"])
def test_a_way_back(run: Run, model: Path, tmp_path: Path, exact: str) -> None:
    saved = tmp_path / "r.json"
    given = ("--drafter", "noisy:0.3", "--exact", exact, "--json", saved)
    done = run("speculate", "-m", model, *IDS, "-n", "32", *given)
    assert done.code == 0
    record = load(saved)
    plain, back = record["prompts"][0]["runs"][0]["loops"]
    assert (plain["way"], back["way"]) == ("none", exact)
    assert back["equal_rows"] == 32
    assert [row["way"] for row in record["summary"]["ways"]] == ["none", exact]
    if exact == "kernels":
        assert record["switch_effects"]["llamafile"] > 0
        assert "exact kernels, without tiled: had NO effect" in done.out
        assert record["config"]["without"] == []
    else:
        assert record["prompts"][0]["runs"][0]["controls"]["all_alone_equals_ar"] is True


def test_exact_kernels_past_256_cells_with_flash_attention(
    run: Run, model: Path, tmp_path: Path
) -> None:
    """Attention of one row that is split over the cache can't be had from a block: the AR run goes
    without it too, and the output says so."""
    saved, prompt = tmp_path / "r.json", tmp_path / "prompt"
    prompt.write_text(" ".join(str(i % 500) for i in range(250)))
    given = ("--tokens", prompt, "-c", "512", "-t", "2", "-fa", "on", "-n", "10")
    done = run("speculate", "-m", model, *given, "--exact", "kernels", "--json", saved)
    record = load(saved)
    assert record["config"]["without"] == ["split-kv"]
    assert record["provenance"]["kernel_switches"] == ["split-kv"]
    assert "without split-kv in every decode, the AR run's too" in done.out
    assert done.code == 0
    assert record["prompts"][0]["runs"][0]["loops"][1]["equal_rows"] == 10


def test_f32(run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "cache"))
    saved = tmp_path / "r.json"
    done = run("speculate", "-m", model, *IDS, "-n", "24", "--exact", "f32", "--json", saved)
    record = load(saved)
    given, precise = record["prompts"][0]["runs"]
    assert (given["setting"], precise["setting"]) == ("as given", "f32")
    assert [loop["way"] for loop in precise["loops"]] == ["f32"]
    assert record["f32"]["type_k"]["value"] == "f32"
    assert 0 < precise["sizes"]["rms_gap"] < 1e-5
    assert done.code == 0
    assert not list((tmp_path / "cache").rglob("*.gguf"))  # the copy is gone


def test_f32_is_refused_for_quantized_weights(run: Run, tiny_model: TinyModel) -> None:
    path = tiny_model("llama", "q8_0", n_layer=2)
    done = run("speculate", "-m", path, *IDS, "-n", "4", "--exact", "f32")
    assert done.code == 2 and "q8_0" in done.err


def test_prompts_of_a_file(run: Run, words: Path, tmp_path: Path) -> None:
    lines, saved = tmp_path / "p", tmp_path / "r.json"
    lines.write_text('first one\n\n{"prompt": "second"}\n{"tokens": [5, 6, 7]}\n')
    given = ("--prompts", lines, *COMMON, "-n", "16", "--exact", "single", "--json", saved)
    done = run("speculate", "-m", words, *given)
    record = load(saved)
    assert [p["prompt"] for p in record["prompts"]] == ["first one", "second", None]
    assert [p["prompt_tokens"] for p in record["prompts"]] == [
        list(b"first one"),
        list(b"second"),
        [5, 6, 7],
    ]
    assert [row["n"] for row in record["summary"]["ways"]] == [3, 3]
    assert "3 of 3 texts (48 tokens) equal AR's" in done.last
    assert "bound: every row alone: 0 partings in 48 tokens of 3 texts" in done.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "holds no prompts"),
        ('{"prompt": 3}\n', "line 1"),
        ('ok\n{"tokens": []}\n', "line 2"),
        ('{"tokens": [1], "prompt": "x"}\n', "line 1"),
        ("{broken\n", "line 1"),
    ],
)
def test_bad_prompts(run: Run, words: Path, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "p"
    path.write_text(content)
    done = run("speculate", "-m", words, "--prompts", path, *COMMON)
    assert (done.code, done.out) == (2, "") and said in done.err
    assert done.err.count("\n") == 1


def test_which_prompt_is_too_long(run: Run, words: Path, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("short\n" + "long " * 60 + "\n")
    done = run("speculate", "-m", words, "--prompts", path, *COMMON, "-n", "10")
    assert done.code == 2 and "prompt 2" in done.err


@pytest.mark.parametrize(
    "given",
    [
        ("--drafter", "noisy"),
        ("--drafter", "noisy:2"),
        ("--drafter", "noisy:x"),
        ("--drafter", "oracle:1"),
        ("--drafter", "dflash:x"),
        ("--drafter", "model:"),
        ("--drafter", "file:/none"),
        ("--drafter", "model:/none"),
        ("--exact", "margin"),
        ("--exact", "margin:-1"),
        ("--exact", "margin:nan"),
        ("--exact", "kernels:1"),
        ("--exact", "none"),
        ("--frontier", "--exact", "kernels"),
        ("--frontier", "--exact", "margin:1"),
        ("-W", "1"),
        ("--prompts", "/none"),
        ("--prompts", "/none", "-p", "x"),
        ("--seed", "-1"),
    ],
    ids=" ".join,
)
def test_bad_options(run: Run, model: Path, given: tuple[str, ...]) -> None:
    tokens = () if "--prompts" in given else ("--tokens", "1,2,3")
    done = run("speculate", "-m", model, *tokens, *COMMON, "-n", "4", *given)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_an_end_of_rows(run: Run, model: Path) -> None:
    """-ub 1 computes every row alone: nothing was compared."""
    done = run("speculate", "-m", model, *IDS, "-n", "12", "-ub", "1")
    assert done.code == Exit.INVALID
    assert done.last.startswith("csb: nothing compared: ")


def test_a_draft_model(run: Run, words: Path, tiny_model: TinyModel) -> None:
    small = tiny_model("llama", "bf16", n_layer=1, tokenizer="bpe")
    given = ("-p", "hello", *COMMON, "-n", "16", "--drafter", f"model:{small}", "--json", "-")
    record = json.loads(run("speculate", "-m", words, *given).out)
    loop = record["prompts"][0]["runs"][0]["loops"][0]
    assert loop["acceptance"]["drafted"] > 0
    assert record["draft"].keys() == {"path", "sha256", "description", "devices"}
    assert (record["draft"]["path"], record["draft"]["devices"]) == (str(small), [])
    other = tiny_model("llama", "bf16", n_layer=1)
    done = run("speculate", "-m", words, "-p", "a", *COMMON, "--drafter", f"model:{other}")
    assert done.code == 2 and "vocabulary" in done.err


def test_drafts_of_a_record(run: Run, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    run("speculate", "-m", model, *IDS, "-n", "24", "--drafter", "ngram", "--json", saved)
    given = ("--drafter", f"file:{saved}", "--json", "-")
    again = json.loads(run("speculate", "-m", model, *IDS, "-n", "24", *given).out)
    turns = [r["prompts"][0]["runs"][0]["loops"][0]["turns"] for r in (load(saved), again)]
    assert turns[0] == turns[1]


def test_a_frontier(run: Run, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "r.json"
    given = ("--frontier", "--drafter", "noisy:0.2", "-n", "32", "--json", saved)
    done = run("speculate", "-m", model, *IDS, *given)
    record = load(saved)
    assert done.code in (0, 1)
    taus = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, "inf"]
    assert record["frontier"]["taus"] == taus
    rows = record["summary"]["ways"]
    assert [row["way"] for row in rows] == ["none", *(f"margin:{t:g}" for t in taus[:-1]), *INF]
    shares = [row["alone_share"]["mean"] for row in rows[1:]]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    controls = record["prompts"][0]["runs"][0]["controls"]
    assert controls["all_alone_equals_ar"] is True and controls["gate_0_equals_ungated"] is True
    assert ("TAU is named" in done.out) == (record["frontier"]["smallest"] is None)


INF = ("margin:inf",)


def test_plots(run: Run, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for given, name, magic in (
        (("--exact", "single"), "p.png", b"\x89PNG"),
        (("--frontier", "--exact", "repair"), "p.svg", b"<?xml"),
    ):
        path = tmp_path / name
        run("speculate", "-m", model, *IDS, "-n", "12", *given, "--plot", path)
        assert path.read_bytes()[: len(magic)] == magic


def test_failed_controls_are_exit_3(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from csb.measure.speculate import ways

    monkeypatch.setattr(ways, "first_under", lambda margins, tau: None)
    done = run("speculate", "-m", model, *IDS, "-n", "16", "--exact", "margin:inf")
    assert done.code == Exit.INVALID
    assert "controls failed: all_alone_equals_ar" in done.out


def test_an_interrupt_saves_what_there_is(
    run: Run, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third prompt's loop."""

    def stop(self: Steps, step: str, done: int, total: int) -> None:
        if step.startswith("3/4 loop") and done >= 10:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Steps, "__call__", stop)
    lines, saved = tmp_path / "p", tmp_path / "r.json"
    lines.write_text("one\ntwo\nthree\nfour\n")
    done = run("speculate", "-m", words, "--prompts", lines, *COMMON, "-n", "40", "--json", saved)
    assert done.code == Exit.INTERRUPTED
    record = load(saved)
    assert (record["complete"], record["outcome"]) == (False, "incomplete")
    assert [p["outcome"] for p in record["prompts"]] == [
        *[p["outcome"] for p in record["prompts"][:2]],
        "incomplete",
    ]
    assert record["prompts"][2]["runs"][0]["ar"]["ids"]
    assert done.out == render(record)


def test_texts_that_part(run: Run, model: Path, tmp_path: Path) -> None:
    """By rounding, on a cache that rounds a lot: which prompt does depends on the kernels."""
    lines, saved = tmp_path / "p", tmp_path / "r.json"
    lines.write_text("".join(json.dumps({"tokens": [i, 7, 33]}) + "\n" for i in range(1, 21)))
    given = ("--prompts", lines, *COMMON, "-ctk", "q4_0", "-n", "100", "--json", saved)
    done = run("speculate", "-m", model, *given)
    record = load(saved)
    parted = [p for p in record["prompts"] if p["outcome"] == "parted, all rounding"]
    assert done.code == 1 and parted
    loops = [p["runs"][0]["loops"][0] for p in parted]
    assert done.out.count("PARTS at") == sum(len(loop["partings"]) for loop in loops)
    for prompt, loop in zip(parted, loops, strict=True):
        ar, first = prompt["runs"][0]["ar"], loop["partings"][0]
        p = first["pos"]
        assert loop["ids"][:p] == ar["ids"][:p] and loop["ids"][p] != ar["ids"][p]
        assert first["ar_margin"] >= 0 >= first["loop"]
        assert f"PARTS at {p} (row {first['offset']} of a block): AR {ar['ids'][p]}" in done.out
        assert loop["nll"]["ar"] > 0 and loop["nll"]["text"] > 0
        assert loop["faults"] == []
    (row,) = record["summary"]["ways"]
    assert (row["n"], row["parted"]) == (20, len(parted))
    assert row["parted_at"] == [loop["partings"][0]["pos"] for loop in loops]
