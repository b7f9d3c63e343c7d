"""What is not rounding: checks of each step, and limits for what audits may differ by.

Exact checks come first: a token must be the argmax of its row, the memory must hold the text and
nothing else, and every row must have the same bits when the loop's calls are made again.

What the calls give every time is judged by size. Rounding has one on each prompt: the largest pair
gap and pair drift, and the root mean square over the vocabulary, that the comparison along the AR
run saw. A row that differs from the single path's on the same memory by more than FACTOR times the
largest is not the row it should be; a memory whose single path differs by more than that from a
fresh one's is not the text's. A memory fault far back in the text may stay under it, but it stays:
so WINDOW audits in a row that are MEAN_FACTOR times what is usual are one too. Last, no token may
be further from the best of its row in a fresh decode of the text than gap and drift together allow.
Rounding jumps where an expert or a quantized value changes, so one such place is an outlier; TIMES
of them are a fault, or one where a row is as far off as that of another text would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FACTOR = 4.0  # as for unexplained flips: rounding is not four times its own largest
FLOOR = 0.05  # of the spread of a row's logits: what quantized activations may jump by unseen
TIMES = 2
ANOTHER = 0.9  # of the spread: rows that have nothing in common are 1.4 of it apart
WINDOW = 4  # audits whose mean is looked at
MEAN_FACTOR, MEAN_FLOOR = 3.0, 0.03


@dataclass(frozen=True)
class Fault:
    """kind: `loop` (a row is not the target's), `memory` (its memory is not the text's), `text` (a
    token that no rounding chooses)."""

    kind: str
    pos: int
    what: str


@dataclass(frozen=True)
class Sizes:
    """How large rounding was seen to be on this prompt: the largest pair and the root mean square
    over the vocabulary, its largest and its mean. gap: of n_gap cells; drift: of n_drift."""

    n_gap: int = 0
    pair_gap: float = 0.0
    rms_gap: float = 0.0
    mean_gap: float = 0.0
    n_drift: int = 0
    pair_drift: float = 0.0
    rms_drift: float = 0.0
    mean_drift: float = 0.0

    @property
    def pair_memory(self) -> float:
        """Between two memories of one text: what wrote them differs, and then what reads them."""
        return max(self.pair_gap, self.pair_drift)

    @property
    def rms_memory(self) -> float:
        return max(self.rms_gap, self.rms_drift)

    @property
    def mean_memory(self) -> float:
        return max(self.mean_gap, self.mean_drift)


@dataclass(frozen=True)
class Seen:
    """An audit's numbers. equal: the row has the single path's bits on the same memory; spread: the
    standard deviation of the row's logits; mixed: the memory was written again since, so that
    the gap has drift in it."""

    pos: int
    pair_gap: float
    rms_gap: float
    pair_drift: float
    rms_drift: float
    spread: float
    equal: bool = False
    alone: bool = False
    mixed: bool = False


def unverified(pos: int, tokens: Sequence[int], best: Sequence[int]) -> Fault | None:
    """A step's tokens must be the argmax of the row that verified each, lowest id among equals."""
    for i, (token, right) in enumerate(zip(tokens, best, strict=True)):
        if token != right:
            return Fault(
                "loop", pos + i, f"token {token} was given, the row that verified it says {right}"
            )
    return None


def not_again(again: Sequence[bool]) -> list[Fault]:
    """again: whether each row has the same bits when the loop's calls are made again. A memory that
    is not what its calls write stays wrong; a row that is not is one."""
    if all(again):
        return []
    first = again.index(False)
    stays = len(again) - first > 1 and not any(again[first:])
    what = "its row has other bits when the loop's calls are made again"
    if stays:
        return [Fault("memory", first, f"{what}, and every row after it")]
    return [Fault("loop", first, what)]


def not_alone(audits: Sequence[Seen]) -> list[Fault]:
    """A row that was decoded alone is the single path's, bit for bit."""
    return [
        Fault("loop", seen.pos, "its row decoded alone again has other bits")
        for seen in audits
        if seen.alone and not seen.equal
    ]


