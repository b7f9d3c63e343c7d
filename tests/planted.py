"""Faults that tests plant into the block path alone, where csb can't know of them.

A planted node's output is changed as soon as it is there: by a watcher that comes before csb's own
in a watched call, by a watcher of its own in a plain one, so that both give the same logits; and
csb.native.watch.Node.rerun answers with the same change, as the faulty kernel would. The single
path, which never calls Memory.block, is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from csb.measure.memory import Memory
from csb.native.context import Context
from csb.native.watch import Node


def one_ulp(value: np.generic) -> np.generic:
    return np.nextafter(value, value.dtype.type(np.inf))


@dataclass(frozen=True)
class Fault:
    """One value of one node: the nth with that op (and name), its place in numpy's order."""

    op: str
    name: str | None
    at: tuple[int, ...]
    nth: int = 0
    change: Callable[[Any], Any] = one_ulp

    def into(self, values: np.ndarray) -> np.ndarray:
        values = values.copy()
        before = values[self.at]
        values[self.at] = self.change(before)
        assert values[self.at] != before
        return values


class Planted:
    def __init__(self, patch: pytest.MonkeyPatch, faults: Sequence[Fault]) -> None:
        self._faults = faults
        self._block, self._watch, self._rerun = Memory.block, Context.watch, Node.rerun
        self._in_block = self._watched = False
        self._here: list[Fault] = []  # those of the node that runs
        self.done = 0
        patch.setattr(Memory, "block", lambda *given: self.block(*given))
        patch.setattr(Context, "watch", lambda *given: self.watch(*given))
        patch.setattr(Node, "rerun", lambda node: self.rerun(node))

    def block(self, memory: Memory, *given: Any) -> Any:
        self._in_block = True
        try:
            if self._watched:
                return self._block(memory, *given)
            with self.watch(memory.context, lambda node: None, lambda node: None):
                return self._block(memory, *given)
        finally:
            self._in_block = self._watched = False

    def watch(self, context: Context, before: Any, after: Any) -> Any:
        seen: Counter[Fault] = Counter()
        self._watched = True

        def look(node: Node) -> None:
            what = node.info["op"], node.info["name"]
            fits = [f for f in self._faults if (f.op, f.name or what[1]) == what]
            self._here = [f for f in fits if self._in_block and seen[f] == f.nth]
            seen.update(fits)
            before(node)

        def change(node: Node) -> None:
            for fault in self._here:
                node.write(fault.into(node.read(Node.OUTPUT)), Node.OUTPUT)
                self.done += 1
            after(node)

        return self._watch(context, look, change)

    def rerun(self, node: Node) -> np.ndarray:
        values = self._rerun(node)
        for fault in self._here:
            values = fault.into(values)
        return values
