"""Every node of a context's decodes, looked at while it runs: what it reads, what it gives."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError
from csb.native.checks import whole
from csb.native.op import DTYPES as NUMPY
from csb.native.table import WATCHER

if TYPE_CHECKING:
    from csb.native.context import Context

Values = npt.NDArray[Any]
DTYPES = NUMPY | {"bf16": np.uint16}  # numpy has none: the bits


class Node:
    """A node inside a watcher's call, and nowhere else.

    Its sources have numbers, its output is OUTPUT. Arrays have ggml's dimensions in numpy's order
    (the innermost last); bfloat16 comes as its bits, quantized rows as bytes.
    """

    OUTPUT = -1

    def __init__(self, lib: Any, pointer: int) -> None:
        self._lib, self._pointer = lib, pointer

    @functools.cached_property
    def info(self) -> dict[str, Any]:
        """As csb_node_describe gives it."""
        text = ctypes.c_char_p()
        self._lib.csb_node_describe(self._pointer, ctypes.byref(text))
        found: dict[str, Any] = json.loads((text.value or b"{}").decode("utf-8", "replace"))
        return found

    def tensor(self, source: int) -> dict[str, Any]:
        """Of the source with that number, or of the output."""
        found: dict[int, dict[str, Any]] = {s["index"]: s for s in self.info["src"]}
        found[self.OUTPUT] = self.info
        if source not in found:
            raise ArgumentError(f"source = {source}: the node has no such source")
        return found[source]

    def read(self, source: int, dim: int = -1, first: int = 0, count: int = 1) -> Values:
        """`count` places from `first` on along ggml's dimension `dim`, or everything (-1)."""
        places = whole(dim, "dim"), whole(first, "first"), whole(count, "count")
        out = self._empty(source, dim, count)
        data = out.reshape(-1).view(np.uint8)
        self._lib.csb_node_read(self._pointer, source, *places, out.nbytes, data)
        return out

    def write(self, values: Values, source: int, dim: int = -1, first: int = 0) -> None:
        """Overwrites those places: as many along `dim` as the values have."""
        tensor = self.tensor(source)
        count = values.shape[::-1][dim] if 0 <= dim < values.ndim else 1
        if dim == 0 and tensor["type"] not in DTYPES:
            count = count // tensor["block_bytes"] * tensor["block"]
        places = whole(dim, "dim"), whole(first, "first"), count
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._lib.csb_node_write(self._pointer, source, *places, data.nbytes, data)

    def rerun(self) -> Values:
        """The node's output from its sources as they are now; nothing else changes.
        UnsupportedError where it writes into another tensor."""
        out = self._empty(self.OUTPUT, -1, 1)
        self._lib.csb_node_rerun(self._pointer, out.nbytes, out.reshape(-1).view(np.uint8))
        return out

    def _empty(self, source: int, dim: int, count: int) -> Values:
        tensor = self.tensor(source)
        ne = list(tensor["ne"])
        if 0 <= dim < len(ne):
            ne[dim] = min(max(0, count), ne[dim])  # the library says what is wrong
        dtype = DTYPES.get(tensor["type"])
        if dtype is None:
            row = ne[0] // tensor["block"] * tensor["block_bytes"]
            return np.empty((*ne[:0:-1], row), np.uint8)
        return np.empty(ne[::-1], dtype)


@contextlib.contextmanager
def watching(
    context: Context, before: Callable[[Node], None], after: Callable[[Node], None]
) -> Iterator[None]:
    """Calls before(node) and after(node) around every node of the context's decodes in the block.

    What they raise cancels the decode and is raised at the block's end in its place.
    """
    lib = context.model.lib
    raised: list[BaseException] = []

    def on_node(user: Any, pointer: int, done: int) -> None:
        if raised:
            return
        try:
            (after if done else before)(Node(lib, pointer))
        except BaseException as error:
            raised.append(error)
            context.cancel()

    watcher = WATCHER(on_node)  # kept alive while the block runs
    lib.csb_context_watch(context.pointer, watcher, None)
    try:
        yield
    except Exception:
        if not raised:
            raise
    finally:
        lib.csb_context_watch(context.pointer, WATCHER(), None)
    if raised:
        raise raised[0]
