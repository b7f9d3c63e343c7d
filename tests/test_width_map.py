"""The map of widths from handmade tables: what is a class, a border, data-dependent, a change."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from csb import width_changes, widths
from csb.errors import ArgumentError, FileError
from csb.plan import starts
from csb.render.widths import render
from csb.render.widths_plot import table
from csb.run_widths import SCHEMA, load_widths
from process import Run

Rows = dict[int, list[str]]


def place(kernel: Any, widest: int = 16) -> Rows:
    """Rows whose value is only which kernel computed them: kernel(width, offset)."""
    return {
        w: [f"{j}{kernel(w, j)}" for j in range(widest if w == 1 else w)]
        for w in range(1, widest + 1)
    }


def same(w: int, j: int) -> str:
    return "v"


def single_apart(w: int, j: int) -> str:
    return "v" if w == 1 else "s"


def groups_of_four(w: int, j: int) -> str:
    """Rows in whole groups of four by another kernel than the remaining ones."""
    return "gemm" if w > 3 and j < w // 4 * 4 else "gemv"


def test_all_agree() -> None:
    made = widths.make_map([place(same)])
    assert widths.summary(made) == "rows agree: {1..16}"
    assert (made.borders, made.offsets, made.dependent, made.also) == ([], {}, [], {})
    assert widths.witness(made) is None


def test_the_single_path_apart() -> None:
    made = widths.make_map([place(single_apart), place(single_apart)])
    assert widths.summary(made) == "rows agree: {1} {2..16}"
    assert [(b.low, b.high, b.offsets, b.places) for b in made.borders] == [(1, 2, [0, 1], [0, 1])]
    assert (made.offsets, made.dependent) == ({}, [])


def test_agreeing_need_not_be_transitive() -> None:
    """4 has rows 0..3 as 5 and as 8 have them; 5 and 8 part at row 4."""
    made = widths.make_map([place(groups_of_four)])
    assert widths.summary(made) == "rows agree: {1..3} {4..7} {8..11} {12..15} {16}"
    assert widths.witness(made) == (4, 5, 8)
    assert made.also[4] == list(range(8, 17))
    assert widths.class_list(made.offsets[4]) == "{1,5..7} {8..16}"
    assert widths.class_list(made.offsets[0]) == "{1..3} {4..16}"
    assert 15 not in made.offsets  # 1 and 16 have it, and are in other classes already
    assert [(b.low, b.high) for b in made.borders] == [(3, 4), (7, 8), (11, 12), (15, 16)]
    assert made.borders[1].offsets == [4, 5, 6]


def test_a_width_joins_the_first_class_with_all_of_which_it_agrees() -> None:
    rows = {1: ["a", "b", "c"], 2: ["a", "x"], 3: ["a", "b", "c"]}
    made = widths.make_map([rows])
    assert made.classes == [[1, 3], [2]]
    assert [(b.low, b.high) for b in made.borders] == [(1, 2), (2, 3)]
    assert [b.offsets for b in made.borders] == [[1], [1]]


def test_data_dependent() -> None:
    """Equal at two of three places is not equal, and is said."""
    luck = place(same)
    made = widths.make_map([luck, place(single_apart), luck])
    assert widths.summary(made) == "rows agree: {1} {2..16}"
    assert made.dependent == [(1, w, 2) for w in range(2, 17)]
    assert [(b.low, b.high, b.places) for b in made.borders] == [(1, 2, [1])]


def test_places_that_part_elsewhere() -> None:
    """No pair need differ at one place for the classes of all places to be small."""
    one = {1: ["a", "b"], 2: ["a", "b"], 3: ["x", "b", "c"]}
    two = {1: ["a", "b"], 2: ["a", "y"], 3: ["a", "b", "c"]}
    made = widths.make_map([one, two])
    assert made.classes == [[1], [2], [3]]
    assert made.dependent == [(1, 2, 1), (1, 3, 1)]
    assert made.offsets == {0: [[1, 2], [3]], 1: [[1, 3], [2]]}


def test_widths_without_the_single_path() -> None:
    rows = {w: place(groups_of_four)[w] for w in (2, 5, 9)}
    made = widths.make_map([rows])
    assert made.classes == [[2], [5], [9]]
    assert [(b.low, b.high, b.offsets) for b in made.borders] == [
        (2, 5, [0, 1]),
        (5, 9, [4]),
    ]


@pytest.mark.parametrize("places", [[], [{1: ["a"], 2: ["a", "b"]}, {1: ["a"]}]])
def test_no_map_of_nothing_or_of_different_widths(places: list[Rows]) -> None:
    with pytest.raises(ValueError, match="place"):
        widths.make_map(places)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], "{}"),
        ([7], "{7}"),
        ([1, 2], "{1,2}"),
        ([2, 3, 4], "{2..4}"),
        ([7, 1, 5, 6], "{1,5..7}"),
        ([1, 2, 4, 5, 6, 7, 9], "{1,2,4..7,9}"),
    ],
)
def test_number_set(numbers: list[int], text: str) -> None:
    assert widths.number_set(numbers) == text


def group(what: str, *kernels: str, op: str = "MUL_MAT", nodes: int = 2) -> dict[str, Any]:
    return {
        "op": op,
        "what": what,
        "type": "bf16",
        "shape": "8x8",
        "nodes": nodes,
        "kernels": list(kernels),
        "backend": "CPU",
    }


def test_kernel_changes_are_told_together() -> None:
    before = [group("q", "dot"), group("k", "dot", nodes=3), group("kq", "dot"), group("norm", "n")]
    after = [group("q", "gemm"), group("k", "gemm", nodes=3), group("kq", "x"), group("norm", "n")]
    made = widths.kernel_changes(before, after)
    assert [(c["before"], c["after"], c["what"], c["nodes"]) for c in made] == [
        (["dot"], ["gemm"], ["q", "k"], 5),
        (["dot"], ["x"], ["kq"], 2),
    ]
    (gone,) = widths.kernel_changes(before[:1], [])
    assert (gone["before"], gone["after"], gone["nodes"]) == (["dot"], None, 2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((34, 34 + 47, 16, 3), [33, 49, 65]),  # the inputs follow one another
        ((34, 34 + 15, 16, 1), [33]),
        ((34, 40, 16, 3), [0, 12, 24]),  # the text ended early
        ((1, 16, 16, 1), [0]),
        ((2, 17, 16, 9), [0, 1]),  # fewer than were asked for
    ],
)
def test_starts(given: tuple[int, ...], expected: list[int]) -> None:
    made = starts(*given)
    assert made == expected
    assert max(made) + given[2] <= given[1]


def test_starts_of_too_short_a_text() -> None:
    with pytest.raises(ArgumentError, match="have 10 tokens, fewer than the widest call's 16"):
        starts(3, 10, 16, 3)


def make_record(*places: Rows, kernels: Any = None, **changes: Any) -> dict[str, Any]:
    """A saved map as csb writes it. kernels(width): the groups of a traced call."""
    made = {
        "schema": SCHEMA,
        "mode": "model",
        "widths": sorted(places[0]) if places else [1, 2],
        "complete": True,
        "problems": [],
        "prompts": [{"text": "Hi", "tokens": [1, 2], "ar": [3] * 40}],
        "config": {
            "model": "m.gguf",
            "model_name": None,
            "flash_attn": False,
            "n_threads": 2,
            "type_k": "f16",
            "type_v": "f16",
            "places": len(places),
            "without": [],
        },
        "places": [
            {
                "where": {"prompt": 0, "prefix": 33 + 16 * i},
                "inputs": [1, 2, 3],
                "rows": rows,
                "steps": {w: 0.25 for w in rows},
                "kernels": {w: kernels(w) for w in rows} if kernels else {},
                "perturbed": [],
                "lost": 0,
            }
            for i, rows in enumerate(places)
        ],
        "provenance": {
            "csb": "1",
            "build": {"llama_commit": "aaa", "compiler": "GNU 12"},
            "processor": {"name": "fast"},
            "switches": {},
            "model": {"description": "tiny", "files": [{"sha256": "00"}]},
        },
        **changes,
    }
    return json.loads(json.dumps(made))


def dot_or_gemm(w: int) -> list[dict[str, Any]]:
    return [group("attn_q.weight", "dot" if w == 1 else "gemm")]


def test_text() -> None:
    text = render(make_record(place(single_apart), place(single_apart), kernels=dot_or_gemm))
    assert text.splitlines() == [
        "tiny  fa=off  t=2  cache f16/f16; widths {1..16}",
        "rows agree: {1} {2..16}",
        "border 1 | 2: rows 0,1 change at 2 of 2 places, by up to 0.25",
        "  MUL_MAT bf16  dot -> gemm: attn_q.weight (2 nodes)",
        "csb: 16 widths at 2 places of 1 prompt, after 33 to 49 tokens; controls ok; "
        "the traced calls have the untraced calls' bits",
    ]


def test_text_of_what_is_not_so_simple() -> None:
    lucky = place(groups_of_four)
    text = render(make_record(lucky, place(same))).splitlines()
    assert "rows agree: {1..3} {4..7} {8..11} {12..15} {16}" in text
    assert any(
        line.startswith("not transitive: 4 agrees with 5 and with 8, which") for line in text
    )
    assert "offset 4: {1,5..7} {8..16}" in text
    assert "data-dependent: 1 and {4..16}: equal at 1 of 2 places" in text
    assert "  kernels: not observable in this build" in text
    assert text[-1].endswith("kernels were not observed")


def test_several_prompts_have_lines_of_their_own() -> None:
    record = make_record(place(same), place(single_apart))
    record["places"][1]["where"] = {"prompt": 1, "prefix": 7}
    record["prompts"] *= 2
    text = render(record).splitlines()
    assert text[2:4] == ["  prompt 1: {1..16}", "  prompt 2: {1} {2..16}"]
    assert "at 2 places of 2 prompts, after 7 to 33 tokens" in text[-1]


def test_a_kernel_seen_nowhere_is_no_unchanged_kernel() -> None:
    hidden = {**group("attn_q.weight"), "backend": "CUDA0"}
    text = render(make_record(place(single_apart), kernels=lambda w: [hidden]))
    assert "kernels: not observable on CUDA0" in text
    seen = render(make_record(place(single_apart), kernels=lambda w: [group("q", "dot")]))
    assert "no kernel changes there that the hooks see" in seen


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problems": ["control repeat_equal failed"]}, "NOT valid: control repeat_equal failed"),
        ({"complete": False}, "interrupted after 1 place"),
    ],
)
def test_text_of_no_measurement(changes: dict[str, Any], said: str) -> None:
    assert render(make_record(place(same), **changes)).splitlines()[-1] == f"csb: {said}"


def test_colours_are_named_by_the_smallest_width() -> None:
    labels, cells = table([place(groups_of_four)])
    assert labels == [1, 4, 8, 12, 16]
    assert cells[4] == [1, None, None, None, 1, 1, 1, *[8] * 9]
    assert cells[15] == [1, *[None] * 14, 16]


def test_no_change() -> None:
    record = make_record(place(single_apart), kernels=dot_or_gemm)
    assert width_changes.why_not(record, record) is None
    assert not width_changes.changes(record, record)["changed"]


def test_changes_of_all_kinds() -> None:
    old = make_record(place(single_apart), kernels=dot_or_gemm)
    new = make_record(place(same), kernels=lambda w: [group("attn_q.weight", "dot")])
    new["provenance"]["build"]["llama_commit"] = "bbb"
    made = width_changes.changes(old, new)
    assert made["changed"]
    assert made["map"]["classes"] == [[[1], list(range(2, 17))], [list(range(1, 17))]]
    assert made["borders"] == {"gone": [[1, 2]], "new": [], "other_offsets": []}
    assert [(c["before"], c["after"], c["widths"]) for c in made["kernels"]] == [
        (["gemm"], ["dot"], list(range(2, 17)))
    ]
    assert made["bits"] == {"compared": True, "why": None, "widths": list(range(2, 17))}
    assert made["settings"] == {"llama.cpp": ["aaa", "bbb"]}
    new["against"] = {"why_not": None, **made}
    text = render(json.loads(json.dumps(new)))
    for line in (
        "since the other map: changed",
        "  llama.cpp: was aaa, is bbb",
        "  rows agree: was {1} {2..16}, is {1..16}",
        "  border 1 | 2 is gone",
        "  kernels at {2..16}: MUL_MAT bf16  gemm -> dot: attn_q.weight (2 nodes)",
        "  bits: rows of widths {2..16} have other bits",
    ):
        assert line in text.splitlines()


def test_other_bits_in_the_same_classes_are_a_change() -> None:
    """And only of the same model file: another's rows have other bits anyway."""
    old = make_record(place(same))
    new = make_record({w: [f"new{r}" for r in rows] for w, rows in place(same).items()})
    made = width_changes.changes(old, new)
    assert (made["changed"], made["map"], made["kernels_compared"]) == (True, {}, False)
    new["provenance"]["model"]["files"][0]["sha256"] = "11"
    made = width_changes.changes(old, new)
    assert (made["changed"], made["bits"]["compared"]) == (False, False)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda r: r.update(mode="op"), "one is of a model"),
        (lambda r: r.update(widths=[1, 2]), "other widths"),
        (lambda r: r["prompts"][0].update(tokens=[9]), "other prompt tokens"),
        (lambda r: r["places"][0].update(inputs=[9]), "other tokens at them"),
        (lambda r: r["places"].pop(), "other places"),
        (lambda r: r.update(complete=False), "no whole measurement"),
        (lambda r: r.update(problems=["x"]), "no valid"),
    ],
)
def test_what_cant_be_compared(spoil: Any, said: str) -> None:
    old = make_record(place(same), place(same))
    new = copy.deepcopy(old)
    spoil(new)
    for pair in ((old, new), (new, old)):
        assert said in str(width_changes.why_not(*pair))


