"""A whole budget, from plan to saved record: what `csb budget` calls."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from csb import against as other_build
from csb import budget_record, cells, record, unfinished
from csb.budget import BudgetPlan, Facts, Line, combinations, lines
from csb.errors import CsbError, UnsupportedError
from csb.measure.budget import Budget, Lines, Unpacked
from csb.measure.compare import Measurement, compare
from csb.measure.line import Measured
from csb.measure.memory import Memory
from csb.measure.session import Session, open_session
from csb.measure.setups import Adopted, Crowd, Crowded, Prefilled, Setup, Written
from csb.measure.setups import cells as crowd_cells
from csb.measure.switches import SwitchGroup
from csb.measure.trace import nodes_changed, products_of
from csb.native import worker
from csb.native.context import Context, Rows
from csb.native.library import has_hooks
from csb.nodes import load_time
from csb.plan import ContextPlan, Window
from csb.prompt.resolve import resolve
from csb.render.output import note, save
from csb.render.progress import Steps
from csb.run import interruptible, piece_of, raise_error


def run_budget(
    plan: BudgetPlan,
    json_path: str | None = None,
    against: tuple[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Opens, measures, builds the record and writes it to json_path ("-": stdout). against: a name
    and a record that csb.against loaded. Interrupts and errors as in csb.run.run_compare."""
    begin = time.perf_counter()
    compared = plan.compare
    resolved = functools.cache(functools.partial(resolve, compared.prompt))
    with (
        open_session(compared.model, lambda m: _fitted(plan, len(resolved(m).tokens))) as session,
        contextlib.ExitStack() as stack,
    ):
        prompt = resolved(session.model)
        tokens, memory = prompt.tokens, session.memory
        compared.check(
            len(tokens), session.context.value("n_batch"), session.context.value("n_ctx_seq")
        )
        for text in prompt.notes:
            note(text)
        provenance = session.provenance()
        seconds = {"load": session.load_seconds, "hash": provenance.pop("hash_seconds")}
        facts = worker.run(lambda: _facts(session, memory, plan, tokens), session.context.cancel)
        opened = _Opened(session, memory, plan, facts, len(tokens), stack)
        budget = Budget(memory, compared, tokens, opened.lines)
        head = unfinished.of(record.head(compared, prompt, provenance), "cells")
        with unfinished.kept(json_path, budget_record.head(head)) as keep, Steps() as steps:

            def sink(window: Window, table: cells.Cells, single: Rows, block: Rows) -> None:
                if json_path is not None:
                    keep(cells.to_json(table))
                budget.window(window, table, single, block)

            measured = interruptible(
                lambda: compare(
                    memory, compared, tokens, session.quantized, steps, sink, budget.begin
                ),
                opened.cancel,
            )
        changed = _nodes_changed(session, plan, measured, tokens, opened)
        for part in ("windows", "span", "own_share", "decode"):
            measured.seconds.pop(part, None)  # the lines' decodes are in them
        baseline = record.build(
            compared, prompt, provenance, measured, piece_of(session.model), seconds
        )
        made = budget_record.build(
            baseline,
            opened.measured,
            budget.n_windows,
            changed,
            vars(budget.repeats),
            facts.out_of_reach,
            against and other_build.line(against[1], baseline, against[0]),
            {"total": time.perf_counter() - begin},
        )
        if json_path is not None:
            save(record.dumps(made), json_path)
    raise_error(measured)
    return made


def _fitted(plan: BudgetPlan, n_prompt: int) -> ContextPlan:
    """Every line has a context of its own, so they are as small as the run allows."""
    context = plan.compare.context
    if not plan.fit or not context.swa_full:  # a sliding window's ring depends on -c
        return context
    needed = crowd_cells(n_prompt + plan.compare.n_gen, _most(plan))
    return replace(context, n_ctx=max(context.n_batch, needed))  # llama.cpp cuts -b to -c


def _most(plan: BudgetPlan) -> int:
    return max(plan.slots) if "slots" in plan.families else 0


def _facts(session: Session, memory: Memory, plan: BudgetPlan, tokens: list[int]) -> Facts:
    known = session.context.parameters
    rows = min(plan.compare.width, plan.compare.n_gen)
    products = products_of(memory, tokens, rows) if has_hooks() else []
    placed = session.context.offload
    where = [p["backend"] for p in products] or [*placed["layers"], placed["output"]]
    return Facts(
        context={name: p["value"] for name, p in known.items()},
        width=plan.compare.width,
        prefix=plan.compare.prefix,
        cuts_back=memory.cuts_back,
        hooks=has_hooks(),
        repack=plan.compare.model.repack,
        load_time=any(load_time(p["kernels"]) for p in products) if products else None,
        computed_on=tuple(dict.fromkeys(where)),
        tensor_types=tuple(session.model.info["tensor_types"]),
        swa_full=session.asked.swa_full,
    )


