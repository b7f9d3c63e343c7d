"""csb's record of kernels against breakpoints on those kernels.

gdb counts how often each of llama.cpp's own functions (not the hooks' __wrap_ ones) is entered in a
call, in a process that traces nothing. It must be what the shapes and the dispatcher's source say,
and what csb records of the same call.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import csb
import pytest
import tiny
from conftest import TinyModel
from csb.native.library import _library_name, quantize
from csb.nodes import nodes_of
from gdb_child import VOCABULARY, Calls
from test_hooks import X86

pytestmark = [
    pytest.mark.hooks,
    pytest.mark.native,
    X86,
    pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed"),
]

HERE = Path(__file__).parent
Hits = dict[str, int]
Expected = Mapping[str, int | range]

VEC = "ggml_vec_dot_"
SGEMM = "llamafile_sgemm"
TILED = "ggml_compute_forward_mul_mat_tiled"
EXPERT = "ggml_compute_forward_mul_mat_id_tiled"
FLASH = "ggml_compute_forward_flash_attn_ext"
NORM = "ggml_compute_forward_rms_norm_mul_fused"
SOFT_MAX, ROPE, GLU = (f"ggml_compute_forward_{op}" for op in ("soft_max", "rope", "glu"))
# every function that a record can name
NAMED = re.compile(
    rf"{VEC}\w+(?<!_generic)|ggml_gem[vm]_\w+(?<!_generic)|{SGEMM}|{TILED}|{EXPERT}|{FLASH}|"
    rf"{NORM}|{SOFT_MAX}|{ROPE}|{GLU}|ggml_compute_forward_(rms_norm|norm|ssm_conv|ssm_scan|"
    "gated_delta_net)"
)
# they tell attention's paths apart: split-KV hands out no chunks, the tiled path alone takes a
# soft max of whole rows
CHUNKS, ROW_SOFT_MAX = "ggml_threadpool_chunk_set", "ggml_vec_soft_max_f32"


def functions() -> list[str]:
    """Of the installed library: those that are watched."""
    with as_file(files("csb") / _library_name()) as path:
        listed = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    symbols = (line.split()[-2:] for line in listed.splitlines())
    names = {name for kind, name in symbols if kind in "Tt"}
    assert {SGEMM, f"{VEC}f16", CHUNKS, ROW_SOFT_MAX} <= names, "the library has lost its symbols"
    return [*sorted(filter(NAMED.fullmatch, names)), CHUNKS, ROW_SOFT_MAX]


def by_gdb(calls: Calls, folder: Path) -> list[Hits]:
    for name, content in (("calls", asdict(calls)), ("functions", functions())):
        (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    watch = ["gdb", "-nx", "-batch", "-x", HERE / "gdb_counts.py", "--args"]
    done = subprocess.run(
        [*watch, sys.executable, HERE / "gdb_child.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if not (folder / "hits.json").exists():
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        pytest.fail(f"gdb did not watch the calls; may it use ptrace here? It said:\n{said}")
    found = json.loads((folder / "hits.json").read_text("utf-8"))
    assert (found["exit_code"], len(found["calls"])) == (0, len(calls.rows)), done.stderr
    return list(found["calls"])


def by_csb(calls: Calls) -> list[dict[str, Any]]:
    traces = []

    @contextlib.contextmanager
    def traced(context: csb.Context) -> Iterator[None]:
        with context.trace() as trace:
            yield
        assert not trace.lost
        traces.extend(trace.calls)

    calls.make(traced)
    assert [(t["n_tokens"], len(t["ubatches"])) for t in traces] == [(n, 1) for n in calls.rows]
    return traces


def entered(call: dict[str, Any], switched_off: str | None) -> Hits:
    """How often each function was entered, by the record.

    A kernel that was asked and said no was entered, unless a switch answered in its place. A
    vec_dot is entered for each element: of a dense product for all, of a product of experts for
    those that the tiled kernel did not take.
    """
    (ubatch,) = call["ubatches"]
    hits: Counter[str] = Counter()
    left: Counter[int] = Counter()
    for event in ubatch["kernels"]:
        if event["kernel"] == EXPERT and not event["accepted"]:
            left[event["node"]] += event["count"] * event["m"] * event["n"]
    for event in ubatch["kernels"]:
        name = event["kernel"].split("[")[0]
        if name.startswith(VEC):
            node = ubatch["nodes"][event["node"]]
            a, b, c, d = node["ne"]
            hits[name] += left[event["node"]] if node["op"] == "MUL_MAT_ID" else a * b * c * d
        elif name != switched_off:
            hits[name] += event["count"]
    del hits["CPU_REPACK"]  # a buffer: its kernels have names of their own
    return hits


def differing(found: Hits, expected: Expected) -> dict[str, tuple[int, int | range]]:
    """{name: (found, expected)}; a range is for what the routing of experts decides."""
    pairs = {n: (found.get(n, 0), expected.get(n, 0)) for n in found.keys() | expected.keys()}
    return {
        n: (a, b) for n, (a, b) in pairs.items() if not (a in b if type(b) is range else a == b)
    }


def check(
    calls: Calls, folder: Path, *expected: Expected, switched_off: str | None = None
) -> list[list[str]]:
    """expected: for each call; functions that it leaves out are never entered. Gives the path of
    every flash attention, for each call."""
    watched, records = by_gdb(calls, folder), by_csb(calls)
    for n, hits, record, want in zip(calls.rows, watched, records, expected, strict=True):
        aside = {CHUNKS, ROW_SOFT_MAX} - want.keys()
        assert differing({k: v for k, v in hits.items() if k not in aside}, want) == {}, n
        # attention's own products are no nodes, and its paths' marks no kernels
        aside = {CHUNKS, ROW_SOFT_MAX} | ({f"{VEC}f16"} if hits[FLASH] else set())
        named = {k: v for k, v in hits.items() if k not in aside}
        assert differing(entered(record, switched_off), named) == {}, n
        nodes = nodes_of(record)
        ran = {k.split("[")[0] for node in nodes for k in (*node["kernels"], *node["refused"])}
        assert ran - {switched_off} == {name for name, count in named.items() if count}, n
    return [
        [k.removeprefix(FLASH) for node in nodes_of(r) for k in node["kernels"] if FLASH in k]
        for r in records
    ]


@pytest.fixture
def model(tiny_model: TinyModel, tmp_path: Path) -> Callable[..., str]:
    """model(kind, arch="llama") -> path: one layer, every matrix of this type."""

    def get(kind: str, arch: str = "llama") -> str:
        dtype = kind if kind in tiny.DTYPES else "f32"
        path = tiny_model(arch, dtype, n_layer=1, n_ff=256, n_vocab=VOCABULARY)
        if dtype != kind:
            quantize(path, tmp_path / "pure.gguf", kind, pure=True)
            path = tmp_path / "pure.gguf"
        return str(path)

    return get


def total(*parts: Expected) -> Expected:
    return {name: sum(p.get(name, 0) for p in parts) for name in set().union(*parts)}


# What one call enters, by part of the graph: shapes of tiny's llama, and llama.cpp's dispatcher.
# Every product that no extra buffer takes asks the tiled kernel, then llamafile with the F32 input
# as it is, then llamafile with the converted input: matrix by matrix until it says no.

EIGHT = 256 + 128 + 128 + 256 + 256 + 256 + 256 + VOCABULARY
"""Output elements of one row's eight products with a weight."""
ASKED = {TILED: 8, SGEMM: 2 * 8}
OTHERS = {NORM: 3, ROPE: 2, GLU: 1}
KQ, KQV = 4 * 256, 4 * 64
"""Output elements of one row's attention products: four heads, 256 cells, heads of 64."""
ATTENTION_1 = {TILED: 2, SGEMM: 2 * 2, f"{VEC}f16": KQ + KQV, SOFT_MAX: 1, ROW_SOFT_MAX: 4}


