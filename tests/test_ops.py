"""Single ops: values against numpy in float64, kernels as a model's own nodes have them, and bad
input of every kind an error."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import csb
import gguf
import numpy as np
import pytest
from csb import ops
from csb.errors import ArgumentError, CsbError, UnsupportedError
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
@pytest.mark.parametrize(("kind", "repack"), CASES, ids=lambda v: str(v))
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


X = source(floats(4, 64))
W = source(floats(8, 64), weight=True)
Q = source(floats(2, 3, 32))
K = source(floats(2, 10, 32))
IDS = source(np.zeros((4, 1), np.int32))
EXPERTS = source(floats(2, 8, 64))
ROWS_OF_EXPERTS = source(floats(4, 1, 64))
GOOD = ("MUL_MAT", [W, X], (8, 4))


def strided(*nb: int, ne: tuple[int, ...] = (64, 4)) -> Source:
    return Source("f32", ne, floats(4, 64), nb=nb)


BAD: dict[str, tuple[Any, ...]] = {
    "unknown op": (("MULMAT", [W, X], (8, 4)), {}, "op = MULMAT: ggml has no such op"),
    "unknown device": (GOOD, {"device": "GPU7"}, "device = GPU7: must be one of CPU"),
    "no threads": (GOOD, {"n_threads": 0}, "n_threads = 0: must be from 1 to 512"),
    "513 threads": (GOOD, {"n_threads": 513}, "n_threads = 513: must be"),
    "no source": (("MUL_MAT", [], (8, 4)), {}, "n_sources = 0: must be from 1 to 10"),
    "11 sources": (("MUL_MAT", [X] * 11, (8, 4)), {}, "n_sources = 11: must be"),
    "one source": (("MUL_MAT", [W], (8, 4)), {}, "op = MUL_MAT: source 1 is missing"),
    "three sources": (("MUL_MAT", [W, X, X], (8, 4)), {}, "takes at most 2 sources"),
    "no weight": (("MUL_MAT", [None, X], (8, 4)), {}, "source 0 is missing"),
    "unknown type": (
        ("MUL_MAT", [Source("q9_9", (64, 8), W.data), X], (8, 4)),
        {},
        "type = q9_9: ggml has no such type",
    ),
    "unknown out": (GOOD, {"out_type": "q9"}, "out_type = q9: must be f32, f16"),
    "out f16": (GOOD, {"out_type": "f16"}, "out_type = f16: must be f32"),
    "out of another shape": (("MUL_MAT", [W, X], (4, 8)), {}, "must be [8, 4, 1, 1]"),
    "out of five dimensions": (("MUL_MAT", [W, X], (8, 4, 1, 1, 1)), {}, "more than four"),
    "out of none": (("MUL_MAT", [W, X], (8, 0)), {}, "must be from 1 on"),
    "rows that do not fit": (
        ("MUL_MAT", [source(floats(8, 32)), X], (8, 4)),
        {},
        "[32, 8, 1, 1] and [64, 4, 1, 1] do not fit",
    ),
    "heads that do not fit": (
        ("MUL_MAT", [source(floats(3, 8, 64)), source(floats(4, 2, 64))], (8, 2, 4)),
        {},
        "do not fit",
    ),
    "blocks": (
        ("MUL_MAT", [Source("q4_0", (40, 8), np.zeros(180, np.uint8)), X], (8, 4)),
        {},
        "source 0's ne = 40: is no multiple of q4_0's blocks of 32",
    ),
    "too few bytes": (
        ("MUL_MAT", [Source("f32", (64, 8), floats(7, 64)), X], (8, 4)),
        {},
        "source 0 has 1792 bytes: its shape spans 2048",
    ),
    "ne of 0": (
        ("MUL_MAT", [Source("f32", (64, 0), floats(1, 64)), X], (8, 4)),
        {},
        "source 0's ne = 0: must be from 1",
    ),
    "ne beyond": (
        ("MUL_MAT", [Source("f32", (2**40, 8), floats(8, 64)), X], (8, 4)),
        {},
        "source 0's ne = 1099511627776: must be",
    ),
    "ne beyond 64 bits": (
        ("MUL_MAT", [Source("f32", (2**64, 8), floats(8, 64)), X], (8, 4)),
        {},
        "is beyond 64 bits",
    ),
    "ne too much": (
        ("MUL_MAT", [Source("f32", (2**30, 2**30), floats(8, 64)), X], (8, 4)),
        {},
        "makes too many elements",
    ),
    "nb of half an element": (
        ("MUL_MAT", [W, strided(4, 254, 4, 4)], (8, 4)),
        {},
        "source 1's nb = 254: must be a multiple",
    ),
    "nb negative": (("MUL_MAT", [W, strided(4, -256, 4, 4)], (8, 4)), {}, "nb = -256: must be"),
    "nb far": (("MUL_MAT", [W, strided(4, 2**42, 4, 4)], (8, 4)), {}, "nb = 4398046511104"),
    "nb too far": (("MUL_MAT", [W, strided(4, 2**39, 4, 4)], (8, 4)), {}, "reaches too far"),
    "nb past the data": (("MUL_MAT", [W, strided(4, 260, 4, 4)], (8, 4)), {}, "spans 1036"),
    "columns apart": (
        ("MUL_MAT", [W, strided(16, 4, 4, 4, ne=(64, 4))], (8, 4)),
        {},
        "source 1 has nb[0] = 16: must be its type's size",
    ),
    "a hint": (GOOD, {"op_params": [0, 2]}, "op_params[1] = 2: is no hint"),
    "no Hadamard matrix": (GOOD, {"op_params": [0, 1]}, "a Hadamard matrix has a power"),
    "params of 17": (GOOD, {"op_params": [0] * 17}, "op_params has 17 numbers"),
    "params of 3 bytes": (GOOD, {"op_params": b"abc"}, "op_params has 3 bytes"),
    "an expert too many": (
        (
            "MUL_MAT_ID",
            [EXPERTS, ROWS_OF_EXPERTS, source(np.full((4, 1), 2, np.int32))],
            (8, 1, 4),
        ),
        {},
        "id 2 is no expert of 2",
    ),
    "an expert below 0": (
        (
            "MUL_MAT_ID",
            [EXPERTS, ROWS_OF_EXPERTS, source(np.full((4, 1), -1, np.int32))],
            (8, 1, 4),
        ),
        {},
        "id -1 is no expert",
    ),
    "ids for fewer tokens": (
        ("MUL_MAT_ID", [EXPERTS, ROWS_OF_EXPERTS, source(np.zeros((3, 1), np.int32))], (8, 1, 4)),
        {},
        "ids of [1, 3, 1, 1] do not fit",
    ),
    "no ids": (("MUL_MAT_ID", [EXPERTS, ROWS_OF_EXPERTS], (8, 1, 4)), {}, "source 2 is missing"),
    "keys of another size": (
        ("FLASH_ATTN_EXT", [Q, source(floats(2, 10, 16)), K], (32, 2, 3)),
        {},
        "do not fit",
    ),
    "values of fewer cells": (
        ("FLASH_ATTN_EXT", [Q, K, source(floats(2, 9, 32))], (32, 2, 3)),
        {},
        "do not fit",
    ),
    "a mask of fewer rows": (
        ("FLASH_ATTN_EXT", [Q, K, K, source(np.zeros((2, 10), np.float16))], (32, 2, 3)),
        {},
        "a mask of [10, 2, 1, 1] does not fit",
    ),
    "a bias without a mask": (
        ("FLASH_ATTN_EXT", [Q, K, K], (32, 2, 3)),
        {"op_params": real(1, 2)},
        "needs a mask",
    ),
    "too many sinks": (
        ("FLASH_ATTN_EXT", [Q, K, K, None, source(floats(3))], (32, 2, 3)),
        {},
        "a sink for each head",
    ),
    "a precision": (
        ("FLASH_ATTN_EXT", [Q, K, K], (32, 2, 3)),
        {"op_params": [0, 0, 0, 7]},
        "op_params[3] = 7: is no precision",
    ),
    "eps below 0": (("RMS_NORM", [X], (64, 4)), {"op_params": real(-1)}, "eps"),
    "eps nan": (("NORM", [X], (64, 4)), {"op_params": real(np.nan)}, "eps"),
    "mask of another width": (
        ("SOFT_MAX", [X, source(floats(4, 63))], (64, 4)),
        {},
        "a mask of [63, 4, 1, 1] does not fit",
    ),
    "a mode": (
        ("ROPE", [X, source(np.zeros(1, np.int32))], (64, 4)),
        {"op_params": [0, 2, 1]},
        "op_params[2] = 1: is no mode",
    ),
    "no dimension rotated": (
        ("ROPE", [X, source(np.zeros(1, np.int32))], (64, 4)),
        {"op_params": [0, 0, 0]},
        "op_params[1] = 0: must be an even part",
    ),
    "positions for more": (
        ("ROPE", [X, source(np.zeros(2, np.int32))], (64, 4)),
        {"op_params": [0, 2, 0]},
        "positions of [2, 1, 1, 1] do not fit",
    ),
    "no sections": (
        ("ROPE", [X, source(np.zeros(4, np.int32))], (64, 4)),
        {"op_params": [0, 2, 8]},
        "the sections do not fit",
    ),
    "no repetition": (("ADD", [X, source(floats(3, 64))], (64, 4)), {}, "do not fit"),
    "no unary op": (("UNARY", [X], (64, 4)), {"op_params": [999]}, "is no unary op"),
    "no gated op": (("GLU", [X], (32, 4)), {"op_params": [-1]}, "is no gated op"),
    "an odd row": (
        ("SWIGLU", [source(floats(4, 7))], (3, 4)),
        {},
        "its length must be even",
    ),
    "two shapes": (("SWIGLU", [X, source(floats(3, 64))], (64, 4)), {}, "do not fit"),
}
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "an op without checks": (("CONV_2D", [W, X], (8, 4)), {}, "csb can't run it by itself"),
    "a weight of numbers": (
        ("MUL_MAT", [source(np.zeros((8, 64), np.int32)), X], (8, 4)),
        {},
        "source 0 can't be i32",
    ),
    "quantized activations": (
        ("MUL_MAT", [W, Source("q8_0", (64, 4), np.zeros(272, np.uint8))], (8, 4)),
        {},
        "source 1 can't be q8_0",
    ),
    "types the CPU has no product of": (
        ("MUL_MAT", [W, source(floats(4, 64).astype(np.float16))], (8, 4)),
        {},
        "CPU does not take these sources",
    ),
    "a repacked weight in four dimensions": (
        (
            "MUL_MAT",
            [ops.as_source(floats(8, 64), "q4_0", weight=True), source(floats(2, 1, 4, 64))],
            (8, 4, 1, 2),
        ),
        {},
        "the first one repacked",
    ),
    "half queries": (
        ("FLASH_ATTN_EXT", [source(floats(2, 3, 32).astype(np.float16)), K, K], (32, 2, 3)),
        {},
        "source 0 can't be f16",
    ),
    "quantized sums": (
        ("ADD", [Source("q8_0", (64, 4), np.zeros(272, np.uint8)), X], (64, 4)),
        {},
        "source 0 can't be q8_0",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    arguments, options, said = BAD[name]
    with pytest.raises(ArgumentError, match=re.escape(said)) as caught:
        ops.run(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1


@X86
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name: str) -> None:
    arguments, options, said = UNSUPPORTED[name]
    with pytest.raises(UnsupportedError, match=re.escape(said)):
        ops.run(*arguments, **options)


def test_what_is_good_stays_good() -> None:
    """The matrices above are near misses: each from a call that runs."""
    for given in (
        GOOD,
        ("MUL_MAT_ID", [EXPERTS, ROWS_OF_EXPERTS, IDS], (8, 1, 4)),
        ("FLASH_ATTN_EXT", [Q, K, K], (32, 2, 3)),
        ("MUL_MAT", [W, strided(4, 256, 1024, 1024)], (8, 4)),
    ):
        assert np.isfinite(ops.run(*given).values).all()


@pytest.mark.parametrize(
    ("kind", "rows", "error", "said"),
    [
        ("iq2_xs", floats(2, 256), UnsupportedError, "needs an importance matrix"),
        ("iq3_s", floats(2, 256), UnsupportedError, "csb has no quantizer for it"),
        ("i32", floats(2, 256), UnsupportedError, "csb has no quantizer for it"),
        ("q4_0", floats(2, 40), ArgumentError, "n_per_row = 40: is no multiple of q4_0's blocks"),
        ("q4_0", np.full((1, 32), np.nan, np.float32), ArgumentError, "entry 0 is not finite"),
        ("q5", floats(2, 256), ArgumentError, "type = q5: ggml has no such type"),
        ("q4_0", floats(0, 32), ArgumentError, "must be rows"),
    ],
)
def test_bad_rows(kind: str, rows: np.ndarray, error: type[CsbError], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        ops.quantize(rows, kind)


# Random calls, most of them wrong: whatever they are, the process lives and its memory is whole.
FUZZ = """
import sys
import numpy as np
from csb import ops
from csb.errors import CsbError
from csb.native.library import library
rng = np.random.default_rng(int(sys.argv[1]))
OPS = ["MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "RMS_NORM", "NORM", "SOFT_MAX", "ROPE", "ADD",
       "MUL", "UNARY", "GLU", "SILU", "SWIGLU"]
