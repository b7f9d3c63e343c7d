"""The text of a record: the seed's lines first, in its order and format, then csb's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from csb import cells
from csb.measure.prefix import PrefixRecord
from csb.record import dumps
from csb.render.compare import _prefix, render
from csb.render.text import harmless
from handmade import make_record, table

# The seed's own report of a run of Qwen3 4B, with the two flips that it shows of six.
SEED = """\
--- run config ---
flash_attn: 0
n_gpu_layers: 0
n_threads: 32 / batch: 32
n_batch: 512 / n_ubatch: 512
block_width: 5
prompt_tokens: 19
n_gen: 100
model: Qwen3 4B bf16    backend: CPU  fa=off  t=32  W=5
------------------

=== pairwise logit-diff statistics (n=490 cells) ===
pair                                 mean          var      mean|d|       var|d|
l_ar - l_single                 -0.007948     0.001222     0.027564     0.000526
l_ar - l_block                  -0.006654     0.001771     0.030979     0.000855
l_single - l_block (dlogit)     +0.001295     0.001389     0.026934     0.000665

summary: tokens=100 checked=490 flips=2 cells across 2 positions
FLIP at pos=5 (window t=1, block offset j=4):
  single argmax= 57817(' theorem') l=43.2867 | block argmax=   576(' The') l=43.2825
  AR token= 57817(' theorem') l_s=43.2867 l_b=43.2610 dlogit=+0.0256
FLIP at pos=14 (window t=10, block offset j=4):
  single argmax= 16555(' describes') l=31.3830 | block argmax= 35616(' relates') l=31.3891
  AR token= 35616(' relates') l_s=31.3680 l_b=31.3891 dlogit=-0.0210
  note: single-path argmax also deviates from the AR trajectory — \
