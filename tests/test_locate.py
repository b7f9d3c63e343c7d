"""What locate says of each node: faults planted into the block path are found where they are and
nowhere else, and every number is what numpy makes of the two paths' own values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import csb
import gguf
import numpy as np
import pytest
from conftest import TinyModel
from csb import kernels, located, ops
from csb.errors import ArgumentError, UnsupportedError
from csb.measure.locate import locate
from csb.measure.memory import Memory
from csb.native.library import quantize
from csb.native.watch import Node
from csb.nodes import nodes_of
from planted import Fault, Planted
from test_hooks import X86
from test_seed import tokens

pytestmark = pytest.mark.native

W, START, ROW = 5, 30, 2
TEXT = tokens(40)
INVARIANT = ("llamafile", "tiled")  # without these, float products of one row and of five are equal

Nodes = list[dict[str, Any]]


def context_of(path: Path, *, repack: bool = True, **options: Any) -> csb.Context:
    given = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "off", **options}
    return csb.Context(csb.Model(path, use_extra_bufts=repack), **given)


def find(
    path: Path,
    *faults: Fault,
    without: Sequence[str] = INVARIANT,
    text: Sequence[int] = TEXT,
    start: int = START,
    width: int = W,
    **options: Any,
) -> dict[str, Any]:
    """The located window of `width` tokens after `start`, with the faults planted."""
    with (
        context_of(path, **options) as context,
        kernels.without(*without),
        pytest.MonkeyPatch.context() as patch,
    ):
        planted = Planted(patch, faults)
        inputs = text[start : start + width]
        found = located.summary(locate(Memory(context), text[:start], inputs).to_json())
        assert planted.done == 2 * len(faults)  # in the plain call and in the watched one
    assert not found["perturbed"]
    return found


def creators(found: dict[str, Any]) -> Nodes:
    return [n for n in found["nodes"] if any(n["created"])]


def outputs(
    path: Path, block: bool, *, without: Sequence[str] = INVARIANT, **options: Any
) -> dict[tuple[str, str, int], list[np.ndarray]]:
    """{(op, name, nth): what it gave in each call} of the window run singly or as a block, seen by
    this file's own watcher."""
    with context_of(path, **options) as context, kernels.without(*without):
        context.decode(TEXT[:START], 0, outputs=False)
        made: dict[tuple[str, str, int], list[np.ndarray]] = {}
        counts: Counter[tuple[str, str]] = Counter()

        def after(node: Node) -> None:
            what = node.info["op"], node.info["name"]
            if not node.info["view"]:
                made.setdefault((*what, counts[what]), []).append(node.read(Node.OUTPUT))
            counts[what] += 1

        with context.watch(lambda node: None, after):
            for i in range(START, START + W, W if block else 1):
                context.decode(TEXT[i : START + W] if block else [TEXT[i]], i)
                counts.clear()
    return made


# ---- nothing planted ----------------------------------------------------------------------------


@X86
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "moe", "mamba", "lfm2", "qwen35"])
def test_invariant_kernels_create_nothing(
    tiny_model: TinyModel, arch: str, dtype: str, flash: str
) -> None:
    """Every node that computes is there, compared or counted, and each has equal bits."""
    path = tiny_model(arch, dtype, n_layer=2)
    found = find(path, flash_attn=flash, repack=False)
    assert found["first"] is None and not found["creating"] and all(found["equal_rows"])
    assert found["conclusion"].endswith("the same bits in every row: nothing to locate")
    for node in found["nodes"]:
        assert node["inputs_equal"] == node["outputs_equal"] == [True] * W, node["name"]
        assert (node["n_diff"], node["max_abs"], node["relative"]) == (0, 0, 0)
    with context_of(path, flash_attn=flash) as context:
        context.decode(TEXT[:START], 0)
        with context.trace(kernels=False) as trace:
            context.decode(TEXT[START : START + W], START)
    nodes = [n for n in nodes_of(trace.calls[0]) if min(n["ne"]) > 0]  # some gather nothing
    ran = [n for n in nodes if n["op"] not in QUIET]
    assert len(ran) == len(found["nodes"]) + found["not_compared"]
    assert found["nodes"][-1]["name"] == "result_output"


