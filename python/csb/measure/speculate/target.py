"""The target's memory as a loop uses it: blocks go in, rejected tails come out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from csb import kernels
from csb.errors import InvalidMeasurement
from csb.measure.memory import Memory
from csb.native.context import Rows

State = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Mark:
    """A place to come back to: the memory held `length` tokens. state: only of memories that can't
    be cut back; call: its number among the target's calls, -1 for none of them."""

    length: int
    state: State | None = None
    call: int = -1


@dataclass(frozen=True)
class Call:
    """One call of a loop, so that it can be made again. length: of the memory before a decode, or
    of the mark; tokens: decoded, or kept of a block that is rolled back; mark: the number of the
    call that made the mark that `back` goes to."""

    kind: Literal["mark", "back", "block", "single"]
    length: int
    tokens: tuple[int, ...] = ()
    mark: int = -1


class Target:
    """A model's memory and the calls of a loop on it.

    A memory that can't be cut back is restored from the state that was saved before the block, and
    the accepted tokens are decoded again as one block. `without`: kernel switches of block decodes.
    """

    def __init__(self, memory: Memory, without: Sequence[str] = ()) -> None:
        self.memory, self.context = memory, memory.context
        self.calls: list[Call] = []
        self._without = tuple(without)

    def switches(self) -> contextlib.AbstractContextManager[None]:
        return kernels.without(*self._without)

    def begin(self, prefix: Sequence[int]) -> None:
        """The prefix as the AR run has it."""
        self.memory.prefill(prefix)
        self.memory.rewind(len(prefix))

    def mark(self, length: int) -> Mark:
        """The memory as it is now, `length` tokens long."""
        self.calls.append(Call("mark", length))
        number = len(self.calls) - 1
        if self.memory.cuts_back or not length:
            return Mark(length, call=number)
        state = self.context.save()
        self.context.restore(state)  # a restored ring is laid out otherwise than one that never was
        return Mark(length, state, number)

    def back(self, mark: Mark, kept: Sequence[int] = ()) -> None:
        """The memory as at the mark and, after it, the first tokens of the block decoded since."""
        self.calls.append(Call("back", mark.length, tuple(kept), mark.call))
        if self.memory.cuts_back:
            if not self.context.remove(mark.length + len(kept)):
                raise InvalidMeasurement("llama.cpp could not cut its memory back")
            return
        if mark.state is None:
            self.memory.wipe()
        else:
            self.context.restore(mark.state)
        if kept:
            with self.switches():
                self.context.decode(kept, mark.length, outputs=False)

    def block(self, inputs: Sequence[int], start: int, out: Rows) -> Rows:
        self.calls.append(Call("block", start, tuple(inputs)))
        with self.switches():
            return self.memory.block(inputs, start, out)

    def single(self, token: int, start: int, out: Rows) -> Rows:
        self.calls.append(Call("single", start, (token,)))
        return self.memory.single([token], start, out)

    def covers(self, length: int) -> bool:
        """Whether the memory holds positions 0 to length - 1 and no others."""
        first, last = self.context.bounds()
        whole = self.memory.cuts_back or self.memory.kind == "hybrid"
        return last == length - 1 and (not whole or first == min(0, last))

    def count(self) -> dict[str, int]:
        """What the calls cost: verify decodes and their rows, single decodes, and decodes that
        wrote accepted tokens again because the memory can't be cut back."""
        blocks = [call for call in self.calls if call.kind == "block"]
        again = [call for call in self.calls if call.kind == "back" and call.tokens]
        return {
            "blocks": len(blocks),
            "block_rows": sum(len(call.tokens) for call in blocks),
            "singles": sum(call.kind == "single" for call in self.calls),
            "again": 0 if self.memory.cuts_back else len(again),
        }