prefill-vs-incremental drift, not a block effect
"""
FLIPS = [
    {"pos": 5, "t": 1, "j": 4, "id": 57817, "amax_s": 57817, "amax_b": 576, "lmax_s": 43.2867,
     "lmax_b": 43.2825, "l_s": 43.28668, "l_b": 43.26104},
    {"pos": 14, "t": 10, "j": 4, "id": 35616, "amax_s": 16555, "amax_b": 35616, "lmax_s": 31.3830,
     "lmax_b": 31.3891, "l_s": 31.36804, "l_b": 31.38906},
]  # fmt: skip
STATS = {
    "l_ar-l_single": (-0.007948, 0.001222, 0.027564, 0.000526),
    "l_ar-l_block": (-0.006654, 0.001771, 0.030979, 0.000855),
    "l_single-l_block": (0.001295, 0.001389, 0.026934, 0.000665),
}
PIECES = {57817: b" theorem", 576: b" The", 16555: b" describes", 35616: b" relates"}


def seed_run() -> dict[str, Any]:
    made = table(490)
    for row, flip in zip(made, FLIPS, strict=False):
        for name, value in flip.items():
            row[name] = value
    record = make_record(made, [(0, 1.0)] * 100, PIECES)
    record["config"]["model_name"] = "Qwen3 4B bf16"
    record["prompt_tokens"] = list(range(19))
    names = ("mean", "var", "abs_mean", "abs_var")
    record["stats"] = {
        pair: {"n": 490, **dict(zip(names, values, strict=True))} for pair, values in STATS.items()
    }
    return record


def small(made: cells.Cells, **changes: Any) -> str:
    return render(make_record(made, [(1, 0.5), (2, 0.25)], {}, **changes))


def line_of(text: str, start: str) -> str:
    (found,) = [line for line in text.splitlines() if line.startswith(start)]
    return found


def test_the_seed_s_lines_as_the_seed_prints_them() -> None:
    text = render(seed_run())
    assert text[: len(SEED)] == SEED
    assert text[len(SEED) :].startswith("\ncompared: 490 cells, ")


MORE = [
    "compared", "|gap|", "|pair gap|", "|pair drift|", "margin", "near ties", "flips by class",
    "distributions", "prefix", "controls", "time", "csb",
]  # fmt: skip
TABLES = ["=== AR trajectory ===", "=== dlogit by position and block offset ===", "=== cells ==="]


def test_what_csb_adds_comes_last_and_ends_with_the_verdict() -> None:
    record = seed_run()
    more = render(record).removeprefix(SEED + "\n").splitlines()
    assert [line.partition(":")[0] for line in more] == MORE
    assert more[-1] == record["verdict"]


def test_full_puts_its_tables_between() -> None:
    record = seed_run()
    full = render(record, full=True)
    assert full.startswith(SEED)
    assert [line for line in full.splitlines() if line.startswith("===")][1:] == TABLES
    assert full.endswith(render(record).removeprefix(SEED))


def test_compared_counts_equal_and_one_row_cells() -> None:
    made = table(4, n_diff=[0, 0, 3, 0], ubatch_rows=[5, 5, 5, 1])
    assert line_of(small(made), "compared:") == (
        "compared: 3 cells, 2 of them equal in every bit, 1 one-row cells left out"
    )


def test_sizes_are_given_by_quantiles() -> None:
    made = table(21, dlogit=[(-1) ** k * k / 8 for k in range(21)])
    assert line_of(small(made), "|gap|:") == "|gap|:        " + "  ".join(
        (
            "5 % 0.125",
            "25 % 0.625",
            "median 1.25",
            "75 % 1.875",
            "95 % 2.375",
            "99 % 2.475",
            "max 2.5",
        )
    )


def test_near_ties_come_with_their_limit() -> None:
    made = table(8, pair_gap=0.25, margin_s=[0.1, 0.2, 1, 1, 1, 1, 1, 1])
    assert line_of(small(made), "near ties:") == (
        "near ties: 2 of 8 cells (25.0 %) have a margin under 0.25, "
        "the 95th percentile of |pair gap|"
    )


def test_flips_by_class() -> None:
    made = table(4, pair_gap=0.1, amax_b=[0, 3, 3, 3], margin_s=[1, 0, 0.05, 5], crossed=0.1)
    assert line_of(small(made), "flips by class:") == (
        "flips by class: exact tie 1, near tie 1, other 0, decided 1, unexplained 0"
    )


def test_a_clean_result_carries_its_size() -> None:
    made = table(40, pos=[k // 2 for k in range(40)])
    assert line_of(small(made), "bound:").startswith(
        "bound: 0 flips at 20 positions of 1 prompt; if positions were independent draws, under "
        "15 % with 95 % confidence."
    )


def test_the_bound_says_so_beside_an_exact_tie() -> None:
    made = table(4, amax_b=[0, 0, 0, 3], margin_s=[1, 1, 1, 0])
    assert line_of(small(made), "bound:").startswith("bound: 0 flips beside exact ties and one-row")


def test_no_bound_with_a_flip_or_nothing_compared() -> None:
    assert "bound:" not in small(table(4, amax_b=[0, 0, 0, 3]))
    assert "bound:" not in small(table(4, ubatch_rows=1))


def test_nothing_measured_is_no_number() -> None:
    text = small(cells.empty(), stopped=KeyboardInterrupt())
    assert line_of(text, "l_ar - l_single ").split()[3:] == ["nan"] * 4
    assert "time:" not in text
    assert text.endswith(
        "csb: incomplete: 0 flips at 0 of 0 positions (0 cells), 0 exact ties, 0 decided; "
        "controls ok\n"
    )


def test_a_row_that_is_nan_is_shown_as_nan() -> None:
    made = table(2, l_b=[0, np.nan], lmax_b=[0, np.nan], dlogit=[0, np.nan], amax_b=[0, -1])
    made["n_bad"][1], made["pair_gap"][1], made["kl"] = 7, np.nan, np.nan
    record = make_record(made, [(0, 0.5), (2, 0.25)], {})
    text = render(record, full=True)
    assert "block argmax=    -1('') l=nan\n" in text
    assert "l_b=nan dlogit=nan\n" in text
    assert text.splitlines()[-1].startswith("csb: not valid: ")


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b"\x1b[31m\n\r\x00", r"\x1b[31m\n\r\x00"),
        (b"\xff\xc3", r"\xff\xc3"),
        ("[red]é 日[/red]".encode(), "[red]é 日[/red]"),
        ("\u202e\u2028\x85".encode(), r"\u202e\u2028\x85"),
    ],
)
def test_token_texts_are_data(piece: bytes, shown: str) -> None:
    made = table(1, amax_s=1, amax_b=2)
    text = render(make_record(made, [(1, 0.5)], {1: piece, 2: b"x"}), full=True)
    assert f"single argmax={1:>6}('{shown}')" in text
    assert f"    0       1     0.500000  '{shown}'" in text.splitlines()


def test_a_foreign_record_is_data_too() -> None:
    record = make_record(table(1, amax_b=2), [(0, 0.5)], {})
    record["pieces"]["0"] = "\x1b]0;x\x07"
    record["config"]["model_name"] = "m\x1b[2J"
    assert re.search(r"[\x00-\x09\x0b-\x1f]", render(record, full=True)) is None


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (PrefixRecord("reprefill", reprefilled=9), "window 0 fresh, 9 re-prefilled"),
        (PrefixRecord("shared", shared=9), "window 0 fresh, 9 windows on one shared prefill"),
        (
            PrefixRecord("auto", 80, 19, list(range(16)), list(range(15)), "why"),
            "window 0 fresh, 80 windows on one shared prefill, 19 re-prefilled; "
            "equal at 15 of 16 probed lengths (why)",
        ),
        (
            PrefixRecord("block", shared=9, short_from=8),
            "window 0 fresh, 9 windows on blocks written once; "
            "the last call was shorter, from position 8 on",
        ),
    ],
)
def test_prefix_line(record: PrefixRecord, text: str) -> None:
    assert _prefix(record.to_json()) == f"{record.asked}: {text}"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "window 0 has the AR run's bits; a second time has the same bits; another token"),
        ({"ar_equal": False}, "window 0 has NOT the AR run's bits; "),
        ({"repeat_equal": False}, "a second time has NOT the same bits; "),
        ({"token_differs": False}, "another token does NOT change them"),
        ({"incremental_equal": True}, "every single row has the AR run's bits"),
        ({"incremental_equal": False}, "NOT every single row has the AR run's bits"),
        (dict.fromkeys(("ar_equal", "repeat_equal", "token_differs")), "did not run"),
    ],
)
def test_controls_line(changes: dict[str, bool | None], text: str) -> None:
    record = make_record(table(2), [(1, 0.5)], {})
    record["controls"] |= {**changes, "one_row_equal": None}
    assert text in line_of(render(record), "controls:")


def test_noise_is_given_its_size() -> None:
    record = make_record(table(2), [(1, 0.5)], {})
    record["controls"]["noise"] = {"ar_equal": {"n_diff": 3, "n": 512, "max_abs": 0.00125}}
    assert "ar_equal: 3 of 512 logits differ, at most 0.00125" in render(record)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("tab\t", r"tab\t"),
        (b"\xe2\x82", r"\xe2\x82"),
        ("\udcff", r"\udcff"),
        ("\U000e0001", r"\U000e0001"),
    ],
)
def test_harmless(data: bytes | str, text: str) -> None:
    assert harmless(data) == text


def test_rendering_needs_no_native_library(tmp_path: Path) -> None:
    """A saved record is loaded and rendered where libcsb can't be."""
    made = make_record(table(2), [(1, 0.5)], {})
    (tmp_path / "r.json").write_text(dumps(made), "utf-8")
    code = (
        "from csb.render.compare import render; from csb.record import load; import pathlib, sys;"
    )
    code += "sys.stdout.write(render(load(pathlib.Path(sys.argv[1]))))"
    source = Path(__file__).parents[1] / "python"  # without a library: that is beside none of it
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "r.json"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (render(made), "")
    assert not list(source.glob("csb/*.so"))