QUIET = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")


@X86
@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2"])
@pytest.mark.parametrize("start", [0, 1, 100])
def test_other_places(tiny_model: TinyModel, arch: str, start: int) -> None:
    """From an empty memory, and with a sliding window's cells left behind."""
    found = find(tiny_model(arch, "f32", n_layer=2), text=tokens(110), start=start)
    assert found["first"] is None and all(found["equal_rows"]) and len(found["nodes"]) > 30


# ---- one value changed by one ulp ---------------------------------------------------------------

HEADS = {  # name: (architecture, flash attention, the fault)
    "a product": ("llama", "off", Fault("MUL_MAT", "ffn_up-1", (0, 0, ROW, 5))),
    "another product": ("llama", "off", Fault("MUL_MAT", "Qcur-2", (0, 0, ROW, 255))),
    "the first product": ("llama", "off", Fault("MUL_MAT", "Qcur-0", (0, 0, ROW, 0))),
    "a norm": ("llama", "off", Fault("RMS_NORM", "norm-1", (0, 0, ROW, 7))),
    "the layer's other norm": ("llama", "off", Fault("RMS_NORM", "norm-1", (0, 0, ROW, 7), nth=1)),
    "a norm's weight": ("llama", "off", Fault("MUL", "attn_norm-1", (0, 0, ROW, 7))),
    "rope": ("llama", "off", Fault("ROPE", "Kcur-1", (0, ROW, 1, 9))),
    "keys by query": ("llama", "off", Fault("MUL_MAT", "kq-1", (0, 3, ROW, START + ROW))),
    "soft max": ("llama", "off", Fault("SOFT_MAX", "kq_soft_max-1", (0, 3, ROW, 4))),
    "values": ("llama", "off", Fault("MUL_MAT", "kqv-1", (0, 3, ROW, 63))),
    "attention": ("llama", "on", Fault("FLASH_ATTN_EXT", None, (0, ROW, 3, 63), nth=1)),
    "attention's product": ("llama", "on", Fault("MUL_MAT", "attn_out-1", (0, 0, ROW, 63))),
    "a gate": ("llama", "off", Fault("SWIGLU", "ffn_swiglu-3", (0, 0, ROW, 100))),
    "a sum": ("llama", "off", Fault("ADD", "l_out-2", (0, 0, ROW, 8))),
    "the last norm": ("llama", "off", Fault("MUL", "result_norm", (0, 0, ROW, 8))),
    "the head": ("llama", "off", Fault("MUL_MAT", "result_output", (0, 0, ROW, 511))),
    "a head's norm": ("qwen3", "on", Fault("RMS_NORM", "norm-2", (0, ROW, 3, 1), nth=1)),
    "a router": ("moe", "off", Fault("MUL_MAT", "ffn_moe_logits-1", (0, 0, ROW, 3))),
    "an expert": ("moe", "off", Fault("MUL_MAT_ID", "ffn_moe_up-1", (0, ROW, 1, 9))),
    "another expert": ("moe", "on", Fault("MUL_MAT_ID", "ffn_moe_down-3", (0, ROW, 0, 9))),
    "rope by sections": ("qwen35", "off", Fault("ROPE", "Qcur-1", (0, ROW, 3, 1))),
    "a time step": ("mamba", "off", Fault("MUL_MAT", None, (0, 0, ROW, 9), nth=6)),
}


