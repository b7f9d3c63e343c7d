"""One ggml op by itself on a device, and rows of numbers as a ggml type."""

from __future__ import annotations

import ctypes
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError
from csb.native import checks, worker
from csb.native.library import library

Bytes = npt.NDArray[np.uint8]
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64}


@dataclass(frozen=True)
class Source:
    """One source of an op. `data` holds what `ne` (ggml's order: the row's length first) and `nb`
    (byte strides; none: contiguous) span, of any numpy type. `weight`: a model's weight, which may
    be repacked."""

    type: str
    ne: tuple[int, ...]
    data: npt.NDArray[Any]
    nb: tuple[int, ...] = ()
    weight: bool = False


@dataclass(frozen=True)
class OpResult:
    """What an op computed.

    values: the output, ne in numpy's order (the row's length last); bf16 as uint16. events: what
    the hooks saw, as csb_context_trace_take's "kernels"; None: not observed, or not observable in
    this build or on this device. buffers: where each source lay (CPU_REPACK: repacked).
    """

    values: npt.NDArray[Any]
    events: list[dict[str, Any]] | None
    buffers: list[str | None]


def source(values: npt.NDArray[Any], *, weight: bool = False) -> Source:
    """An array of float32, float16, int32 or int64 as a source of that type."""
    for name, dtype in DTYPES.items():
        if values.dtype == dtype:
            ne = tuple(reversed(values.shape))
            return Source(name, ne, np.ascontiguousarray(values), weight=weight)
    raise ArgumentError(f"values are {values.dtype}: must be one of {', '.join(DTYPES)}")


def quantize_rows(values: npt.NDArray[np.float32], kind: str) -> Bytes:
    """float32 [..., n] as rows of a ggml type, by ggml's quantizer without an importance matrix.

    ArgumentError: n no multiple of the type's blocks, numbers that are not finite.
    UnsupportedError: a type whose quantizer needs an importance matrix, or takes not every number.
    """
    rows = np.ascontiguousarray(values, np.float32)
    if rows.ndim < 1 or not rows.size:
        raise ArgumentError(f"values have shape {rows.shape}: must be rows")
    n = rows.shape[-1]
    name, size = checks.text(kind, "type"), ctypes.c_int64()
    out = np.empty(0, np.uint8)
    while True:
        library().csb_quantize_rows(
            name, rows.size // n, n, rows, out.nbytes, out.ctypes.data, ctypes.byref(size)
        )
        if out.nbytes:
            return out
        out = np.empty(size.value, np.uint8)


def run_op(
    op: str,
    sources: Sequence[Source | None],
    out_ne: Sequence[int],
    *,
    op_params: Sequence[int] | npt.NDArray[np.int32] | bytes = (),
    out_type: str = "f32",
    device: str = "CPU",
    n_threads: int = 1,
    repack: bool = True,
    observe: bool = True,
) -> OpResult:
    """Runs the op as a graph of one node, kernel switches in force.

    op_params: up to 16 numbers as ggml keeps them, or their bytes. None among the sources: the op
    goes without it. observe: record the kernels that run. Errors: csb_op_run in csrc/csb.h.
    """
    given = [s if s is not None else Source("", (), np.empty(0, np.uint8)) for s in sources]
    n = len(given)
    data = [np.ascontiguousarray(s.data) for s in given]
    missing = [s is None for s in sources]
    types = (ctypes.c_char_p * max(1, n))(
        *(None if m else checks.text(s.type, "type") for m, s in zip(missing, given, strict=True))
    )
    pointers = (ctypes.c_void_p * max(1, n))(*(d.ctypes.data for d in data))
    ne, nb = np.ones((n, 4), np.int64), np.zeros((n, 4), np.int64)
    for i, s in enumerate(given):
        _fill(ne[i], s.ne, "ne")
        _fill(nb[i], s.nb, "nb")
    out = np.ones(4, np.int64)
    _fill(out, out_ne, "out_ne")
    values = _output(out_type, out)
    answer = ctypes.c_char_p()
    arguments = (
        checks.text(op, "op"),
        checks.text(device, "device"),
        checks.whole(n_threads, "n_threads"),
        int(repack),
        int(observe),
        _params(op_params),
        checks.text(out_type, "out_type"),
        out,
        n,
        types,
        ne,
        nb,
        pointers,
        np.array([d.nbytes for d in data], np.int64),
        np.array([s.weight for s in given], np.int8),
        values.nbytes,
        values.reshape(-1).view(np.uint8),
    )

    def call() -> dict[str, Any]:  # the answer's text is the calling thread's
        library().csb_op_run(*arguments, ctypes.byref(answer))
        said: dict[str, Any] = json.loads(answer.value or b"{}")
        return said

    said = worker.run(call, lambda: None)
    return OpResult(values, said["kernels"], said["buffers"])


def _fill(into: npt.NDArray[np.int64], values: Sequence[int], name: str) -> None:
    if len(values) > 4:
        raise ArgumentError(f"{name} = {tuple(values)}: has more than four dimensions")
    for i, value in enumerate(values):
        number = operator.index(value)  # also numpy's, as an npz holds them
        if not -(2**63) <= number < 2**63:
            raise ArgumentError(f"{name} = {number}: is beyond 64 bits")
        into[i] = number


def _params(values: Sequence[int] | npt.NDArray[np.int32] | bytes) -> npt.NDArray[np.int32]:
    """16 numbers; those that are not given are 0."""
    if isinstance(values, bytes):
        if len(values) % 4:
            raise ArgumentError(f"op_params has {len(values)} bytes: must be whole numbers of 4")
        values = np.frombuffer(values, np.int32)
    given = checks.whole_array(values, "op_params")
    if len(given) > 16:
        raise ArgumentError(f"op_params has {len(given)} numbers: ggml keeps 16")
    return np.concatenate([given, np.zeros(16 - len(given), np.int32)])


def _output(kind: str, ne: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Room for the output; the library checks that it is as much as the output takes."""
    dtype = DTYPES.get(kind.lower(), np.uint16 if kind.lower() == "bf16" else None)
    if dtype is None:
        raise ArgumentError(f"out_type = {kind}: must be {', '.join(DTYPES)} or bf16")
    shape = [int(x) for x in reversed(ne)]
    room = 1
    for x in shape:
        room *= max(0, x)
    if min(shape) < 1 or room > 2**31:
        raise ArgumentError(f"out_ne = {[int(x) for x in ne]}: must be from 1 on, 2^31 in all")
    return np.empty(shape, dtype)
