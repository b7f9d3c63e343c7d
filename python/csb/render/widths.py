"""A map of widths as text: what agrees, where it changes, and which kernels change there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from csb.render.text import harmless
from csb.widths import (
    Border,
    WidthMap,
    class_list,
    differing,
    kernel_changes,
    make_map,
    number_set,
    places_of,
    summary,
    witness,
)

Record = dict[str, Any]
Places = list[dict[int, list[str]]]


def render(record: Record) -> str:
    """The map, and what changed since another one where it was compared."""
    lines = [_head(record)]
    places = places_of(record)
    if places:
        made = make_map(places)
        lines += [summary(made), *_groups(record, places), *_not_transitive(made, places)]
        lines += [*_offsets(made), *_dependent(record, made, places), *_borders(record, made)]
        if record["mode"] == "op":
            lines += _by_kernels(record)
    against = record.get("against")
    if against and not against["why_not"]:
        lines += _changes(against)
    lines.append(_foot(record, len(places)))
    return "\n".join(lines) + "\n"


def _head(record: Record) -> str:
    c, widths = record["config"], number_set(record["widths"])
    off = f"; without {', '.join(c['without'])}" if c["without"] else ""
    if record["mode"] == "op":
        o = record["op"]
        repack = "" if c["repack"] else ", not repacked"
        shape = (
            f"weights {o['shape'][0]}x{o['shape'][1]}{repack}"
            if o["op"] == "mul_mat"
            else f"heads of {o['head_size']}, {o['heads']} on {o['kv_heads']}"
        )
        return (
            f"{o['op']} {o['type']}, {shape}, on {c['device']}, t={c['n_threads']}; "
            f"widths {widths}{off}"
        )
    model = record["provenance"]["model"]
    name = harmless(c["model_name"] or model["description"])
    return (
        f"{name}  fa={'on' if c['flash_attn'] else 'off'}  t={c['n_threads']}  "
        f"cache {c['type_k']}/{c['type_v']}; widths {widths}{off}"
    )


def _group_of(where: Record) -> tuple[str, int] | None:
    """The part of a place that is a parameter: its prompt, or its number of cells."""
    for key in ("prompt", "cells"):
        if key in where:
            return key, where[key]
    return None


def _grouped(record: Record, places: Places) -> list[tuple[str, str, Places]]:
    """(parameter, what it is here, places) of each part of the places."""
    wheres = (_group_of(p["where"]) for p in record["places"])
    parts = []
    for group, part in groupby(zip(wheres, places, strict=True), lambda pair: pair[0]):
        if group is not None:
            name, n = group
            said = f"prompt {n + 1}" if name == "prompt" else f"{n} cells"
            parts.append((name, said, [rows for _, rows in part]))
    return parts


def _groups(record: Record, places: Places) -> Iterator[str]:
    groups = _grouped(record, places)
    if len(groups) > 1:
        for _, said, part in groups:
            yield f"  {said}: {class_list(make_map(part).classes)}"


def _not_transitive(made: WidthMap, places: Places) -> Iterator[str]:
    found = witness(made)
    if found:
        a, b, c = found
        at = sorted({j for rows in places for j in differing(rows, b, c)})
        yield (
            f"not transitive: {a} agrees with {b} and with {c}, which differ at offset {at[0]}; "
            "each width is in the first class with all of which it agrees"
        )


def _offsets(made: WidthMap) -> Iterator[str]:
    for classes, part in groupby(made.offsets.items(), lambda item: item[1]):
        offsets = [offset for offset, _ in part]
        name = f"offset {offsets[0]}" if len(offsets) == 1 else f"offsets {_list(offsets)}"
        yield f"{name}: {class_list(classes)}"


def _list(numbers: Iterable[int]) -> str:
    return number_set(numbers)[1:-1]


def _dependent(record: Record, made: WidthMap, places: Places) -> Iterator[str]:
    """Pairs that agree at some places only, by the first width and how often. What depends on the
    number of cells alone does not depend on the data."""
    of = [("", made)]
    if any("cells" in p["where"] for p in record["places"]):
        of = [(f" at {said}", make_map(part)) for _, said, part in _grouped(record, places)]
    for where, each in of:
        pairs = sorted(each.dependent, key=lambda d: (d[0], d[2], d[1]))
        for (a, equal), part in groupby(pairs, lambda d: (d[0], d[2])):
            others = number_set(b for _, b, _ in part)
            yield (
                f"data-dependent{where}: {a} and {others}: equal at {equal} of "
                f"{each.n_places} places"
            )


def _borders(record: Record, made: WidthMap) -> Iterator[str]:
    if not made.borders:
        yield "no border: no row changes between neighbouring widths"
    for border in made.borders:
        where = f"at {len(border.places)} of {made.n_places} place{'s' * (made.n_places > 1)}"
        most = max(record["places"][i]["steps"][str(border.high)] for i in border.places)
        rows = "row" if len(border.offsets) == 1 else "rows"
        yield (
            f"border {border.low} | {border.high}: {rows} {_list(border.offsets)} "
            f"change {where}, by up to {most:.3g}"
        )
        yield from (f"  {line}" for line in _at_border(record, border))


def _at_border(record: Record, border: Border) -> Iterator[str]:
    """The kernels that change there, alike ones of several places once."""
    pair = [str(border.low), str(border.high)]
    places = [record["places"][i]["kernels"] for i in border.places]
    traced = [[kernels[w] for w in pair] for kernels in places if all(w in kernels for w in pair)]
    found: dict[str, tuple[Record, int]] = {}
    for before, after in traced:
        for change in kernel_changes(before, after):
            key = repr(change)
            found[key] = change, found.get(key, (change, 0))[1] + 1
    for change, n in found.values():
        often = "" if n == len(traced) else f" (at {n} of {len(traced)} traced places)"
        yield change_line(change) + often
    if not found:
        yield _no_change(traced)


def _no_change(traced: list[list[list[Record]]]) -> str:
    if not traced:
        return "kernels: not observable in this build"
    unseen = {
        g["backend"] for pair in traced for groups in pair for g in groups if not g["kernels"]
    }
    if unseen:
        return f"kernels: not observable on {', '.join(sorted(unseen))}"
    return "no kernel changes there that the hooks see"


def change_line(change: Record) -> str:
    before, after = (
        "-" if k is None else "+".join(k) or "not observable"
        for k in (change["before"], change["after"])
    )
    what = ": " + ", ".join(harmless(w) for w in change["what"]) if change["what"] else ""
    nodes = "1 node" if change["nodes"] == 1 else f"{change['nodes']} nodes"
    return f"{change['op']} {change['type']}  {before} -> {after}{what} ({nodes})"


def _by_kernels(record: Record) -> Iterator[str]:
    """Widths by the kernels that ran for them, at each number of cells where it matters."""
    seen: dict[tuple[tuple[str, int] | None, str], set[int]] = {}
    for place in record["places"]:
        where = _group_of(place["where"])
        for width, groups in place["kernels"].items():
            names = "+".join(sorted({k for g in groups for k in g["kernels"]})) or "not observable"
            seen.setdefault((where, names), set()).add(int(width))
    by_group = {where: {n: w for (g, n), w in seen.items() if g == where} for where, _ in seen}
    alike = all(found == next(iter(by_group.values())) for found in by_group.values())
    for where, found in list(by_group.items())[: 1 if alike else None]:
        at = f" at {where[1]} cells" if where and not alike else ""
        for names, widths in found.items():
            yield f"kernels{at}: {number_set(widths)} {names}"


def _foot(record: Record, n_places: int) -> str:
    where = f"{n_places} place{'s' * (n_places != 1)}"
    if not record["complete"]:
        return f"csb: interrupted after {where}"
    if record["problems"]:
        return f"csb: NOT valid: {'; '.join(record['problems'])}"
    if record["mode"] == "model":
        prompts = len(record["prompts"])
        where += f" of {prompts} prompt{'s' if prompts > 1 else ''}"
        cells = [p["where"]["prefix"] for p in record["places"]]
        low, high = min(cells), max(cells)
        where += f", after {low} to {high} tokens" if low < high else f", after {low} tokens"
    traced = (
        "the traced calls have the untraced calls' bits"
        if any(p["kernels"] for p in record["places"])
        else "kernels were not observed"
    )
    return f"csb: {len(record['widths'])} widths at {where}; controls ok; {traced}"


def _changes(changes: Record) -> Iterator[str]:
    yield "since the other map: " + ("changed" if changes["changed"] else "no change")
    for name, (was, now) in changes["settings"].items():
        yield f"  {name}: was {harmless(str(was))}, is {harmless(str(now))}"
    yield from _map_changes(changes)
    for change in changes["kernels"]:
        yield f"  kernels at {number_set(change['widths'])}: {change_line(change)}"
    if not changes["kernels_compared"]:
        yield "  kernels: not recorded in both"
    bits = changes["bits"]
    if not bits["compared"]:
        yield f"  bits: not compared: {bits['why']}"
    elif bits["widths"]:
        yield f"  bits: rows of widths {number_set(bits['widths'])} have other bits"


def _map_changes(changes: Record) -> Iterator[str]:
    parts, borders = changes["map"], changes["borders"]
    if "classes" in parts:
        was, now = (class_list(c) for c in parts["classes"])
        yield f"  rows agree: was {was}, is {now}"
    for name, said in (
        ("gone", "is gone"),
        ("new", "is new"),
        ("other_offsets", "changes other rows"),
    ):
        for low, high in borders[name]:
            yield f"  border {low} | {high} {said}"
    if "offsets" in parts:
        was, now = parts["offsets"]
        for offset in sorted({*was, *now}, key=int):
            texts = [class_list(c[offset]) if offset in c else "as the classes" for c in (was, now)]
            if texts[0] != texts[1]:
                yield f"  offset {offset}: was {texts[0]}, is {texts[1]}"
    if "dependent" in parts:
        counts = [len(pairs) for pairs in parts["dependent"]]
        yield f"  data-dependent pairs: were {counts[0]}, are {counts[1]}"