def _nodes_changed(
    session: Session, plan: BudgetPlan, measured: Measurement, tokens: list[int], opened: _Opened
) -> dict[str, int]:
    """By name of the lines of switches on the baseline's model, at the longest text."""
    shown = [m.line for m in opened.measured if m.line.family == "switches" and m.parts]
    if measured.stopped is not None or not shown:
        return {}
    width = plan.compare.width
    text = [*tokens, *measured.trajectory.ids][: -width or None]
    found = worker.run(
        lambda: nodes_changed(opened.memory, text, width, [x.switches for x in shown]),
        session.context.cancel,
    )
    return dict(zip((line.name for line in shown), found, strict=True))


@dataclass
class _Opened:
    """The lines with the contexts they need. One that can't be opened ends its line alone."""

    session: Session
    memory: Memory  # the baseline's
    plan: BudgetPlan
    facts: Facts
    n_prompt: int
    stack: contextlib.ExitStack
    measured: list[Measured] = field(default_factory=list)
    _contexts: list[Context] = field(default_factory=list)
    _crowd: Crowd | None = None

    def __post_init__(self) -> None:
        self._contexts.append(self.session.context)
        made = lines(self.facts, self.plan.slots, self.plan.families)
        apart = ("noise", "switches", "repack", "combinations")
        every = self.plan.every
        self.measured = [
            Measured(line, every=1 if line.family in apart else every) for line in made
        ]
        here = self._group_on_baseline()
        unpacked = self._unpacked()
        others = [
            (m, setup)
            for m in self.measured
            if m.line.family not in apart and (setup := self._tried(m, self._setup))
        ]
        noise = self.measured[0]
        setup = self._tried(noise, self._setup)
        if setup is None:
            raise CsbError(noise.why_not)
        self.lines = Lines((noise, setup), others, here, unpacked)

    def cancel(self) -> None:
        for context in self._contexts:
            context.cancel()

    def _rows(self) -> int:
        return min(self.plan.compare.width, self.plan.compare.n_gen)

    def _tried(self, m: Measured, make: Callable[[Line], Setup]) -> Setup | None:
        if m.why_not:
            return None
        try:
            return make(m.line)
        except CsbError as error:
            m.why_not = str(error)
            return None

    def _context(self, **changes: Any) -> Context:
        context = self.stack.enter_context(self.session.another_context(**changes))
        self._contexts.append(context)
        return context

    def _setup(self, line: Line) -> Setup:
        if line.slots:
            return Crowded(self._the_crowd(), line.slots)
        memory = Memory(self._context(**line.context))
        if line.memory == "token by token":
            return Written(memory)
        return Adopted(memory) if line.memory == "baseline" else Prefilled(memory)

    def _the_crowd(self) -> Crowd:
        """One cache for all sequences, as llama-server has by default."""
        most = max(self.plan.slots)
        needed = crowd_cells(self.n_prompt + self.plan.compare.n_gen, most)
        if needed > self.session.context.value("n_ctx"):
            raise UnsupportedError(f"text and {most} others need {needed} cells: give a larger -c")
        if self._crowd is None:
            context = self._context(n_seq_max=most + 1, kv_unified=True)
            self._crowd = Crowd(context, most)
        return self._crowd

    def _group_on_baseline(self) -> SwitchGroup | None:
        shown = [m for m in self.measured if m.line.family == "switches" and not m.why_not]
        if not shown:
            return None
        extra = [Measured(line, until_unequal=True) for line in combinations(repack=True)]
        self.measured += extra
        return SwitchGroup(self.memory, [*shown, *extra], self._rows())

    def _unpacked(self) -> Unpacked | None:
        shown = [m for m in self.measured if m.line.family == "repack" and not m.why_not]
        if not shown:
            return None
        try:
            setup = Adopted(self._model_without_repack().memory)
        except CsbError as error:
            for m in shown:
                m.why_not = str(error)
            return None
        hooks = self.facts.hooks
        extra = [Measured(line, until_unequal=True) for line in combinations(repack=False)]
        self.measured += extra if hooks else []
        measured = [*shown, *(extra if hooks else [])]
        return Unpacked(setup, SwitchGroup(setup.memory, measured, self._rows()))

    def _model_without_repack(self) -> Session:
        model = replace(self.plan.compare.model, repack=False)
        session = self.stack.enter_context(open_session(model, self.session.asked))
        self._contexts.append(session.context)
        return session
