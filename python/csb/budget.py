"""The lines of a budget: what is changed beside a baseline, one thing a line. Plain data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from csb.plan import EXACT_SWITCHES, KERNEL_SWITCHES, ComparePlan

FAMILIES = ("noise", "threads", "prefix", "ubatch", "slots", "flash", "cache", "repack", "switches")
SLOTS = (1, 2, 4, 8)
MOST_SLOTS = 255  # sequences beside the one that is measured


@dataclass(frozen=True)
class BudgetPlan:
    """A baseline and what is measured beside it. fit: contexts as small as the run allows. every:
    what is no switch is measured in every N-th window; these lines take two thirds of the time."""

    compare: ComparePlan
    slots: tuple[int, ...] = SLOTS
    families: tuple[str, ...] = FAMILIES
    fit: bool = True
    every: int = 2


@dataclass(frozen=True)
class Facts:
    """What of the baseline decides which lines there can be."""

    context: dict[str, Any]  # its parameters' values
    width: int
    prefix: str
    cuts_back: bool
    hooks: bool
    repack: bool  # asked for
    load_time: bool | None  # kernels seen that weights have from load time; None: can't be seen
    computed_on: tuple[str, ...] = ("CPU",)  # backends of products and attention
    tensor_types: tuple[str, ...] = ()
    swa_full: bool = True  # asked for

    @property
    def out_of_reach(self) -> tuple[str, ...]:
        """Where neither a kernel switch nor what weights have from load time reaches."""
        return tuple(name for name in self.computed_on if name != "CPU")


@dataclass(frozen=True)
class Line:
    """One thing changed. memory: "baseline" where the windows' prefix memory is the baseline's own,
    bit for bit; else how it is written. why_not: why it can't be had."""

    family: str
    name: str
    memory: str = "baseline"
    context: dict[str, Any] = field(default_factory=dict)  # options other than the baseline's
    switches: tuple[str, ...] = ()
    repack: bool = True
    slots: int = 0
    why_not: str = ""

    @property
    def key(self) -> tuple[bool, tuple[str, ...]]:
        return self.repack, self.switches


def lines(facts: Facts, slots: Sequence[int], families: Sequence[str]) -> list[Line]:
    """In the table's order. The second time is always there: every other line leans on it."""
    made = {
        "noise": _noise(facts),
        "threads": _threads(facts),
        "prefix": _prefix(facts),
        "ubatch": _ubatch(facts),
        "slots": _slots(facts, slots),
        "flash": _flash(facts),
        "cache": _cache(facts),
        "repack": _repack(facts),
        "switches": _switches(facts),
    }
    wanted = {"noise", *families}
    return [line for family in FAMILIES if family in wanted for line in made[family]]


def fresh(prefix: str) -> bool:
    """Whether the strategy's memory is a fresh prefill's, or proven to be."""
    return prefix in ("auto", "reprefill")


def _noise(facts: Facts) -> Iterator[Line]:
    memory = "prefilled again" if fresh(facts.prefix) else "baseline"
    yield Line("noise", "a second time", memory)


def _off_cpu(facts: Facts) -> str:
    if "CPU" in facts.computed_on:
        return ""
    names = ", ".join(facts.computed_on)
    return f"all products and attention run on {names}, out of reach from here"


def _threads(facts: Facts) -> Iterator[Line]:
    now = facts.context["n_threads"]
    for n in (2,) if now == 1 else sorted({1, now // 2}):
        threads = {"n_threads": n, "n_threads_batch": n}
        yield Line("threads", f"-t {n}", context=threads, why_not=_off_cpu(facts))


def _uncut(facts: Facts) -> str:
    kind = facts.context["memory"].replace("_", " ")
    return "" if facts.cuts_back else f"a {kind} memory can't be cut back bit for bit"


def _prefix(facts: Facts) -> Iterator[Line]:
    why_not = _uncut(facts)
    if facts.prefix == "incremental":
        why_not = "the baseline's memory is written token by token already"
    yield Line("prefix", "--prefix incremental", "token by token", why_not=why_not)


def _ubatch(facts: Facts) -> Iterator[Line]:
    for n in sorted({1, max(1, facts.width // 2)}):
        why_not = f"the baseline has -ub {n}" if facts.context["n_ubatch"] <= n else ""
        if facts.context["memory"] == "sliding_window" and not facts.swa_full:
            why_not = "-ub sizes the sliding window's ring: that would be another memory"
        yield Line("ubatch", f"-ub {n}", context={"n_ubatch": n}, why_not=why_not)


def _slots(facts: Facts, slots: Sequence[int]) -> Iterator[Line]:
    n_batch = facts.context["n_batch"]
    for n in dict.fromkeys(slots):
        why_not = _uncut(facts)
        if facts.width + n > n_batch:
            why_not = f"{facts.width} rows and {n} others are more than -b {n_batch}"
        yield Line("slots", f"--slots {n}", slots=n, why_not=why_not)


def _flash(facts: Facts) -> Iterator[Line]:
    other = "off" if facts.context["flash_attn"] else "on"
    yield Line("flash", f"-fa {other}", "prefilled", {"flash_attn": other})


def _cache(facts: Facts) -> Iterator[Line]:
    now = {facts.context.get("type_k"), facts.context.get("type_v")}
    why_not = "" if now != {None} else "the model has no attention cache"
    # flash attention reads an f32 cache as f16: nothing changes; without it no value is quantized
    kinds = (
        ("f16", "bf16", "q8_0") if facts.context["flash_attn"] else ("f32", "f16", "bf16", "q8_0")
    )
    for kind in kinds:
        if now != {kind}:
            options = {"type_k": kind, "type_v": kind}
            yield Line("cache", f"-ctk {kind} -ctv {kind}", "prefilled", options, why_not=why_not)


def _quantized(facts: Facts) -> bool:
    return not set(facts.tensor_types) <= {"f32", "f16", "bf16"}


def _repack(facts: Facts) -> Iterator[Line]:
    why_not = _off_cpu(facts)
    if not facts.repack:
        why_not = "the baseline is without repacked weights already"
    elif facts.load_time is False or (facts.load_time is None and not _quantized(facts)):
        why_not = why_not or "nothing to repack"
    yield Line("repack", "--no-repack", repack=False, why_not=why_not)
    if facts.hooks and not why_not:
        names = ",".join(EXACT_SWITCHES)
        name = f"--no-repack --without {names}"
        yield Line("repack", name, switches=EXACT_SWITCHES, repack=False)


def _switches(facts: Facts) -> Iterator[Line]:
    why_not = _off_cpu(facts) if facts.hooks else "this build has no hooks"
    for names in (*((name,) for name in KERNEL_SWITCHES), EXACT_SWITCHES):
        name = f"--without {','.join(names)}"
        yield Line("switches", name, switches=names, why_not=why_not)


def combinations(repack: bool) -> Iterator[Line]:
    """The combinations of the switches that name one kernel each, beside those in the table."""
    shown = {(), EXACT_SWITCHES} if not repack else {(name,) for name in EXACT_SWITCHES}
    for n in range(1, len(EXACT_SWITCHES)):
        for names in itertools.combinations(EXACT_SWITCHES, n):
            if names not in shown:
                start = "" if repack else "--no-repack "
                name = f"{start}--without {','.join(names)}"
                yield Line("combinations", name, switches=names, repack=repack)