def test_saved_maps_are_shown_and_compared(run: Run, tmp_path: Path) -> None:
    """Without the model, and without the native library."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(make_record(place(single_apart), kernels=dot_or_gemm)))
    new.write_text(json.dumps(make_record(place(same))))
    shown = run("widths", new)
    assert (shown.code, shown.out) == (0, render(load_widths(new)))
    changed = run("widths", new, "--against", old, "--json", tmp_path / "both.json")
    assert changed.code == 1
    assert "  rows agree: was {1} {2..16}, is {1..16}" in changed.out.splitlines()
    assert json.loads((tmp_path / "both.json").read_text())["against"]["changed"] is True
    unchanged = run("widths", old, "--against", old)
    assert unchanged.code == 2 and "name the same file" in unchanged.err
    again = tmp_path / "again.json"
    again.write_text(old.read_text())
    assert run("widths", old, "--against", again).code == 0
    again.write_text(json.dumps(make_record(place(same, 8))))
    other = run("widths", old, "--against", again)
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "can't be compared: they have other widths" in other.err


def test_no_map(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    for text in ("{", "[]", '{"schema": {"name": "csb.compare", "version": 1}}'):
        path.write_text(text)
        with pytest.raises(FileError):
            load_widths(path)
        assert run("widths", path).code == 2
    assert run("widths", tmp_path / "none.json").code == 2
