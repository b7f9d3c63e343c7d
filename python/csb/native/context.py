"""A context: decoding with explicit positions, logits rows, and the memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError
from csb.native import worker
from csb.native.checks import whole, whole_array
from csb.native.handle import Handle
from csb.native.library import c_options
from csb.native.model import Model
from csb.native.trace import Trace
from csb.native.watch import Node, watching

Rows = npt.NDArray[np.float32]


class Context(Handle):
    """Memory and graph for decoding tokens of one model. One call at a time.

    Options (None: llama.cpp's default): n_ctx (0: the model's), n_batch, n_ubatch, n_seq_max,
    n_threads, n_threads_batch, flash_attn ("on", "off", "auto"), type_k, type_v (cache types),
    offload_kqv, op_offload, swa_full, kv_unified, rope_freq_base, rope_freq_scale.

    Raises UnsupportedError if llama.cpp can't make it (the text says why), DeviceError where it has
    no room, ArgumentError for a bad option. What the options became is in `parameters`. Source:
    csb_context_open.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_seq_max: int | None = None,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        flash_attn: str | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        offload_kqv: bool | None = None,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        kv_unified: bool | None = None,
        rope_freq_base: float | None = None,
        rope_freq_scale: float | None = None,
    ) -> None:
        self._lib = model.lib
        self._close = self._lib.csb_context_close
        self.model = model
        self._tapped = 0  # floats of a position's layer inputs
        options = c_options(
            {
                "n_ctx": n_ctx,
                "n_batch": n_batch,
                "n_ubatch": n_ubatch,
                "n_seq_max": n_seq_max,
                "n_threads": n_threads,
                "n_threads_batch": n_threads_batch,
                "flash_attn": flash_attn,
                "type_k": type_k,
                "type_v": type_v,
                "offload_kqv": offload_kqv,
                "op_offload": op_offload,
                "swa_full": swa_full,
                "kv_unified": kv_unified,
                "rope_freq_base": rope_freq_base,
                "rope_freq_scale": rope_freq_scale,
            }
        )
        self._pointer = self._open(options)

    def _open(self, options: tuple[int, Any, Any]) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self._lib.csb_context_open(self.model.pointer, *options, ctypes.byref(pointer))
        return pointer

    @functools.cached_property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """{name: {"value", "source"}} as the library reports them: csb_context_describe."""
        text = ctypes.c_char_p()
        self._lib.csb_context_describe(self.pointer, ctypes.byref(text))
        return {
            p["name"]: {"value": p["value"], "source": p["source"]}
            for p in json.loads(text.value or b"[]")
        }

    @functools.cached_property
    def offload(self) -> dict[str, Any]:
        """What lies and runs where: {"backends", "layers": a device for each, "output", "buffers":
        [{"name", "device", "host", "model", "memory", "compute"}], sizes in bytes}. Source:
        csb_context_offload."""
        text = ctypes.c_char_p()
        self._lib.csb_context_offload(self.pointer, ctypes.byref(text))
        found: dict[str, Any] = json.loads(text.value or b"{}")
        return found

    def value(self, parameter: str) -> Any:
        return self.parameters[parameter]["value"]

    @property
    def n_vocab(self) -> int:
        return self.model.n_vocab

    def decode(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int32],
        start: int | Sequence[int] | npt.NDArray[np.int32],
        *,
        outputs: bool | Sequence[bool] = True,
        seq_ids: int | Sequence[int] = 0,
    ) -> None:
        """One llama_decode of all the tokens, waited for.

        start: the first token's position, the others follow; or a position for each token.
        outputs: whether a token's logits row is wanted, for all or for each.
        seq_ids: the sequence, for all or for each.

        Raises ArgumentError (token id, position gap, more than n_batch, context full), DecodeError,
        CancelledError. On the main thread Ctrl-C ends a CPU decode within one graph node.
        """
        ids = whole_array(tokens, "tokens")
        n = len(ids)
        positions = _spread(start, n, "start")
        if np.ndim(start) == 0:
            positions = whole_array(positions + np.arange(n), "start")
        sequences = _spread(seq_ids, n, "seq_ids")
        flags = _spread(np.asarray(outputs, bool).astype(np.int32), n, "outputs").astype(np.int8)
        pointer = self.pointer
        worker.run(
            lambda: self._lib.csb_context_decode(pointer, n, ids, positions, sequences, flags),
            self.cancel,
        )

    def steps(
        self,
        tokens: Sequence[int] | npt.NDArray[np.int32],
        start: int,
        out: Rows,
        *,
        seq_id: int = 0,
    ) -> Rows:
        """The tokens one per decode, from position `start` on, and each one's logits row copied
        into out: float32 [len(tokens), n_vocab]. Errors as `decode`."""
        ids = whole_array(tokens, "tokens")
        self._check_out(out, len(ids))
        pointer, place = self.pointer, (whole(start, "start"), whole(seq_id, "seq_id"))
        worker.run(
            lambda: self._lib.csb_context_steps(pointer, len(ids), ids, *place, out), self.cancel
        )
        return out

    def trace(self, *, graph: bool = True, kernels: bool = True) -> Trace:
        """Records every decode inside a `with` block: nodes in execution order (graph), the CPU
        kernels that ran for each and the CUDA kernels of each ubatch (kernels). UnsupportedError if
        this build has no hooks."""
        return Trace(self, graph, kernels)

    def watch(
        self, before: Callable[[Node], None], after: Callable[[Node], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Calls before(node) and after(node) around every node of the decodes inside a `with`
        block: csb.native.watch. UnsupportedError if this build has no hooks."""
        return watching(self, before, after)

    def cancel(self) -> None:
        """Ends a decode that runs on another thread, at the next graph node (CPU only)."""
        self._lib.csb_context_cancel(self.pointer)

    def logits(self, entries: Sequence[int] | None = None, out: Rows | None = None) -> Rows:
        """The last decode's rows at these batch entries, copied: float32 [len(entries), n_vocab].

        entries None: entry 0. ArgumentError where that entry's row was not asked for.
        """
        index = whole_array([0] if entries is None else entries, "entries")
        rows = np.empty((len(index), self.n_vocab), np.float32) if out is None else out
        self._check_out(rows, len(index))
        self._lib.csb_context_logits(self.pointer, len(index), index, rows)
        return rows

    def _check_out(self, rows: Rows, n: int) -> None:
        if rows.shape != (n, self.n_vocab) or rows.dtype != np.float32:
            raise ArgumentError(f"out has shape {rows.shape}: must be float32 [rows, n_vocab]")
        if not (rows.flags.c_contiguous and rows.flags.writeable):
            raise ArgumentError("out must be contiguous and writeable")

    def tap(self, layers: Sequence[int]) -> None:
        """From now on every decode's inputs of these layers are kept for `tapped`; none: no longer.
        UnsupportedError where the architecture's graph doesn't give them. Source: csb_context_tap.
        """
        numbers = whole_array(layers, "layers")
        self._lib.csb_context_tap(self.pointer, len(numbers), numbers)
        self._tapped = len(numbers) * int(self.model.info["n_embd"])

    def tapped(self) -> tuple[int, Rows]:
        """Takes what `tap` kept: the first position, and float32 [positions, layers * n_embd] from
        there to the memory's end; -1 and no rows where nothing is new."""
        first, n = ctypes.c_int32(), ctypes.c_int64()
        out = np.empty(0, np.float32)
        while True:
            where = ctypes.byref(first), ctypes.byref(n)
            self._lib.csb_context_tapped(self.pointer, len(out), out, *where)
            if n.value <= len(out):
                return first.value, out[: n.value].reshape(-1, max(1, self._tapped))
            out = np.empty(n.value, np.float32)

    @property
    def decode_seconds(self) -> float:
        """Time inside llama_decode and its synchronization since the context was opened."""
        ns, n = ctypes.c_int64(), ctypes.c_int64()
        self._lib.csb_context_decode_time(self.pointer, ctypes.byref(ns), ctypes.byref(n))
        return ns.value / 1e9

    def remove(self, start: int, end: int = -1, *, seq_id: int = 0) -> bool:
        """Removes positions start <= p < end (-1: to the last). False: this memory can't, and
        nothing changed. Source: llama_memory_seq_rm."""
        removed = ctypes.c_int32()
        span = whole(seq_id, "seq_id"), whole(start, "start"), whole(end, "end")
        self._lib.csb_context_seq_rm(self.pointer, *span, ctypes.byref(removed))
        return bool(removed.value)

    def bounds(self, seq_id: int = 0) -> tuple[int, int]:
        """First and last position in the memory, (-1, -1) when empty."""
        low, high = ctypes.c_int32(), ctypes.c_int32()
        self._lib.csb_context_seq_bounds(
            self.pointer, whole(seq_id, "seq_id"), ctypes.byref(low), ctypes.byref(high)
        )
        return low.value, high.value

    def clear(self, *, data: bool = False) -> None:
        """Empties the memory. data: zeroes its buffers too."""
        self._lib.csb_context_clear(self.pointer, int(data))

    def save(self, *, partial: bool = False, seq_id: int = 0) -> npt.NDArray[np.uint8]:
        """A sequence's state as bytes. partial: only what can't be cut back (recurrent state,
        sliding-window ring)."""
        size = ctypes.c_int64()
        which = whole(seq_id, "seq_id"), int(partial)
        self._lib.csb_context_state_size(self.pointer, *which, ctypes.byref(size))
        state = np.empty(size.value, np.uint8)
        self._lib.csb_context_state_get(self.pointer, *which, len(state), state, ctypes.byref(size))
        return state[: size.value]

    def restore(
        self, state: npt.NDArray[np.uint8], *, partial: bool = False, seq_id: int = 0
    ) -> None:
        """Puts a state that `save` gave back. ArgumentError if it is damaged, of the other kind, or
        of another model or other parameters."""
        if state.dtype != np.uint8 or state.ndim != 1:
            raise ArgumentError(f"state is {state.dtype} of shape {state.shape}: must be bytes")
        which = whole(seq_id, "seq_id"), int(partial)
        data = np.ascontiguousarray(state)
        self._lib.csb_context_state_set(self.pointer, *which, data, len(data))


def _spread(value: Any, n: int, name: str) -> npt.NDArray[np.int32]:
    """One value for every token, or one for each."""
    if np.ndim(value) == 0:
        return np.full(n, whole(value, name), np.int32)
    spread = whole_array(value, name)
    if len(spread) != n:
        raise ArgumentError(f"{name} has {len(spread)} entries for {n} tokens")
    return spread
