"""When one shared prefill may stand for fresh ones: the evidence behind `--prefix auto`.

What can differ between a fresh prefill of L tokens and a longer one cut back to L is the last
ubatch: it has r rows in the fresh one and R in the shared one, and kernels depend on their number.
So at probed lengths the memory's bytes are compared, and a window is shared only if its r lies
between two probed equal r of the same class with no unequal one between them. r = 1 is never
shared: a lone row takes other kernels nearly everywhere, and its few bytes may agree by luck (a
16-bit cache rounds differences away) at one length and differ at the next. With flash attention
r < 64 and r >= 64 are classes of their own, and so is each R.

With quantized weights or a quantized cache equal bytes are not enough: quantized activations absorb
small differences, so rows agree by luck. There a probe counts as equal only if the kernel records
say so too: every node of its last ubatch ran one kernel, the one that the shared ubatch ran. The
consecutive probes then show that no remainder of rows has a kernel of its own, and the outer ones
that there is no threshold in between. Kernels of devices and of BLAS are no such proof: where they
are observed at all, one name may stand for several kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from csb.errors import InvalidMeasurement
from csb.measure.memory import Memory
from csb.nodes import OBSERVED, Node, nodes_of

TILE = 64  # rows from which flash attention takes its tiled kernel on CPU (GGML_FA_TILE_Q)
CONSECUTIVE = 8  # lengths in a row among the probes: kernels treat remainders of 4 and 8 apart
RUN_START = 9  # where that run begins unless the windows begin earlier
FEWEST, MOST = 12, 20
LIMIT = 0.15  # of the run's time, for probes and controls together


@dataclass(frozen=True, order=True)
class Shape:
    """The last ubatch of a prefix: its rows when fresh (r), in the shared prefill (R), class."""

    group: tuple[int, bool]  # R and, with flash attention, whether r reaches the tiled kernel
    r: int


def shape_of(length: int, total: int, n_batch: int, n_ubatch: int, flash: bool) -> Shape:
    """How a prefix of `length` tokens ends, and what held its last token in a prefill of total."""
    in_batch = (length - 1) % n_batch
    r = in_batch % n_ubatch + 1
    batch_start = length - 1 - in_batch
    ubatch_start = batch_start + in_batch // n_ubatch * n_ubatch
    batch_end = min(total, batch_start + n_batch)
    return Shape((min(n_ubatch, batch_end - ubatch_start), flash and r >= TILE), r)


def choose(lengths: Sequence[int], shapes: dict[int, Shape], budget: float) -> list[int]:
    """Lengths to probe, FEWEST to MOST of them and at most `budget` tokens; [] if that can't be.

    For each class the smallest and the largest r that the windows have; in the class with most
    windows a run of consecutive r, then more, spread evenly. For each r the shortest
    prefix that has it, and for the run small r where the windows begin later: there prefill is
    cheapest.
    """
    cheapest = {shapes[length]: length for length in sorted(shapes, reverse=True)}
    classes: dict[tuple[int, bool], set[int]] = {}
    for length in lengths:
        if shapes[length].r > 1:
            classes.setdefault(shapes[length].group, set()).add(shapes[length].r)
    if not classes:
        return []
    largest = max(classes, key=lambda group: len(classes[group]))
    span = sorted(classes[largest])

    must: list[Shape] = []
    for group, rs in classes.items():
        must += [Shape(group, min(rs)), Shape(group, max(rs))]
    first = min(span[0], RUN_START)
    there = sorted(shape.r for shape in cheapest if shape.group == largest and shape.r >= first)
    must += [Shape(largest, r) for r in there[:CONSECUTIVE]]
    spread = [
        Shape(largest, span[len(span) * k // parts])
        for parts in (2, 4, 8, 16)
        for k in range(1, parts, 2)
    ]
    chosen: dict[int, None] = {cheapest[shape]: None for shape in must}  # an ordered set
    for shape in spread:
        if len(chosen) < FEWEST or sum(chosen) + cheapest[shape] <= budget:
            chosen[cheapest[shape]] = None
        if len(chosen) == MOST:
            break
    enough = FEWEST <= len(chosen) <= MOST and sum(chosen) <= budget
    return sorted(chosen) if enough else []


def shareable(shape: Shape, equal: dict[Shape, bool]) -> bool:
    """Whether a window that ends like this may use the shared memory."""
    same = {s.r: ok for s, ok in equal.items() if s.group == shape.group}
    below = max((r for r in same if r <= shape.r), default=None)
    above = min((r for r in same if r >= shape.r), default=None)
    if shape.r == 1 or below is None or above is None:
        return False
    return same[below] and same[above]


class NoProof(Exception):
    """Kernel records prove nothing, because these backends computed. `backends`: their names."""

    def __init__(self, backends: list[str]) -> None:
        super().__init__(", ".join(backends))
        self.backends = backends


def state_digest(memory: Memory) -> bytes:
    return hashlib.blake2b(memory.context.save().data, digest_size=16).digest()


Kernels = tuple[frozenset[str], ...]


def kernels_at(
    calls: list[dict[str, Any]], position: int, n_batch: int, n_ubatch: int
) -> Kernels | None:
    """Each node's kernels in the ubatch of a recorded prefill that computed a position; None where
    they can't be told, or where rows of one product took different ones."""
    ubatch = calls[position // n_batch]["ubatches"][position % n_batch // n_ubatch]
    nodes = nodes_of({"ubatches": [ubatch]})
    if any(len(node["kernels"]) != 1 for node in _computed(nodes)):
        return None
    return tuple(frozenset(node["kernels"]) for node in nodes)


def _computed(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node["op"] in OBSERVED and node["n"]]


def elsewhere(calls: list[dict[str, Any]]) -> set[str]:
    """Backends other than the CPU that computed products or attention of recorded calls."""
    nodes = [node for call in calls for node in _computed(nodes_of(call))]
    return {str(node["backend"]) for node in nodes} - {"CPU"}


def probe(
    memory: Memory, text: Sequence[int], lengths: Sequence[int], by_kernels: bool
) -> dict[int, bool]:
    """{length: its fresh prefill is the shared one's}: the same bytes and, if asked for, the same
    kernels. `text` is the shared prefix. Raises NoProof where kernels are asked for and can't tell.

    Ends with the shared prefill in the memory, put back from its bytes: the caller walks down.
    """

    context = memory.context
    size = context.value("n_batch"), context.value("n_ubatch")

    def prefill(length: int) -> list[dict[str, Any]]:
        with context.trace(graph=by_kernels, kernels=by_kernels) as trace:
            memory.prefill(text[:length])
        return trace.calls

    fresh, ran = {}, {}
    for length in reversed(lengths):  # large ones are the first to leave the CPU
        calls = prefill(length)
        if by_kernels and (backends := elsewhere(calls)):
            raise NoProof(sorted(backends))
        fresh[length] = state_digest(memory)
        ran[length] = kernels_at(calls, length - 1, *size) if by_kernels else None
    calls = prefill(len(text))
    whole = context.save()
    equal = {}
    for length in sorted(lengths, reverse=True):
        memory.rewind(length)
        equal[length] = state_digest(memory) == fresh[length]
        if by_kernels:
            same = ran[length] == kernels_at(calls, length - 1, *size)
            equal[length] = equal[length] and same and ran[length] is not None
    memory.wipe()
    context.restore(whole)
    if not np.array_equal(context.save(), whole):
        raise InvalidMeasurement("the shared prefill could not be put back bit for bit")
    return {length: equal[length] for length in lengths}
