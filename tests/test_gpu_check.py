"""What `tests/gpu/run` reads off kernels and records, on planted ones: no GPU is needed."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parent / "gpu"
sys.path.append(str(GPU))

import findings  # noqa: E402
import kernel_table  # noqa: E402
import measure  # noqa: E402
import steps  # noqa: E402

NAMES = {
    "mul_mat_vec_f<__half, float, 1, 96, false, false>": "mmvf",
    "mul_mat_f<__nv_bfloat162, 32, 5, 4, false>": "mmf",
    "mul_mat_f_ids<__half2, 32, 8, 4>": "mmf",
    "mul_mat_vec_q<(ggml_type)8, 1, true, false>": "mmvq",
    "mul_mat_vec_q_moe<(ggml_type)12, 2>": "mmvq",
    "mul_mat_q<(ggml_type)8, 16, false>": "mmq",
    "nvjet_tst_64x8_64x16_4x1_v_bz_TNN": "cuBLAS",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64": "cuBLAS",
    "gemvNSP_kernel<__nv_bfloat16, 1, 32>": "cuBLAS",
    "cublasLt::splitKreduce_kernel<32, 16, int>": "cuBLAS",
    "mul_mat_q_stream_k_fixup<(ggml_type)8, 16>": "none",
    "quantize_mmq_q8_1<0>": "none",
    "rms_norm_f32<256, true, false>": "none",
    "convert_unary<float, __half>": "none",
    "flash_attn_ext_vec<64, 1, (ggml_type)1, (ggml_type)1, false>": "none",
}


@pytest.mark.parametrize(("name", "family"), NAMES.items())
def test_the_family_of_a_kernel(name: str, family: str) -> None:
    assert kernel_table.families([{"kernel": name}], kernel_table.FAMILIES) == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("flash_attn_ext_vec<64, 1, (ggml_type)1, (ggml_type)1, false>", "vec"),
        ("flash_attn_ext_f16<64, 64, 8, 1, false, false>", "mma"),
        ("flash_attn_tile<64, 64, 16, 1, false>", "tile"),
        ("flash_attn_combine_results<64>", "none"),
    ],
)
def test_the_family_of_an_attention_kernel(name: str, family: str) -> None:
    assert kernel_table.families([{"kernel": name}], kernel_table.ATTENTION_FAMILIES) == family


def trace(product: str, *attention: str, why: str | None = None) -> dict[str, Any]:
    kernels = [{"kernel": k, "count": 3} for k in (product, *attention)]
    return {
        "calls": [{"rows": 1, "device_kernels": kernels, "device_not_observable": why}],
        "perturbed": False,
    }


def test_cells_that_differ_are_named() -> None:
    good = trace("mul_mat_vec_f<a>", "flash_attn_ext_vec<64>")
    held = kernel_table.held(good, "F16")
    assert (held["products"], held["attention"], held["differs"]) == ({1: "mmvf"}, {1: "vec"}, [])
    assert held["names"] == {1: ["mul_mat_vec_f<a>", "flash_attn_ext_vec<64>"]}
    other = kernel_table.held(good, "Q8_0")
    assert other["differs"] == ["Q8_0 products, 1 rows: mmvf, expected mmvq"]
    blind = kernel_table.held(trace("x", why="no CUPTI"), "F16")
    assert blind["differs"] == [
        "F16 products, 1 rows: not observable: no CUPTI, expected mmvf",
        "F16 attention, 1 rows: not observable: no CUPTI, expected vec",
    ]


def comparison(**changed: float) -> dict[str, Any]:
    cell = dict.fromkeys((*findings.SINGLE, *findings.BLOCK), 0.5)
    return {"ar": [{"id": 1, "logit": 2.5}], "cells": [cell | changed]}


def test_findings() -> None:
    """Runs that repeat and one that doesn't, a switch and a watch that move bits."""
    records = {
        "compare F16 default 1": comparison(),
        "compare F16 default 2": comparison(),
        "compare F16 default 3": comparison(),
        "compare Q8_0 default 1": comparison(),
        "compare Q8_0 default 2": comparison(l_b=0.75),
        "compare F16 no fusion 1": comparison(l_s=0.75),
        "trace F16 no graphs": trace("mul_mat_vec_f<a>", "flash_attn_ext_vec<64>"),
        "trace F16 default": trace("mul_mat_vec_f<a>"),
        "locate F16 default": {"perturbed": True},
    }
    found = findings.find(records)
    assert found["graphs"] == {"F16": [False]}
    assert found["watching"]["F16"] == {"trace": False, "trace, no graphs": False, "locate": True}
    one = steps.Step("compare F16 default 1", [], exit=0, said="csb: no flip")
    late = steps.Step("widths F16", [])
    found["kernels"] = {"F16": kernel_table.held(_every_row(), "F16")}
    found["graphs"] = {"F16": [True] * 7 + [False]}
    text = list(findings.report(found, [one, late], records))
    assert "F16: 3 of 3 runs made, the same bits" in text
    assert "Q8_0: 2 of 3 runs made, DIFFERENT bits" in text
    assert "BF16: 0 of 3 runs made" in text
    moved = "F16, no fusion: single path other bits, block path the same bits as by default"
    assert moved in text
    assert "F16: bits under watching: trace keeps, trace, no graphs keeps, locate CHANGES" in text
    assert "F16: kernels with and without CUDA graphs: differ at 17 rows" in text
    assert "cells that differ from the table: 1 of 16" in text
    assert "  F16 products, 17 rows: mmf, expected cuBLAS" in text
    assert text[-1] == "tests/gpu/run: 1 of 2 steps ended as they should; not so: widths F16"