@dataclass(frozen=True)
class Beyond:
    """What is beyond a limit, and how many places say so."""

    fault: Fault
    places: int = 1


def by_size(audits: Sequence[Seen], deficits: Sequence[float], sizes: Sizes) -> list[Beyond]:
    """Whatever is beyond a limit; `of_size` says what of it is a fault. deficits: for each token
    how far below the best of its row it is in a fresh decode."""
    found = []
    for i, seen in enumerate(audits):
        if gap := _gap(seen, sizes):
            what = f"the loop's row against the single path: {gap}"
            found.append(Beyond(Fault("loop", seen.pos, what), _places(seen.rms_gap, seen.spread)))
        what = "the loop's memory against a fresh one: "
        if drift := _drift(seen, sizes):
            places = _places(seen.rms_drift, seen.spread)
            found.append(Beyond(Fault("memory", seen.pos, what + drift), places))
        elif usual := _usual(audits[max(0, i - WINDOW + 1) : i + 1], sizes):
            found.append(Beyond(Fault("memory", seen.pos, what + usual), WINDOW))
    return found + _text(deficits, sizes, max((seen.spread for seen in audits), default=0.0))


def _places(size: float, spread: float) -> int:
    return 1 if size <= ANOTHER * spread else TIMES


def of_size(beyond: Sequence[Beyond]) -> tuple[list[Fault], list[Fault]]:
    """(faults, outliers) of what stays beyond a limit after a second look, where every row has the
    same bits when the calls are made again."""
    places: dict[str, int] = {}
    for one in beyond:
        places[one.fault.kind] = places.get(one.fault.kind, 0) + one.places
    faults = [one.fault for one in beyond if places[one.fault.kind] >= TIMES]
    return faults, [one.fault for one in beyond if places[one.fault.kind] < TIMES]


def _gap(seen: Seen, sizes: Sizes) -> str:
    more = (sizes.pair_memory, sizes.rms_memory) if seen.mixed else (0.0, 0.0)
    return _beyond(
        (seen.pair_gap, FACTOR * (sizes.pair_gap + more[0])),
        (seen.rms_gap, FACTOR * (sizes.rms_gap + more[1])),
        FLOOR * seen.spread,
    )


def _drift(seen: Seen, sizes: Sizes) -> str:
    return _beyond(
        (seen.pair_drift, FACTOR * sizes.pair_memory),
        (seen.rms_drift, FACTOR * sizes.rms_memory),
        FLOOR * seen.spread,
    )


def _usual(last: Sequence[Seen], sizes: Sizes) -> str:
    """WINDOW audits together against what is usual here."""
    if len(last) < WINDOW:
        return ""
    mean = sum(seen.rms_drift for seen in last) / WINDOW
    limit = max(MEAN_FACTOR * sizes.mean_memory, MEAN_FLOOR * last[-1].spread)
    if mean <= limit:
        return ""
    return f"mean RMS of {WINDOW} audits {mean:.3g}, rounding is at most {limit:.3g} here"


def _beyond(pair: tuple[float, float], rms: tuple[float, float], floor: float) -> str:
    """What is beyond its limit, in words; "" if nothing is. NaN is beyond everything."""
    for name, (value, limit) in (("pair", pair), ("RMS", rms)):
        limit = max(limit, floor)
        if not abs(value) <= limit:
            return f"{name} {abs(value):.3g}, rounding is at most {limit:.3g} here"
    return ""


def _text(deficits: Sequence[float], sizes: Sizes, spread: float) -> list[Beyond]:
    """Tokens that no rounding chooses."""
    limit = max(FACTOR * (sizes.pair_gap + sizes.pair_memory), FLOOR * spread)
    what = "its token is {:.3g} under the best of a fresh decode, rounding is at most {:.3g} here"
    return [
        Beyond(Fault("text", pos, what.format(deficit, limit)), _places(deficit, spread))
        for pos, deficit in enumerate(deficits)
        if not deficit <= limit
    ]
