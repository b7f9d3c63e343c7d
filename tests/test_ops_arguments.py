"""What a single op refuses: every kind of bad input an error, and the process lives."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from csb import ops
from csb.errors import ArgumentError, CsbError, UnsupportedError
from csb.ops import Source, source
from test_hooks import X86
from test_ops import floats, real

pytestmark = pytest.mark.native

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