def test_a_budget_s_lines() -> None:
    moved = {"single": {"max_abs": 0.0}, "block": {"max_abs": 0.125}}
    lines = [
        {"name": "against x", "why_not": "", "summary": moved},
        {"name": "flash", "why_not": "another cache"},
    ]
    step = steps.Step("budget Q8_0", [], exit=0, said="csb: done")
    text = list(findings.report(findings.find({}), [step], {"budget Q8_0": {"lines": lines}}))
    assert text[-2] == (
        "budget Q8_0: exit 0, 0.0 s: csb: done | against x: by up to single 0, block 0.125 | "
        "flash: another cache"
    )


def test_no_trace_is_no_agreement() -> None:
    (line, *_) = findings.report(findings.find({}), [], {})
    assert line == "no trace of a device: nothing was held against the table"


def _every_row() -> dict[str, Any]:
    """As the table says, but for 17 rows."""
    calls = []
    for n in kernel_table.ROWS:
        product = "mul_mat_vec_f<a>" if n == 1 else "mul_mat_f<a>"
        attention = "flash_attn_ext_vec<64>" if n == 1 else "flash_attn_ext_f16<64>"
        (call,) = trace(product, attention)["calls"]
        calls.append(call | {"rows": n})
    return {"calls": calls}


def test_the_plan_covers_what_is_asked(tmp_path: Path) -> None:
    models = {kind: tmp_path / kind for kind in steps.TYPES}
    planned = steps.plan(models, tmp_path, cpu=False, n=7, budget=True)
    names = [s.name for s in planned]
    assert len(set(names)) == len(names)
    for kind in steps.TYPES:
        for name in ("trace {} no graphs", "compare {} default 3", "locate {} no fusion"):
            step = planned[names.index(name.format(kind))]
            assert step.arguments[step.arguments.index("-ngl") + 1] == "99"
    for step in planned:
        if step.name.startswith("compare") and "no fusion" in step.name:
            assert step.switches == {"GGML_CUDA_DISABLE_FUSION": "1"}


@pytest.mark.native
def test_a_step_ends_or_is_killed() -> None:
    good = steps.Step("info", ["info"])
    bad = steps.Step("bad", ["nothing"], fine=(2,))
    hangs = steps.Step("hangs", ["compare", "-f", "/dev/zero"])
    never = steps.Step("never", ["info"])
    steps.run(good, 60)
    steps.run(bad, 60)
    steps.run(hangs, 0.2)
    steps.run_all([never], deadline=0, workers=1)
    assert (good.ok, good.exit, good.complaint) == (True, 0, "")
    assert bad.ok and bad.complaint.startswith("csb: no command 'nothing'")
    bad.one_line = True
    assert bad.ok
    good.one_line = True
    assert not good.ok
    assert (hangs.ok, hangs.exit) == (False, -9)
    assert (never.ok, never.exit) == (False, None)


def test_parts_are_joined_and_checked(tmp_path: Path) -> None:
    pack, work = tmp_path / "pack", tmp_path / "work"
    for folder in (pack / "1", pack / "2", work):
        folder.mkdir(parents=True)
    whole = bytes(range(256)) * 5
    (work / "model.gguf.0").write_bytes(whole[:700])
    (pack / "2" / "model.gguf.1").write_bytes(whole[700:])
    about = {"name": "m.gguf", "parts": 2, "sha256": hashlib.sha256(whole).hexdigest()}
    (work / "model.json").write_text(json.dumps(about))
    assert measure.join(pack, work).read_bytes() == whole
    (work / "m.gguf").unlink()
    (pack / "2" / "model.gguf.1").write_bytes(whole[701:])
    with pytest.raises(SystemExit, match="sha256"):
        measure.join(pack, work)
    (pack / "2" / "model.gguf.1").unlink()
    with pytest.raises(SystemExit, match=r"part 1 of m\.gguf is not here"):
        measure.join(pack, work)
