"""`csb locate --export`: the op where the difference starts, run without its model."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import csb
import gguf
import numpy as np
import pytest
from conftest import TinyModel
from csb.errors import ArgumentError, FileError
from csb.measure import export
from csb.measure.export import spanned
from csb.native.library import quantize
from csb.native.watch import Node
from csb.ops import RecordedOp
from planted import Fault, Planted
from process import Run
from test_hooks import X86
from test_seed import tokens

pytestmark = pytest.mark.native

IDS = ("--tokens", ",".join(map(str, tokens(30))), "-c", "256", "-t", "1", "-fa", "off")
GEMV, GEMM = "ggml_gemv_q4_K_8x8_q8_K", "ggml_gemm_q4_K_8x8_q8_K"
FLASH = "ggml_compute_forward_flash_attn_ext"


def reproduce(folder: Path) -> list[str]:
    """What the script says in a process of its own, in a place of its own."""
    command = [sys.executable, folder / "reproduce.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def expected(record: dict[str, Any], size: int) -> list[str]:
    first, done = record["first"], record["export"]
    kernels = {path: "+".join(first[f"{path}_kernels"]) for path in ("single", "block")}
    return [
        f"{first['name']} ({first['op']}): {done['n_diff']} of {size} values of row "
        f"{done['row']} differ",
        f"single: {kernels['single']}, the recorded bits",
        f"block: {kernels['block']}, the recorded bits",
    ]


def locate(run: Run, path: Path, folder: Path, *given: object) -> dict[str, Any]:
    """The record, with what the text says held against it."""
    done = run(
        "locate", "-m", path, *IDS, *given, "--export", folder, "--json", folder.parent / "r"
    )
    assert (done.code, done.err) == (0, "")
    record: dict[str, Any] = json.loads((folder.parent / "r").read_text())
    out = record["export"]
    assert out["reproduced"] and out["why"] is None and out["folder"] == str(folder)
    assert done.out.splitlines()[-2] == (
        f"exported to {folder}: run alone, {out['n_diff']} of {out['n_values']} values of row "
        f"{out['row']} differ, with the recorded bits"
    )
    assert sorted(p.name for p in folder.iterdir()) == ["op.npz", "reproduce.py"]
    return record


@X86
def test_a_product(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """BF16: the file's weight, the embedding's norm for all rows; how many differ by numpy."""
    path = tiny_model("llama", "bf16", n_layer=2)
    record = locate(run, path, tmp_path / "x")
    assert (record["first"]["name"], record["export"]["row"]) == ("Qcur-0", 0)
    said = reproduce(tmp_path / "x")
    assert said == expected(record, 256)
    assert said[1].startswith("single: ggml_vec_dot_bf16,")
    assert said[2].startswith("block: llamafile_sgemm,")

    op = csb.ops.load(tmp_path / "x" / "op.npz")
    (weight,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight")
    for call, rows in ((op.single, 1), (op.block, 5)):
        w, x = call.sources
        assert w is not None and x is not None
        assert (w.weight, x.weight, call.repack, call.n_threads) == (True, False, False, 1)
        assert w.data.tobytes() == weight.data.tobytes() and tuple(w.ne) == (256, 256, 1, 1)
        assert (x.type, tuple(x.ne)) == ("f32", (256, rows, 1, 1))
    file = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    embd = gguf.dequantize(file["token_embd.weight"], gguf.GGMLQuantizationType.BF16)
    rows = embd[record["inputs"]].astype(np.float64)
    norm = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6)
    x = op.block.sources[1]
    assert x is not None
    np.testing.assert_allclose(x.data[0, 0], norm * file["blk.0.attn_norm.weight"], rtol=1e-5)
    both = [c.values.view(np.uint32).ravel() for c in (op.single, op.block)]
    assert record["export"]["n_diff"] == np.count_nonzero(both[0] != both[1]) > 0
    w64 = gguf.dequantize(weight.data, gguf.GGMLQuantizationType.BF16).astype(np.float64)
    for call in (op.single, op.block):
        np.testing.assert_allclose(call.values[0, 0, 0], w64 @ x.data[0, 0, 0], rtol=0, atol=0.05)


@X86
def test_a_repacked_product(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """The weight's own bytes are the file's, though the model can't give them back."""
    path = tmp_path / "q4_k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q4_k_s", pure=True)
    record = locate(run, path, tmp_path / "x", "-fa", "on")
    said = reproduce(tmp_path / "x")
    assert said == expected(record, 256)
    assert said[1:] == [
        f"single: {GEMV}, the recorded bits",
        f"block: {GEMM}+{GEMV}, the recorded bits",
    ]
    op = csb.ops.load(tmp_path / "x" / "op.npz")
    (weight,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_q.weight")
    for call in (op.single, op.block):
        assert call.repack and call.sources[0] is not None
        assert call.sources[0].data.tobytes() == weight.data.tobytes()
    # the last of five rows is computed as a single one is
    assert record["first"]["created"] == [True] * 4 + [False]


@X86
def test_split_kv_attention(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """Two threads, all cells of the cache and the mask; only the queries' rows are the block's."""
    path = tmp_path / "q4_1.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q4_1", pure=True)
    many = ",".join(map(str, tokens(531)))
    given = ("--tokens", many, "-c", "1024", "-t", "2", "-fa", "on")
    record = locate(run, path, tmp_path / "x", *given)
    assert record["first"]["op"] == "FLASH_ATTN_EXT"
    said = reproduce(tmp_path / "x")
    assert said == expected(record, 256)
    assert said[1:] == [
        f"single: {FLASH}[split_kv], the recorded bits",
        f"block: {FLASH}[one_chunk], the recorded bits",
    ]
    op = csb.ops.load(tmp_path / "x" / "op.npz")
    for call, rows in ((op.single, 1), (op.block, 5)):
        shapes = [tuple(s.ne) for s in call.sources if s is not None]
        assert shapes == [(64, rows, 4, 1), *[(64, 768, 2, 1)] * 2, (768, rows, 1, 1)]
        assert call.n_threads == 2


@X86
@pytest.mark.parametrize(
    ("arch", "cache", "fault", "size"),
    [
        ("llama", "f16", Fault("MUL_MAT", "kq-1", (0, 3, 2, 31)), 4 * 32),
        ("llama", "f16", Fault("SOFT_MAX", "kq_soft_max-1", (0, 3, 2, 4)), 4 * 32),
        ("moe", "f16", Fault("MUL_MAT_ID", "ffn_moe_up-1", (0, 2, 1, 9)), 2 * 256),
        # what turns queries for a quantized cache has a row for each token's head
        ("llama", "q8_0", Fault("MUL_MAT", None, (0, 0, 2 * 4 + 3, 9), nth=1), 4 * 64),
    ],
    ids=["kq", "soft max", "an expert", "heads in rows"],
)
def test_a_fault_that_is_not_in_the_op(
    run: Run,
    tiny_model: TinyModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    cache: str,
    fault: Fault,
    size: int,
) -> None:
    """A planted value is not what the kernels give: csb says so, with the files written; run alone
    all values but that one are the block's, of the cells that the row sees."""
    Planted(monkeypatch, [fault])
    path, folder = tiny_model(arch, "bf16", n_layer=2), tmp_path / "x"
    done = run(
        *("locate", "-m", path, *IDS, "-ctk", cache, "--without", "llamafile"),
        *("--export", folder, "--json", tmp_path / "r"),
    )
    record = json.loads((tmp_path / "r").read_text())
    assert done.code == 0
    assert (record["export"]["row"], record["export"]["n_values"]) == (2, size)
    assert record["export"]["n_diff"] == 1 and not record["export"]["reproduced"]
    kernel = "+".join(record["first"]["block_kernels"]) or "not observable"
    why = f"block: 1 of {size} values are not the recorded ones, by {kernel}, recorded by {kernel}"
    assert done.out.splitlines()[-2] == (
        f"exported to {folder}: run alone it does NOT give the recorded bits: {why}"
    )
    said = reproduce(folder)
    assert said[0].endswith(f": 0 of {size} values of row 2 differ")
    assert [line.split(", ")[1] for line in said[1:]] == [
        "the recorded bits",
        "OTHER bits than recorded",
    ]


@X86
def test_an_op_that_cannot_run_alone(
    run: Run, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Planted(monkeypatch, [Fault("CONT", "kqv_out-1", (0, 0, 2, 9))])
    done = run(
        *("locate", "-m", tiny_model("llama", "bf16", n_layer=2), *IDS),
        *("--without", "llamafile", "--export", tmp_path / "x"),
    )
    assert done.code == 0 and (tmp_path / "x" / "op.npz").exists()
    assert done.out.splitlines()[-2].endswith(
        "it does NOT give the recorded bits: op = CONT: csb can't run it by itself"
    )


@X86
def test_switches_are_part_of_the_op(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """Not repacked, nine rows: the tiled product, and tinyBLAS where only the former is refused."""
    path = tmp_path / "q6_k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q6_k", pure=True)
    record = locate(run, path, tmp_path / "x", "-W", "9", "--without", "split-kv")
    assert record["first"]["block_kernels"] == ["ggml_compute_forward_mul_mat_tiled"]
    record = locate(run, path, tmp_path / "y", "-W", "9", "--without", "tiled")
    assert (record["first"]["name"], record["first"]["op"]) == ("kq-0", "MUL_MAT")
    op = csb.ops.load(tmp_path / "y" / "op.npz")
    assert list(op.block.without) == ["tiled"]
    assert csb.kernels.in_force() == []
    assert reproduce(tmp_path / "y") == expected(record, 4 * 30)


@X86
def test_nothing_to_export(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tiny_model("llama", "bf16", n_layer=2)
    given = ("--without", "llamafile", "--export", tmp_path / "x")
    done = run("locate", "-m", path, *IDS, *given)
    assert (done.code, (tmp_path / "x").exists()) == (0, False)
    assert done.out.splitlines()[-2] == (
        "not exported: single and block have the same bits in every row: nothing to locate"
    )


@X86
def test_a_model_that_is_gone(
    run: Run, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repacked weight is read from the file once more: without it the record stays."""
    path = tmp_path / "gone.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q4_k_s", pure=True)
    original = export._weight

    def lost(*given: Any) -> Any:
        path.unlink()
        return original(*given)

    monkeypatch.setattr(export, "_weight", lost)
    done = run("locate", "-m", path, *IDS, "-fa", "on", "--export", tmp_path / "x")
    assert (done.code, done.err, (tmp_path / "x").exists()) == (0, "", False)
    last = done.out.splitlines()[-2:]
    assert last[0].startswith("not exported: ") and "gone.gguf" in last[0]
    assert last[1].startswith("csb: the difference starts at Qcur-0")


@pytest.mark.parametrize("kind", ["bf16", "q4_k_m"])
def test_exporting_changes_nothing(
    run: Run, tiny_model: TinyModel, tmp_path: Path, kind: str
) -> None:
    """The record with and without it, and what a run gives after it."""
    path, seen = tiny_model("llama", kind, n_layer=2), []
    for given in ((), ("--export", tmp_path / "x"), ()):
        record = json.loads(run("locate", "-m", path, *IDS, *given, "--json", "-").out)
        assert (record.pop("export") is None) == (not given)
        del record["provenance"]
        seen.append(record)
    assert seen[0] == seen[1] == seen[2]


@X86
def test_a_folder_that_is_there(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """Empty it is taken; full it is refused before anything runs."""
    path, folder = tiny_model("llama", "bf16", n_layer=2), tmp_path / "x"
    folder.mkdir()
    locate(run, path, folder)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    done = run("locate", "-m", path, *IDS, "--export", folder)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"csb: --export {folder}: must be a new or empty folder\n"
    assert {p: p.read_bytes() for p in folder.iterdir()} == before


# ---- the file -----------------------------------------------------------------------------------


@pytest.fixture
def saved(run: Run, tiny_model: TinyModel, tmp_path: Path) -> Path:
    path = tiny_model("llama", "bf16", n_layer=1)
    run("locate", "-m", path, *IDS, "--export", tmp_path / "saved")
    return tmp_path / "saved" / "op.npz"


DAMAGED = ["missing", "cut", "text", "empty", "another array", "a newer version"]
DAMAGED += ["a source lost", "pickled", "no call", "another field", "one array"]


def damaged(path: Path, how: str) -> Path:
    if how == "missing":
        return path.with_name("none.npz")
    target = path.with_name("damaged.npz")
    if how == "cut":
        target.write_bytes(path.read_bytes()[:-1000])
    elif how == "text":
        target.write_text("x")
    elif how == "one array":
        with target.open("wb") as file:
            np.save(file, np.zeros(3))
    elif how == "empty":
        target.write_bytes(b"")
    else:
        with np.load(path) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        about = json.loads(str(kept["about"]))
        if how == "another array":
            del kept["about"]
        elif how == "a newer version":
            about["schema"]["version"] = 2
        elif how == "a source lost":
            del kept["block_1"]
        elif how == "pickled":
            kept["block_1"] = np.array([{}], object)
        elif how == "no call":
            del about["block"]
        elif how == "another field":
            about["single"]["extra"] = 1
        if how != "another array":
            kept["about"] = np.array(json.dumps(about))
        np.savez(target, **kept)  # type: ignore[arg-type]
    return target


@X86
@pytest.mark.parametrize("how", DAMAGED)
def test_files_that_are_none(saved: Path, how: str) -> None:
    path = damaged(saved, how)
    said = "No such file" if how == "missing" else "is no op that csb saved"
    with pytest.raises(FileError, match=re.escape(f"{path}: {said}")) as caught:
        csb.ops.load(path)
    assert len(str(caught.value).splitlines()) == 1


@X86
def test_numbers_that_are_wrong_are_refused(saved: Path) -> None:
    """What the file says goes through csb_op_run's checks."""
    op = csb.ops.load(saved)
    assert isinstance(op, RecordedOp)
    for field, value, said in (
        ("out_ne", (4, 1, 1, 1), "must be [256, 1, 1, 1]"),
        ("n_threads", 0, "n_threads = 0"),
        ("device", "GPU7", "must be one of CPU"),
        ("without", ("sgemm",), "no kernel switch"),
    ):
        call = type(op.single)(**{**vars(op.single), field: value})
        with pytest.raises(ArgumentError, match=re.escape(said)):
            call.run()


@X86
def test_it_runs_elsewhere(saved: Path, tmp_path: Path) -> None:
    """A folder with spaces, copied."""
    (tmp_path / "an other").mkdir()
    for file in saved.parent.iterdir():
        shutil.copy(file, tmp_path / "an other")
    assert len(reproduce(tmp_path / "an other")) == 3


def test_differing() -> None:
    a = np.array([0.0, 1.0, np.nan, 3.0], np.float32)
    assert csb.ops.differing(a, a.copy()) == 0
    assert csb.ops.differing(a, np.array([-0.0, 1.0, np.nan, 4.0], np.float32)) == 2
    for other in (a[:3], a.astype(np.float64)):
        with pytest.raises(ArgumentError, match="do not fit"):
            csb.ops.differing(a, other)


# ---- strides ------------------------------------------------------------------------------------


def test_sources_keep_their_strides(tiny_model: TinyModel) -> None:
    """A cache seen through its heads, transposed values with a gap behind each row: the bytes that
    csb.ops is given hold the same values at the tensor's own strides, and nothing else."""
    seen = set()

    def before(node: Node) -> None:
        for source in node.info["src"]:
            values = node.read(source["index"])
            data, nb = spanned(source, values)
            if not nb:
                assert data is values
                continue
            seen.add((source["root"].split("_l")[0], source["type"]))
            element = np.dtype(f"V{source['block_bytes']}")
            n = [source["ne"][0] // source["block"], *source["ne"][1:]]
            assert data.nbytes == element.itemsize + sum(
                (n[d] - 1) * source["nb"][d] for d in range(4)
            )
            back = np.ndarray(n[::-1], element, data, strides=source["nb"][::-1])
            assert back.tobytes() == values.tobytes()
            data = data.copy()
            np.ndarray(n[::-1], element, data, strides=source["nb"][::-1])[...] = np.zeros(
                1, element
            )
            assert not data.any()

    for kind, flash in (("f16", "off"), ("q8_0", "on")):
        with (
            csb.Model(tiny_model("llama", "bf16", n_layer=1)) as model,
            csb.Context(model, n_ctx=512, flash_attn=flash, type_k=kind, type_v=kind) as context,
        ):
            context.decode(tokens(9), 0)
            with context.watch(before, lambda node: None):
                context.decode(tokens(3), 9)
    assert {("cache_k", "f16"), ("cache_v", "f16"), ("cache_k", "q8_0")} <= seen