@X86
@pytest.mark.parametrize("case", HEADS)
def test_one_ulp_is_found(tiny_model: TinyModel, case: str) -> None:
    """That node, that row and no other; its numbers by hand from the paths' own values."""
    arch, flash, fault = HEADS[case]
    path = tiny_model(arch, "bf16")
    single = outputs(path, False, flash_attn=flash)
    found = find(path, fault, flash_attn=flash)
    (node,) = creators(found)
    assert node == found["first"]
    assert node["op"] == fault.op and (node["name"] == fault.name or fault.name is None)
    assert node["created"] == [j == ROW for j in range(W)]
    assert node["inputs_equal"] == [True] * W
    assert node["outputs_equal"] == [j != ROW for j in range(W)]
    assert node["n_diff"] == 1

    rows = single[fault.op, node["name"], node["nth"]]
    row = rows[ROW].astype(np.float64)  # a fault's place in it: the row's own axis is of length 1
    place = tuple(0 if i == ROW else i for i in fault.at)
    ulp = float(np.spacing(np.abs(rows[ROW][place])))
    assert node["max_abs"] in (ulp, ulp / 2)  # below a power of two the next one is half as far
    seen = row[..., : START + ROW + 1] if "kq" in node["name"] and fault.name != "kqv-1" else row
    expected = node["max_abs"] / np.sqrt(np.square(seen).sum())
    assert node["created_relative"] == pytest.approx(expected, rel=1e-12)

    (group,) = found["creating"]
    assert (group["op"], group["nodes"]) == (fault.op, 1)
    assert f"starts at {node['name']} ({fault.op}" in found["conclusion"]
    weight = any(s["kind"] == "weight" for s in node["src"]) and "MUL_MAT" in fault.op
    assert (node["weight"] is not None) == weight


@X86
def test_a_fault_that_is_rounded_away_is_found(tiny_model: TinyModel) -> None:
    """One ulp of a norm is lost where its product rounds to bfloat16: no logit differs."""
    path = tiny_model("llama", "bf16")
    found = find(path, Fault("MUL", "ffn_norm-1", (0, 0, ROW, 5)))
    assert [n["name"] for n in creators(found)] == ["ffn_norm-1"]
    assert all(found["equal_rows"])
    differ = [n["name"] for n in found["nodes"] if not all(n["outputs_equal"])]
    assert differ == ["ffn_norm-1"]
    readers = [n for n in found["nodes"] if not all(n["inputs_equal"])]
    assert [n["name"] for n in readers] == ["ffn_gate-1", "ffn_up-1"]


@X86
def test_a_change_goes_on_to_later_rows_alone(tiny_model: TinyModel) -> None:
    """Rows before it stay equal everywhere, rows after it differ from the next layer's attention
    on; all of that is passed on, not created."""
    path = tiny_model("llama", "f32")
    found = find(path, Fault("MUL_MAT", "ffn_out-1", (0, 0, ROW, 5), change=lambda v: v + 1))
    assert [n["name"] for n in creators(found)] == ["ffn_out-1"]
    assert found["equal_rows"] == [True, True, False, False, False]
    flags = {n["name"]: n["outputs_equal"] for n in found["nodes"]}
    assert flags["l_out-0"] == [True] * 5
    assert flags["l_out-1"] == flags["Kcur-2"] == [True, True, False, True, True]
    assert flags["kq-2"] == flags["l_out-2"] == [True, True, False, False, False]
    (first, *_) = found["growth"]
    assert (first["layer"], first["relative"]) == (0, 0) and found["growth"][-1]["relative"] > 0


@X86
def test_two_faults_are_both_found(tiny_model: TinyModel) -> None:
    """The second one where the first has already changed the inputs: by the node run alone."""
    path = tiny_model("llama", "f32")
    early = Fault("MUL_MAT", "Vcur-1", (0, 0, 1, 5), change=lambda v: v + 1)
    late = Fault("SWIGLU", "ffn_swiglu-2", (0, 0, 3, 7))
    found = find(path, early, late)
    made = {n["name"]: n["created"] for n in creators(found)}
    assert made == {
        "Vcur-1": [False, True, False, False, False],
        "ffn_swiglu-2": [False, False, False, True, False],
    }
    second = creators(found)[1]
    assert second["inputs_equal"] == [True, False, False, False, False]
    assert found["first"]["name"] == "Vcur-1"
    row = outputs(path, False)["SWIGLU", "ffn_swiglu-2", 0][3].astype(np.float64)
    ulp = np.spacing(np.abs(row.astype(np.float32)[0, 0, 0, 7]))
    expected = ulp / np.sqrt(np.square(row).sum())
    assert second["created_relative"] == pytest.approx(expected, rel=1e-12)


