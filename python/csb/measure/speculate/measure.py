"""One prompt: the AR run and how large rounding is on it, then a loop for each way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from csb.errors import CsbError, UnsupportedError
from csb.measure.compare import Progress
from csb.measure.memory import Memory
from csb.measure.speculate import baseline, ways
from csb.measure.speculate.audit import Audit, Auditor
from csb.measure.speculate.baseline import Baseline
from csb.measure.speculate.drafters import Drafter
from csb.measure.speculate.loop import Loop, LoopRun, Step
from csb.measure.speculate.parted import parting
from csb.measure.speculate.replay import Replay, replay
from csb.measure.speculate.target import Target
from csb.plan import ComparePlan
from csb.speculation import faults
from csb.speculation.faults import Fault
from csb.speculation.partings import Parting
from csb.speculation.plan import AUDIT_EVERY, EXACT_KERNELS, Way
from csb.speculation.texts import partings

MakeDrafter = Callable[[Sequence[int]], Drafter]  # from the AR run's tokens


@dataclass
class Looped:
    """One loop and what was found out about it.

    digests: of the row of each token; equal_rows: of them, those with the bits of the AR run's row
    at that position; blocks: verify decodes that computed more than one row together; deficits: of
    each token in a fresh decode of the text; looked_twice: whether some size was beyond its limit
    at first; outliers: what stays beyond it in one place only; late: (`repair`) rewritten rows that
    say another token than was given.
    """

    way: Way
    run: LoopRun
    audits: list[Audit] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    equal_rows: int = 0
    blocks: int = 0
    deficits: list[float] = field(default_factory=list)
    looked_twice: bool = False
    late: int = 0
    partings: list[Parting] = field(default_factory=list)
    replay: Replay | None = None
    faults: list[Fault] = field(default_factory=list)
    outliers: list[Fault] = field(default_factory=list)


@dataclass
class Speculated:
    """What one prompt gave. gates: of loops that decode every row alone, whether all rows have the
    AR run's bits, and of one gated at 0, those of the ungated loop's; None: did not run."""

    baseline: Baseline | None = None
    loops: list[Looped] = field(default_factory=list)
    gates: dict[str, bool | None] = field(default_factory=dict)
    stopped: BaseException | None = None  # an interrupt or error; what came before it is here


def refuse(way: Way, memory: Memory) -> None:
    """Raises UnsupportedError where a memory can't do what a way needs."""
    if way.kind == "repair" and not memory.cuts_back:
        raise UnsupportedError(
            "--exact repair writes earlier tokens again, for which the memory must be cut back; a "
            f"{memory.kind.replace('_', ' ')} memory can't be; use --exact margin or single"
        )


def prefix_of(memory: Memory) -> str:
    """How the comparison gets its memory: one prefill is enough for what it is asked here."""
    return "shared" if memory.cuts_back else "reprefill"


def speculate(
    memory: Memory,
    plan: ComparePlan,
    prompt: list[int],
    quantized: bool,
    make_drafter: MakeDrafter,
    the_ways: Sequence[Way],
    progress: Progress = lambda step, done, total: None,
) -> Speculated:
    """The AR run and the comparison of `plan`, then a loop for each way, audited.

    An interrupt or an error of the measurement does not raise: it ends in `stopped`.
    """
    for way in the_ways:
        refuse(way, memory)
    made = Speculated()
    try:
        made.baseline = baseline.measure(memory, plan, prompt, quantized, progress)
        if made.baseline.compared.stopped is not None:
            raise made.baseline.compared.stopped
        run = _Loops(memory, plan, prompt, made.baseline, make_drafter, progress)
        for way in the_ways:
            made.loops.append(run.loop(way))
        made.gates = _gates(made.loops, made.baseline, memory)
    except (KeyboardInterrupt, CsbError) as error:
        made.stopped = error
    return made


def _gates(loops: Sequence[Looped], base: Baseline, memory: Memory) -> dict[str, bool | None]:
    """The controls of ways back to the AR run. A ring's layout depends on how often it was
    restored, and with it the last bits: there they say nothing."""
    by_way = {str(looped.way): looped.digests for looped in loops}
    bound = [d for way, d in by_way.items() if way in ("single", "margin:inf", "repair:inf")]
    zero = [d for way, d in by_way.items() if way in ("margin:0", "repair:0")]
    same = memory.cuts_back or memory.kind in ("recurrent", "hybrid")
    return {
        "all_alone_equals_ar": all(d == base.digests for d in bound) if bound and same else None,
        "gate_0_equals_ungated": all(d == by_way.get("none") for d in zero) if zero else None,
    }


@dataclass
class _Loops:
    memory: Memory
    plan: ComparePlan
    prompt: list[int]
    baseline: Baseline
    make_drafter: MakeDrafter
    progress: Progress
    replays: dict[tuple[int, ...], Replay] = field(default_factory=dict)

    def loop(self, way: Way) -> Looped:
        without = EXACT_KERNELS if way.kind == "kernels" else ()
        ar, plan = self.baseline.ids, self.plan
        target = Target(self.memory, without)
        settle = ways.settle(way, target, plan.width)
        loop = Loop(target, self.make_drafter(ar), settle, plan.width, plan.n_gen)
        rewrites = way.kind == "repair"
        auditor = Auditor(Target(self.memory, without), self.prompt, ar, AUDIT_EVERY, rewrites)

        def on_step(step: Step) -> None:
            auditor(step)
            self.progress(f"loop {way}", len(loop.made.ids), plan.n_gen)

        made = Looped(way, loop.run(self.prompt, on_step))
        made.digests, made.late = auditor.digests, getattr(settle, "late", 0)
        pairs = zip(made.digests, self.baseline.digests, strict=False)
        made.equal_rows = sum(ours == theirs for ours, theirs in pairs)
        made.blocks = sum(
            max(self.memory.ubatch_rows(len(turn.draft) + 1)) > 1 for turn in made.run.turns
        )
        self._audit(made, auditor)
        return made

    def _audit(self, made: Looped, auditor: Auditor) -> None:
        if made.run.fault is not None:
            made.faults.append(made.run.fault)
            if made.run.fault.kind == "memory":
                return  # a memory of another length has no row to hold against
        sizes = self.baseline.sizes
        auditor.finish(made.run)
        beyond = faults.by_size(*auditor.seen(), sizes)
        made.looked_twice = bool(beyond)
        if beyond:
            auditor.second_look(self.plan.width)
            beyond = faults.by_size(*auditor.seen(), sizes)
        seen, _ = auditor.seen()
        made.faults += faults.not_again(auditor.again) + faults.not_alone(seen)
        of_size, made.outliers = faults.of_size(beyond)
        made.faults += of_size
        made.audits, made.deficits = auditor.audits, auditor.deficits
        self._part(made)

    def _part(self, made: Looped) -> None:
        """What the partings are, and both texts under the single path."""
        ar, ids = self.baseline.ids, made.run.ids
        where = partings(ar, ids)
        if not where:
            return
        if tuple(ids) not in self.replays:
            self.replays[tuple(ids)] = replay(Target(self.memory), self.prompt, ar, ids, where[0])
        made.replay = self.replays[tuple(ids)]
        by_pos = {audit.pos: audit for audit in made.audits}
        made.partings = [
            parting(by_pos[p], ar, made.replay if p == where[0] else None)
            for p in where
            if p in by_pos
        ]
