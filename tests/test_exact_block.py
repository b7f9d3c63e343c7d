"""`csb compare --exact-block`: blocks with the single path's bits, and nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import kernels
from csb.errors import InvalidMeasurement
from csb.exit_codes import Exit
from csb.measure.exact import ExactBlock, decide
from csb.measure.memory import Memory
from csb.native.library import load, quantize
from csb.plan import EXACT_SWITCHES, Window
from csb.price import medians, price, said
from process import Run
from test_hooks import X86
from test_seed import tokens

pytestmark = pytest.mark.native

IDS = ("--tokens", "5,17,300,42,9,88", "-t", "1", "-c", "512")
LONG = ("--tokens", ",".join(map(str, tokens(260))), "-t", "2", "-c", "512", "-fa", "on")


@pytest.fixture(scope="module")
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


def measure(run: Run, path: Path, *given: object) -> tuple[dict[str, Any], list[str]]:
    """The record, and the lines of text that speak of the exact block."""
    saved = path.with_suffix(".json")
    done = run("-m", path, *given, "--json", saved)
    assert done.code in (0, 1), done.err
    record = json.loads(saved.read_text())
    return record, [x for x in done.out.splitlines() if x.startswith("exact block: ")]


@X86
def test_only_the_block_changes(run: Run, bf16: Path) -> None:
    plain, nothing = measure(run, bf16, *IDS, "-n", "12", "-fa", "off")
    exact, text = measure(run, bf16, *IDS, "-n", "12", "-fa", "off", "--exact-block")
    assert nothing == [] and plain["exact_block"] is None
    assert exact["ar"] == plain["ar"]
    singly = ("t", "j", "l_s", "amax_s", "lmax_s", "margin_s")
    for a, b in zip(plain["cells"], exact["cells"], strict=True):
        assert [a[k] for k in singly] == [b[k] for k in singly]
    found = exact["exact_block"]
    n = plain["summary"]["n_compared"]
    assert exact["summary"]["n_equal"] == exact["summary"]["n_compared"] == n == 49
    assert (found["n_plain"], found["n_plain_equal"]) == (n, plain["summary"]["n_equal"])
    assert found["n_plain_equal"] == 0
    assert (found["names"], found["single"]) == (list(EXACT_SWITCHES), [])
    assert len(found["seconds"]) == len(found["plain_seconds"]) == 8  # the whole blocks
    assert exact["config"]["exact_block"] == list(EXACT_SWITCHES)
    assert exact["provenance"]["switch_effects"]["llamafile"] > 0
    assert exact["outcome"] == "equal bits"
    same = "exact block: single and block have the same bits in all 49 cells (without the switches "
    assert text[0].startswith(f"{same}in 0 of 49); a block costs ")
    assert text[0].endswith(", 8 pairs)")
    assert text[1] == "exact block: llamafile, tiled, split-kv refused in block decodes alone"
    assert len(text) == 2


@X86
def test_a_set_that_is_not_enough(run: Run, bf16: Path) -> None:
    given = (*IDS, "-n", "6", "-fa", "off")
    record, text = measure(run, bf16, *given, "--exact-block", "tiled,split-kv")
    plain, _ = measure(run, bf16, *given)
    assert text[0].startswith("exact block: does NOT hold: single and block differ in 19 of 19")
    assert text[1] == "exact block: tiled, split-kv refused in block decodes alone"
    assert record["cells"] == plain["cells"]
    assert record["outcome"] == plain["outcome"] != "equal bits"


@X86
@pytest.mark.parametrize("prefix", ["reprefill", "shared", "incremental", "block"])
def test_every_prefix_strategy(run: Run, bf16: Path, prefix: str) -> None:
    given = ("-n", "9", "-W", "3", "-fa", "off", "--prefix", prefix, "--exact-block")
    record, _ = measure(run, bf16, *IDS, *given)
    assert record["outcome"] == "equal bits"
    assert record["exact_block"]["n_plain_equal"] < record["exact_block"]["n_plain"]


@X86
def test_memory_written_by_exact_blocks(run: Run, bf16: Path) -> None:
    """Rows of blocks that have the single path's bits write what it writes."""
    given = (*IDS, "-n", "10", "-W", "3", "-fa", "off", "--prefix", "block", "-ctk", "f32")
    exact, _ = measure(run, bf16, *given, "--exact-block")
    plain, _ = measure(run, bf16, *given)
    drift = [[c["l_s"] - r["ar"][c["pos"]]["logit"] for c in r["cells"]] for r in (exact, plain)]
    assert not any(drift[0]) and any(drift[1])


@X86
def test_past_256_tokens_the_single_path_gives_split_kv_up(run: Run, bf16: Path) -> None:
    record, text = measure(run, bf16, *LONG, "-n", "3", "-W", "2", "--exact-block")
    assert record["exact_block"]["single"] == ["split-kv"]
    assert record["outcome"] == "equal bits"
    assert record["controls"]["failed"] == []
    why = "with 262 tokens in the memory a call of one row attends by split-KV"
    assert text[1].endswith(
        f"block decodes; split-kv in the single path and the AR run too, since {why}"
    )
    kinds = [record["kernels"][path]["kernels"] for path in ("single", "block")]
    assert not any("split_kv" in name for kind in kinds for name in kind)