@X86
@pytest.mark.parametrize("case", ["a norm", "rope", "soft max", "attention", "a sum"])
def test_among_kernels_that_differ(tiny_model: TinyModel, case: str) -> None:
    """With tinyBLAS every product creates, and so does the planted node; no other norm does."""
    arch, flash, fault = HEADS[case]
    path = tiny_model(arch, "bf16")
    plain = find(path, without=(), flash_attn=flash)
    assert {n["op"] for n in creators(plain)} == {"MUL_MAT"}
    found = find(path, fault, without=(), flash_attn=flash)
    (other,) = (n for n in creators(found) if n["op"] != "MUL_MAT")
    assert other["op"] == fault.op and other["name"] == (fault.name or other["name"])
    assert other["created"] == [j == ROW for j in range(W)]
    assert fault.op in {g["op"] for g in found["creating"]}


@X86
def test_masked_cells_do_not_count(tiny_model: TinyModel) -> None:
    """Row 2 does not attend to row 3's cell, nor to those that are empty."""
    for cell in (START + ROW + 1, 200):
        found = find(tiny_model("llama", "bf16"), Fault("MUL_MAT", "kq-1", (0, 3, ROW, cell)))
        assert found["first"] is None and not creators(found) and all(found["equal_rows"])
        (reader,) = (n for n in found["nodes"] if n["name"] == "kq_soft_max-1")
        assert reader["inputs_equal"] == [True] * W


@X86
def test_what_cannot_be_compared_is_said(tiny_model: TinyModel) -> None:
    """A state's scan gives its rows and the state in one array."""
    path = tiny_model("mamba", "f32")
    scan = Fault("SSM_SCAN", None, (0, 0, 0, 512 * ROW + 5), nth=1, change=lambda v: v + 1)
    found = find(path, scan)
    assert found["first"] is None and not creators(found)
    assert found["equal_rows"] == [True, True, False, False, False]
    assert found["conclusion"] == (
        "no compared node starts the difference: it comes from one that can't be compared"
    )


# ---- experts ------------------------------------------------------------------------------------


@X86
@pytest.mark.parametrize("without", [INVARIANT, ()])
def test_expert_ids(tiny_model: TinyModel, without: tuple[str, ...]) -> None:
    """A router's logit that becomes the best one: another expert in that row, told by its ids; what
    the products then give is no fault of theirs."""
    path = tiny_model("moe", "bf16")
    logits = outputs(path, False, without=without)["MUL_MAT", "ffn_moe_logits-1", 0][ROW][0, 0, 0]
    worst = int(np.argmin(logits))
    router = Fault("MUL_MAT", "ffn_moe_logits-1", (0, 0, ROW, worst), change=lambda v: v + 50)
    found = find(path, router, without=without)
    (change, *later) = found["expert_changes"]
    # the best two were (a, b) and are (worst, a): both places have another id
    assert change == {"layer": 1, "node": "ffn_moe_topk-1", "n_diff": 2, "n": 2 * W}
    assert all(c["layer"] > 1 for c in later)
    names = {n["op"] for n in creators(found)}
    assert names == {"MUL_MAT"}
    if without:
        (node,) = creators(found)
        far = np.float64(logits[worst] + np.float32(50)) - logits[worst]
        assert (node["name"], node["max_abs"]) == ("ffn_moe_logits-1", far)


@X86
def test_ids_that_are_not_chosen_do_not_count(tiny_model: TinyModel) -> None:
    """The worst expert's logit falls below all: the order of the others, and no chosen id."""
    path = tiny_model("moe", "bf16")
    logits = outputs(path, False)["MUL_MAT", "ffn_moe_logits-1", 0][ROW][0, 0, 0]
    third = int(np.argsort(-logits)[2])
    router = Fault("MUL_MAT", "ffn_moe_logits-1", (0, 0, ROW, third), change=lambda v: v - 50)
    found = find(path, router)
    (order,) = (n for n in found["nodes"] if n["name"] == "ffn_moe_argsort-1")
    assert order["n_diff"] == 6  # the third of eight went to the end
    assert [n["name"] for n in creators(found)] == ["ffn_moe_logits-1"]
    assert not [c for c in found["expert_changes"] if c["layer"] == 1]


