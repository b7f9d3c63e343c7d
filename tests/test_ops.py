"""Single ops: values against numpy in float64, and kernels as a model's own nodes have
them."""

from __future__ import annotations

from pathlib import Path

import csb
import gguf
import numpy as np
import pytest
from csb import ops
from csb.ops import Source, source
from test_hooks import CASES, ROWS, X86

pytestmark = pytest.mark.native

EPS = 2.0**-23


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def real(*numbers: float) -> bytes:
    return np.array(numbers, np.float32).tobytes()


def assert_near(values: np.ndarray, expected: np.ndarray, size: np.ndarray | float) -> None:
    """Within a few roundings of sums whose terms add up to `size`."""
    assert values.shape == expected.shape
    assert np.isfinite(values).all() and np.ptp(values) > 0
    assert (np.abs(wide(values) - expected) <= 16 * EPS * np.asarray(size)).all()


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("threads", [1, 3])
def test_mul_mat_f32(n: int, threads: int) -> None:
    w, x = floats(48, 160), floats(n, 160, seed=1)
    made = ops.mul_mat(w, x, n_threads=threads)
    assert_near(made.values, wide(x) @ wide(w).T, np.abs(wide(x)) @ np.abs(wide(w)).T)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_K", "q6_K", "iq4_xs"])
@pytest.mark.parametrize("repack", [True, False])
def test_mul_mat_of_other_types(kind: str, repack: bool) -> None:
    """The weights are what gguf's own reading of the bytes says; the activations are rounded to 8
    bits at worst."""
    w, x = floats(32, 512), floats(5, 512, seed=1)
    made = ops.mul_mat(w, x, type=kind, repack=repack)
    which = gguf.GGMLQuantizationType[kind.upper()]
    seen = wide(gguf.dequantize(ops.quantize(w, kind).reshape(32, -1), which))
    expected = wide(x) @ seen.T
    coarse = np.abs(x).max(1, keepdims=True) / 127 if kind not in ("f16", "bf16") else 2.0**-8
    bound = (np.ones_like(x) * coarse) @ np.abs(seen).T / 4
    assert (np.abs(made.values - expected) < bound).all()
    assert (np.abs(seen - w).max() < 0.6) and np.abs(expected).max() > 10


@X86
@pytest.mark.parametrize(
    ("kind", "repack"),
    [case for case in CASES if case[0] != "q4_k_m"],  # a mixture is no type of an op
    ids=lambda v: str(v),
)
def test_kernels_are_those_of_a_model(kind: str, repack: bool) -> None:
    w, x = floats(64, 256), floats(16, 256, seed=1)
    name = {"q4_k_s": "q4_K", "q6_k": "q6_K"}.get(kind, kind)
    seen = {}
    for n in ROWS:
        made = ops.mul_mat(w, x[:n], type=name, repack=repack)
        assert made.kernels is not None
        seen[n] = {"+".join(made.kernels)}
    assert seen == CASES[kind, repack]
    repacked = any("gemv" in k for k in seen[1])
    assert made.buffers == ["CPU_REPACK" if repacked else "CPU", "CPU"]


def test_observing_changes_nothing() -> None:
    w, x = source(floats(64, 256), weight=True), floats(16, 256, seed=1)
    for n in (1, 2, 16):
        seen, plain = (
            ops.run("MUL_MAT", [w, source(x[:n])], (64, n), observe=o) for o in (True, False)
        )
        assert seen.events and plain.events is None
        assert (seen.values.view(np.uint32) == plain.values.view(np.uint32)).all()


@X86
def test_switches_hold() -> None:
    w, x = floats(32, 64), floats(4, 64, seed=1)
    plain = ops.mul_mat(w, x)
    with csb.kernels.without("llamafile"):
        off = ops.mul_mat(w, x)
    assert (plain.kernels, off.kernels) == (["llamafile_sgemm"], ["ggml_vec_dot_f32"])
    assert (plain.values.view(np.uint32) != off.values.view(np.uint32)).any()
    one = np.concatenate([ops.mul_mat(w, row[None]).values for row in x])
    assert (one.view(np.uint32) == off.values.view(np.uint32)).all()


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    out = np.empty((len(q), q.shape[1], v.shape[2]))
    for h in range(q.shape[1]):
        g = h // (q.shape[1] // k.shape[1])
        s = wide(q[:, h]) @ wide(k[:, g]).T / np.sqrt(q.shape[2])
        if mask is not None:
            s = s + mask
        p = np.exp(s - s.max(1, keepdims=True))
        out[:, h] = p / p.sum(1, keepdims=True) @ wide(v[:, g])
    return out


