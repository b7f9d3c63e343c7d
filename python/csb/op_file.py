"""An op as it ran in a model, in a file that runs it again without the model: what
`csb locate --export` writes and csb.ops.load reads.

The npz file holds `about`, a JSON text, and the arrays it names: each source's bytes as its strides
span them, and of each path the output's row that was recorded.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csb import kernels
from csb.errors import ArgumentError, FileError
from csb.native.op import Source, run_op
from csb.nodes import ran_kernels
from csb.render.text import harmless

SCHEMA = {"name": "csb.op", "version": 1}
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Row:
    """values: of that row, in numpy's order. kernels: names of those that ran; None: not
    observable."""

    values: Values
    kernels: list[str] | None


@dataclass(frozen=True)
class Call:
    """One call of an op: what csb.ops.run takes, the kernel switches in force, and as it was in the
    model the row's place in the output (numpy's axes), its values and the kernels."""

    op: str
    sources: Sequence[Source | None]
    out_ne: Sequence[int]
    op_params: Sequence[int]
    out_type: str
    device: str
    n_threads: int
    repack: bool
    without: Sequence[str]
    place: Sequence[tuple[int, int]]
    values: Values
    kernels: Sequence[str]

    def run(self) -> Row:
        """The call once more, by itself. Errors: csb_op_run in csrc/csb.h."""
        with kernels.exactly(*self.without):
            ran = run_op(
                self.op,
                self.sources,
                self.out_ne,
                op_params=self.op_params,
                out_type=self.out_type,
                device=self.device,
                n_threads=self.n_threads,
                repack=self.repack,
            )
        values = ran.values[tuple(slice(first, end) for first, end in self.place)]
        return Row(values, None if ran.events is None else ran_kernels(ran.events))


@dataclass(frozen=True)
class RecordedOp:
    """A node's op as each path ran it, for row `row` of the window."""

    node: str
    weight: str | None
    row: int
    single: Call
    block: Call


def differing(a: Values, b: Values) -> int:
    """How many values' bits differ, of two arrays of one shape and type."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise ArgumentError(f"{a.dtype} of shape {a.shape} and {b.dtype} of {b.shape} do not fit")
    bits = f"u{a.dtype.itemsize}"
    ours, theirs = (np.ascontiguousarray(values).view(bits) for values in (a, b))
    return int(np.count_nonzero(ours != theirs))


def save(op: RecordedOp, path: Path) -> None:
    arrays: dict[str, Values] = {}
    about = {
        "schema": SCHEMA,
        "node": op.node,
        "weight": op.weight,
        "row": op.row,
        "single": _describe(op.single, "single", arrays),
        "block": _describe(op.block, "block", arrays),
    }
    try:
        with path.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise FileError(f"{harmless(str(path))}: {error.strerror}") from error


def _describe(call: Call, path: str, arrays: dict[str, Values]) -> dict[str, Any]:
    sources: list[dict[str, Any] | None] = []
    for i, source in enumerate(call.sources):
        if source is None:
            sources.append(None)
            continue
        # a weight is one array for both paths
        name = next((n for n, a in arrays.items() if a is source.data), f"{path}_{i}")
        arrays[name] = source.data
        sources.append({**vars(source), "data": name})
    arrays[f"{path}_row"] = call.values
    return {**vars(call), "sources": sources, "values": f"{path}_row"}


def load(path: str | os.PathLike[str]) -> RecordedOp:
    """What `csb locate --export` wrote. FileError where it is no such file."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            if about["schema"] != SCHEMA:
                raise ValueError(about["schema"])
            calls = {name: _call(about[name], arrays) for name in ("single", "block")}
        return RecordedOp(about["node"], about["weight"], about["row"], **calls)
    except OSError as error:
        raise FileError(f"{harmless(str(path))}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise FileError(f"{harmless(str(path))}: is no op that csb saved") from error


def _call(about: dict[str, Any], arrays: Any) -> Call:
    sources = [
        s if s is None else Source(**{**s, "data": arrays[s["data"]]}) for s in about["sources"]
    ]
    return Call(**{**about, "sources": sources, "values": arrays[about["values"]]})