# ---- numbers ------------------------------------------------------------------------------------


@X86
@pytest.mark.parametrize("flash", ["off", "on"])
@pytest.mark.parametrize("arch", ["llama", "moe"])
def test_every_number(tiny_model: TinyModel, arch: str, flash: str) -> None:
    """Of every node: differing values, largest difference and relative RMS."""
    path = tiny_model(arch, "bf16", n_layer=2)
    found = find(path, without=(), flash_attn=flash)
    single = outputs(path, False, without=(), flash_attn=flash)
    block = outputs(path, True, without=(), flash_attn=flash)
    assert len(found["nodes"]) == len(single) > 30
    for node in found["nodes"]:
        key = node["op"], node["name"], node["nth"]
        (ours,) = block[key]
        axis = next(a for a in range(4) if ours.shape[a] != single[key][0].shape[a])
        rows = np.split(ours, W, axis)
        n_diff, largest, gap, size = 0, 0.0, 0.0, 0.0
        for j, (theirs, mine) in enumerate(zip(single[key], rows, strict=True)):
            if key[1].startswith(("kq-", "kq_soft")):
                theirs, mine = theirs[..., : START + j + 1], mine[..., : START + j + 1]
            differ = mine.view(np.uint32) != theirs.view(np.uint32)
            assert node["outputs_equal"][j] == (not differ.any())
            n_diff += int(differ.sum())
            if ours.dtype == np.float32:
                far = np.abs(mine.astype(np.float64) - theirs)
                largest, gap = max(largest, far.max()), gap + np.square(far).sum()
                size += np.square(theirs.astype(np.float64)).sum()
        assert (node["n_diff"], node["max_abs"]) == (n_diff, largest), key
        assert node["n_values"] == sum(
            r.size if not key[1].startswith(("kq-", "kq_soft")) else r.size // 256 * (START + j + 1)
            for j, r in enumerate(rows)
        )
        assert node["relative"] == pytest.approx(np.sqrt(gap / size) if size else 0, rel=1e-12)
    assert {n["n_diff"] > 0 for n in found["nodes"]} == {False, True}


@X86
def test_the_last_node_is_the_logits(tiny_model: TinyModel) -> None:
    """Against csb.Context alone, nobody watching."""
    path = tiny_model("llama", "bf16")
    rows = {}
    with context_of(path) as context:
        for step in (1, W):
            context.remove(0)
            context.decode(TEXT[:START], 0, outputs=False)
            seen = []
            for i in range(START, START + W, step):
                context.decode(TEXT[i : i + step], i)
                seen.append(context.logits(range(step)))
            rows[step] = np.concatenate(seen)
    node = find(path, without=())["nodes"][-1]
    single, block = rows[1], rows[W]
    assert node["n_diff"] == np.count_nonzero(single.view(np.uint32) != block.view(np.uint32)) > 0
    gap = block.astype(np.float64) - single
    assert node["max_abs"] == np.abs(gap).max()
    expected = np.sqrt((gap**2).sum() / (single.astype(np.float64) ** 2).sum())
    assert node["relative"] == pytest.approx(expected, rel=1e-12)


@X86
def test_what_a_product_creates(tiny_model: TinyModel) -> None:
    """By csb.ops on the file's own weights: the block's input with one row the single path's."""
    path = tiny_model("llama", "bf16")
    found = find(path, without=())
    (node,) = (n for n in found["nodes"] if n["name"] == "ffn_up-2")
    assert node["inputs_equal"] == [False] * W
    single, block = outputs(path, False, without=()), outputs(path, True, without=())
    (weight,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "blk.2.ffn_up.weight")
    w = ops.Source("bf16", (256, 512), weight.data, weight=True)
    expected, created = 0.0, []
    for j in range(W):
        x = block["MUL", "ffn_norm-2", 0][0][0, 0].copy()
        x[j] = single["MUL", "ffn_norm-2", 0][j][0, 0, 0]
        mine = ops.run("MUL_MAT", [w, ops.source(x)], (512, W)).values[0, 0, j]
        theirs = single["MUL_MAT", "ffn_up-2", 0][j][0, 0, 0]
        created.append(mine.tobytes() != theirs.tobytes())
        gap = mine.astype(np.float64) - theirs
        size = np.square(theirs.astype(np.float64)).sum()
        expected = max(expected, float(np.sqrt(np.square(gap).sum() / size)))
    assert node["created"] == created and all(created)
    assert node["created_relative"] == pytest.approx(expected, rel=1e-12)
    assert node["single_kernels"] == ["ggml_vec_dot_bf16"]
    assert node["block_kernels"] == ["llamafile_sgemm"]


