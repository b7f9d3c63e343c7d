"""Runs one comparison: AR trajectory, windows, both paths, controls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from csb import cells, statistics
from csb.errors import CsbError
from csb.measure import controls, exact, prefix, trajectory
from csb.measure.memory import Memory
from csb.measure.score import score
from csb.native.context import Rows
from csb.plan import ComparePlan, Window, windows

Sink = Callable[[Window, cells.Cells, Rows, Rows], None]
Begin = Callable[[trajectory.Trajectory], None]
Progress = Callable[[str, int, int], None]


@dataclass
class Measurement:
    """What a comparison saw, as plain data."""

    trajectory: trajectory.Trajectory
    prefix: prefix.PrefixRecord
    controls: controls.Controls = field(default_factory=controls.Controls)
    parts: list[cells.Cells] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: BaseException | None = None  # an interrupt or error; what came before it is here
    exact: exact.ExactBlock | None = None  # with plan.exact_block

    @property
    def cells(self) -> cells.Cells:
        """All cells by window and offset, whatever order they were measured in."""
        if not self.parts:
            return cells.empty()
        table = np.concatenate(self.parts)
        return table[np.lexsort((table["j"], table["t"]))]


def compare(
    memory: Memory,
    plan: ComparePlan,
    prompt: list[int],
    quantized: bool,
    progress: Progress = lambda step, done, total: None,
    sink: Sink = lambda window, table, single, block: None,
    begin: Begin = lambda trajectory: None,
    ar_sink: trajectory.RowSink | None = None,
) -> Measurement:
    """Measures `plan` on the memory's context. progress(step, done, total); begin gets the
    trajectory; sink gets every window's cells and rows as soon as they are there; the rows are
    overwritten by the next. The memory then holds the window's prefix, and sink may decode on it.
    ar_sink gets every row of the AR run likewise.

    An interrupt or an error of the measurement does not raise: it ends in `stopped`, with all that
    was measured before it.
    """
    plan.check(len(prompt), memory.context.value("n_batch"), memory.context.value("n_ctx_seq"))
    prefix.refuse(plan.prefix, memory)
    rows = np.empty((min(plan.width, plan.n_gen), memory.context.n_vocab), np.float32)
    made = Measurement(trajectory.Trajectory(first_rows=rows), prefix.PrefixRecord(plan.prefix))
    try:
        _Run(memory, plan, prompt, quantized, progress, sink, begin, ar_sink, made).run()
    except (KeyboardInterrupt, CsbError) as error:
        made.stopped = error
    if made.parts:
        made.controls.one_row_equal = statistics.unequal_one_row(made.cells) == 0
    return made


@dataclass
class _Run:
    memory: Memory
    plan: ComparePlan
    prompt: list[int]
    quantized: bool
    progress: Progress
    sink: Sink
    begin: Begin
    ar_sink: trajectory.RowSink | None
    made: Measurement

    def __post_init__(self) -> None:
        # One pair of buffers for all windows: fresh pages cost more than copying the rows.
        self._single_rows, self._block_rows = (
            self._rows(self.plan.width),
            self._rows(self.plan.width),
        )

    def run(self) -> None:
        names = self.plan.exact_block
        if names is None:
            self._run()
            return
        self.made.exact = exact.decide(self.memory, self.prompt, self.plan.n_gen, names)
        with self.memory.switched(single=self.made.exact.single, block=names):
            self._run()

    def _run(self) -> None:
        context = self.memory.context
        begin = time.perf_counter()
        self.memory.prefill(self.prompt[:-1])
        self.memory.rewind(len(self.prompt) - 1)
        first = time.perf_counter()
        decoded = context.decode_seconds
        done = iter(range(1, self.plan.n_gen + 1))
        trajectory.run(
            self.memory,
            self.prompt,
            self.plan.n_gen,
            self.made.trajectory,
            lambda: self.progress("AR run", next(done), self.plan.n_gen),
            digests=self.plan.prefix == "incremental",
            sink=self.ar_sink,
        )
        ar_end = time.perf_counter()

        self.begin(self.made.trajectory)
        ids = self.made.trajectory.ids
        todo = windows(self.prompt, ids, self.plan.width, self.plan.stride)
        walk = prefix.Walk(
            memory=self.memory,
            text=self.prompt + ids,
            n_prompt=len(self.prompt),
            windows=todo,
            width=self.plan.width,
            quantized=self.quantized,
            token_seconds=(ar_end - first) / len(ids),
            record=self.made.prefix,
        )
        count = itertools.count(1)
        if self.plan.prefix == "incremental":  # while the AR run's memory is still there
            for _ in self._incremental(walk):
                self.progress("windows", next(count), len(todo))
        walk.prefill_seconds, control_seconds = self._first_window(todo[0])
        self.progress("windows", next(count), len(todo))
        if self.plan.prefix != "incremental":
            for window in prefix.STRATEGIES[self.plan.prefix](walk, todo[1:]):
                self._measure(window)
                self.progress("windows", next(count), len(todo))
        end = time.perf_counter()

        probes = self.made.prefix.probe_seconds
        span = end - first - probes
        inside = context.decode_seconds - decoded - self.made.prefix.probe_decode_seconds
        self.made.seconds |= {
            "prefill": first - begin,
            "ar": ar_end - first,
            "controls": control_seconds,
            "probes": probes,
            "windows": end - ar_end - control_seconds - probes,
            "span": span,
            "decode": inside,
            "own_share": (span - inside) / span,
        }

    def _first_window(self, window: Window) -> tuple[float, float]:
        """Window 0, always on a fresh prefill, and the controls on it. Seconds for each prefilled
        token, and of the controls."""
        begin = time.perf_counter()
        self.memory.prefill(self.prompt[:-1])
        prefill = (time.perf_counter() - begin) / max(1, window.prefix)
        single, block = self._measure(window)
        begin = time.perf_counter()
        controls.run(self.made.controls, self.memory, window, self.made.trajectory, single, block)
        return prefill, time.perf_counter() - begin

    def _rows(self, n: int) -> Rows:
        return np.empty((n, self.memory.context.n_vocab), np.float32)

    def _measure(self, window: Window) -> tuple[Rows, Rows]:
        """Both paths' rows, in buffers that the next window overwrites."""
        single = self._single_rows[: len(window.inputs)]
        self.memory.rewind(window.prefix)
        self.memory.single(window.inputs, window.prefix, single)
        return single, self._block(window, single)

    def _block(self, window: Window, single: Rows) -> Rows:
        """The block path and the window's cells, given the single path's rows."""
        block = self._block_rows[: len(window.inputs)]
        self.memory.rewind(window.prefix)
        self.memory.block(window.inputs, window.prefix, block)
        table = score(
            window,
            self.made.trajectory,
            single,
            block,
            self.memory.ubatch_rows(len(window.inputs)),
            self.plan.temperature,
        )
        self.made.parts.append(table)
        if self.made.exact is not None:
            whole = len(window.inputs) == min(self.plan.width, self.plan.n_gen)
            self.made.exact.pair(self.memory, window, single, block, whole)
        self.sink(window, table, single, block)
        return block

    def _incremental(self, walk: prefix.Walk) -> Iterator[Window]:
        """Every window but 0 on the AR run's own memory, cut back one by one. Each position
        is decoded alone once more and must give the AR row's bits; the windows' single rows are
        those: one decode serves every window that has the position."""
        starts = {w.t: w for w in walk.windows[1:]}
        ids, width = self.made.trajectory.ids, self.plan.width
        ring = self._rows(width)
        start = len(self.prompt) - 1
        equal = True
        for p in reversed(range(1, len(ids))):
            self.memory.rewind(start + p)
            slot = ring[p % width : p % width + 1]
            self.memory.single([walk.text[start + p]], start + p, slot)
            equal = equal and trajectory.digest(slot) == self.made.trajectory.digests[p]
            self.made.controls.incremental_equal = equal
            if window := starts.get(p):
                order = [q % width for q in range(p, p + len(window.inputs))]
                self._block(window, ring[order])
                yield window
