"""Catches one node's call on each path with all that it reads, so that it can run without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from csb import kernels
from csb.errors import InvalidMeasurement
from csb.measure.capture import Key, Names, Values
from csb.measure.memory import Memory
from csb.measure.session import open_session
from csb.measure.sources import token_axis
from csb.native.op import Source
from csb.native.watch import Node
from csb.op_file import Call, RecordedOp
from csb.plan import ComparePlan


class _Caught:
    """What the node with that key read and gave. `weights`: those that are known, by name."""

    def __init__(self, key: Key, weights: dict[str, Values]) -> None:
        self._key, self._weights = key, weights
        self._names, self._here = Names(), False
        self.info: dict[str, Any] = {}

    def before(self, node: Node) -> None:
        info = node.info
        self._here = self._names.key(info["op"], info["name"]) == self._key
        if self._here:
            self.info = info
            self.sources: list[Source | None] = [None] * (1 + info["src"][-1]["index"])
            for source in info["src"]:
                self.sources[source["index"]] = self._source(node, source)

    def after(self, node: Node) -> None:
        if self._here:
            self.output = node.read(Node.OUTPUT)

    def _source(self, node: Node, source: dict[str, Any]) -> Source:
        kind, ne, name = source["type"], tuple(source["ne"]), source["name"]
        if source["kind"] != "weight":
            data, nb = spanned(source, node.read(source["index"]))
            return Source(kind, ne, data, nb)
        if name not in self._weights:
            self._weights[name] = node.read(source["index"])
        return Source(kind, ne, self._weights[name], weight=True)


def spanned(tensor: dict[str, Any], values: Values) -> tuple[Values, tuple[int, ...]]:
    """The values laid out with the tensor's own strides, on which kernels decide: bytes and
    strides; the values themselves where they are contiguous."""
    ne, nb, element = tensor["ne"], tensor["nb"], tensor["block_bytes"]
    n = [ne[0] // tensor["block"], *ne[1:]]
    packed = [element * int(np.prod(n[:d], dtype=np.int64)) for d in range(4)]
    if nb == packed:
        return values, ()
    data = np.zeros(element + sum((n[d] - 1) * nb[d] for d in range(4)), np.uint8)
    view = np.ndarray(n[::-1], f"V{element}", data, strides=nb[::-1])
    view[...] = np.ascontiguousarray(values).reshape(-1).view(f"V{element}").reshape(n[::-1])
    return data, tuple(nb)


def capture(
    memory: Memory, plan: ComparePlan, prefix: Sequence[int], inputs: Sequence[int], node: Any
) -> RecordedOp:
    """The node (of a located window) in its first row that was created from equal inputs."""
    start, width, context = len(prefix), len(inputs), memory.context
    pairs = zip(node["inputs_equal"], node["created"], strict=True)
    row = [equal and made for equal, made in pairs].index(True)
    weights = {s["name"]: _weight(plan, s["name"]) for s in node["src"] if s["repacked"]}
    single, block = (_Caught((node["op"], node["name"], node["nth"]), weights) for _ in range(2))
    logits = np.empty((width, context.n_vocab), np.float32)
    memory.rewind(start)
    if row:
        memory.single(inputs[:row], start, logits[:row])
    with context.watch(single.before, single.after):
        memory.single([inputs[row]], start + row, logits[:1])
    memory.rewind(start)
    with context.watch(block.before, block.after):
        memory.block(inputs, start, logits)

    axis = token_axis(single.output.shape, block.output.shape, width)
    if axis is None:
        raise InvalidMeasurement(f"{node['name']} did not run again as it had")
    place = [(0, n) for n in single.output.shape]
    if node["over_cells"]:  # what stands in the cells that the row does not see is left from before
        place[3] = (0, start + row + 1)
    size = single.output.shape[axis]
    in_block = [*place[:axis], (row * size, (row + 1) * size), *place[axis + 1 :]]
    return RecordedOp(
        node["name"],
        node["weight"],
        row,
        _call(single, place, context.value("n_threads"), node["single_kernels"]),
        _call(block, in_block, context.value("n_threads_batch"), node["block_kernels"]),
    )


def _call(
    caught: _Caught, place: Sequence[tuple[int, int]], n_threads: int, ran: Sequence[str]
) -> Call:
    info = caught.info
    return Call(
        op=info["op"],
        sources=caught.sources,
        out_ne=info["ne"],
        op_params=info["op_params"],
        out_type=info["type"],
        device=info["backend"],
        n_threads=n_threads,
        repack=any(s["repacked"] for s in info["src"]),
        without=kernels.in_force(),
        place=place,
        values=caught.output[tuple(slice(first, end) for first, end in place)],
        kernels=ran,
    )


def _weight(plan: ComparePlan, name: str) -> Values:
    """A repacked weight as the file has it: read while the model runs a token without repacking."""
    found: list[Values] = []

    def before(node: Node) -> None:
        for source in node.info["src"]:
            if source["name"] == name and source["kind"] == "weight" and not found:
                found.append(node.read(source["index"]))

    small = replace(plan.context, n_ctx=256, n_batch=256, n_ubatch=256)
    with (
        open_session(replace(plan.model, repack=False), small) as session,
        session.context.watch(before, lambda node: None),
    ):
        session.context.decode([0], 0)
    if not found:
        raise InvalidMeasurement(f"{name} was not read again")
    return found[0]