# ---- kernels that are known to differ -----------------------------------------------------------


@X86
def test_split_kv(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Past 512 cells two threads split one row's attention; its Q4_1 products are equal."""
    path = tmp_path / "q4_1.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q4_1", pure=True)
    given: dict[str, Any] = {"text": tokens(560), "start": 530, "without": ()}
    given |= {"n_ctx": 1024, "n_threads": 2, "n_threads_batch": 2, "flash_attn": "on"}
    found = find(path, **given)
    (group,) = found["creating"]
    assert found["first"]["op"] == group["op"] == "FLASH_ATTN_EXT"
    name = "ggml_compute_forward_flash_attn_ext"
    assert found["first"]["single_kernels"] == [f"{name}[split_kv]"]
    assert found["first"]["block_kernels"] == [f"{name}[one_chunk]"]
    refused = find(path, **{**given, "without": ("split-kv",)})
    assert refused["first"] is None and all(refused["equal_rows"])
    assert not any(found["equal_rows"])


@X86
@pytest.mark.parametrize("width", [2, 3, 4, 5, 9])
def test_repacked_rows(tiny_model: TinyModel, tmp_path: Path, width: int) -> None:
    """Of five rows four are a tile and the last is computed as a single one is."""
    path = tmp_path / "q4_k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=2), path, "q4_k_s", pure=True)
    found = find(path, without=(), flash_attn="on", width=width)
    tiled = width // 4 * 4
    products = [n for n in found["nodes"] if n["op"] == "MUL_MAT"]
    assert len(products) == 2 * 7 + 1
    for node in products:
        assert node["created"] == [j < tiled for j in range(width)], node["name"]
        gemm = ["ggml_gemm_q4_K_8x8_q8_K"] * (tiled > 0)
        gemv = ["ggml_gemv_q4_K_8x8_q8_K"] * (tiled < width)
        assert (node["block_kernels"], node["single_kernels"]) == (gemm + gemv, [GEMV])
    assert {n["op"] for n in creators(found)} == ({"MUL_MAT"} if tiled else set())


GEMV = "ggml_gemv_q4_K_8x8_q8_K"