TYPES = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "i32": (1, 4), "q8_0": (32, 34),
         "q4_0": (32, 18), "q4_K": (256, 144), "q6_K": (256, 210)}
def pick(values):
    return values[rng.integers(len(values))]
def shape():
    return [int(pick([1, 2, 4, 32, 64, 256])), *(int(pick([1, 1, 2, 3, 8])) for _ in range(3))]
def mutate(ne):
    ne = list(ne)
    if rng.random() < 0.2:
        ne[rng.integers(4)] = int(pick([1, 2, 3, 8, 32]))
    return ne
def make(ne, kind):
    block, size = TYPES[kind]
    n = max(1, int(np.prod(ne)) // block)
    data = rng.integers(0, 3, n * size, dtype=np.uint8)
    if kind == "f32":
        data = rng.standard_normal(n).astype(np.float32)
    return ops.Source(kind, tuple(ne), data, weight=bool(rng.integers(2)))
done = refused = 0
for _ in range(1500):
    op, a = pick(OPS), shape()
    kind = pick(list(TYPES)) if rng.random() < 0.5 else "f32"
    params = np.zeros(16, np.int32)
    if rng.random() < 0.5:
        params[:] = rng.integers(-2, 45, 16)
    sources, out = [make(a, kind)], list(a)
    if op in ("MUL_MAT", "MUL_MAT_ID"):
        b = [a[0], int(pick([1, 2, 5, 9])), a[2] * int(pick([1, 2])), a[3]]
        out = [a[1], b[1], b[2], b[3]]
        if op == "MUL_MAT_ID":
            a[3], n = 1, int(pick([1, 2]))
            sources, b = [make(a, kind)], [a[0], n, int(pick([1, 3, 9])), 1]
            out = [a[1], n, b[2], 1]
        sources.append(make(mutate(b), pick(["f32", "f32", "f16", "bf16"])))
        if op == "MUL_MAT_ID":
            sources.append(make(mutate([b[1], b[2], 1, 1]), "i32"))
            sources[2].data[:] = 0
    elif op == "FLASH_ATTN_EXT":
        cells = int(pick([1, 7, 600]))
        q = [a[0], int(pick([1, 2, 70])), a[2] * int(pick([1, 2])), a[3]]
        k, v = [a[0], cells, a[2], a[3]], [int(pick([32, 64, a[0]])), cells, a[2], a[3]]
        sources = [make(mutate(q), "f32"), make(mutate(k), kind), make(mutate(v), kind)]
        if rng.random() < 0.3:
            sources.append(make(mutate([cells, q[1], 1, 1]), "f16"))
        out = [v[0], q[2], q[1], q[3]]
    elif op in ("ADD", "MUL", "GLU", "SWIGLU") and rng.random() < 0.8:
        sources.append(make(mutate(a), pick([kind, "f32"])))
    elif op == "ROPE":
        sources.append(make(mutate([a[2] * int(pick([1, 4])), 1, 1, 1]), "i32"))
        if rng.random() < 0.7:
            params[1], params[2], params[15] = pick([2, a[0]]), pick([0, 2, 8, 24, 40]), 0
    if op in ("GLU", "SWIGLU") and len(sources) == 1:
        out[0] //= 2
    if rng.random() < 0.5:
        params[:4] = 0
    try:
        ops.run(op, sources, mutate(out), op_params=params, n_threads=int(rng.integers(1, 3)),
                repack=bool(rng.integers(2)))
        done += 1
    except CsbError as error:
        assert "unexpected" not in str(error), error
        refused += 1
print(done, refused)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls(seed: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FUZZ, str(seed)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    done, refused = map(int, ran.stdout.split())
    assert done > 200 and refused > 200
