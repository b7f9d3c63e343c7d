"""The single path's nodes, kept outside the process's memory while the block path is compared."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.native.watch import Node

Key = tuple[str, str, int]  # op, name, how many of that name came before in the call
Values = npt.NDArray[Any]


class Spill:
    """Arrays by key in a temporary file without a name: a model's activations need no memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._places: dict[Hashable, tuple[int, Any, tuple[int, ...]]] = {}

    def put(self, key: Hashable, values: Values) -> None:
        self._places[key] = (self._file.tell(), values.dtype, values.shape)
        self._file.write(np.ascontiguousarray(values).data)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def get(self, key: Hashable) -> Values:
        place, dtype, shape = self._places[key]
        self._file.flush()
        values = np.empty(shape, dtype)
        os.preadv(self._file.fileno(), [values.reshape(-1).view(np.uint8).data], place)
        return values

    def close(self) -> None:
        self._file.close()


class Names:
    """Keys of a call's nodes in order: names repeat in a graph."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def key(self, op: str, name: str) -> Key:
        n = self._seen[op, name]
        self._seen[op, name] += 1
        return op, name, n


def cell_dim(op: str, source: dict[str, Any]) -> int | None:
    """ggml's dimension along which an attention cache has its cells; None where it has none.
    Without flash attention the values are kept transposed."""
    if source["kind"] != "memory":
        return None
    if source["root"].startswith("cache_k"):
        return 1
    if source["root"].startswith("cache_v"):
        return 0 if op == "MUL_MAT" else 1
    return None


class SinglePass:
    """Keeps what every node of the single path's calls read and gave: values whole, of a cache the
    cell that the call wrote, of a state everything."""

    def __init__(self, spill: Spill, start: int) -> None:
        self._spill, self._start = spill, start
        self.call = -1

    def begin(self) -> None:
        self.call += 1
        self._names = Names()

    def before(self, node: Node) -> None:
        info = node.info
        self._key = self._names.key(info["op"], info["name"])
        if info["view"]:
            return
        for source in info["src"]:
            at = source["index"]
            dim = cell_dim(info["op"], source)
            if dim is not None:
                cell = node.read(at, dim, self._start + self.call)
                self._spill.put((self.call, self._key, "cell", at), cell)
            elif source["kind"] != "weight":
                self._spill.put((self.call, self._key, "in", at), node.read(at))

    def after(self, node: Node) -> None:
        if not node.info["view"]:
            self._spill.put((self.call, self._key, "out"), node.read(Node.OUTPUT))