@X86
def test_tiled_products(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Not repacked, from eight rows on; refused, none."""
    path = tmp_path / "q6_k.gguf"
    quantize(tiny_model("llama", "f32", n_layer=1), path, "q6_k", pure=True)
    for width, without, names in (
        (7, (), set()),
        (8, (), {"ggml_compute_forward_mul_mat_tiled"}),
        (8, ("tiled",), set()),
    ):
        found = find(path, without=without, flash_attn="on", width=width)
        assert {k for n in creators(found) for k in n["block_kernels"]} == names


# ---- what is refused ----------------------------------------------------------------------------


def test_windows_that_are_refused(tiny_model: TinyModel) -> None:
    path = tiny_model("llama", "f32", n_layer=1)
    text = tokens(300)
    for start in (252, 255):
        with pytest.raises(ArgumentError, match=r"cross a multiple of 256"):
            find(path, text=text, start=start, n_ctx=512)
    for start in (251, 256):
        assert len(find(path, text=text, start=start, n_ctx=512)["nodes"]) > 10
    with pytest.raises(ArgumentError, match="-ub 4 splits a block of 5 rows"):
        find(path, n_ubatch=4)
    with pytest.raises(UnsupportedError, match="needs --swa-full"):
        ring = {"swa_full": False, "n_ctx": 1024, "n_batch": 64, "n_ubatch": 64}
        find(tiny_model("gemma3", "f32", n_layer=2), **ring)


# ---- answers from nodes, by hand ----------------------------------------------------------------


def node(name: str, op: str = "MUL_MAT", weight: str | None = None, **given: Any) -> dict[str, Any]:
    src = [{"name": weight or "x", "type": "f32", "ne": [1, 1, 1, 1], "kind": "value"}]
    return {
        **{"name": name, "op": op, "type": "f32", "src": src, "m": 1, "k": 1, "relative": 0.0},
        **{"inputs_equal": [True], "created": [False], "created_relative": 0.0},
        **{"single_kernels": ["a"], "block_kernels": ["b"], "ids_diff": 0},
        **given,
    }


def test_layers_and_regions() -> None:
    names = [
        ("embd", "GET_ROWS", None, None, "input"),
        ("norm-0", "RMS_NORM", None, 0, "attention"),
        ("Qcur-0", "MUL_MAT", "blk.0.attn_q.weight", 0, "attention"),
        ("node_9", "FLASH_ATTN_EXT", None, 0, "attention"),
        ("ffn_inp-0", "ADD", None, 0, "feed-forward"),
        ("node_12", "MUL_MAT", "blk.0.ffn_up.weight", 0, "feed-forward"),
        ("l_out-0", "ADD", None, 0, "feed-forward"),
        ("norm-1", "RMS_NORM", None, 1, "attention"),
        ("norm", "RMS_NORM", None, None, "head"),
        ("result_output", "MUL_MAT", "output.weight", None, "head"),
    ]
    nodes = [node(name, op, weight) for name, op, weight, _, _ in names]
    located.place_nodes(nodes)
    assert [(n["layer"], n["region"]) for n in nodes] == [(x, r) for *_, x, r in names]


def test_shares_growth_and_groups() -> None:
    made = {"created": [True], "inputs_equal": [False]}
    nodes = [
        node("Qcur-0", weight="blk.0.attn_q.weight", created_relative=0.3, **made),
        node("ffn_up-0", weight="blk.0.ffn_up.weight", created_relative=0.4, **made),
        node("l_out-0", "ADD", relative=0.25, created_relative=9.0),
        node("Qcur-1", weight="blk.1.attn_q.weight", created_relative=0.6, **made),
        node("l_out-1", "ADD", relative=0.5),
        node("result_output", weight="output.weight", relative=0.75, created_relative=9.0),
    ]
    seen = {"nodes": nodes, "perturbed": False, "equal_rows": [False]}
    found = located.summary(seen)
    squares = {"attention": 0.09 + 0.36, "feed-forward": 0.16, "head": 0.0}
    total = sum(squares.values())
    assert found["shares"] == pytest.approx({k: v / total for k, v in squares.items()})
    assert [(g["layer"], g["relative"]) for g in found["growth"]] == [
        (0, 0.25),
        (1, 0.5),
        (None, 0.75),
    ]
    groups = [(g["what"], g["nodes"], g["created_relative"]) for g in found["creating"]]
    assert groups == [("attn_q.weight", 2, 0.6), ("ffn_up.weight", 1, 0.4)]
    assert found["first"] is None  # none had equal inputs


# ---- a real model -------------------------------------------------------------------------------


@X86
@pytest.mark.model
def test_the_default_model(default_model: Path) -> None:
    with csb.Model(default_model) as model:
        text = model.tokenize("The square of the hypotenuse is the sum of the squares of the legs")
    found = find(default_model, text=text, start=8, without=())
    first = found["first"]
    assert (first["op"], first["layer"]) == ("MUL_MAT", 0)
    assert first["weight"] in {f"blk.0.attn_{x}.weight" for x in "qkv"}
    assert first["single_kernels"] == ["ggml_vec_dot_bf16"]
    assert first["block_kernels"] == ["llamafile_sgemm"]
    assert {n["op"] for n in creators(found)} == {"MUL_MAT"}
    assert not any(found["equal_rows"])
    off = find(default_model, text=text, start=8, without=("llamafile",))
    assert off["first"] is None and not creators(off) and all(off["equal_rows"])
