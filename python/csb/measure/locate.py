"""One window's single and block path, node by node: where a difference is created and where it is
only passed on.

The single path's nodes are kept aside (capture.py); while the block runs, each of its nodes is held
against them row by row. Where a row's inputs are equal and its output is not, the node created the
difference. Where the inputs differ already, the node runs once more alone on the block's own inputs
with that row's replaced by the single path's, and the cells that this row sees: what then still
differs from the single path's output is its own doing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from csb.errors import ArgumentError, InvalidMeasurement, UnsupportedError
from csb.measure.capture import Key, Names, SinglePass, Spill, Values, cell_dim
from csb.measure.memory import Memory, same_bits
from csb.measure.sources import Cells, Source, TokenRows, Whole, equal_bits, row_of, token_axis
from csb.native.watch import Node
from csb.nodes import nodes_of, shape_of

SOURCE = ("name", "type", "ne", "kind", "repacked")  # what is kept of one's description
IDS = 2  # the source of a product of experts that says which
PAD = 256  # llama.cpp shows attention its cache in steps of so many cells
# Ops whose row j reads the rows before it, too.
SEQUENTIAL = {"SSM_CONV", "SSM_SCAN", "GATED_DELTA_NET", "GATED_LINEAR_ATTN", "RWKV_WKV6"}
SEQUENTIAL |= {"RWKV_WKV7"}
ELEMENTWISE = {"SCALE", "SOFT_MAX", "ADD", "MUL", "CLAMP", "TANH"}  # between a query and its cells


@dataclass
class NodeRows:
    """A block node's rows against the single path's. Lists have an entry for each row; relative
    is the RMS of the difference over the RMS of the single path's values."""

    index: int
    op: str
    name: str
    nth: int  # of the nodes of this op and name
    type: str
    ne: list[int]
    src: list[dict[str, Any]]
    backend: str | None
    inputs_equal: list[bool] = field(default_factory=list)
    outputs_equal: list[bool] = field(default_factory=list)
    created: list[bool] = field(default_factory=list)
    n_values: int = 0
    n_diff: int = 0
    max_abs: float = 0.0
    relative: float = 0.0
    created_relative: float = 0.0  # of what the node makes by itself, the largest of its rows
    over_cells: bool = False  # rows have an entry for each cell; compared are those they attend to
    n_ids: int = 0  # of a product of experts: the chosen ids, and those that differ
    ids_diff: int = 0
    single_kernels: list[str] = field(default_factory=list)
    block_kernels: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.op, self.name, self.nth


@dataclass
class Located:
    """What locate saw. perturbed: watching changed a logit's bits."""

    nodes: list[NodeRows]
    not_compared: int  # nodes whose rows can't be told apart, or that write into another tensor
    perturbed: bool
    equal_rows: list[bool]  # of the logits

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        for node in found["nodes"]:
            node |= shape_of(node)
        return found


def check_window(memory: Memory, start: int, width: int) -> None:
    if memory.kind == "sliding_window" and not memory.cuts_back:
        raise UnsupportedError("a sliding-window ring's cells move: locate needs --swa-full")
    rows = memory.context.value("n_ubatch")
    if width > rows:
        raise ArgumentError(f"-ub {rows} splits a block of {width} rows: give a larger -ub")
    if start // PAD != (start + width - 1) // PAD:
        raise ArgumentError(
            f"the window's positions {start}..{start + width - 1} cross a multiple of {PAD}, where "
            "the single path sees fewer cells: choose another --window"
        )


