"""Single ggml ops on a device: what kernel authors compare without a model.

    import csb
    one = csb.ops.mul_mat(weights, x[:1], type="q4_K")
    five = csb.ops.mul_mat(weights, x[:5], type="q4_K")
    one.values.view("uint32") == five.values[:1].view("uint32"), one.kernels, five.kernels

`run` and `Source` take any op that csb has checks for, with its op_params and its sources in ggml's
own shapes. Kernel switches (csb.kernels) hold here too. `load` reads what `csb locate --export`
wrote: an op as both paths ran it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError
from csb.native.op import OpResult, Source, quantize_rows, run_op, source
from csb.nodes import ran_kernels
from csb.op_file import RecordedOp, differing, load

Floats = npt.NDArray[np.float32]
run = run_op
quantize = quantize_rows

__all__ = [
    "OpResult",
    "RecordedOp",
    "Result",
    "Source",
    "differing",
    "flash_attn",
    "load",
    "mul_mat",
    "quantize",
    "ran_kernels",
    "run",
    "source",
]


@dataclass(frozen=True)
class Result:
    """values: float32. kernels: names of those that ran; None: not observable. buffers: where each
    source lay (CPU_REPACK: repacked)."""

    values: Floats
    kernels: list[str] | None
    buffers: list[str | None]


def mul_mat(
    weights: Floats,
    x: Floats,
    *,
    type: str = "f32",
    repack: bool = True,
    device: str = "CPU",
    n_threads: int = 1,
) -> Result:
    """x times the transposed weights: float32 [n, m] for weights [m, k], which become `type`, and
    x [n, k]."""
    w, rows = _floats(weights, "weights", 2), _floats(x, "x", 2)
    if w.shape[1] != rows.shape[1]:
        raise ArgumentError(f"weights of shape {w.shape} and x of {rows.shape} do not fit")
    ran = run_op(
        "MUL_MAT",
        [as_source(w, type, weight=True), source(rows)],
        (w.shape[0], rows.shape[0]),
        device=device,
        n_threads=n_threads,
        repack=repack,
    )
    return _result(ran, len(rows), len(w))


def flash_attn(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    mask: npt.NDArray[Any] | None = None,
    scale: float | None = None,
    type: str = "f16",
    device: str = "CPU",
    n_threads: int = 1,
) -> Result:
    """softmax(scale * q k^T + mask) v: float32 [n, heads, d_v] for q [n, heads, d], k [cells,
    kv_heads, d] and v [cells, kv_heads, d_v], which become `type`. mask: [n, cells], 0 or
    -infinity. scale None: 1 / sqrt(d).
    """
    queries = _floats(q, "q", 3).transpose(1, 0, 2)  # as llama.cpp permutes them
    keys, values = (_floats(a, name, 3).transpose(1, 0, 2) for a, name in ((k, "k"), (v, "v")))
    if mask is not None and mask.shape != (queries.shape[1], keys.shape[1]):
        raise ArgumentError(f"mask has shape {mask.shape}: must be [n, cells]")
    factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else scale
    ran = run_op(
        "FLASH_ATTN_EXT",
        [
            source(queries),
            as_source(keys, type),
            as_source(values, type),
            None if mask is None else source(mask.astype(np.float16)),
        ],
        (values.shape[-1], queries.shape[0], queries.shape[1]),
        op_params=np.array([factor, 0, 0], np.float32).tobytes(),
        device=device,
        n_threads=n_threads,
    )
    return _result(ran, queries.shape[1], queries.shape[0], values.shape[-1])


def as_source(values: Floats, type: str, *, weight: bool = False) -> Source:
    """Rows as a ggml type, by ggml's own quantizer."""
    if type.lower() in ("i32", "i64"):
        raise ArgumentError(f"type = {type}: must be a type of numbers with a fraction")
    name, ne = type.lower(), tuple(reversed(values.shape))
    return Source(name, ne, quantize_rows(values, name), weight=weight)


def _floats(values: npt.NDArray[Any], name: str, dimensions: int) -> Floats:
    array = np.asarray(values)
    if array.ndim != dimensions or not array.size:
        raise ArgumentError(f"{name} has shape {array.shape}: must have {dimensions} dimensions")
    return array.astype(np.float32, copy=False)


def _result(ran: OpResult, *shape: int) -> Result:
    kernels = None if ran.events is None else ran_kernels(ran.events)
    return Result(ran.values.reshape(shape), kernels, ran.buffers)
