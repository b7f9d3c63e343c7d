"""Measures which widths of a call give bit-identical rows: one call for each on the same prefix."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from csb.errors import CsbError, InvalidMeasurement
from csb.measure import trajectory
from csb.measure.controls import difference
from csb.measure.memory import Memory
from csb.measure.trace import trace_call
from csb.measure.trajectory import digest
from csb.native.context import Rows
from csb.nodes import groups_of
from csb.plan import WidthsPlan, starts
from csb.widths import Group, differing

Progress = Callable[[str, int, int], None]
Keep = Callable[[list[Any]], None]


def digests(rows: Rows) -> list[str]:
    return [digest(row).hex() for row in rows]


@dataclass
class Place:
    """What one place showed. rows: digests by width and offset; width 1 has the single path's row
    of every input. steps: largest difference to the width before. kernels: of the widths that were
    traced here; perturbed: those of them whose logits' bits were not the untraced call's."""

    where: dict[str, Any]
    inputs: list[int] = field(default_factory=list)
    rows: dict[int, list[str]] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)
    kernels: dict[int, list[Group]] = field(default_factory=dict)
    perturbed: list[int] = field(default_factory=list)
    lost: int = 0

    def add(self, width: int, rows: Rows, before: Rows | None) -> None:
        """A width's rows; before: those of the width before."""
        if not np.isfinite(rows).all():
            raise InvalidMeasurement(
                f"rows of width {width} hold NaN or infinity at {self.where}: nothing to compare"
            )
        self.rows[width] = digests(rows)
        if before is not None:
            n = min(len(rows), len(before))
            self.steps[width] = float(np.abs(rows[:n].astype(np.float64) - before[:n]).max())

    def add_kernels(self, width: int, groups: list[Group], rows: Rows) -> None:
        """What ran in an observed call, and its rows."""
        self.kernels[width] = groups
        if digests(rows) != self.rows[width][: len(rows)]:
            self.perturbed.append(width)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Controls:
    """What was seen; None: did not run."""

    repeat_equal: bool | None = None  # the widest call a second time: same bits
    input_changes: bool | None = None  # another first input changes the first row
    ar_equal: bool | None = None  # the single path at the prompt's end has the AR run's bits
    noise: dict[str, Any] = field(default_factory=dict)  # of two calls that should be equal

    def note(self, name: str, holds: bool) -> None:
        setattr(self, name, holds and getattr(self, name) is not False)

    def to_json(self) -> dict[str, Any]:
        said = asdict(self)
        return {**said, "failed": [name for name, value in said.items() if value is False]}


@dataclass
class Measured:
    """What a run saw, as plain data. texts: prompt and generated tokens."""

    places: list[Place] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    controls: Controls = field(default_factory=Controls)
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: BaseException | None = None  # an interrupt or error; what came before it is here


def measure(
    memory: Memory,
    plan: WidthsPlan,
    prompts: Sequence[list[int]],
    observe: bool,
    texts: Sequence[list[int]] | None = None,
    progress: Progress = lambda step, done, total: None,
    keep: Keep = lambda places: None,
) -> Measured:
    """Every width at every place of every prompt. observe: trace kernels. texts: each prompt with
    the tokens that follow it, instead of generating them. keep: gets each place when it is there.

    An interrupt or an error of the measurement does not raise: it ends in `stopped`.
    """
    made = Measured()
    begin, decoded = time.perf_counter(), memory.context.decode_seconds
    try:
        run = _Run(memory, plan, observe, made, progress, keep, len(prompts) * plan.places)
        for i, prompt in enumerate(prompts):
            run.prompt(i, prompt, None if texts is None else texts[i])
    except (KeyboardInterrupt, CsbError) as error:
        made.stopped = error
    made.seconds = {
        "measure": time.perf_counter() - begin,
        "decode": memory.context.decode_seconds - decoded,
    }
    return made


