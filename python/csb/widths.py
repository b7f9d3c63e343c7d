"""Which widths of a call give bit-identical rows: classes, their borders, what is not the same
everywhere. Plain numbers and digests, nothing is measured here.

A place is where widths were compared: one prefix with its inputs. It has the rows of each width by
offset; row j of a call is computed from input j. Width 1 is the single path: it has a row for every
input. Two widths agree at a place if all rows that both have are equal there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

Rows = Mapping[int, Sequence[Hashable]]  # {width: its rows, or their digests, by offset}
Classes = list[list[int]]


@dataclass(frozen=True)
class Border:
    """Neighbouring widths whose rows differ: at these offsets, at these places."""

    low: int
    high: int
    offsets: list[int]
    places: list[int]


@dataclass(frozen=True)
class WidthMap:
    """classes: the widths in ascending order, each in the first class with all of whose members it
    agrees at every place. also: widths outside its class that one agrees with all the same: then
    agreeing is not transitive. offsets: the classes of row j where they are not what `classes`
    says. dependent: pairs that agree at some places only, with how many."""

    widths: list[int]
    n_places: int
    classes: Classes
    also: dict[int, list[int]] = field(default_factory=dict)
    offsets: dict[int, Classes] = field(default_factory=dict)
    borders: list[Border] = field(default_factory=list)
    dependent: list[tuple[int, int, int]] = field(default_factory=list)


def differing(rows: Rows, a: int, b: int) -> list[int]:
    """Offsets at which two widths' common rows differ."""
    return [j for j, (x, y) in enumerate(zip(rows[a], rows[b], strict=False)) if x != y]


def make_map(places: Sequence[Rows]) -> WidthMap:
    """The map of all places together; each must have rows of the same widths."""
    if not places:
        raise ValueError("no place was measured")
    widths = sorted(places[0])
    if any(sorted(place) != widths for place in places):
        raise ValueError("places have different widths")
    equal = {
        (a, b): [i for i, place in enumerate(places) if not differing(place, a, b)]
        for a, b in combinations(widths, 2)
    }
    everywhere = {pair for pair, at in equal.items() if len(at) == len(places)}

    def agree(a: int, b: int) -> bool:
        return (min(a, b), max(a, b)) in everywhere

    classes: Classes = []
    for width in widths:
        home = next((c for c in classes if all(agree(width, member) for member in c)), None)
        if home is None:
            classes.append([width])
        else:
            home.append(width)
    also = {
        width: others
        for home in classes
        for width in home
        if (others := [o for o in widths if o not in home and agree(width, o)])
    }
    return WidthMap(
        widths=widths,
        n_places=len(places),
        classes=classes,
        also=dict(sorted(also.items())),
        offsets=dict(_other_offsets(places, widths, classes)),
        borders=list(_borders(places, widths)),
        dependent=[(a, b, len(at)) for (a, b), at in equal.items() if 0 < len(at) < len(places)],
    )


def classes_at(places: Sequence[Rows], offset: int) -> Classes:
    """The widths that have a row at this offset, by its value at every place."""
    found: dict[Hashable, list[int]] = {}
    for width in sorted(places[0]):
        if offset < len(places[0][width]):
            found.setdefault(tuple(p[width][offset] for p in places), []).append(width)
    return list(found.values())


def _other_offsets(
    places: Sequence[Rows], widths: Sequence[int], classes: Classes
) -> Iterator[tuple[int, Classes]]:
    for offset in range(max(len(rows) for rows in places[0].values())):
        here = [w for w in widths if offset < len(places[0][w])]
        said = [kept for c in classes if (kept := [w for w in c if w in here])]
        seen = classes_at(places, offset)
        if sorted(said) != sorted(seen):
            yield offset, seen


def _borders(places: Sequence[Rows], widths: Sequence[int]) -> Iterator[Border]:
    for low, high in pairwise(widths):
        differ = [differing(rows, low, high) for rows in places]
        at = [i for i, offsets in enumerate(differ) if offsets]
        if at:
            yield Border(low, high, sorted({j for offsets in differ for j in offsets}), at)


def witness(made: WidthMap) -> tuple[int, int, int] | None:
    """(a, b, c): a agrees with b and with c, which differ. None: agreeing is transitive here."""
    homes = {width: c for c in made.classes for width in c}
    for a, others in made.also.items():
        for c in others:
            agreeing = {c, *homes[c], *made.also.get(c, ())}
            for b in (*homes[a], *others):
                if b not in agreeing and b != a:
                    return a, b, c
    return None


def number_set(numbers: Iterable[int]) -> str:
    """{1,5..7}: runs of three and more are shortened."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts = [f"{r[0]}..{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs]
    return "{" + ",".join(parts) + "}"


def class_list(classes: Iterable[Iterable[int]]) -> str:
    return " ".join(number_set(c) for c in classes)


def summary(made: WidthMap) -> str:
    return f"rows agree: {class_list(made.classes)}"


Group = dict[str, Any]  # what csb.nodes.groups_of makes: nodes of one kind in one call


def kernel_changes(before: Iterable[Group], after: Iterable[Group]) -> list[dict[str, Any]]:
    """Groups of nodes whose kernels are not the same in both calls, those that change alike
    together: {"op", "type", "before", "after", "what": [...], "nodes"}."""

    def keyed(groups: Iterable[Group]) -> dict[tuple[str, ...], Group]:
        return {(g["op"], g["what"], g["type"], g["shape"]): g for g in groups}

    old, new = keyed(before), keyed(after)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for key in dict.fromkeys([*old, *new]):
        was, now = (g[key]["kernels"] if key in g else None for g in (old, new))
        if was == now:
            continue
        op, what, kind, _ = key
        change = found.setdefault(
            (op, kind, *(None if k is None else tuple(k) for k in (was, now))),
            {"op": op, "type": kind, "before": was, "after": now, "what": [], "nodes": 0},
        )
        if what and what not in change["what"]:
            change["what"].append(what)
        change["nodes"] += (new.get(key) or old[key])["nodes"]
    return list(found.values())


def places_of(record: Mapping[str, Any]) -> list[dict[int, list[str]]]:
    """A record's rows: {width: digests by offset} of each place."""
    return [{int(w): rows for w, rows in p["rows"].items()} for p in record["places"]]