def locate(memory: Memory, prefix: Sequence[int], inputs: Sequence[int]) -> Located:
    """Runs the window's paths plainly, traced and watched. Rows' bits decide, in all n_vocab."""
    start, width = len(prefix), len(inputs)
    check_window(memory, start, width)
    rows = [np.empty((width, memory.context.n_vocab), np.float32) for _ in range(4)]
    single, block, watched_single, watched_block = rows
    memory.prefill(prefix)
    with _kernels(memory) as single_kernels:
        memory.rewind(start)
        memory.single(inputs, start, single)
    with _kernels(memory) as block_kernels:
        memory.rewind(start)
        memory.block(inputs, start, block)

    with contextlib.closing(Spill()) as spill:
        memory.rewind(start)
        kept = SinglePass(spill, start)
        with memory.context.watch(kept.before, kept.after):
            for j, token in enumerate(inputs):
                kept.begin()
                memory.single([token], start + j, watched_single[j : j + 1])
        memory.rewind(start)
        compared = BlockPass(spill, start, width)
        with memory.context.watch(compared.before, compared.after):
            memory.block(inputs, start, watched_block)
    if not compared.nodes:
        raise InvalidMeasurement("none of the block's nodes could be compared")
    for node in compared.nodes:
        node.single_kernels = single_kernels.get(node.key, [])
        node.block_kernels = block_kernels.get(node.key, [])
    return Located(
        nodes=compared.nodes,
        not_compared=compared.not_compared,
        perturbed=not (same_bits(single, watched_single) and same_bits(block, watched_block)),
        equal_rows=[same_bits(single[j : j + 1], block[j : j + 1]) for j in range(width)],
    )


@contextlib.contextmanager
def _kernels(memory: Memory) -> Iterator[dict[Key, list[str]]]:
    """{node: its kernels} of the first call inside the block."""
    found: dict[Key, list[str]] = {}
    with memory.context.trace() as trace:
        yield found
    names = Names()
    for node in nodes_of(trace.calls[0]):
        found[names.key(node["op"], node["name"])] = node["kernels"]


def difference(ours: Values, theirs: Values) -> tuple[int, float, npt.NDArray[np.float64]]:
    """Entries whose bits differ, the largest |difference|, and the sums of squares of the
    difference and of `theirs`. Of types that are no numbers to numpy only the first."""
    n_diff = int(np.count_nonzero(ours != theirs))
    if ours.dtype.kind == "f":
        n_diff = int(np.count_nonzero(_bits(ours) != _bits(theirs)))
    if ours.dtype.kind != "f" or not n_diff:
        scale = theirs.astype(np.float64) if ours.dtype.kind == "f" else np.zeros(1)
        return n_diff, 0.0, np.array([0.0, float(np.square(scale).sum())])
    gap = ours.astype(np.float64) - theirs
    squares = np.array([np.square(gap).sum(), np.square(theirs.astype(np.float64)).sum()])
    return n_diff, float(np.abs(gap).max()), squares


def _bits(values: Values) -> Values:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _relative(squares: npt.NDArray[np.float64]) -> float:
    """RMS of a difference over the RMS of what it is held against; 0 over 0 is 0."""
    return float(np.sqrt(squares[0] / squares[1])) if squares[0] and squares[1] else 0.0


def _deciding(info: dict[str, Any]) -> list[dict[str, Any]]:
    """The sources whose values decide about the output's. Weights are the same for both paths, and
    numbers that choose among this call's rows (not among one row's experts) are not values."""
    sources = [s for s in info["src"] if s["kind"] != "weight"]
    if info["op"] != "GET_ROWS" or sources[0]["kind"] != "value":
        return sources
    return sources[:1] if sources[-1]["ne"][1] == 1 else sources


def _attends_to_cells(info: dict[str, Any], known: set[int]) -> bool:
    """Whether a node's output has an entry for each cell of the cache, seen or masked: a query's
    product with the keys, and what is done to it before the values are weighted."""
    first = info["src"][0]
    if info["op"] == "MUL_MAT":
        return cell_dim("MUL_MAT", first) == 1
    return info["op"] in ELEMENTWISE and any(s["id"] in known for s in info["src"])