def attention(n: int) -> Expected:
    """Of more than one row. KQ's permuted query is not contiguous, so llamafile is asked after its
    conversion alone, once for each head; KQV's input is, so it is asked in vain before that."""
    return {TILED: 2, SGEMM: 4 + 1 + 4, SOFT_MAX: 1, ROW_SOFT_MAX: 4 * n}


OFF = {"n_ctx": 256, "flash_attn": "off"}


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_llamafile_from_two_rows_on(model: Callable[..., str], tmp_path: Path, kind: str) -> None:
    vec = {"bf16": f"{VEC}bf16", "q8_0": f"{VEC}q8_0_q8_0"}[kind]
    check(
        Calls(model(kind), repack=True, rows=[1, 2, 5], options=OFF),
        tmp_path,
        total(ASKED, {vec: EIGHT}, ATTENTION_1, OTHERS),
        total(ASKED, attention(2), OTHERS),
        total(ASKED, attention(5), OTHERS),
    )


def test_a_refused_llamafile(model: Callable[..., str], tmp_path: Path) -> None:
    attention = {TILED: 2, f"{VEC}f16": 2 * (KQ + KQV), SOFT_MAX: 1, ROW_SOFT_MAX: 8}
    check(
        Calls(model("bf16"), repack=True, rows=[2], without=["llamafile"], options=OFF),
        tmp_path,
        total({TILED: 8, f"{VEC}bf16": 2 * EIGHT}, attention, OTHERS),
        switched_off=SGEMM,
    )


