"""What a user sees of `csb`: commands, output, files and exit codes."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
from pathlib import Path

import click
import numpy as np
import pytest
import tiny
from conftest import TinyModel
from csb import record
from csb.cli import app
from csb.exit_codes import MEANING
from csb.native.library import build_info
from csb.render.compare import render
from process import SHORT, Run, Saved, child

pytestmark = pytest.mark.native

# ---- which command, and what it says of itself ----


def test_no_command_is_compare(run: Run, text_model: Path) -> None:
    bare = run("-m", text_model, *SHORT, "--json", "-")
    named = run("compare", "-m", text_model, *SHORT, "--json", "-")
    assert json.loads(bare.out)["cells"] == json.loads(named.out)["cells"]
    assert len(json.loads(bare.out)["cells"]) == 6 * 5 - 10


def test_version(run: Run) -> None:
    assert run("--version").out == "csb 0.1.0\n"


def test_help_lists_every_exit_code(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for code, meaning in MEANING.items():
        assert f"{int(code)}" in done.out
        assert meaning in done.out


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_option_is_explained(run: Run, name: str) -> None:
    assert run(name, "--help").code == 0
    command = app.app.get_command(click.Context(app.app), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts


def test_help_and_saved_records_need_no_library(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "python"
    env = {**os.environ, "PYTHONPATH": str(source)}
    assert child("--help", env=env).returncode == 0
    done = child("info", env=env)
    assert done.returncode == 2
    assert done.stderr.startswith("csb: csb's native library is not installed: build csb")


# ---- exit codes ----


def test_no_flip_is_0(run: Run, text_model: Path) -> None:
    done = run("-m", text_model, *SHORT)
    assert (done.code, done.err) == (0, "")
    assert done.last.startswith("csb: no flip: 0 flips at 0 of 6 positions (19 cells), 0 exact")


@pytest.mark.parametrize(("fail_on", "code"), [("flip", 1), ("decided", 0), ("none", 0)])
def test_a_flip_is_1(run: Run, flip: Saved, fail_on: str, code: int) -> None:
    done = run(*flip.arguments, "--fail-on", fail_on)
    assert done.code == code
    assert done.last.startswith("csb: flip: ")
    assert "FLIP at pos=" in done.out


def test_a_decided_flip_is_1(run: Run, flip: Saved) -> None:
    done = run(*flip.arguments, "--fail-on", "decided", "--decided", "0")
    assert done.code == 1
    assert f"{flip.record['n_flips']} decided" in done.last


def test_exact_ties_alone_are_0(run: Run, tiny_model: TinyModel) -> None:
    first = json.loads(run("-m", tiny_model(n_layer=2), *SHORT, "--json", "-").out)
    best = first["ar"][0]["id"]
    tied = tiny_model(n_layer=2, tie=(best, (best + 1) % 512))
    done = run("-m", tied, *SHORT, "--json", "-")
    found = json.loads(done.out)
    assert done.code == 0
    assert found["summary"]["n_exact_ties"] > 0


@pytest.mark.parametrize("how", [("-W", "1"), ("-ub", "1"), ("-n", "1")])
def test_nothing_compared_is_3(run: Run, text_model: Path, how: tuple[str, str]) -> None:
    done = run("-m", text_model, *SHORT, *how)
    assert done.code == 3
    assert done.last.startswith("csb: nothing compared: ")


# ---- output ----


def test_json_alone_on_stdout(flip: Saved) -> None:
    done = child(*flip.arguments, "--json", "-")
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert found["cells"] == flip.record["cells"]
    assert found["complete"] is True


def test_json_to_a_file_and_text_on_stdout(run: Run, text_model: Path, tmp_path: Path) -> None:
    done = run("-m", text_model, *SHORT, "--json", tmp_path / "r.json")
    assert done.out == render(record.load(tmp_path / "r.json"))


def test_a_file_is_replaced_whole(run: Run, text_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("x" * 1_000_000)
    run("-m", text_model, *SHORT, "--json", path)
    assert record.load(path)["complete"] is True


def test_verbose_tables(run: Run, text_model: Path) -> None:
    found = json.loads(run("-m", text_model, *SHORT, "--json", "-").out)
    lines = run("-m", text_model, *SHORT, "--verbose").out.splitlines()

    def after(title: str, n: int) -> list[list[str]]:
        begin = lines.index(title) + 1
        assert lines[begin + n] == ""
        return [line.split() for line in lines[begin : begin + n]]

    trajectory = after("=== AR trajectory ===", 6)
    assert [int(row[1]) for row in trajectory] == [a["id"] for a in found["ar"]]
    assert [row[2] for row in trajectory] == [f"{a['logit']:.6f}" for a in found["ar"]]

    head, *band = after("=== dlogit by position and block offset ===", 7)
    assert head == ["pos", "j=0", "j=1", "j=2", "j=3", "j=4"]
    by_place = {(c["pos"], c["j"]): f"{c['dlogit']:+.6f}" for c in found["cells"]}
    for p, row in enumerate(band):  # six windows: offset j of position p is there from p = j on
        assert row == [str(p), *(by_place[p, j] for j in range(min(p, 4) + 1))]

    head, *cells = after("=== cells ===", 21)
    assert [dict(zip(head, row, strict=True))["dlogit"] for row in cells] == [
        f"{c['dlogit']:+.6f}" for c in found["cells"]
    ]


def test_a_row_is_one_line_however_narrow_the_terminal(text_model: Path) -> None:
    env = {**os.environ, "COLUMNS": "20", "TERM": "xterm-256color", "FORCE_COLOR": "1"}
    done = child("-m", text_model, *SHORT, "-W", "6", "--full", env=env)
    band = "  pos" + "".join(f"        j={j}" for j in range(6))
    assert band in done.stdout.splitlines()
    assert "\x1b" not in done.stdout + done.stderr


def test_progress_goes_to_a_terminal_and_the_table_does_not(text_model: Path) -> None:
    mine, theirs = pty.openpty()
    done = child("-m", text_model, *SHORT, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    assert b"AR run" in os.read(mine, 100_000)
    os.close(mine)
    assert "\x1b" not in done.stdout


def test_text_survives_a_narrow_encoding(text_model: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    prompt = ("-n", "40", "-t", "1", "-p", "é日")
    done = child("-m", text_model, *prompt, "--verbose", env=env)
    assert done.stdout.splitlines()[-1].startswith("csb: ")
    done = child("-m", text_model, *prompt, "--json", "-", env=env)
    assert json.loads(done.stdout)["prompt"] == "é日"


HOSTILE = "[red]x[/red] \x1b[31m\r\x07 [/] {0} %s é"


def test_a_hostile_prompt_is_kept_and_does_no_harm(
    run: Run, text_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "[bold]r\x1b[1m.json"
    done = run("-m", text_model, "-n", "60", "-t", "1", "-p", HOSTILE, "--verbose", "--json", path)
    assert record.load(path)["prompt"] == HOSTILE
    assert all(line.isprintable() for line in (done.out + done.err).splitlines())
    assert "\\x" in done.out  # among 60 random bytes some are no text


@pytest.mark.parametrize("name", ["[red]\x1b[31m.gguf", "a\nb.gguf", "\udcff.gguf"])
def test_a_hostile_path_does_no_harm(run: Run, text_model: Path, tmp_path: Path, name: str) -> None:
    missing = run("-m", tmp_path / name, *SHORT)
    assert missing.code == 2
    assert missing.err.removesuffix("\n").isprintable()
    shutil.copy(text_model, tmp_path / name)
    there = run("-m", tmp_path / name, *SHORT, "--json", tmp_path / f"{name}.json")
    assert (there.code, there.err) == (0, "")
    assert record.load(tmp_path / f"{name}.json")["config"]["model"] == str(tmp_path / name)


# ---- prompts ----


def test_a_record_s_tokens_give_the_same_cells(run: Run, text_model: Path, tmp_path: Path) -> None:
    given = ("-m", text_model, "-n", "12", "-t", "1")
    run(*given, "-p", "once", "--json", tmp_path / "a.json")
    run(*given, "--tokens", tmp_path / "a.json", "--json", tmp_path / "b.json")
    a, b = (record.load(tmp_path / f"{name}.json") for name in "ab")
    assert a["prompt_tokens"] == list(b"once")
    assert record.compact(a["cells"]) == record.compact(b["cells"])


@pytest.mark.parametrize("text", ["7, 8 9\n", "[7, 8, 9]", "7\n8\n9"])
def test_a_file_of_token_ids(run: Run, text_model: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text)
    done = run("-m", text_model, "-n", "2", "-t", "1", "--tokens", tmp_path / "ids", "--json", "-")
    assert json.loads(done.out)["prompt_tokens"] == [7, 8, 9]


def test_the_default_prompt(run: Run, text_model: Path) -> None:
    done = run("-m", text_model, "-n", "2", "-t", "1", "--json", "-")
    assert json.loads(done.out)["prompt_tokens"] == list(b"Explain the Pythagorean theorem")


@pytest.mark.model
def test_the_default_model(default_model: Path) -> None:
    found = json.loads(child("-n", "2", "-W", "2", "--json", "-").stdout)
    assert found["config"]["model"] == str(default_model)
    assert found["config"]["model_name"] == "SmolLM2-135M-Instruct, Q4_1 requantized to BF16"
    assert found["config"]["rendered"].endswith("<|im_start|>assistant\n")


def test_a_dash_reads_stdin(text_model: Path) -> None:
    done = child("-m", text_model, "-n", "2", "-t", "1", "-f", "-", "--json", "-", input="hé\n")
    assert json.loads(done.stdout)["prompt_tokens"] == list("hé".encode())


@pytest.mark.parametrize("how", [("--tokens", "1,2"), ("-p", "-"), ("-f", "{file}"), ()])
def test_nothing_else_reads_stdin(text_model: Path, tmp_path: Path, how: tuple[str, ...]) -> None:
    (tmp_path / "prompt").write_text("hi")
    given = [h.format(file=tmp_path / "prompt") for h in how]
    with (tmp_path / "prompt").open() as stdin:
        done = child("-m", text_model, "-n", "2", "-t", "1", *given, stdin=stdin)
        assert os.lseek(stdin.fileno(), 0, os.SEEK_CUR) == 0
    assert done.returncode == 0


# ---- saved logits ----


def test_saved_rows_are_the_record_s(run: Run, text_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    found = json.loads(run("-m", text_model, *SHORT, "--save-logits", path, "--json", "-").out)
    ids = [a["id"] for a in found["ar"]]
    text = found["prompt_tokens"] + ids
    with np.load(path) as saved:
        assert list(saved["prompt_tokens"]) == found["prompt_tokens"]
        for t in range(6):
            start = len(found["prompt_tokens"]) - 1 + t
            n = min(5, 6 - t)
            assert list(saved[f"inputs_{t:05}"]) == text[start : start + n]
            assert saved[f"single_{t:05}"].shape == (n, 512)
        for cell in found["cells"]:
            s, b = (saved[f"{path}_{cell['t']:05}"][cell["j"]] for path in ("single", "block"))
            target = ids[cell["pos"]]
            assert (cell["l_s"], cell["l_b"]) == (float(s[target]), float(b[target]))
            assert cell["dlogit"] == float(s[target]) - float(b[target])
            assert (cell["amax_s"], cell["amax_b"]) == (np.argmax(s), np.argmax(b))
            assert cell["n_diff"] == np.count_nonzero(s.view(np.uint32) != b.view(np.uint32))


# ---- info, models, quantize ----


def test_info(run: Run) -> None:
    info = json.loads(run("info", "--json").out)
    text = run("info").out
    assert info["build"]["llama_commit"] in text
    assert info["csb"] == "0.1.0"
    assert [d["name"] for d in info["system"]["devices"]][-1] == "CPU"


def test_info_names_switches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_NO_\x1b", "1")
    assert "switches:        GGML_NO_\\x1b=1\n" in run("info").out


def test_models(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path))
    rows = json.loads(run("models", "--json", "-").out)
    assert [(r["variant"], r["state"], r["size"]) for r in rows] == [
        ("q4_1", "absent", 0),
        ("bf16", "absent", 0),
    ]
    text = run("models", "--json", tmp_path / "m.json").out
    assert text.splitlines()[-1] == f"cache: {tmp_path}"
    assert json.loads((tmp_path / "m.json").read_text()) == rows


def test_quantize(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    source, once, twice = tiny_model(n_layer=2), tmp_path / "1.gguf", tmp_path / "2.gguf"
    done = run("quantize", source, once, "--type", "Q8_0")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"{once}: Q8_0, {once.stat().st_size / 1e6:.1f} MB\n"
    again = run("quantize", once, twice, "--type", "q4_0", "-t", "1")
    assert again.out.endswith(" MB, requantized from q8_0\n")
    assert twice.stat().st_size < once.stat().st_size < source.stat().st_size
    assert run("-m", twice, *SHORT).code in (0, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.gguf", "2.gguf"]


def test_every_part_of_a_split_model_is_hashed(
    run: Run, tiny_model: TinyModel, tmp_path: Path
) -> None:
    parts = tiny.split(tiny_model(n_layer=1), tmp_path / "split", 3)
    saved = tmp_path / "r.json"
    run("-m", parts[0], "--tokens", "1,2,3", "-n", "4", "-t", "1", "--json", saved)
    files = record.load(saved)["provenance"]["model"]["files"]
    assert [Path(f["path"]) for f in files] == parts
    assert [f["sha256"] for f in files] == [
        hashlib.sha256(p.read_bytes()).hexdigest() for p in parts
    ]


@pytest.mark.native
def test_rpc_needs_a_build_with_it(run: Run, tiny_model: TinyModel) -> None:
    if build_info()["options"].get("GGML_RPC") == "ON":
        pytest.skip("this build has RPC: tests/test_backend_rpc.py")
    done = run("-m", tiny_model(n_layer=1), *SHORT, "--rpc", "127.0.0.1:50052")
    assert (done.code, done.out) == (2, "")
    assert done.err == "csb: this build has no RPC: build csb with -C cmake.define.GGML_RPC=ON\n"
