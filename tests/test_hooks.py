"""The hooks: what they see, what they refuse, and that they change nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import kernels
from csb.errors import ArgumentError, UnsupportedError
from csb.measure.memory import Memory, same_bits
from csb.measure.trace import switch_effects, trace_rows
from csb.native.library import _processor_features, build_info, library, quantize
from csb.nodes import nodes_of, weight_of
from test_seed import by_csb, settings, tokens

pytestmark = [pytest.mark.native, pytest.mark.hooks]

AVX2 = "avx2" in (_processor_features() or set()) and "avx2" in build_info()["cpu_features"]
X86 = pytest.mark.skipif(not AVX2, reason="the kernels' table is of x86 with AVX2")


@pytest.fixture(autouse=True)
def no_switch_is_left() -> Iterator[None]:
    yield
    assert kernels.in_force() == []


def products(path: Path, rows: list[int], repack: bool = True, **options: Any) -> dict[int, Any]:
    """{row count: the kernels of every product with a weight}."""
    with (
        csb.Model(path, use_extra_bufts=repack) as model,
        csb.Context(model, **{"n_ctx": 512, "n_threads": 2, **options}) as context,
    ):
        calls = trace_rows(Memory(context), tokens(20), rows)
        assert not any(c.perturbed for c in calls)
        return {c.rows: {"+".join(n["kernels"]) for n in c.nodes if weight_of(n)} for c in calls}


ROWS = [1, 2, 3, 4, 5, 8, 16]
VEC = "ggml_vec_dot_"
S = {"llamafile_sgemm"}
TILED = {"ggml_compute_forward_mul_mat_tiled"}


def rows_of(one: set[str], two: set[str], eight: set[str] | None = None) -> dict[int, set[str]]:
    return {n: one if n == 1 else two if n < 8 or eight is None else eight for n in ROWS}


def repacked(name: str) -> dict[int, set[str]]:
    gemv, gemm = f"ggml_gemv_{name}", f"ggml_gemm_{name}"
    return {n: {gemv} if n < 4 else {gemm} if n % 4 == 0 else {f"{gemm}+{gemv}"} for n in ROWS}


# The notes' table of paths by type and rows, on x86 without AMX: an independent reading of the
# dispatcher's source.
CASES = {
    ("f32", True): rows_of({f"{VEC}f32"}, S),
    ("f16", True): rows_of({f"{VEC}f16"}, S),
    ("bf16", True): rows_of({f"{VEC}bf16"}, S),
    ("q8_0", True): rows_of({f"{VEC}q8_0_q8_0"}, S),
    ("q8_0", False): rows_of({f"{VEC}q8_0_q8_0"}, S),
    ("q4_0", False): rows_of({f"{VEC}q4_0_q8_0"}, S),
    ("q4_0", True): repacked("q4_0_8x8_q8_0"),
    ("iq4_nl", False): rows_of({f"{VEC}iq4_nl_q8_0"}, S),
    ("iq4_nl", True): repacked("iq4_nl_8x8_q8_0"),
    ("q4_1", True): rows_of({f"{VEC}q4_1_q8_1"}, {f"{VEC}q4_1_q8_1"}),
    ("q4_k_s", False): rows_of({f"{VEC}q4_K_q8_K"}, {f"{VEC}q4_K_q8_K"}, TILED),
    ("q4_k_s", True): repacked("q4_K_8x8_q8_K"),
    ("q6_k", True): rows_of({f"{VEC}q6_K_q8_K"}, {f"{VEC}q6_K_q8_K"}, TILED),
}
# What is never repacked on x86 has the same kernels either way; a mixture has those of its types.
CASES |= {(kind, False): CASES[kind, True] for kind in ("f32", "f16", "bf16", "q4_1", "q6_k")}
CASES |= {
    ("q4_k_m", repack): {n: CASES["q4_k_s", repack][n] | CASES["q6_k", repack][n] for n in ROWS}
    for repack in (True, False)
}


@X86
@pytest.mark.parametrize(("kind", "repack"), CASES, ids=lambda v: str(v))
def test_kernels_by_type_and_rows(
    tiny_model: TinyModel, tmp_path: Path, kind: str, repack: bool
) -> None:
    path = tiny_model("llama", "f32", n_layer=1)
    if kind != "f32":
        path = tmp_path / "pure.gguf"
        quantize(tiny_model("llama", "f32", n_layer=1), path, kind, pure=kind != "q4_k_m")
    assert products(path, ROWS, repack, flash_attn="off") == CASES[kind, repack]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("arch", ["llama", "moe", "gemma3", "lfm2", "mamba"])
def test_tracing_changes_nothing(tiny_model: TinyModel, arch: str, dtype: str, flash: str) -> None:
    path = tiny_model(arch, dtype)
    with csb.Model(path) as model, csb.Context(model, n_ctx=512, flash_attn=flash) as context:
        calls = trace_rows(Memory(context), tokens(30), [1, 2, 5, 9])
        assert [c.rows for c in calls] == [1, 2, 5, 9]
        for call in calls:
            assert not call.perturbed and not call.lost
            assert call.nodes[-1]["name"] == "result_output"
            products = [n for n in call.nodes if weight_of(n) and n["op"] == "MUL_MAT"]
            assert products and all(n["kernels"] for n in products)
            assert {n["class"] for n in products} == {"GEMV" if call.rows == 1 else "GEMM"}


def test_a_split_block_shows(tiny_model: TinyModel) -> None:
    path = tiny_model("llama", "f32", n_layer=1)
    with csb.Model(path) as model, csb.Context(model, n_ctx=256, n_ubatch=2) as context:
        (call,) = trace_rows(Memory(context), tokens(9), [5])
    assert call.n_ubatches == 3
    last = [n for n in call.nodes if n["name"] == "result_output"]
    assert [(n["ubatch"], n["n"]) for n in last] == [(0, 2), (1, 2), (2, 1)]


def test_what_does_not_fit_is_reported(tiny_model: TinyModel) -> None:
    from csb.native.trace import Trace

    with (
        csb.Model(tiny_model("llama", "f32", n_layer=1)) as model,
        csb.Context(model, n_ctx=256) as context,
        Trace(context, True, True, limit=100) as trace,
    ):
        context.decode([1, 2, 3], 0)
        context.decode([4], 3)
    assert (trace.lost, [c["n_tokens"] for c in trace.calls]) == (2, [3, 1])
    assert all(c["ubatches"] == [] for c in trace.calls)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("arch", ["llama", "moe", "lfm2"])
def test_hooks_left_out_off_and_on_give_the_same_bits(
    tiny_model: TinyModel, without_hooks: Path, arch: str, dtype: str, flash: str
) -> None:
    """One row, a block, and past 512 cells, where one row takes split-KV attention."""
    path, seen = tiny_model(arch, dtype), {}
    for name, file in (("left out", without_hooks), ("off", None), ("on", None)):
        with (
            csb.Model(path, library_file=file) as model,
            csb.Context(
                model, n_ctx=1024, n_threads=2, n_threads_batch=2, flash_attn=flash
            ) as context,
            context.trace(graph=name == "on", kernels=name == "on") as trace,
        ):
            rows = []
            for start in (0, 530):
                context.remove(0)
                context.decode(tokens(start + 1), 0)
                context.decode(tokens(5), start + 1)
                rows += [context.logits(range(5))]
                context.decode([7], start + 6)
                rows += [context.logits()]
        assert len(trace.calls) == (6 if name == "on" else 0)
        seen[name] = np.concatenate(rows)
    assert np.isfinite(seen["off"]).all()
    assert same_bits(seen["left out"], seen["off"])
    assert same_bits(seen["off"], seen["on"])


def test_a_library_without_hooks_says_so(tiny_model: TinyModel, without_hooks: Path) -> None:
    with (
        csb.Model(tiny_model("llama", "f32", n_layer=1), library_file=without_hooks) as model,
        csb.Context(model, n_ctx=256) as context,
    ):
        with pytest.raises(UnsupportedError, match="no hooks"), context.trace():
            pass
        with pytest.raises(UnsupportedError, match="no hooks"):
            model.lib.csb_kernels_set(1)


def test_weights_and_threads_of_kernels(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("llama", "bf16", n_layer=1)) as model,
        csb.Context(model, n_ctx=256, n_threads=1, n_threads_batch=2, flash_attn="off") as context,
        context.trace(graph=False) as trace,
    ):
        context.decode([1], 0)
        context.decode([2, 3], 1)
    assert [c["ubatches"][0]["n_threads"] for c in trace.calls] == [1, 2]
    for call, kernel in zip(trace.calls, ("ggml_vec_dot_bf16", "llamafile_sgemm"), strict=True):
        events = [e for e in call["ubatches"][0]["kernels"] if e["kernel"] == kernel]
        named = {e["weight"] for e in events if e["accepted"] and "weight" in e}
        parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
        assert named == {"output.weight", *(f"blk.0.{part}.weight" for part in parts)}


@X86
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_1"])
def test_without_llamafile_there_is_no_gap(tiny_model: TinyModel, kind: str) -> None:
    """Flash attention off: the tinyBLAS product alone parts the two paths."""
    with csb.Model(tiny_model("llama", kind)) as model:
        with kernels.without("llamafile"):
            off = by_csb(model, settings(), tokens(30), 12, 5, "reprefill")
        on = by_csb(model, settings(), tokens(30), 12, 5, "reprefill")
    assert not off.cells["n_diff"].any()
    if kind == "bf16":
        assert (on.cells["n_diff"][on.cells["ubatch_rows"] > 1] > 0).all()


@X86
def test_without_split_kv(tiny_model: TinyModel) -> None:
    """Two threads, flash attention on, past 512 cells: one row attends by split-KV, whose sums
    depend on the threads; refused, it has the block's bits."""
    options = settings(flash_attn="on")
    with csb.Model(tiny_model("llama", "q4_1")) as model:
        on = by_csb(model, options, tokens(600), 6, 3, "reprefill")
        with kernels.without("split-kv"):
            off = by_csb(model, options, tokens(600), 6, 3, "reprefill")
        with csb.Context(model, **options) as context:  # type: ignore[arg-type]
            calls = trace_rows(Memory(context), tokens(600), [1, 3])
    paths = [{k for n in c.nodes for k in n["kernels"] if "flash" in k} for c in calls]
    name = "ggml_compute_forward_flash_attn_ext"
    assert paths == [{f"{name}[split_kv]"}, {f"{name}[one_chunk]"}]
    assert (on.cells["n_diff"][on.cells["ubatch_rows"] > 1] > 0).all()
    assert not off.cells["n_diff"].any()