class BlockPass:
    """Compares the block's nodes with the single path's while they run."""

    def __init__(self, spill: Spill, start: int, width: int) -> None:
        self._spill, self._start, self._width = spill, start, width
        self._names = Names()
        self._over_cells: set[int] = set()  # tensors with an entry for each cell, seen or not
        self._index = 0
        self._axis = 0
        self._now: NodeRows | None = None
        self.nodes: list[NodeRows] = []
        self.not_compared = 0

    def before(self, node: Node) -> None:
        info = node.info
        key = self._names.key(info["op"], info["name"])
        self._index += 1
        self._now, self._key = None, key
        kept = all((j, key, "out") in self._spill for j in range(self._width))
        if info["view"] or not kept:
            self.not_compared += 1
            return
        shape = self._spill.get((0, key, "out")).shape
        axis = token_axis(shape, info["ne"][::-1], self._width)
        sources = self._sources(node, key)
        if axis is None or sources is None:
            self.not_compared += 1
            return
        self._axis = axis
        if _attends_to_cells(info, self._over_cells):
            self._over_cells.add(info["id"])
        self._cells = info["id"] in self._over_cells
        now = NodeRows(
            index=self._index - 1,
            op=info["op"],
            name=info["name"],
            nth=key[2],
            type=info["type"],
            ne=info["ne"],
            src=[{key: s[key] for key in SOURCE} for s in info["src"]],
            backend=info["backend"],
            over_cells=self._cells,
        )
        if info["op"] == "MUL_MAT_ID":
            self._compare_ids(node, now)
        for j in range(self._width):
            changed = [s for s in sources if not s.equal(j)]
            now.inputs_equal.append(not changed)
            now.created.append(bool(changed) and self._shadow(node, sources, j, now))
        self._now = now

    def after(self, node: Node) -> None:
        now = self._now
        if now is None:
            return
        values = node.read(Node.OUTPUT)
        squares = np.zeros(2)
        for j in range(self._width):
            ours, theirs = self._row(values, j), self._single_row(j)
            equal = equal_bits(ours, theirs)
            now.outputs_equal.append(equal)
            if now.inputs_equal[j]:
                now.created[j] = not equal
            n_diff, largest, squared = difference(ours, theirs)
            now.n_values += ours.size
            now.n_diff += n_diff
            now.max_abs = max(now.max_abs, largest)
            squares += squared
            if now.inputs_equal[j]:
                now.created_relative = max(now.created_relative, _relative(squared))
        now.relative = _relative(squares)
        self.nodes.append(now)

    def _compare_ids(self, node: Node, now: NodeRows) -> None:
        ours, singles = node.read(IDS), self._singles(now.key, "in", IDS)
        axis = token_axis(singles[0].shape, ours.shape, self._width)
        assert axis is not None  # else the node is not compared
        now.n_ids = ours.size
        now.ids_diff = int(np.count_nonzero(ours != np.concatenate(singles, axis)))

    def _row(self, values: Values, j: int) -> Values:
        return self._seen(row_of(values, self._axis, j, self._width), j)

    def _single_row(self, j: int) -> Values:
        return self._seen(self._spill.get((j, self._key, "out")), j)

    def _singles(self, key: Key, what: str, at: int) -> list[Values]:
        return [self._spill.get((j, key, what, at)) for j in range(self._width)]

    def _seen(self, row: Values, j: int) -> Values:
        """Of a row with an entry for each cell, those that row j attends to: what stands in the
        others is masked, and left from before."""
        return row[..., : self._start + j + 1] if self._cells else row

    def _sources(self, node: Node, key: Key) -> list[Source] | None:
        """What decides about the rows; None where a source's rows can't be told apart."""
        found: list[Source] = []
        for source in _deciding(node.info):
            at, dim = source["index"], cell_dim(node.info["op"], source)
            if dim is not None:
                ours = node.read(at, dim, self._start, self._width)
                found.append(Cells(at, self._singles(key, "cell", at), ours, dim, self._start))
                continue
            singles = self._singles(key, "in", at)
            ours = node.read(at)
            axis = token_axis(singles[0].shape, ours.shape, self._width)
            sequential = node.info["op"] in SEQUENTIAL
            if axis is not None:
                attends = self._start if source["id"] in self._over_cells else None
                sections = node.info["op"] == "ROPE" and at == 1  # four positions of each token
                found.append(TokenRows(at, singles, ours, axis, sequential, attends, sections))
            elif singles[0].shape == ours.shape:
                found.append(Whole(at, singles, ours, sequential))
            else:
                return None
        return found

    def _shadow(self, node: Node, sources: list[Source], j: int, now: NodeRows) -> bool:
        """Whether the node alone, on the block's inputs with row j the single path's, gives another
        row j than the single path."""
        for source in sources:
            source.patch(node, j)
        try:
            again = node.rerun()
        finally:
            for source in sources:
                source.restore(node)
        ours, theirs = self._row(again, j), self._single_row(j)
        now.created_relative = max(now.created_relative, _relative(difference(ours, theirs)[2]))
        return not equal_bits(ours, theirs)
