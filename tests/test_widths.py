"""`csb widths` on tiny models and single ops: facts known from the kernels' own sources."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import ops
from csb.exit_codes import Exit
from csb.measure.memory import Memory, same_bits
from csb.measure.widths import Measured, measure
from csb.native.library import quantize
from csb.plan import ContextPlan, ModelPlan, WidthsPlan
from csb.widths import class_list, make_map, places_of, summary
from process import Run
from test_controls import Faulty
from test_hooks import X86
from test_ops import floats
from test_seed import settings, tokens

pytestmark = pytest.mark.native

FEW = ("--tokens", "1,2,3,4,5", "-c", "512", "-t", "1")
OFF = (*FEW, "-fa", "off")


@pytest.fixture(scope="module")
def pure(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A model whose every matrix has that type."""
    folder = tmp_path_factory.mktemp("pure")

    def get(kind: str, **shape: int) -> Path:
        path = folder / f"{kind}-{len(shape)}.gguf"
        if not path.exists():
            quantize(tiny_model("llama", "f32", **shape), path, kind, pure=True)
        return path

    return get


def saved(run: Run, tmp_path: Path, *arguments: object) -> tuple[list[str], dict[str, Any]]:
    path = tmp_path / "w.json"
    done = run("widths", *arguments, "--json", path)
    assert done.code == 0, (done.out, done.err)
    return done.out.splitlines(), json.loads(path.read_text())


