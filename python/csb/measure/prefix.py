"""The prefix strategies: the order of the windows, and how each finds its memory.

Every strategy is a generator of windows; when it yields one, the memory holds at least that
window's prefix and `Memory.rewind` gets there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from csb import kernels
from csb.errors import UnsupportedError
from csb.measure import evidence
from csb.measure.memory import Memory
from csb.native.library import has_hooks
from csb.plan import Window

QUANTIZED = "with quantized weights or cache only kernel records prove it; this build has no hooks"
ELSEWHERE = "with quantized weights or cache only kernel records prove it; not those on"
NOT_PROVEN = "the other prefixes end in an ubatch that is not proven equal"
KERNELS_DIFFER = "the other prefixes end in an ubatch whose kernels depend on its rows"
NOT_WORTH_IT = "probes would cost more than they save, or than 15 % of the run"


@dataclass
class PrefixRecord:
    """What was asked for and what the windows got."""

    asked: str
    shared: int = 0  # windows on one shared prefill
    reprefilled: int = 0
    probes: list[int] = field(default_factory=list)  # prefix lengths
    equal: list[int] = field(default_factory=list)  # of them, those with equal bytes
    reason: str = ""  # why `auto` re-prefills what it re-prefills
    probe_seconds: float = 0.0
    probe_decode_seconds: float = 0.0  # of them, inside llama_decode
    short_from: int | None = None  # `block`: the last call was shorter from this position on

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Walk:
    """What a strategy needs to know."""

    memory: Memory
    text: list[int]  # prompt + AR trajectory
    n_prompt: int
    windows: list[Window]
    width: int
    quantized: bool
    record: PrefixRecord
    token_seconds: float  # of the AR run's single decodes, for the probes' share
    prefill_seconds: float = 0.0  # per token of window 0's prefill, the first warm one

    @property
    def longest(self) -> list[int]:
        return self.text[: self.windows[-1].prefix]


def refuse(prefix: str, memory: Memory) -> None:
    """Raises UnsupportedError where a memory can't do what a strategy needs."""
    if prefix in ("shared", "incremental", "block") and not memory.cuts_back:
        raise UnsupportedError(
            f"--prefix {prefix} cuts the memory back, which a {memory.kind.replace('_', ' ')} "
            "memory can't do bit for bit; use --prefix reprefill"
        )


def reprefill(walk: Walk, windows: list[Window]) -> Iterator[Window]:
    for window in windows:
        walk.memory.prefill(walk.text[: window.prefix])
        walk.record.reprefilled += 1
        yield window


def shared(walk: Walk, windows: list[Window], ready: bool = False) -> Iterator[Window]:
    """From the last window to the first, cutting the tail of one prefill."""
    if windows and not ready:
        walk.memory.prefill(walk.longest)
    for window in reversed(windows):
        walk.record.shared += 1
        yield window


def auto(walk: Walk, windows: list[Window]) -> Iterator[Window]:
    """Shared where the evidence allows it, the others re-prefilled."""
    may_share: list[Window] = []
    if walk.memory.kind != "attention":
        kind = walk.memory.kind.replace("_", " ")
        walk.record.reason = f"equal bytes prove equal memory only for plain attention, not {kind}"
    elif walk.quantized and not has_hooks():
        walk.record.reason = QUANTIZED
    else:
        may_share = _proven(walk, windows)
    yield from shared(walk, may_share, ready=True)
    yield from reprefill(walk, [w for w in windows if w not in set(may_share)])


def _proven(walk: Walk, windows: list[Window]) -> list[Window]:
    """The windows whose sharing is proven by probes. The memory then holds the shared prefill."""
    context, total = walk.memory.context, len(walk.longest)
    shapes = {
        length: evidence.shape_of(
            length,
            total,
            context.value("n_batch"),
            context.value("n_ubatch"),
            bool(context.value("flash_attn")),
        )
        for length in range(1, total + 1)
    }
    lengths = [w.prefix for w in windows if w.prefix > 0]
    run_seconds = len(windows) * (walk.width + 2) * walk.token_seconds
    spare = evidence.LIMIT * run_seconds - (3 * walk.width + 2) * walk.token_seconds
    budget = spare / walk.prefill_seconds - total if walk.prefill_seconds else 0.0
    probes = evidence.choose(lengths, shapes, budget) if lengths else []
    if not probes or sum(lengths) <= sum(probes) + total:
        walk.record.reason = NOT_WORTH_IT
        return []
    begin, decoded = time.perf_counter(), context.decode_seconds
    try:
        found = evidence.probe(walk.memory, walk.longest, probes, by_kernels=walk.quantized)
    except evidence.NoProof as no_proof:
        walk.record.reason = f"{ELSEWHERE} {no_proof}"
        return []
    finally:
        walk.record.probe_seconds = time.perf_counter() - begin
        walk.record.probe_decode_seconds = context.decode_seconds - decoded
    walk.record.probes = probes
    walk.record.equal = [length for length, equal in found.items() if equal]
    equal = {shapes[length]: same for length, same in found.items()}
    may = [w for w in windows if w.prefix > 0 and evidence.shareable(shapes[w.prefix], equal)]
    if len(may) < len(windows):
        walk.record.reason = KERNELS_DIFFER if walk.quantized else NOT_PROVEN
    return may


def block(walk: Walk, windows: list[Window]) -> Iterator[Window]:
    """The trajectory written as W-row calls from the prompt's last token on, as a verify step
    writes it; each window cuts off the rows past its prefix, as a rejected tail is."""
    if windows:
        start = walk.n_prompt - 1
        walk.memory.prefill(walk.text[:start])
        written = walk.text[start:]
        with kernels.without(*walk.memory.block_without):
            walk.memory.extend(written, start, walk.width)
        if rest := len(written) % walk.width:
            walk.record.short_from = len(written) - rest
    yield from shared(walk, windows, ready=True)


STRATEGIES = {"auto": auto, "reprefill": reprefill, "shared": shared, "block": block}
