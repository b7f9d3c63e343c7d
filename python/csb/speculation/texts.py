"""The loop's text beside the AR run's: pure functions on token ids."""

from __future__ import annotations

from collections.abc import Sequence

MEET = 8  # equal tokens in a row that count as having met again: fewer agree by chance


def accept(draft: Sequence[int], best: Sequence[int]) -> list[int]:
    """What one verify decode gives: the draft as far as it is the target's own choice, then that
    choice. best[i] is the argmax of the row that the i-th drafted token is held against."""
    agreed = 0
    while agreed < len(draft) and draft[agreed] == best[agreed]:
        agreed += 1
    return [*draft[:agreed], best[agreed]]


def first_under(margins: Sequence[float], tau: float) -> int | None:
    """The first row whose margin is under tau; of an infinite one every margin is."""
    return next((i for i, margin in enumerate(margins) if margin < tau), None)


def parts_at(ar: Sequence[int], text: Sequence[int], p: int) -> bool:
    """Whether the text leaves the AR run at p: another token there, after MEET equal ones or after
    nothing else than equal ones."""
    begin = max(0, p - MEET)
    return list(text[p : p + 1]) != list(ar[p : p + 1]) and list(text[begin:p]) == list(ar[begin:p])


def partings(ar: Sequence[int], text: Sequence[int]) -> list[int]:
    return [p for p in range(len(text)) if parts_at(ar, text, p)]


def meeting(ar: Sequence[int], text: Sequence[int], parted: int) -> tuple[int, int] | None:
    """Where they meet again: the first position in the text, and that in the AR run, after which
    MEET tokens are the same; the two need not be at the same place."""
    places: dict[tuple[int, ...], int] = {}
    for q in range(len(ar) - MEET, parted, -1):
        places[tuple(ar[q : q + MEET])] = q
    for p in range(parted + 1, len(text) - MEET + 1):
        found = places.get(tuple(text[p : p + MEET]))
        if found is not None:
            return p, found
    return None


def n_equal(ar: Sequence[int], text: Sequence[int]) -> int:
    """Positions that have the same token in both."""
    return sum(a == b for a, b in zip(ar, text, strict=False))
