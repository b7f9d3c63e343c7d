"""`compare --reference cpu`: both paths held against a CPU run in F32."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb.measure import f32, reference
from csb.native.library import quantize
from process import Run

pytestmark = pytest.mark.native

PROMPT = [1, 2, 3, 4, 5]
OPTIONS = ("--tokens", "1,2,3,4,5", "-c", "256", "-t", "1", "-n", "10", "-W", "3", "-fa", "off")


@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_distances(run: Run, tiny_model: TinyModel, tmp_path: Path, kind: str) -> None:
    """Against the saved rows of both paths and a run of our own on the dequantized weights."""
    path, saved, npz = tiny_model("llama", kind, n_layer=2), tmp_path / "r.json", tmp_path / "l.npz"
    done = run("-m", path, *OPTIONS, "--reference", "cpu", "--json", saved, "--save-logits", npz)
    assert done.code in (0, 1)
    record = json.loads(saved.read_text())
    quantize(path, tmp_path / "f32.gguf", "f32")
    ids = [token["id"] for token in record["ar"]]
    text = PROMPT + ids
    with (
        csb.Model(tmp_path / "f32.gguf", use_extra_bufts=False) as model,
        csb.Context(
            model, n_ctx=256, n_threads=1, flash_attn="off", type_k="f32", type_v="f32"
        ) as context,
    ):
        context.decode(PROMPT[:-1], 0, outputs=False)
        truth = []
        for at in range(len(PROMPT) - 1, len(text) - 1):
            context.decode([text[at]], at)
            truth.append(context.logits()[0])
    expected = []
    with np.load(npz) as rows:
        for p in range(len(ids)):
            for t in range(max(0, p - 2), min(p + 1, len(ids) - 1)):
                s, b = (rows[f"{name}_{t:05}"][p - t] for name in ("single", "block"))
                pairs = ((s, b), (truth[p], s), (truth[p], b))
                expected.append(
                    [float(np.sqrt(np.mean((x.astype(float) - y) ** 2))) for x, y in pairs]
                )
    found = record["reference"]
    table = np.array(expected)
    assert found["n"] == len(expected) == record["summary"]["n_compared"]
    for i, name in enumerate(("single_block", "single_reference", "block_reference")):
        np.testing.assert_allclose(found[name], table[:, i], rtol=1e-12)
        assert found["medians"][name] == pytest.approx(np.median(table[:, i]))
    nearer = int((table[:, 0] < np.minimum(table[:, 1], table[:, 2])).sum())
    assert found["n_nearer_to_each_other"] == nearer
    assert found["parameters"]["type_k"]["value"] == "f32"
    assert f"in {nearer} of {len(expected)} cells" in done.out


def test_an_f32_models_single_path_is_the_reference(run: Run, tiny_model: TinyModel) -> None:
    """Where each window finds the AR run's own memory, as the reference does."""
    path = tiny_model("llama", "f32", n_layer=2)
    cache = ("-ctk", "f32", "-ctv", "f32", "--prefix", "incremental", "--reference", "cpu")
    found = json.loads(run("-m", path, *OPTIONS, *cache, "--json", "-").out)["reference"]
    assert set(found["single_reference"]) == {0.0}
    assert found["block_reference"] == found["single_block"]
    assert max(found["single_block"]) > 0


def test_no_room_for_it(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr(f32.shutil, "disk_usage", lambda folder: usage)
    done = run("-m", tiny_model("llama", "bf16", n_layer=2), *OPTIONS, "--reference", "cpu")
    assert done.code == 2
    assert "GB free" in done.err


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from csb.measure import f32

def endless(source, target, kind):
    target.write_bytes(b"begun")
    print("quantizing", flush=True)
    time.sleep(60)

f32.quantize = endless
from csb.cli import main
raise SystemExit(main())
"""


@pytest.mark.parametrize("command", ["compare", "speculate"])
def test_an_interrupt_while_the_f32_file_is_written(
    tiny_model: TinyModel, tmp_path: Path, command: str
) -> None:
    """llama.cpp's quantizer can't be stopped: csb ends at once, and nothing is left behind."""
    saved, cache = tmp_path / "r.json", tmp_path / "cache"
    given = ["-m", str(tiny_model("llama", "bf16", n_layer=2)), *OPTIONS, "--json", str(saved)]
    way = ["--reference", "cpu"] if command == "compare" else ["--exact", "f32"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, command, *given, *way],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "CSB_CACHE_DIR": str(cache)},
    )
    assert process.stdout and process.stdout.readline() == "quantizing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=8)  # before a device's 10 seconds of grace
    kept = f"; what was measured so far is in {saved}" if command == "compare" else ""
    assert (process.returncode, out, err) == (130, "", f"csb: interrupted{kept}\n")
    assert not list(cache.glob(".f32-*"))
    if command == "compare":
        found = json.loads(saved.read_text())
        assert not found["complete"] and len(found["cells"]) == 27


def test_an_interrupt_during_it_saves_the_comparison(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reference, "measure", interrupted)
    path, saved = tiny_model("llama", "bf16", n_layer=2), tmp_path / "r.json"
    done = run("-m", path, *OPTIONS, "--reference", "cpu", "--json", saved)
    assert done.code == 130
    record = json.loads(saved.read_text())
    assert not record["complete"] and len(record["cells"]) == 27 and "reference" not in record
