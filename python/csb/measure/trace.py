"""Traces a call for each row count on one prefix, and proves that tracing changed nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from csb import kernels
from csb.measure.memory import Memory, same_bits
from csb.native.context import Rows
from csb.nodes import OBSERVED, Node, device_kernels_of, nodes_of


@dataclass
class TracedCall:
    """One call of `rows` tokens. perturbed: its logits' bits are not the untraced call's. lost:
    ubatches that did not fit and kernel records that CUPTI dropped. device_kernels: launches on
    CUDA devices in order of first run, each {"kernel", "count"}; device_not_observable: why there
    are none though nodes ran there."""

    rows: int
    n_ubatches: int
    n_splits: int
    lost: int
    perturbed: bool
    nodes: list[dict[str, Any]]
    device_kernels: list[dict[str, Any]]
    device_not_observable: str | None


def trace_rows(memory: Memory, prompt: Sequence[int], rows: Sequence[int]) -> list[TracedCall]:
    """A call for each row count after the prompt without its last token. Inputs are that token
    and the prompt's tokens again, as often as needed: kernels do not depend on their values."""
    start = len(prompt) - 1
    memory.prefill(prompt[:-1])
    inputs = list(itertools.islice(itertools.cycle([prompt[-1], *prompt[:-1]]), max(rows)))
    return [_trace(memory, inputs[:n], start) for n in rows]


def _trace(memory: Memory, inputs: Sequence[int], start: int) -> TracedCall:
    plain, traced = (np.empty((len(inputs), memory.context.n_vocab), np.float32) for _ in range(2))
    memory.rewind(start)
    memory.block(inputs, start, plain)
    call = trace_call(memory, inputs, start, traced)
    call.perturbed = not same_bits(plain, traced)
    return call


def trace_call(memory: Memory, inputs: Sequence[int], start: int, out: Rows) -> TracedCall:
    """One traced call at `start`; its logits rows go to out. Whether it is perturbed is for the
    caller to find out, who has the untraced call's rows."""
    memory.rewind(start)
    with memory.context.trace() as t:
        memory.block(inputs, start, out)
    (call,) = t.calls
    launches, why_not, lost = device_kernels_of(call)
    return TracedCall(
        rows=len(inputs),
        n_ubatches=len(call["ubatches"]),
        n_splits=sum(u["n_splits"] for u in call["ubatches"]),
        lost=t.lost + lost,
        perturbed=False,
        nodes=nodes_of(call),
        device_kernels=[{"kernel": name, "count": n} for name, n in launches.items()],
        device_not_observable=why_not,
    )


def switch_effects(
    memory: Memory, text: Sequence[int], width: int, names: Sequence[str]
) -> dict[str, int]:
    """{switch: nodes whose kernels it alone changes}, in a call of one row and one of `width`."""
    found = nodes_changed(memory, text, width, [(name,) for name in names])
    return dict(zip(names, found, strict=True))


def nodes_changed(
    memory: Memory, text: Sequence[int], width: int, combinations: Sequence[tuple[str, ...]]
) -> list[int]:
    """How many nodes' kernels each combination of switches changes, in such calls."""
    rows = sorted({1, width})
    with kernels.exactly():
        without_any = trace_rows(memory, text, rows)
    changed = []
    for names in combinations:
        with kernels.exactly(*names):
            with_them = trace_rows(memory, text, rows)
        changed.append(
            sum(
                a["kernels"] != b["kernels"]
                for one, other in zip(without_any, with_them, strict=True)
                for a, b in zip(one.nodes, other.nodes, strict=True)
            )
        )
    return changed


def products_of(memory: Memory, prompt: Sequence[int], width: int) -> list[Node]:
    """Products and attention of a call of one row and one of `width`."""
    calls = trace_rows(memory, prompt, sorted({1, width}))
    return [node for call in calls for node in call.nodes if node["op"] in OBSERVED]