@X86
def test_tiled_attention_is_seen(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("llama", "f32", n_layer=1)) as model,
        csb.Context(model, n_ctx=256, flash_attn="on") as context,
    ):
        calls = trace_rows(Memory(context), tokens(9), [63, 64])
    seen = ["+".join(k for n in c.nodes for k in n["kernels"] if "flash" in k) for c in calls]
    assert [s.split("[")[1] for s in seen] == ["one_chunk]", "tiled]"]


@X86
def test_effects_of_switches(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model,
        csb.Context(model, n_ctx=256, flash_attn="off") as context,
    ):
        found = switch_effects(Memory(context), tokens(20), 5, ["llamafile", "tiled"])
    assert found["llamafile"] > 0
    assert found["tiled"] == 0


def test_names_are_checked_and_switches_nest() -> None:
    with pytest.raises(ArgumentError, match="one of llamafile"), kernels.without("sgemm"):
        pass
    with kernels.without("llamafile"):
        with kernels.without("tiled"):
            assert kernels.in_force() == ["llamafile", "tiled"]
        assert kernels.in_force() == ["llamafile"]
    with pytest.raises(ArgumentError, match="unknown switches"):
        library().csb_kernels_set(1 << 20)


def test_toggled_from_another_thread(tiny_model: TinyModel) -> None:
    """Every decode has one of the pure results: a switch is latched when it begins."""
    with (
        csb.Model(tiny_model("llama", "f32", n_layer=2)) as model,
        csb.Context(model, n_ctx=256, n_threads=2, n_threads_batch=2, flash_attn="off") as context,
    ):
        text = tokens(5)

        def decode() -> np.ndarray:
            context.remove(0)
            context.decode(text, 0)
            return context.logits(range(5))

        plain = decode()
        with kernels.without("llamafile"):
            off = decode()
        assert not same_bits(plain, off)
        stop = threading.Event()

        def toggle() -> None:
            while not stop.is_set():
                with kernels.exactly("llamafile"):
                    pass

        other = threading.Thread(target=toggle)
        other.start()
        try:
            seen = [decode() for _ in range(1000)]
        finally:
            stop.set()
            other.join()
    pure = [(same_bits(rows, plain), same_bits(rows, off)) for rows in seen]
    assert set(pure) == {(True, False), (False, True)}


