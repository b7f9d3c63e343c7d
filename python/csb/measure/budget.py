"""Measures a budget's lines beside a baseline: each of the baseline's windows, as soon as it is
there, by every line, so that all share its prefix and time their blocks side by side."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from csb import cells
from csb.errors import CancelledError, CsbError
from csb.measure.line import Baseline, Measured
from csb.measure.memory import Memory, same_bits
from csb.measure.setups import Setup, State
from csb.measure.switches import SPOT, SwitchGroup, acting
from csb.measure.trajectory import Trajectory
from csb.native.context import Rows
from csb.native.library import has_hooks
from csb.plan import ComparePlan, Window

NOT_THE_AR_RUN = "its single rows have not the AR run's logits"


@dataclass
class Repeats:
    """Rows of the baseline that were decoded once more on its own memory, to time its blocks."""

    n: int = 0
    n_equal: int = 0

    def add(self, again: Rows, before: Rows) -> None:
        self.n += len(before)
        self.n_equal += sum(same_bits(a, b) for a, b in zip(again, before, strict=True))


@dataclass
class Reference:
    """Seconds of the baseline's block where the decode before it had the same graph, and where
    it had another one: building a graph takes a share of a small model's decode. The latter is the
    noise line's, which runs the baseline in a context of its own."""

    built: float
    new: float | None = None


@dataclass
class Unpacked:
    """The combinations on a model whose weights are not repacked. The first is that alone."""

    setup: Setup
    group: SwitchGroup


@dataclass
class Lines:
    """All lines, and where each is measured."""

    noise: tuple[Measured, Setup]
    others: list[tuple[Measured, Setup]] = field(default_factory=list)
    switches: SwitchGroup | None = None  # on the baseline's memory
    unpacked: Unpacked | None = None


class Budget:
    """`begin` takes the baseline's trajectory and `window` each of its windows: callbacks of
    csb.measure.compare."""

    def __init__(self, memory: Memory, plan: ComparePlan, prompt: list[int], lines: Lines) -> None:
        self.memory, self.plan, self.prompt, self.lines = memory, plan, prompt, lines
        self.repeats = Repeats()
        self.n_windows = 0
        self._ar = Trajectory()
        n_rows = min(plan.width, plan.n_gen)
        self._single, self._block = (
            np.empty((n_rows, memory.context.n_vocab), np.float32) for _ in range(2)
        )

    def begin(self, trajectory: Trajectory) -> None:
        self._ar = trajectory
        text = self.prompt + trajectory.ids
        for measured, setup in self._setups():
            _guarded(measured, functools.partial(setup.begin, text, len(self.prompt)))

    def _setups(self) -> list[tuple[list[Measured], Setup]]:
        pairs = [([m], setup) for m, setup in (self.lines.noise, *self.lines.others)]
        if unpacked := self.lines.unpacked:
            pairs.append((unpacked.group.measured, unpacked.setup))
        return pairs

    def window(self, window: Window, table: cells.Cells, single: Rows, block: Rows) -> None:
        whole = len(window.inputs) == min(self.plan.width, len(self._ar.ids))
        base = Baseline(window, single, block, self._ar, self.plan.temperature, whole)
        state = functools.cache(functools.partial(self.memory.state, window.prefix))
        self._again(base)  # scoring has put other things into the processor's caches
        built = self._again(base)
        took = self._switched_blocks(window)
        reference = Reference(built)
        ran = self._second_time(base, state, reference)
        if group := self.lines.switches:
            for m, seconds in zip(group.measured, took, strict=True):
                if m.goes_on:
                    m.time(base, seconds, reference.built)
            work = functools.partial(group.add, base, single, ran, self.n_windows)
            _guarded(group.measured, work)
        if unpacked := self.lines.unpacked:
            work = functools.partial(self._without_repack, unpacked, base, state, reference)
            _guarded(unpacked.group.measured, work)
        for m, setup in self.lines.others:
            if self.n_windows % m.every == 0:
                _guarded([m], functools.partial(self._line, m, setup, base, state, reference))
        self.n_windows += 1

    def _again(self, base: Baseline) -> float:
        """The baseline's block, right after itself."""
        again = self._block[: len(base.block)]
        seconds = self.memory.timed_block(base.window.inputs, base.window.prefix, again)
        self.repeats.add(again, base.block)
        return seconds

    def _switched_blocks(self, window: Window) -> list[float]:
        took: list[float] = []
        if group := self.lines.switches:
            _guarded(group.measured, lambda: took.extend(group.blocks(window)))
            took += [0.0] * (len(group.measured) - len(took))
        return took

    def _second_time(self, base: Baseline, state: State, reference: Reference) -> set[str] | None:
        """The noise line. Its single path is recorded, so that equal bits prove as well that the
        records are the baseline's: the switches whose kernels ran in it, None where not known."""
        m, setup = self.lines.noise
        found: list[set[str] | None] = [None]

        def work() -> None:
            single, block = self._rows(base)
            setup.ready(base.window, state)
            reference.new = setup.block(base.window, block)
            found[0] = _recorded_single(setup, base.window, single)
            m.add(base, setup.memory, single, block)
            if not same_bits(single, base.single):
                found[0] = None

        _guarded([m], work)
        return found[0]

    def _rows(self, base: Baseline) -> tuple[Rows, Rows]:
        n = len(base.window.inputs)
        return self._single[:n], self._block[:n]

    def _line(
        self, m: Measured, setup: Setup, base: Baseline, state: State, reference: Reference
    ) -> None:
        single, block = self._rows(base)
        setup.ready(base.window, state)
        seconds = setup.block(base.window, block)
        if self._one_row_calls(m, base, block):
            m.proven += 1
            single = base.single
        else:
            setup.single(base.window, single)
        m.add(base, setup.memory, single, block)
        m.time(base, seconds, reference.new)
        if m.line.family == "prefix" and (m.parts[-1]["l_s"] != m.parts[-1]["l_ar"]).any():
            m.why_not = NOT_THE_AR_RUN

    def _one_row_calls(self, m: Measured, base: Baseline, block: Rows) -> bool:
        """Whether the block itself was computed one row at a time, in this context, with the bits
        of the baseline's single path: decoding the rows singly would do the same once more."""
        alone = m.line.context.get("n_ubatch") == 1 and len(m.parts) % SPOT > 0
        return alone and same_bits(block, base.single)

    def _without_repack(
        self, unpacked: Unpacked, base: Baseline, state: State, reference: Reference
    ) -> None:
        single, _ = self._rows(base)
        setup, group = unpacked.setup, unpacked.group
        setup.ready(base.window, state)
        ran = _recorded_single(setup, base.window, single)
        took = group.blocks(base.window)
        for i, (m, seconds) in enumerate(zip(group.measured, took, strict=True)):
            if m.goes_on:
                m.time(base, seconds, reference.built if i else reference.new)
        group.add(base, single, ran, self.n_windows)


def _recorded_single(setup: Setup, window: Window, out: Rows) -> set[str] | None:
    if not has_hooks():
        setup.single(window, out)
        return None
    with setup.memory.context.trace(graph=False) as trace:
        setup.single(window, out)
    return None if trace.lost else acting(trace.calls)


def _guarded(measured: Sequence[Measured], work: Callable[[], object]) -> None:
    """What one line can't do ends that line, not the others."""
    going = [m for m in measured if m.goes_on]
    if not going:
        return
    try:
        work()
    except CancelledError:
        raise
    except CsbError as error:
        for m in going:
            m.why_not = str(error)