def test_repacked(model: Callable[..., str], tmp_path: Path) -> None:
    """Rows in whole groups of four by one gemm, each other row by a gemv."""
    gemv, gemm = "ggml_gemv_q4_0_8x8_q8_0", "ggml_gemm_q4_0_8x8_q8_0"
    check(
        Calls(model("q4_0"), repack=True, rows=[1, 3, 4, 6], options=OFF),
        tmp_path,
        total({gemv: 8}, ATTENTION_1, OTHERS),
        total({gemv: 3 * 8}, attention(3), OTHERS),
        total({gemm: 8}, attention(4), OTHERS),
        total({gemm: 8, gemv: 2 * 8}, attention(6), OTHERS),
    )


def test_tiled_from_eight_rows_on(model: Callable[..., str], tmp_path: Path) -> None:
    """It is asked for every product and takes the weights', after which llamafile is not asked."""
    check(
        Calls(model("q4_k_s"), repack=False, rows=[5, 8], options=OFF),
        tmp_path,
        total(ASKED, {f"{VEC}q4_K_q8_K": 5 * EIGHT}, attention(5), OTHERS),
        total({TILED: 8}, attention(8), OTHERS),
    )


def test_experts_partly_tiled(model: Callable[..., str], tmp_path: Path) -> None:
    """Two of eight experts for each row: of 32 rows those of an expert with eight are tiled, the
    others are not. llamafile is never asked, but for the router (F32) and the dense weights."""
    dense, router = 256 + 128 + 128 + 256 + VOCABULARY, 8
    experts = 3 * 256  # elements of a row: gate, up, down
    others = {NORM: 5, ROPE: 2, GLU: 1, SOFT_MAX: 1, ROW_SOFT_MAX: 1}
    check(
        Calls(model("q4_k_s", "moe"), repack=False, rows=[1, 16], options=OFF),
        tmp_path,
        total(
            {TILED: 5 + 1, SGEMM: 2 * 5 + 1, EXPERT: 3 * 2},
            {f"{VEC}q4_K_q8_K": dense + 2 * experts, f"{VEC}f32": router},
            ATTENTION_1,
            others,
        ),
        total({TILED: 5 + 1, SGEMM: 1}, attention(16), others, {ROW_SOFT_MAX: 15})
        | {
            EXPERT: range(3 * 2, 3 * 8 + 1, 3),
            f"{VEC}q4_K_q8_K": range(experts, 32 * experts, experts),
        },
    )


def over_600_cells(n: int, chunks: int) -> Expected:
    """Flash attention from 600 cells on. The weights' type is one that vec_dot alone takes, so that
    nothing but attention can hand out chunks."""
    products = {f"{VEC}q4_1_q8_1": n * EIGHT, f"{VEC}f16": 4 * sum(range(600, 600 + n))}
    return total(ASKED, OTHERS, products, {FLASH: 1, ROW_SOFT_MAX: 0, CHUNKS: chunks})


LONG = {"n_ctx": 1024, "flash_attn": "on"}


def test_split_attention(model: Callable[..., str], tmp_path: Path) -> None:
    calls = Calls(model("q4_1"), repack=True, rows=[1, 2], prefix=599, options=LONG)
    paths = check(calls, tmp_path, over_600_cells(1, chunks=0), over_600_cells(2, chunks=1))
    assert paths == [["[split_kv]"], ["[one_chunk]"]]


def test_a_refused_split(model: Callable[..., str], tmp_path: Path) -> None:
    calls = Calls(model("q4_1"), True, [1], prefix=599, without=["split-kv"], options=LONG)
    assert check(calls, tmp_path, over_600_cells(1, chunks=1)) == [["[one_chunk]"]]


def test_tiled_attention(model: Callable[..., str], tmp_path: Path) -> None:
    """From 64 rows on; tiles of 64 cells, of which a row skips those that it does not see."""
    options = {"n_ctx": 256, "flash_attn": "on"}
    calls = Calls(model("bf16"), repack=True, rows=[2, 64], options=options)
    second_tile = sum(19 + i > 64 for i in range(1, 65))
    paths = check(
        calls,
        tmp_path,
        total(ASKED, OTHERS, {FLASH: 1, f"{VEC}f16": 4 * (20 + 21), ROW_SOFT_MAX: 0}),
        total(ASKED, OTHERS, {FLASH: 1, ROW_SOFT_MAX: 4 * (64 + second_tile)}),
    )
    assert paths == [["[one_chunk]"], ["[tiled]"]]
