"""What really ran: a context's decodes recorded node by node, with their kernels."""

from __future__ import annotations

import ctypes
import json
from typing import TYPE_CHECKING, Any

from csb.native.cupti import name_wheel

if TYPE_CHECKING:
    from csb.native.context import Context

LIMIT = 256 << 20  # bytes of recorded text


class Trace:
    """`with context.trace() as t:` records every decode of the context inside the block.

    t.calls afterwards: one dict for each call, as csb_context_trace_take describes it. t.lost:
    ubatches that did not fit; never above 0 without saying so.
    """

    def __init__(self, context: Context, graph: bool, kernels: bool, limit: int = LIMIT) -> None:
        self._context, self._what, self._limit = context, (int(graph), int(kernels)), limit
        self._lib = context.model.lib
        self.calls: list[dict[str, Any]] = []
        self.lost = 0

    def __enter__(self) -> Trace:
        name_wheel()
        self._lib.csb_context_trace(self._context.pointer, *self._what, self._limit)
        return self

    def __exit__(self, *exception: object) -> None:
        text, lost = ctypes.c_char_p(), ctypes.c_int64()
        pointer = self._context.pointer
        self._lib.csb_context_trace_take(pointer, ctypes.byref(text), ctypes.byref(lost))
        self.calls = json.loads((text.value or b"[]").decode("utf-8", "backslashreplace"))
        self.lost = lost.value
        self._lib.csb_context_trace(pointer, 0, 0, 0)
