"""`csb budget`: input that is refused before anything is decoded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TinyModel
from csb.exit_codes import Exit
from process import Run

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def bf16(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", "bf16", n_layer=2)


BAD = {
    "slots 0": ("--slots 0", "'0': must be numbers from 1 to 255, as 1,2,4"),
    "slots x": ("--slots 1,x", "must be numbers from 1"),
    "no slots": ("--slots ,", "must be numbers from 1"),
    "too many slots": ("--slots 256", "must be numbers from 1 to 255"),
    "lines": ("--lines noise,colour", "'colour': must be of noise, threads, prefix"),
    "no lines": ("--lines ''", "'': must be of noise"),
    "no record": ("--against {missing}", "{missing}: No such file"),
    "no record's text": ("--against {text}", "{text}: not a record of csb compare or csb budget"),
    "another schema": ("--against {trace}", "this csb reads csb.compare 1 or csb.budget 1"),
    "plot to stdout": ("--plot -", "-: must be a file"),
    "plot in no folder": ("--plot {missing}/p.png", "can't be written"),
    "one file twice": (
        "--plot {text}.svg --json {text}.svg",
        "--json and --plot name the same file",
    ),
    "a plot of no kind": ("--plot {text}", "{text}: must end in .png or .svg"),
    "json over the record": ("--against {text} --json {text}", "name the same file"),
    "prefix": ("--prefix fresh", "'fresh' is not one of"),
    "width": ("-W 0", "is not in the range x>=1"),
    "stride": ("--stride 0", "is not in the range x>=1"),
    "length": ("-n 0", "is not in the range x>=1"),
    "too long": ("-c 256 -n 300", "give a larger -c or a smaller -n"),
    "wide block": ("-b 64 -W 65", "--block-width 65 is more than -b 64"),
    "huge": ("-n 99999999", "n_ctx = 100"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    run: Run, bf16: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, expected = BAD[case]
    files = {name: tmp_path / name for name in ("missing", "text", "trace")}
    files["text"].write_text("precious")
    files["trace"].write_text('{"schema": {"name": "csb.trace", "version": 1}}')
    monkeypatch.setattr("csb.native.context.Context.decode", pytest.fail)
    arguments = [part.strip("'").format(**files) for part in given.split(" ")]
    done = run("budget", "-m", bf16, "--tokens", "1,2", "-t", "1", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (Exit.ERROR, "", 1)
    escaped = {name: re.escape(str(path)) for name, path in files.items()}
    assert re.search(expected.format(**escaped), done.err), done.err
    assert files["text"].read_text() == "precious"
