"""A DFlash draft beside its target: it reads the target's layer inputs and fills a block of masked
tokens at once."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import numpy as np

from csb.errors import ArgumentError
from csb.native import worker
from csb.native.checks import whole
from csb.native.context import Context, Rows
from csb.native.model import Model


def describe(model: Model) -> dict[str, Any]:
    """Of a model opened with draft=True: block_size, mask (a token), causal, layers (of the target,
    that it reads). Source: csb_draft_describe."""
    text = ctypes.c_char_p()
    model.lib.csb_draft_describe(model.pointer, ctypes.byref(text))
    found: dict[str, Any] = json.loads(text.value or b"{}")
    return found


class DraftContext(Context):
    """A draft's context, which uses the target's embeddings and head where the draft has none.
    Options as of Context; its calls hold n_ubatch tokens at most, every row an output.

    Raises UnsupportedError for a draft of another target. Source: csb_draft_open.
    """

    def __init__(self, model: Model, target: Context, **options: Any) -> None:
        self._target = target
        super().__init__(model, **options)

    def _open(self, options: tuple[int, Any, Any]) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        beside = self.model.pointer, self._target.pointer
        self._lib.csb_draft_open(*beside, *options, ctypes.byref(pointer))
        return pointer

    def inject(self, rows: Rows, start: int) -> None:
        """The layer inputs of tokens from position `start` on, float32 [tokens, layers * n_embd],
        into the memory in one call. Errors as `decode`."""
        if rows.ndim != 2 or rows.dtype != np.float32 or not rows.flags.c_contiguous:
            raise ArgumentError(
                f"rows is {rows.dtype} of shape {rows.shape}: must be float32 [tokens, width]"
            )
        pointer, at = self.pointer, whole(start, "start")
        worker.run(lambda: self._lib.csb_draft_inject(pointer, *rows.shape, rows, at), self.cancel)
