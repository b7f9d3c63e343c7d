"""How runs end: interrupts, closed pipes, full disks. Nothing that was measured is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import TinyModel
from csb import record
from csb.cli import app
from csb.render.compare import render
from process import SHORT, Saved, child, launch

pytestmark = pytest.mark.native

# about 20000 decodes: far more than any test waits for
LONG = ("-n", "300", "-W", "64", "-t", "1", "--tokens", "1,2,3", "--prefix", "reprefill")


def wait_for_rows(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() or path.stat().st_size < 300_000:  # one window's rows
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT, signal.SIGTERM)],
)
def test_an_interrupted_run_saves_what_it_has(
    text_model: Path, tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    rows = tmp_path / "rows.npz"
    process = launch("-m", text_model, *LONG, "--json", tmp_path / "r.json", "--save-logits", rows)
    wait_for_rows(rows, process)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.02)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "")
    found = record.load(tmp_path / "r.json")
    assert (found["complete"], found["outcome"]) == (False, "incomplete")
    assert len(found["ar"]) == 300
    assert 0 < len(found["cells"]) < 300 * 64 - 2016
    assert out == render(found)
    with np.load(rows) as saved:
        assert f"single_{found['cells'][0]['t']:05}" in saved


def test_an_interrupt_leaves_json_on_stdout(text_model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.npz"
    process = launch("-m", text_model, *LONG, "--json", "-", "--save-logits", rows)
    wait_for_rows(rows, process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert json.loads(out)["complete"] is False


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with app._signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_quantizer_leaves_nothing(tiny_model: TinyModel, tmp_path: Path) -> None:
    source = tiny_model(n_layer=1, n_vocab=32768)
    process = launch("quantize", source, tmp_path / "q.gguf", "--type", "iq4_nl", "-t", "1")
    while not any(tmp_path.glob("q.gguf.part*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "csb: interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """A pipe's end that nobody reads from any more."""
    end, writer = os.pipe()
    os.close(end)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("how", [(), ("--verbose",), ("--json", "-")])
def test_a_closed_pipe_keeps_the_code(flip: Saved, closed_pipe: int, how: tuple[str, ...]) -> None:
    done = child(*flip.arguments, *how, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (1, "")


def test_head_keeps_the_code(flip: Saved) -> None:
    command = [sys.executable, "-m", "csb", *flip.arguments, "--verbose"]
    script = '"$@" | head -1; exit ${PIPESTATUS[0]}'
    done = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "--- run config ---\n", "")


@pytest.mark.parametrize("command", ["info", "models", "--help", "--version"])
def test_a_closed_pipe_is_quiet_for(command: str, closed_pipe: int) -> None:
    done = child(command, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "code"), [(("-n", "4"), 0), (("-n", "1"), 3), (("-W",), 2)])
def test_a_closed_stderr_keeps_the_code(
    text_model: Path, closed_pipe: int, arguments: tuple[str, ...], code: int
) -> None:
    given = ("-m", text_model, "-t", "1", "-p", "a", *arguments)  # a note and an error come here
    assert child(*given, stdout=closed_pipe, stderr=closed_pipe).returncode == code


def test_no_stdout_at_all_keeps_the_code(flip: Saved) -> None:
    command = [sys.executable, "-m", "csb", *flip.arguments]
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *command], stderr=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_no_stderr_at_all_changes_nothing(flip: Saved) -> None:
    command = [sys.executable, "-m", "csb", *flip.arguments, "--json", "-"]
    done = subprocess.run(
        ["bash", "-c", '"$@" 2>&-', "bash", *command], stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["cells"] == flip.record["cells"]


@pytest.mark.parametrize("how", [(), ("--json", "-")])
def test_a_full_stdout_is_an_error(text_model: Path, how: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = child("-m", text_model, *SHORT, *how, stdout=full)
    assert (done.returncode, done.stderr) == (2, "csb: stdout: No space left on device\n")


@pytest.mark.parametrize("option", ["--json", "--save-logits"])
def test_a_full_disk_loses_nothing_else(text_model: Path, tmp_path: Path, option: str) -> None:
    other, path = ("--save-logits", "o.npz") if option == "--json" else ("--json", "o.json")
    done = child("-m", text_model, *SHORT, option, "/dev/full", other, tmp_path / path)
    assert done.returncode == 2
    assert done.stderr == f"csb: {option} /dev/full: No space left on device\n"
    if option == "--json":
        with np.load(tmp_path / path) as saved:
            assert saved["block_00000"].shape == (5, 512)
    else:
        found = record.load(tmp_path / path)
        assert (found["complete"], len(found["cells"])) == (False, 5)