@X86
def test_past_256_tokens_without_it_nothing_is_exact(run: Run, bf16: Path) -> None:
    given = (*LONG, "-n", "3", "-W", "2", "--exact-block", "llamafile,tiled")
    record, text = measure(run, bf16, *given)
    assert record["exact_block"]["single"] == []
    assert record["summary"]["n_equal"] == 0
    assert text[0].startswith("exact block: does NOT hold: single and block differ in 4 of 4")


@X86
def test_what_the_single_path_needs_is_seen_before(bf16: Path) -> None:
    """Up to 256 tokens, and with flash attention off, it needs nothing."""
    for flash, n_gen, needed in (("on", 240, ()), ("on", 300, ("split-kv",)), ("off", 300, ())):
        options = {"n_ctx": 512, "n_threads": 1, "flash_attn": flash}
        with csb.Model(bf16) as model, csb.Context(model, **options) as context:
            assert decide(Memory(context), [1, 2, 3], n_gen, EXACT_SWITCHES).single == needed
            assert decide(Memory(context), [1, 2, 3], n_gen, ("llamafile",)).single == ()


@X86
def test_repacked_weights_need_no_repack(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """Eight rows of Q4_K: repacked GEMM and GEMV differ whatever is refused; in plain weights the
    tiled product does, and can be refused."""
    path = tmp_path / "q4k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=2), path, "q4_k_s", pure=True)
    given = (*IDS, "-n", "10", "-W", "8", "-fa", "on", "--exact-block")
    record, text = measure(run, path, *given)
    assert record["summary"]["n_equal"] < record["summary"]["n_compared"]
    assert text[2] == (
        "exact block: repacked weights keep their kernels from load time; add --no-repack"
    )
    record, text = measure(run, path, *given, "--no-repack")
    assert record["outcome"] == "equal bits"
    assert len(text) == 2


def test_a_build_without_hooks_says_so_first(
    run: Run, bf16: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Path(__file__).parents[1] / "build/default/csrc/libcsb_without_hooks.so"
    assert built.exists(), "no build folder here: pip install . in this checkout first"
    other = load(built)
    monkeypatch.setattr(kernels, "library", lambda: other)
    monkeypatch.setattr("csb.native.model.Model.__init__", pytest.fail)
    done = run("-m", bf16, *IDS, "--exact-block")
    assert (done.code, done.out, done.err.count("\n")) == (Exit.ERROR, "", 1)
    assert "this build has no hooks" in done.err


@pytest.mark.parametrize("names", ["sgemm", "", "llamafile,", "llamafile tiled", "8"])
def test_unknown_names(run: Run, bf16: Path, names: str) -> None:
    done = run("-m", bf16, *IDS, "--exact-block", names)
    assert (done.code, done.out, done.err.count("\n")) == (Exit.ERROR, "", 1)
    assert "one of llamafile, tiled, split-kv" in done.err


def test_nothing_to_compare_is_no_proof(run: Run, bf16: Path) -> None:
    done = run("-m", bf16, *IDS, "-n", "3", "-W", "1", "--exact-block")
    assert done.code == Exit.INVALID
    assert "exact block: single" not in done.out


@X86
def test_a_block_that_changes_is_no_price(bf16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with csb.Model(bf16) as model, csb.Context(model, n_ctx=256, n_threads=1) as context:
        memory, window = Memory(context), Window(0, 2, (3, 4), (5, 6))
        memory.prefill([1, 2])
        single, block = (np.zeros((2, model.n_vocab), np.float32) for _ in range(2))
        with pytest.raises(InvalidMeasurement, match="a second time has other bits"):
            ExactBlock(("llamafile",)).pair(memory, window, single, block, True)


def test_switches_of_a_path_end_with_it(bf16: Path) -> None:
    with csb.Model(bf16) as model, csb.Context(model, n_ctx=256, n_threads=1) as context:
        memory = Memory(context)
        with pytest.raises(ZeroDivisionError), memory.switched(single=(), block=("tiled",)):
            assert memory.block_without == ("tiled",)
            raise ZeroDivisionError
        assert memory.block_without == () and kernels.in_force() == []


# ---- the price ----


def test_price_by_hand() -> None:
    found = price([3.0, 2.0, 4.0], [2.0, 2.0, 2.0])  # changes 0.5, 0, 1: quartiles 0.25, 0.75
    assert found == {
        "n": 3,
        "median_ms": 3000.0,
        "reference_ms": 2000.0,
        "change": 0.5,
        "quartiles": [0.25, 0.75],
    }
    assert said(found) == "a block costs 50 % more"
    assert medians(found) == " (median 3e+03 ms against 2e+03 ms, 3 pairs)"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([1.0, 1.0], "a block costs 50 % less"),
        ([1.6, 2.8], "a block costs about the same, -5 % to +25 %"),
        ([], "what a block costs was not measured"),
    ],
)
def test_what_is_said_of_it(seconds: list[float], text: str) -> None:
    assert said(price(seconds, [2.0] * len(seconds))) == text