@dataclass
class _Run:
    memory: Memory
    plan: WidthsPlan
    observe: bool
    made: Measured
    progress: Progress
    keep: Keep
    total: int

    def __post_init__(self) -> None:
        self.widths = sorted(set(self.plan.widths))
        shape = (self.widths[-1], self.memory.context.n_vocab)
        self._buffers = itertools.cycle([np.empty(shape, np.float32), np.empty(shape, np.float32)])
        self._spare = np.empty(shape, np.float32)
        self.done = itertools.count(1)

    def prompt(self, number: int, prompt: list[int], text: list[int] | None) -> None:
        ar: list[str] = []
        if text is None:
            text, ar = self._generate(prompt)
        self.made.texts.append(text)
        at = starts(len(prompt), len(text), self.widths[-1], self.plan.places)
        for prefix in at:
            self.memory.prefill(text[:prefix])
            place = Place({"prompt": number, "prefix": prefix}, text[prefix:][: self.widths[-1]])
            self._rows(place, prefix)
            if self.observe:
                self._kernels(place, prefix, self.widths if prefix == at[0] else _at_borders(place))
            if prefix == at[0]:
                self._controls(place, prefix)
            if prefix == len(prompt) - 1 and 1 in place.rows and ar:
                same = place.rows[1][: len(ar)] == ar[: len(place.rows[1])]
                self.made.controls.note("ar_equal", same)
            self.made.places.append(place)
            self.keep([place.to_json()])
            self.progress("places", next(self.done), self.total)

    def _generate(self, prompt: list[int]) -> tuple[list[int], list[str]]:
        """The prompt with the greedy tokens after it, and the digests of their rows."""
        self.memory.prefill(prompt[:-1])
        self.memory.rewind(len(prompt) - 1)
        ar = trajectory.Trajectory()
        done, n = itertools.count(1), self.plan.n_gen
        trajectory.run(
            self.memory,
            prompt,
            n,
            ar,
            lambda: self.progress("AR run", next(done), n),
            digests=True,
        )
        return [*prompt, *ar.ids], [d.hex() for d in ar.digests]

    def _call(self, width: int, inputs: Sequence[int], prefix: int, out: Rows) -> Rows:
        """Rows of one width: width 1 is the single path, with a row for every input."""
        self.memory.rewind(prefix)
        if width == 1:
            return self.memory.single(inputs, prefix, out[: len(inputs)])
        return self.memory.block(inputs[:width], prefix, out[:width])

    def _rows(self, place: Place, prefix: int) -> None:
        before = None
        for width in self.widths:
            rows = self._call(width, place.inputs, prefix, next(self._buffers))
            place.add(width, rows, before)
            before = rows

    def _kernels(self, place: Place, prefix: int, widths: Sequence[int]) -> None:
        for width in widths:
            rows = self._spare[:width]
            call = trace_call(self.memory, place.inputs[:width], prefix, rows)
            place.add_kernels(width, groups_of(call.nodes), rows)
            place.lost += call.lost

    def _controls(self, place: Place, prefix: int) -> None:
        note = self.made.controls.note
        other = [(place.inputs[0] + 1) % self.memory.context.n_vocab, *place.inputs[1:]]
        for width in {self.widths[0], self.widths[-1]}:
            rows = self._call(width, place.inputs, prefix, self._spare)
            equal = digests(rows) == place.rows[width]
            note("repeat_equal", equal)
            if not equal:
                again = self._call(width, place.inputs, prefix, next(self._buffers))
                self.made.controls.noise = difference(rows, again)
            inputs = other[:1] if width == 1 else other
            changed = self._call(width, inputs, prefix, self._spare)
            note("input_changes", digests(changed[:1]) != place.rows[width][:1])


def _at_borders(place: Place) -> list[int]:
    """The widths on either side of where this place's rows change."""
    pairs = [p for p in itertools.pairwise(place.rows) if differing(place.rows, *p)]
    return sorted({width for pair in pairs for width in pair})