def test_nodes_of_keeps_the_order(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("llama", "f32", n_layer=1)) as model,
        csb.Context(model, n_ctx=256) as context,
        context.trace(kernels=False) as trace,
    ):
        context.decode([1, 2], 0)
    nodes = nodes_of(trace.calls[0])
    names = [n["name"] for n in nodes]
    order = [names.index(n) for n in ("norm-0", "Qcur-0", "l_out-0", "result_norm")]
    assert order == sorted(order)
    assert {n["backend"] for n in nodes} == {"CPU"}
    assert not any(n["kernels"] for n in nodes)


def test_counts_are_of_kernels_that_ran() -> None:
    """Calls of one kernel on one node come in parts: one for each shape, yes and no apart."""
    parts = [("tiled", True, 2), ("tiled", False, 3), ("tiled", True, 1), ("sgemm", False, 2)]
    keys = ("kernel", "accepted", "count")
    events = [{"node": 0, **dict(zip(keys, part, strict=True))} for part in parts]
    node = {"name": "x", "op": "ADD"}
    (row,) = nodes_of({"ubatches": [{"nodes": [node], "kernels": events}]})
    found = row["kernels"], row["refused"], row["counts"]
    assert found == (["tiled"], ["sgemm", "tiled"], {"tiled": 3})


@X86
def test_experts_of_few_rows_keep_vec_dot(tiny_model: TinyModel, tmp_path: Path) -> None:
    """The tiled kernel takes the experts that got eight rows and no others."""
    path = tmp_path / "pure.gguf"
    quantize(tiny_model("moe", "f32", n_layer=1), path, "q4_k_s", pure=True)
    with (
        csb.Model(path, use_extra_bufts=False) as model,
        csb.Context(model, n_ctx=256, flash_attn="off") as context,
        context.trace() as trace,
    ):
        context.decode([5] * 12 + [1, 2, 3, 4], 0)
    experts = [n for n in nodes_of(trace.calls[0]) if n["op"] == "MUL_MAT_ID"]
    both = ["ggml_compute_forward_mul_mat_id_tiled", f"{VEC}q4_K_q8_K"]
    assert [n["kernels"] for n in experts] == [both] * 3
