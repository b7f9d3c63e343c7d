"""Bad input: exit code 2, one line that says what to do, and nothing lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TinyModel
from csb.exit_codes import Exit
from process import Run

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def files(
    tiny_model: TinyModel, text_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bad")
    made = {name: folder / name for name in ("empty", "text", "cut", "trace", "ids", "floats")}
    made["empty"].write_bytes(b"")
    made["text"].write_text("Dear model, ...\n")
    made["cut"].write_bytes(text_model.read_bytes()[:100_000])
    made["trace"].write_text('{"schema": {"name": "csb.trace", "version": 1}}')
    made["ids"].write_text("1, two")
    made["floats"].write_text("[1.5, 2]")
    return made | {
        "model": text_model,
        "folder": folder,
        "missing": folder / "missing",
        "under": text_model / "x",
        "syntax": tiny_model(n_layer=2, tokenizer="bpe", chat_template="{% for %}"),
        "raising": tiny_model(
            n_layer=2, tokenizer="bpe", chat_template="{{ raise_exception('roles [b] \x1b') }}"
        ),
        "bare": tiny_model(n_layer=2),
        "mamba": tiny_model("mamba", n_layer=2),
    }


BAD = {
    "missing model": ("-m {missing}", "{missing}: No such file or directory"),
    "folder": ("-m {folder}", "{folder}: is a folder"),
    "empty model": ("-m {empty}", "{empty}: is empty"),
    "text": ("-m {text}", "{text}: is no GGUF file"),
    "cut short": ("-m {cut}", "{cut}: is cut short"),
    "template syntax": ("-m {syntax}", "does not compile: .*; use --no-chat-template"),
    "template raises": ("-m {raising}", r"roles \[b\] \\x1b; use --no-chat-template"),
    "empty prompt": ("-m {model} -p ''", "the prompt is empty: give one with -p, -f or --tokens"),
    "empty file": ("-m {model} -f {empty}", "the prompt is empty"),
    "missing file": ("-m {model} -f {missing}", "-f {missing}: No such file"),
    "binary file": ("-m {model} -f {cut}", "-f {cut}: is not UTF-8 text"),
    "long prompt": ("-m {model} -c 256 -f {model}.long", "300 tokens, the context 256: .* -c"),
    "long run": ("-m {model} -c 256 -p ab -n 255", "give a larger -c or a smaller -n"),
    "wide block": ("-m {model} -b 64 -W 65", "--block-width 65 is more than -b 64: .* larger -b"),
    "-W 0": ("-m {model} -W 0", "'-W' / '--block-width': 0 is not in the range x>=1"),
    "-n 0": ("-m {model} -n 0", "'-n' / '--predict': 0 is not in the range x>=1"),
    "-n x": ("-m {model} -n x", "'-n' / '--predict': 'x' is not a valid integer"),
    "-t 0": ("-m {model} -t 0", "'-t' / '--threads': 0 is not"),
    "-tb 0": ("-m {model} -tb 0", "'-tb' / '--threads-batch': 0 is not"),
    "-t 513": ("-m {model} -t 513", "n_threads = 513: must be .* from 1 to 512"),
    "-c huge": ("-m {model} -c 99999999999", "n_ctx = 99999999999: must be"),
    "-fa": ("-m {model} -fa maybe", "'maybe': must be on, off or auto"),
    "cache type": ("-m {model} -ctk q9", "'q9' is not one of 'f32', 'f16'"),
    "device": ("-m {model} -dev CUDA7", "-dev CUDA7: there is no device CUDA7; here are .*CPU"),
    "no device": ("-m {model} -dev ''", "-dev '': must be names joined by commas, or none"),
    "half a device": ("-m {model} -dev CPU,", "-dev 'CPU,': must be names joined by commas"),
    "main device": ("-m {model} -dev CPU -mg 1", "-mg 1: here is 1 device, counted from 0"),
    "parts": ("-m {model} -dev CPU -ts 1,2", "-ts 1,2: here is 1 device"),
    "no part": ("-m {model} -ts 0,0", "tensor_split = 0,0: gives no device a part"),
    "layers": ("-m {model} -ngl x", "'x': must be a number of layers or all"),
    "tensor split": ("-m {model} -ts a,b", "tensor_split = a,b: must be numbers"),
    "temperature": ("-m {model} --temp nan", "nan is no finite number"),
    "decided": ("-m {model} --decided inf", "inf is no finite number"),
    "json in no folder": ("-m {model} --json {missing}/r", "can't be written: No such file"),
    "json is a folder": ("-m {model} --json {folder}", "can't be written: Is a directory"),
    "json under a file": ("-m {model} --json {under}", "can't be written: Not a directory"),
    "rows in no folder": ("-m {model} --save-logits {missing}/r", "can't be written: No such"),
    "rows to stdout": ("-m {model} --save-logits -", "'--save-logits': -: must be a file"),
    "json is the model": ("-m {model} --json {model}", "--model and --json name the same file"),
    "one file twice": (
        "-m {model} --json {text} --save-logits {text}",
        "--json and --save-logits name the same file",
    ),
    "another schema": ("-m {model} --tokens {trace}", "{trace}: has schema .*csb.trace"),
    "no ids": ("-m {model} --tokens {ids}", "{ids}: must be token ids, as 1,2,3"),
    "fractions": ("-m {model} --tokens {floats}", "{floats}: must be token ids"),
    "no id at all": ("-m {model} --tokens ,", "holds no token ids"),
    "no ids in a file": ("-m {model} --tokens {empty}", "{empty}: holds no token ids"),
    "binary ids": ("-m {model} --tokens {cut}", "{cut}: must be token ids"),
    "missing ids": ("-m {model} --tokens {missing}", "{missing}: neither .* nor a file: No such"),
    "half an id": ("-m {model} --tokens 1,x", "1,x: neither token ids, as 1,2,3, nor a file"),
    "id 512": ("-m {model} --tokens 1,512", "512 is outside the model's vocabulary of 512"),
    "id -1": ("-m {model} --tokens -1", "-1 is outside the model's vocabulary"),
    "id 2^64": ("-m {model} --tokens 18446744073709551616", "is outside the model's vocabulary"),
    "system, no template": ("-m {model} -p a --system b", "--system needs a chat template"),
    "system, ids": ("-m {model} --tokens 1 --system b", "--system needs a text prompt"),
    "no tokenizer": ("-m {bare} -p hi", "no tokenizer: give token ids with --tokens"),
    "-p and -f": ("-m {model} -p a -f {text}", "give only one of -p, -f and --tokens; see"),
    "option": ("-m {model} --blok-width 3", "No such option:? '?--blok-width"),
    "no value": ("-m {model} -W", "Option '-W' requires an argument"),
    "argument": ("-m {model} extra", r"unexpected extra argument \(extra\)"),
    "command": ("compere -m {model}", "no command 'compere'; the commands are compare, "),
    "cache needs -fa": ("-m {model} -ctv q8_0 -fa off", "quantized V cache requires flash"),
    "mamba shared": ("-m {mamba} --tokens 1,2 --prefix shared", "use --prefix reprefill"),
    "mamba incremental": ("-m {mamba} --tokens 1 --prefix incremental", "use --prefix reprefill"),
    "unknown model": ("models --fetch gpt5", "no model 'gpt5': one of smollm2"),
    "quantize type": ("quantize {model} {folder}/q --type q9", "type = q9: must be one of f32, "),
    "quantize itself": ("quantize {model} {model} --type f16", "IN and OUT are the same file"),
    "quantize a cut file": ("quantize {cut} {folder}/q --type f16", "{cut}: is cut short"),
    "quantize nothing": ("quantize {missing} {folder}/q --type f16", "{missing}: No such file"),
    "quantize to nowhere": ("quantize {model} {missing}/q --type f16", "can't be written"),
    "quantize to stdout": ("quantize {model} - --type f16", "-: must be a file"),
    "a plot of no kind": (
        "trace -m {model} -p a --plot {folder}/x.gif",
        "'--plot': {folder}/x.gif: must end in .png or .svg",
    ),
    "no type": ("quantize {model} {folder}/q", "Missing option '--type'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    run: Run, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, expected = BAD[case]
    Path(f"{files['model']}.long").write_text("a" * 300)
    arguments = [part.strip("'").format(**files) for part in given.split(" ")]
    kept = {option: tmp_path / option for option in ("--json", "--save-logits")}
    for path in kept.values():
        path.write_text("precious")
    if given.startswith("-"):
        for option, path in kept.items():
            arguments = [option, str(path)] * (option not in given) + arguments
    before = {p: p.stat().st_mtime_ns for p in files["folder"].iterdir()}
    monkeypatch.setattr("csb.native.context.Context.decode", pytest.fail)  # found before any decode
    done = run(*arguments)
    assert (done.code, done.out) == (Exit.ERROR, "")
    assert done.err.endswith("\n")
    assert done.err[:-1].isprintable()
    assert done.err.startswith("csb: ")
    escaped = {name: re.escape(str(path)) for name, path in files.items()}
    assert re.search(expected.format(**escaped), done.err), done.err
    assert {path.read_text() for path in kept.values()} == {"precious"}
    assert {p: p.stat().st_mtime_ns for p in files["folder"].iterdir()} == before


def test_the_whole_context_can_be_used(run: Run, text_model: Path) -> None:
    done = run(
        "-m", text_model, "-c", "256", "-t", "1", "--tokens", "1,2", "-n", "254", "--stride", 300
    )
    assert done.code == 0
    assert "checked=5 " in done.out


def test_debug_shows_the_traceback(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSB_DEBUG", "1")
    assert "Traceback" in run("-m", tmp_path / "missing").err


def test_an_internal_error_is_one_line(
    run: Run, text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csb.native.model.Model.tokenize", lambda *a, **k: 1 / 0)
    done = run("-m", text_model, "-p", "a")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "csb: internal error: ZeroDivisionError: division by zero (CSB_DEBUG=1 shows where)\n"
    )
