"""The exact mode: kernel switches for the block decodes, so that a block has the single path's bits
while prefill, AR run and single path stay as fast as they are.

split-kv acts on calls of one row. Where those would attend by split-KV, the block's attention can't
be had from it, so single path and AR run go without it too; that is found out before the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from csb import kernels
from csb.errors import InvalidMeasurement
from csb.measure.memory import Memory, same_bits
from csb.native.context import Rows
from csb.nodes import observed
from csb.plan import Window
from csb.price import price

SPLIT = "split-kv"
SPLIT_KERNEL = "ggml_compute_forward_flash_attn_ext[split_kv]"


@dataclass
class ExactBlock:
    """The switches, and pairs of block decodes with and without them on the same windows."""

    names: tuple[str, ...]  # refused in block decodes
    single: tuple[str, ...] = ()  # of them, those refused in the single path and the AR run too
    reason: str = ""  # why
    seconds: list[float] = field(default_factory=list)  # of whole blocks, with them
    plain_seconds: list[float] = field(default_factory=list)  # and without
    n_plain: int = 0  # rows computed without them, beside other rows
    n_plain_equal: int = 0  # of those, the ones that have the single path's bits all the same
    _turn: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "single": list(self.single),
            "reason": self.reason,
            "n_plain": self.n_plain,
            "n_plain_equal": self.n_plain_equal,
            "price": price(self.seconds, self.plain_seconds),
            "seconds": self.seconds,
            "plain_seconds": self.plain_seconds,
        }

    def pair(self, memory: Memory, window: Window, single: Rows, block: Rows, whole: bool) -> None:
        """The window's block once more with and once without the switches, taking turns at being
        first. It was decoded just before, so that both find the graph built. whole: not one of the
        shorter blocks at the trajectory's end, whose time counts for nothing."""
        inputs, again = window.inputs, np.empty_like(block)
        took = {}
        self._turn += 1
        for exact in (True, False) if self._turn % 2 else (False, True):
            without = self.names if exact else ()
            with memory.switched(single=memory.single_without, block=without):
                took[exact] = memory.timed_block(inputs, window.prefix, again)
            if not exact:
                alone = [rows == 1 for rows in memory.ubatch_rows(len(inputs))]
                equal = [same_bits(a, b) for a, b in zip(single, again, strict=True)]
                self.n_plain += alone.count(False)
                self.n_plain_equal += sum(e and not a for e, a in zip(equal, alone, strict=True))
            elif not same_bits(again, block):
                raise InvalidMeasurement("the same block a second time has other bits")
        if whole:
            self.seconds.append(took[True])
            self.plain_seconds.append(took[False])


def decide(memory: Memory, prompt: Sequence[int], n_gen: int, names: tuple[str, ...]) -> ExactBlock:
    """Whether the single path needs a switch too: what a call of one row runs with as many tokens
    in the memory as the run can reach. Kernels depend on their number, not on the tokens."""
    made = ExactBlock(names)
    if SPLIT not in names or not memory.context.value("flash_attn"):
        return made
    length = len(prompt) + n_gen - 1
    memory.prefill(list(itertools.islice(itertools.cycle(prompt), length)))
    row = np.empty((1, memory.context.n_vocab), np.float32)
    with kernels.exactly(), memory.context.trace(graph=False) as trace:
        memory.single(prompt[:1], length, row)
    seen = observed(trace.calls)
    if seen and SPLIT_KERNEL in seen["kernels"]:
        made.single = (SPLIT,)
        made.reason = f"with {length} tokens in the memory a call of one row attends by split-KV"
    return made