@pytest.mark.parametrize("n", [1, 3, 70])
@pytest.mark.parametrize("cells", [40, 600])
def test_flash_attn_f32(n: int, cells: int) -> None:
    q, k, v = floats(n, 4, 64), floats(cells, 2, 64, seed=1), floats(cells, 2, 32, seed=2)
    mask = np.where(
        np.arange(cells)[None] > max(0, cells - n) + np.arange(n)[:, None], -np.inf, 0.0
    )
    for given in (None, mask):
        made = ops.flash_attn(q, k, v, mask=given, type="f32")
        assert_near(made.values, attention(q, k, v, given), 8.0)
    two = ops.flash_attn(q, k, v, type="f16", n_threads=2)
    assert np.abs(two.values - attention(q, k, v, None)).max() < 0.02
    assert two.kernels is not None
    path = "tiled" if n == 70 else "split_kv" if (n, cells) == (1, 600) else "one_chunk"
    assert two.kernels == [f"ggml_compute_forward_flash_attn_ext[{path}]"]


def test_norms() -> None:
    x = floats(6, 96) + 1
    made = ops.run("RMS_NORM", [source(x)], (96, 6), op_params=real(1e-5))
    assert made.events and made.events[0]["kernel"] == "ggml_compute_forward_rms_norm"
    expected = wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-5)
    assert_near(made.values[0, 0], expected, 4)
    centred = wide(x) - wide(x).mean(1, keepdims=True)
    made = ops.run("NORM", [source(x)], (96, 6), op_params=real(1e-5))
    assert_near(made.values[0, 0], centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5), 8)


def test_soft_max_with_mask_and_sinks() -> None:
    x, mask, sinks = floats(3, 5, 40), floats(5, 40, seed=1).astype(np.float16), floats(3, seed=2)
    made = ops.run(
        "SOFT_MAX", [source(x), source(mask), source(sinks)], (40, 5, 3), op_params=real(0.5, 0)
    )
    s = wide(x) * 0.5 + wide(mask)
    p = np.exp(s)
    assert_near(
        made.values[0], p / (p.sum(2, keepdims=True) + np.exp(wide(sinks))[:, None, None]), 2
    )