@X86
def test_bf16(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    lines, record = saved(run, tmp_path, "-m", tiny_model("llama", "bf16", n_layer=2), *OFF)
    assert lines[1] == "rows agree: {1} {2..16}"
    assert record["rows_agree"] == lines[1]
    assert [b["high"] for b in record["map"]["borders"]] == [2]
    border = lines.index(
        next(x for x in lines if x.startswith("border 1 | 2: rows 0,1 change at 3"))
    )
    assert "ggml_vec_dot_bf16 -> llamafile_sgemm: attn_q.weight" in lines[border + 1]
    assert lines[-1].endswith("controls ok; the traced calls have the untraced calls' bits")
    assert [p["where"]["prefix"] for p in record["places"]] == [4, 20, 36]
    names = ("repeat_equal", "input_changes", "ar_equal")
    assert [record["controls"][name] for name in names] == [True, True, True]


@X86
def test_its_rows_are_the_paths_rows(tiny_model: TinyModel) -> None:
    """Classes against rows decoded here, each width on a memory of its own."""
    options, text = settings(n_ctx=256), tokens(40)
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:

        def rows(width: int) -> np.ndarray:
            with csb.Context(model, **options) as context:  # type: ignore[arg-type]
                context.decode(text[:20], 0, outputs=False)
                if width > 1:
                    context.decode(text[20 : 20 + width], 20)
                    return context.logits(range(width))
                singles = np.empty((6, model.n_vocab), np.float32)
                return context.steps(text[20:26], 20, singles)

        expected = {w: rows(w) for w in range(1, 7)}
        plan = WidthsPlan(ModelPlan(model.path), ContextPlan(), widths=(1, 2, 3, 4, 5, 6), places=1)
        with csb.Context(model, **options) as context:  # type: ignore[arg-type]
            made = measure(Memory(context), plan, [text[:21]], True, [text[:26]])
    (place,) = made.places
    for a in range(1, 7):
        for b in range(a + 1, 7):
            for j in range(min(b, 6 if a == 1 else a)):
                equal = same_bits(expected[a][j], expected[b][j])
                assert equal == (place.rows[a][j] == place.rows[b][j]), (a, b, j)
    assert make_map([place.rows]).classes == [[1], [2, 3, 4, 5, 6]]


@X86
def test_q4_1_without_llamafile(run: Run, pure: Callable[..., Path], tmp_path: Path) -> None:
    path = pure("q4_1", n_layer=2)
    lines, record = saved(run, tmp_path, "-m", path, *OFF, "--without", "llamafile")
    assert lines[1:3] == [
        "rows agree: {1..16}",
        "no border: no row changes between neighbouring widths",
    ]
    assert record["provenance"]["model"]["tensor_types"]["q4_1"] > 0
    assert record["provenance"]["kernel_switches"] == ["llamafile"]


@X86
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_llamafile_is_the_border(
    run: Run, tiny_model: TinyModel, tmp_path: Path, kind: str
) -> None:
    given = ("-m", tiny_model("llama", kind, n_layer=2), *OFF, "--widths", "1..6")
    assert saved(run, tmp_path, *given)[0][1] == "rows agree: {1} {2..6}"
    off = saved(run, tmp_path, *given, "--without", "llamafile")[0]
    assert off[1] == "rows agree: {1..6}"


@X86
def test_repacked_q4_k(run: Run, pure: Callable[..., Path], tmp_path: Path) -> None:
    """Whole groups of four rows and the rest run other kernels: where a row is in the last, not
    whole group it has one value, from the width on where it is in a whole one another."""
    path = pure("q4_k_s", n_layer=2)
    lines, record = saved(run, tmp_path, "-m", path, *OFF, "--without", "llamafile")
    types = record["provenance"]["model"]["tensor_types"]
    assert set(types) == {"f32", "q4_K"} and types["q4_K"] == 2 * 7 + 2
    offset = {w: c for c in record["map"]["offsets"]["4"] for w in c}
    assert offset[5] == offset[6] == offset[7]
    assert offset[8] == list(range(8, 17)) != offset[5]
    border = lines.index(next(x for x in lines if x.startswith("border 7 | 8: rows 4..6 change")))
    assert (
        "ggml_gemm_q4_K_8x8_q8_K+ggml_gemv_q4_K_8x8_q8_K -> ggml_gemm_q4_K_8x8" in lines[border + 1]
    )
    assert [b["low"] for b in record["map"]["borders"]] == [3, 7, 11, 15]


@X86
def test_split_kv(run: Run, pure: Callable[..., Path], tmp_path: Path) -> None:
    """Two threads, flash attention on, past 512 cells: only one row attends by split-KV."""
    ids = ",".join(map(str, tokens(600)))
    given = ("-m", pure("q4_1", n_layer=2), "--tokens", ids, "-c", "1024", "-t", "2", "-fa", "on")
    lines, record = saved(run, tmp_path, *given, "--widths", "1..8")
    assert lines[1] == "rows agree: {1} {2..8}"
    (border,) = record["map"]["borders"]
    assert (border["low"], border["high"]) == (1, 2)
    at = lines.index(next(x for x in lines if x.startswith("border 1 | 2")))
    assert lines[at + 1].startswith(
        "  FLASH_ATTN_EXT f16  ggml_compute_forward_flash_attn_ext[split_kv] -> "
        "ggml_compute_forward_flash_attn_ext[one_chunk]"
    )
    assert not lines[at + 2].startswith("  ")  # and nothing else changes there
    off, _ = saved(run, tmp_path, *given, "--widths", "1..8", "--without", "split-kv")
    assert off[1] == "rows agree: {1..8}"


@pytest.mark.parametrize("arch", ["lfm2", "mamba", "gemma3", "moe"])
def test_memories_that_are_restored(
    run: Run, tiny_model: TinyModel, tmp_path: Path, arch: str
) -> None:
    given = ("-m", tiny_model(arch, "f32"), *OFF, "--widths", "1..5", "--places", "2")
    swa = ("--no-swa-full",) if arch == "gemma3" else ()
    _, record = saved(run, tmp_path, *given, *swa)
    assert record["problems"] == [] and len(record["places"]) == 2


def test_several_prompts(run: Run, text_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\nanother one\n")
    given = ("-m", text_model, "-t", "1", "-fa", "off", "--prompts", prompts, "--widths", "1,2,4")
    lines, record = saved(run, tmp_path, *given, "--places", "2")
    assert [p["text"] for p in record["prompts"]] == ["one", "another one"]
    assert [p["where"]["prompt"] for p in record["places"]] == [0, 0, 1, 1]
    assert [line.split(":")[0] for line in lines[2:4]] == ["  prompt 1", "  prompt 2"]
    assert "4 places of 2 prompts" in lines[-1]
    assert sorted(record["places"][0]["kernels"]) == ["1", "2", "4"]


@X86
def test_against(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """A map against one where a kernel is refused, on the same tokens; and against itself."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    given = ("widths", "-m", tiny_model("llama", "f32", n_layer=2), *OFF, "--widths", "1..4")
    assert run(*given, "--json", old).code == 0
    same = run(*given, "--against", old)
    assert (same.code, "since the other map: no change" in same.out) == (0, True)
    changed = run(*given, "--without", "llamafile", "--against", old, "--json", new)
    assert changed.code == Exit.DIFFERENT
    for line in (
        "since the other map: changed",
        "  without: was [], is ['llamafile']",
        "  rows agree: was {1} {2..4}, is {1..4}",
        "  border 1 | 2 is gone",
        "  bits: rows of widths {1..4} have other bits",  # the prefix too
    ):
        assert line in changed.out.splitlines()
    assert run("widths", new, "--against", old).out == changed.out
    for other, said in (
        (("--widths", "1..5"), "its widths are [1, 2, 3, 4], not [1, 2, 3, 4, 5]"),
        (("--places", "2"), "its places are 3, not 2"),
        (("--tokens", "7,8,9"), "other prompt tokens"),
    ):
        refused = run(*given, *other, "--against", old)
        assert (refused.code, refused.out) == (2, "") and said in refused.err


@X86
def test_op_rows(run: Run, tmp_path: Path) -> None:
    """Repacked Q4_K: rows 0..3 of five are a whole group, row 4 runs what one row runs."""
    w, x = floats(64, 512), floats(5, 512, seed=1)
    five = ops.mul_mat(w, x, type="q4_K").values
    one = np.concatenate([ops.mul_mat(w, row[None], type="q4_K").values for row in x])
    assert [same_bits(a, b) for a, b in zip(five, one, strict=True)] == [False] * 4 + [True]
    given = ("--op", "mul_mat", "--type", "q4_K", "--shape", "64,512", "-t", "1")
    lines, _ = saved(run, tmp_path, *given)
    assert lines[1] == "rows agree: {1..3} {4..7} {8..11} {12..15} {16}"
    assert "offset 4: {1,5..7} {8..16}" in lines
    assert "kernels: {1..3} ggml_gemv_q4_K_8x8_q8_K" in lines
    off, _ = saved(run, tmp_path, *given, "--no-repack")
    assert off[1] == "rows agree: {1..7} {8..16}"
    assert "kernels: {8..16} ggml_compute_forward_mul_mat_tiled" in off


@X86
@pytest.mark.parametrize(
    ("kind", "repack", "classes"),
    [
        ("f32", True, "{1} {2..16}"),
        ("bf16", True, "{1} {2..16}"),
        ("q8_0", True, "{1..16}"),
        ("q4_0", True, "{1..16}"),
        ("q4_0", False, "{1..16}"),
        ("iq4_nl", False, "{1} {2..16}"),
        ("q6_K", True, "{1..7} {8..16}"),
    ],
)
def test_op_classes(run: Run, tmp_path: Path, kind: str, repack: bool, classes: str) -> None:
    """The notes' table of what differs numerically, type by type."""
    given = ("--op", "mul_mat", "--type", kind, "--shape", "64,512", "-t", "1")
    lines, _ = saved(run, tmp_path, *given, "--repack" if repack else "--no-repack")
    assert lines[1] == f"rows agree: {classes}"


@X86
def test_op_attention(run: Run, tmp_path: Path) -> None:
    lines, record = saved(run, tmp_path, "--op", "flash_attn", "-t", "2", "--cells", "256,512,1024")
    assert lines[1:5] == [
        "rows agree: {1} {2..16}",
        "  256 cells: {1..16}",
        "  512 cells: {1} {2..16}",
        "  1024 cells: {1} {2..16}",
    ]
    assert not any(line.startswith("data-dependent") for line in lines)
    assert len(record["places"]) == 9
    one, _ = saved(run, tmp_path, "--op", "flash_attn", "-t", "1")
    assert one[1] == "rows agree: {1..16}"
    quantized, _ = saved(run, tmp_path, "--op", "flash_attn", "-t", "2", "--type", "q8_0")
    assert quantized[1] == "rows agree: {1..16}"


def test_op_against_and_seed(run: Run, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    given = ("widths", "--op", "mul_mat", "--type", "f32", "--shape", "32,64", "-t", "1")
    first = run(*given, "--json", old)
    assert run(*given).out == first.out
    assert run(*given, "--against", old).code == 0
    changed = run(*given, "--against", old, "--without", "llamafile")
    assert changed.code == 1 and "  border 1 | 2 is gone" in changed.out
    other = run(*given, "--against", old, "--seed", "1")
    assert other.code == 2 and "other ops, types, shapes or seeds" in other.err


def test_plot(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, magic in (("p.png", b"\x89PNG"), ("p.svg", b"<?xml")):
        path = tmp_path / name
        given = ("--op", "mul_mat", "--type", "q4_K", "--shape", "32,256", "-t", "1")
        assert run("widths", *given, "--plot", path).code == 0
        assert path.read_bytes()[: len(magic)] == magic


@X86
@pytest.mark.model
def test_the_default_model(run: Run, default_model: Path, tmp_path: Path) -> None:
    given = ("-m", default_model, "-fa", "off", "-t", "1", "--widths", "1..6", "--places", "1")
    lines, _ = saved(run, tmp_path, *given)
    assert lines[1] == "rows agree: {1} {2..6}"


# ---- what is not valid --------------------------------------------------------------------------


def faulty(path: Path, **faults: Callable[..., Any]) -> Measured:
    plan = WidthsPlan(ModelPlan(path), ContextPlan(), widths=(1, 2, 4), places=1)
    with csb.Model(path) as model, csb.Context(model, n_ctx=256, n_threads=1) as context:
        return measure(Memory(Faulty(context, **faults)), plan, [tokens(9)], True)  # type: ignore[arg-type]


def test_a_backend_that_is_noisy(tiny_model: TinyModel) -> None:
    def noise(calls: int, ids: list[int], rows: np.ndarray) -> None:
        rows[0, 0] += calls * 1e-3

    controls = faulty(tiny_model(n_layer=1), rows=noise).controls
    assert "repeat_equal" in controls.to_json()["failed"]
    assert controls.noise["n_diff"] >= 1 and 0 < controls.noise["max_abs"] < 0.1


def test_inputs_that_do_not_matter(tiny_model: TinyModel) -> None:
    def constant(calls: int, ids: list[int], rows: np.ndarray) -> None:
        rows[:] = 1

    failed = faulty(tiny_model(n_layer=1), rows=constant).controls.to_json()["failed"]
    assert failed == ["input_changes"]


def test_rows_that_are_no_numbers(tiny_model: TinyModel) -> None:
    def bad(calls: int, ids: list[int], rows: np.ndarray) -> None:
        if len(ids) == 4:
            rows[3, 7] = np.nan

    stopped = faulty(tiny_model(n_layer=1), rows=bad).stopped
    assert "rows of width 4 hold NaN or infinity" in str(stopped)


def test_a_trace_that_changes_what_it_sees(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csb.measure import widths

    def changed(memory: Any, inputs: Any, start: int, out: np.ndarray) -> Any:
        call = original(memory, inputs, start, out)
        out[-1, 0] += 1
        return call

    original = widths.trace_call
    monkeypatch.setattr(widths, "trace_call", changed)
    done = run("widths", "-m", tiny_model("llama", "f32", n_layer=1), *OFF, "--widths", "1..3")
    assert done.code == Exit.INVALID
    assert done.out.splitlines()[-1] == "csb: NOT valid: tracing changed the rows' bits"


def test_one_row_calls_compare_nothing(run: Run, tiny_model: TinyModel) -> None:
    done = run("widths", "-m", tiny_model(n_layer=1), *OFF, "-ub", "1", "--widths", "1..3")
    assert done.code == Exit.INVALID and "nothing was compared" in done.out


def test_without_hooks(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from csb import run_widths

    hooks = {"graph": False, "kernels": False}
    monkeypatch.setattr(run_widths, "build_info", lambda: {"hooks": hooks})
    given = ("-m", tiny_model("llama", "bf16", n_layer=1), *OFF, "--widths", "1..3")
    lines, record = saved(run, tmp_path, *given)
    assert record["observed"] is False and lines[-1].endswith("kernels were not observed")
    assert not any(p["kernels"] for p in record["places"])


def test_an_interrupted_map_is_saved(
    run: Run, text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt ends the run; the places before it are there."""
    from csb.render.progress import Steps

    def interrupt(steps: Steps, step: str, done: int, total: int) -> None:
        if (step, done) == ("places", 4):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Steps, "__call__", interrupt)
    path, prompts = tmp_path / "w.json", tmp_path / "p.txt"
    prompts.write_text("a prompt\n" * 200)
    given = ("-m", text_model, "-t", "1", "--prompts", prompts, "--no-chat-template")
    done = run("widths", *given, "--json", path)
    assert (done.code, done.err) == (Exit.INTERRUPTED, "")
    record = json.loads(path.read_text())
    assert record["complete"] is False and 4 <= len(record["places"]) < 600
    assert done.last == f"csb: interrupted after {len(record['places'])} places"
    assert summary(make_map(places_of(record))) == record["rows_agree"]
    assert class_list(record["map"]["classes"]) in done.out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--widths", "0"), "must be row counts from 1 on"),
        (("--widths", "4..2"), "must be row counts from 1 on"),
        (("--widths", "5"), "give at least two"),
        (("--widths", "1,600"), "is more than -b 512"),
        (("--places", "40"), "give a larger -c or fewer --places"),
        (("--type", "q4_0"), "--type does nothing without --op"),
        (("--seed", "3"), "--seed does nothing without --op"),
        (("--prompts", "x", "-p", "y"), "give only one of"),
        (("--op", "conv"), "is not one of"),
    ],
)
def test_bad_options(run: Run, tiny_model: TinyModel, given: tuple[str, ...], said: str) -> None:
    done = run("widths", "-m", tiny_model(n_layer=1), *OFF, *given)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    if "--prompts" not in given and "--op" not in given:
        assert said in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("mul_mat", "-m", "x.gguf"), "--model does nothing with --op mul_mat"),
        (("mul_mat", "-fa", "on"), "--flash-attn does nothing with --op mul_mat"),
        (("mul_mat", "--cells", "256"), "--cells does nothing with --op mul_mat"),
        (("flash_attn", "--shape", "8,8"), "--shape does nothing with --op flash_attn"),
        (("flash_attn", "--cells", "8"), "is less than the widest call's 16 rows"),
        (("flash_attn", "--kv-heads", "3"), "do not fit"),
        (("mul_mat", "--shape", "8"), "must be rows and columns"),
        (("mul_mat", "--type", "q9"), "type = q9: ggml has no such type"),
        (("mul_mat", "--type", "iq2_xs", "--shape", "8,256"), "importance matrix"),
        (("mul_mat", "--type", "q4_K", "--shape", "8,100"), "is no multiple of q4_K's blocks"),
        (("mul_mat", "-dev", "GPU9"), "there is no device GPU9"),
    ],
)
def test_bad_op_options(run: Run, given: tuple[str, ...], said: str) -> None:
    done = run("widths", "--op", *given)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
