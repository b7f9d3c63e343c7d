"""What a row of a block's node reads, held against what the single path's node read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from csb.measure.capture import Values
from csb.native.watch import Node


def token_axis(single: Sequence[int], block: Sequence[int], width: int) -> int | None:
    """numpy's axis along which the block's array has `width` times the single one's places, the
    tokens one after another; None where there is no such axis or more than one."""
    axes = [a for a in range(len(block)) if block[a] == width * single[a]]
    others = [a for a in range(len(block)) if block[a] != single[a] and a not in axes]
    return axes[0] if len(axes) == 1 and not others else None


def row_of(values: Values, axis: int, j: int, width: int) -> Values:
    size = values.shape[axis] // width
    return np.take(values, range(j * size, (j + 1) * size), axis=axis)


def equal_bits(a: Values, b: Values) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


class Source(Protocol):
    def equal(self, j: int) -> bool:
        """Whether row j reads what the single path's call j read."""

    def patch(self, node: Node, j: int) -> None:
        """Makes row j read that."""

    def restore(self, node: Node) -> None: ...


class TokenRows:
    """A source with a row, or several, for each token. Where it has an entry for each cell, only
    those count that row j attends to (`attends`: the cells before row 0's own). `sections`: a
    token's rows are not beside each other but one in each part of the source."""

    def __init__(
        self,
        at: int,
        singles: Sequence[Values],
        ours: Values,
        axis: int,
        sequential: bool,
        attends: int | None,
        sections: bool,
    ) -> None:
        self._at, self._singles, self._ours, self._axis = at, singles, ours, axis
        self._sequential, self._attends, self._width = sequential, attends, len(singles)
        self._sections = sections

    def _rows(self, j: int) -> range:
        return range(0 if self._sequential else j, j + 1)

    def _places(self, i: int) -> range:
        n = self._ours.shape[self._axis]
        size = n // self._width
        return range(i, n, self._width) if self._sections else range(i * size, (i + 1) * size)

    def equal(self, j: int) -> bool:
        for i in self._rows(j):
            ours, theirs = np.take(self._ours, self._places(i), self._axis), self._singles[i]
            if self._attends is not None:
                end = self._attends + i + 1
                ours, theirs = ours[..., :end], theirs[..., :end]
            if not equal_bits(ours, theirs):
                return False
        return True

    def patch(self, node: Node, j: int) -> None:
        for i in self._rows(j):
            for k, place in enumerate(self._places(i)):
                row = np.take(self._singles[i], [k], self._axis)
                node.write(row, self._at, 3 - self._axis, place)

    def restore(self, node: Node) -> None:
        node.write(self._ours, self._at)


class Cells:
    """An attention cache. Row j attends to the window's cells up to its own; the prefix's are the
    same memory for both paths."""

    def __init__(
        self, at: int, singles: Sequence[Values], ours: Values, dim: int, start: int
    ) -> None:
        self._at, self._singles, self._ours = at, singles, ours
        self._dim, self._start = dim, start

    def equal(self, j: int) -> bool:
        axis = 3 - self._dim
        return all(
            equal_bits(np.take(self._ours, [i], axis=axis), self._singles[i]) for i in range(j + 1)
        )

    def patch(self, node: Node, j: int) -> None:
        for i in range(j + 1):
            node.write(self._singles[i], self._at, self._dim, self._start + i)

    def restore(self, node: Node) -> None:
        node.write(self._ours, self._at, self._dim, self._start)


class Whole:
    """A source that is the same for every token, or a state before the first one."""

    def __init__(self, at: int, singles: Sequence[Values], ours: Values, sequential: bool) -> None:
        self._at, self._singles, self._ours, self._sequential = at, singles, ours, sequential

    def _single(self, j: int) -> Values:
        return self._singles[0 if self._sequential else j]

    def equal(self, j: int) -> bool:
        return equal_bits(self._ours, self._single(j))

    def patch(self, node: Node, j: int) -> None:
        node.write(self._single(j), self._at)

    def restore(self, node: Node) -> None:
        node.write(self._ours, self._at)