@pytest.mark.parametrize("mode", [0, 2])
def test_rope(mode: int) -> None:
    x, positions, n = floats(4, 2, 32), np.array([0, 3, 50, 7], np.int32), 16
    params = np.zeros(16, np.int32)
    params[1], params[2] = n, mode
    params[5:11] = np.array([10000, 1, 0, 1, 32, 1], np.float32).view(np.int32)
    made = ops.run("ROPE", [source(x), source(positions)], (32, 2, 4), op_params=params)
    expected = wide(x)
    for i in range(n // 2):
        a, b = (2 * i, 2 * i + 1) if mode == 0 else (i, i + n // 2)
        angle = positions[:, None] * 10000.0 ** (-2 * i / n)
        cos, sin = np.cos(angle), np.sin(angle)
        expected[..., a] = x[..., a] * cos - x[..., b] * sin
        expected[..., b] = x[..., a] * sin + x[..., b] * cos
    assert_near(made.values[0], expected, 200)  # angles of 50 are rounded too


def test_elementwise() -> None:
    a, b = floats(3, 7, 16), floats(16, seed=1)
    added = ops.run("ADD", [source(a), source(b)], (16, 7, 3))
    assert_near(added.values[0], wide(a) + wide(b), 8)
    times = ops.run("MUL", [source(a), source(b)], (16, 7, 3))
    assert_near(times.values[0], wide(a) * wide(b), 8)
    silu = wide(a) / (1 + np.exp(-wide(a)))
    assert_near(ops.run("SILU", [source(a)], (16, 7, 3)).values[0], silu, 32)
    gate = ops.run("SWIGLU", [source(a), source(a)], (16, 7, 3))
    assert_near(gate.values[0], silu * wide(a), 32)
    halves = ops.run("GLU", [source(a)], (8, 7, 3), op_params=[2])
    assert_near(halves.values[0], silu[..., :8] * wide(a)[..., 8:], 32)


@pytest.mark.parametrize("kind", ["f32", "q4_0"])
def test_experts(kind: str) -> None:
    w, x = floats(4, 24, 64), floats(6, 2, 64, seed=1)
    ids = np.array([[0, 1], [3, 0], [1, 2], [2, 3], [0, 3], [3, 1]], np.int32)
    rows = ops.as_source(w, kind, weight=True)
    made = ops.run("MUL_MAT_ID", [rows, source(x), source(ids)], (24, 2, 6))
    if kind == "f32":
        seen = wide(w)
    else:
        flat = rows.data.reshape(4 * 24, -1)
        seen = wide(gguf.dequantize(flat, gguf.GGMLQuantizationType.Q4_0)).reshape(w.shape)
    expected = np.einsum("teof,tef->teo", seen[ids], wide(x))
    size = np.einsum("teof,tef->teo", np.abs(seen[ids]), np.abs(wide(x)))
    if kind == "f32":
        assert_near(made.values[0], expected, size)
    else:
        assert (np.abs(made.values[0] - expected) < size / 127).all()


@X86
def test_experts_whose_rows_part() -> None:
    """Twelve tokens of one expert are tiled, those of the others are not: both ran."""
    w, x, ids = floats(3, 16, 256), floats(16, 1, 256, seed=1), np.zeros((16, 1), np.int32)
    ids[12:] = [[1], [1], [2], [2]]
    rows = ops.as_source(w, "q6_K", weight=True)
    made = ops.run("MUL_MAT_ID", [rows, source(x), source(ids)], (16, 1, 16))
    assert made.events is not None
    assert ops.ran_kernels(made.events) == [
        "ggml_compute_forward_mul_mat_id_tiled",
        "ggml_vec_dot_q6_K_q8_K",
    ]


def test_strided_sources() -> None:
    """A key cache seen as [d, cells, heads], as a model's graph has it."""
    cells, heads, d = 9, 3, 32
    k, q = floats(cells, heads, d), floats(heads, 2, d, seed=1)
    view = Source("f32", (d, cells, heads), k, nb=(4, 4 * d * heads, 4 * d, 4 * d * heads * cells))
    made = ops.run("MUL_MAT", [view, source(q)], (cells, 2, heads))
    expected = np.einsum("chd,hnd->hnc", wide(k), wide(q))
    assert_near(made.values[0], expected, np.einsum("chd,hnd->hnc", np.abs(k), np.abs(q)))


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "mxfp4"])
def test_quantize_rows(kind: str) -> None:
    rows = floats(3, 512)
    which = gguf.GGMLQuantizationType[kind.upper()]
    block, size = gguf.GGML_QUANT_SIZES[which]
    made = ops.quantize(rows, kind)
    assert made.nbytes == 3 * 512 // block * size
    back = gguf.dequantize(made.reshape(3, -1), which).astype(np.float32)
    step = {"f32": 0, "f16": 2e-3, "bf16": 2e-2, "q8_0": 2e-2}.get(kind, 0.6)
    assert np.abs(back - rows).max() <= step


def test_a_call_from_a_file(tmp_path: Path) -> None:
    """A saved op is run again by the few lines that a reproducer has."""
    w, x = floats(32, 256), floats(3, 256, seed=1)
    path = tmp_path / "op.npz"
    np.savez(
        path,
        op="MUL_MAT",
        op_params=np.zeros(16, np.int32),
        out_ne=[32, 3, 1, 1],
        types=["q4_K", "f32"],
        ne=[[256, 32, 1, 1], [256, 3, 1, 1]],
        nb=np.zeros((2, 4), np.int64),
        weight=[True, False],
        data0=ops.quantize(w, "q4_K"),
        data1=x,
    )
    z = np.load(path)
    sources = [
        Source(str(kind), tuple(ne), z[f"data{i}"], tuple(nb), bool(weight))
        for i, (kind, ne, nb, weight) in enumerate(
            zip(z["types"], z["ne"], z["nb"], z["weight"], strict=True)
        )
    ]
    made = ops.run(str(z["op"]), sources, tuple(z["out_ne"]), op_params=z["op_params"])
    expected = ops.mul_mat(w, x, type="q4_K").values
    assert (made.values.reshape(3, 32).view(np.uint32) == expected.view(np.uint32)).all()
