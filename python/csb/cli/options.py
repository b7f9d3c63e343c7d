"""Options that commands share, and the types that check their values."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from csb.errors import FileError
from csb.plan import (
    CACHE_TYPES,
    DEFAULT_PROMPT,
    KERNEL_SWITCHES,
    ComparePlan,
    ContextPlan,
    ModelPlan,
    PromptPlan,
)

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.FloatRange):
    """Finite: nan is neither below nor above a limit."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


class Layers(click.ParamType):
    name = "N|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if value in ("all", "-1", -1):
            return -1
        try:
            n = int(value)
        except ValueError:
            n = -2
        if n < 0:
            self.fail(f"{value!r}: must be a number of layers or all", param, ctx)
        return n


class Tokens(click.ParamType):
    """1,2,3 | a file of ids | a saved record, whose prompt_tokens are taken."""

    name = "IDS|FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            ids = self._read(value)
        except FileError as error:
            self.fail(str(error), param, ctx)
        except OSError as error:
            self.fail(
                f"{value}: neither token ids, as 1,2,3, nor a file: {error.strerror}", param, ctx
            )
        except ValueError:
            ids = None
        if not isinstance(ids, list) or any(type(i) is not int for i in ids):
            self.fail(f"{value}: must be token ids, as 1,2,3", param, ctx)
        if not ids:
            self.fail(f"{value}: holds no token ids", param, ctx)
        return tuple(ids)

    def _read(self, value: str) -> Any:
        text = value if re.fullmatch(r"[-\d\s,]+", value) else Path(value).read_text("utf-8")
        if text.lstrip().startswith("{"):
            from csb.record import load

            return load(Path(value)).get("prompt_tokens")
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [int(i) for i in text.replace(",", " ").split()]


class RowCounts(click.ParamType):
    """1,2,5 | 1..16 | 1..4,8: numbers of rows from 1 on."""

    name = "N,N|N..N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        rows: list[int] = []
        for part in value.split(","):
            found = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", part.strip(), re.ASCII)
            if not found or int(found[1]) < 1 or (found[2] and int(found[2]) < int(found[1])):
                self.fail(f"{value!r}: must be row counts from 1 on, as 1,2,5 or 1..16", param, ctx)
            rows += range(int(found[1]), int(found[2] or found[1]) + 1)
        return tuple(rows)


class Shape(click.ParamType):
    name = "M,K"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if not isinstance(value, str):
            return (value[0], value[1])
        parts = value.split(",")
        if len(parts) != 2 or not all(p.strip().isdecimal() and 0 < int(p) < 10**6 for p in parts):
            self.fail(f"{value!r}: must be rows and columns, as 512,2048", param, ctx)
        return int(parts[0]), int(parts[1])


class Counts(click.ParamType):
    """Numbers from 1 to `most`, joined by commas."""

    name = "N,N"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            counts = tuple(int(n) for n in value.split(","))
        except ValueError:
            counts = ()
        if not counts or not all(1 <= n <= self.most for n in counts):
            self.fail(f"{value!r}: must be numbers from 1 to {self.most}, as 1,2,4", param, ctx)
        return counts


class Names(click.ParamType):
    """Some of `known`, joined by commas."""

    name = "NAMES"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in self.known:
                self.fail(f"{name!r}: must be of {', '.join(self.known)}", param, ctx)
        return names


class Switches(click.ParamType):
    """Names of kernel switches, joined by commas."""

    name = "NAMES"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in KERNEL_SWITCHES:
                known = ", ".join(KERNEL_SWITCHES)
                self.fail(f"no kernel switch {name!r}: one of {known}", param, ctx)
        return names


class Flash(click.ParamType):
    name = "on|off|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        named = {"1": "on", "0": "off", "-1": "auto"}.get(str(value), str(value))
        if named not in ("on", "off", "auto"):
            self.fail(f"{value!r}: must be on, off or auto", param, ctx)
        return named


def _stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


CACHE_TYPE = click.Choice(CACHE_TYPES)
CACHE_HELP = f"{', '.join(CACHE_TYPES)} (f16)"


def count(*names: str, help: str, default: int | None = None) -> Callable[[F], F]:
    """An option that takes a number from 1 on."""
    return click.option(*names, type=click.IntRange(min=1), metavar="N", default=default, help=help)


model_options = _stack(
    click.option(
        "-m", "--model", "model", metavar="FILE", help="GGUF file; none: the default model"
    ),
    click.option(
        "-ngl", "--n-gpu-layers", type=Layers(), metavar="N|all", help="layers on the device (all)"
    ),
    click.option(
        "-dev", "--device", "devices", metavar="NAMES", help="devices to use, or none (all)"
    ),
    click.option(
        "-sm",
        "--split-mode",
        type=click.Choice(["none", "layer", "row"]),
        help="how devices share the model",
    ),
    click.option(
        "-mg",
        "--main-gpu",
        type=click.IntRange(min=0),
        metavar="N",
        help="the device with -sm none",
    ),
    click.option("-ts", "--tensor-split", metavar="N,N", help="each device's share of the model"),
    click.option("--rpc", metavar="HOST:PORT,..", help="llama.cpp's RPC servers as devices"),
    click.option("--repack/--no-repack", default=True, help="repack quantized weights (on)"),
    click.option("--mmap/--no-mmap", default=True, help="map the file into memory (on)"),
)

context_options = _stack(
    count("-c", "--ctx-size", "n_ctx", default=4096, help="tokens the memory holds (4096)"),
    count("-b", "--batch-size", "n_batch", default=512, help="most tokens of a call (512)"),
    count("-ub", "--ubatch-size", "n_ubatch", default=512, help="and of one graph (512)"),
    count("-t", "--threads", help="threads (the physical cores)"),
    count("-tb", "--threads-batch", help="threads for more than one token (as -t)"),
    click.option(
        "-fa",
        "--flash-attn",
        type=Flash(),
        metavar="on|off|auto",
        default="auto",
        help="flash attention (auto)",
    ),
    click.option(
        "-ctk", "--cache-type-k", type=CACHE_TYPE, metavar="TYPE", default="f16", help=CACHE_HELP
    ),
    click.option(
        "-ctv", "--cache-type-v", type=CACHE_TYPE, metavar="TYPE", default="f16", help="likewise"
    ),
    click.option("--op-offload/--no-op-offload", default=True, help="large host ops too (on)"),
    click.option("--kv-offload/--no-kv-offload", default=True, help="cache on the device (on)"),
    click.option(
        "--swa-full/--no-swa-full", default=True, help="full-size sliding-window cache (on)"
    ),
)

prompt_options = _stack(
    click.option("-p", "--prompt", metavar="TEXT", help=f'the prompt ("{DEFAULT_PROMPT}")'),
    click.option("-f", "--file", metavar="FILE", help="the prompt from a file, - is stdin"),
    click.option(
        "--tokens", type=Tokens(), help="the prompt as token ids 1,2,3, a file's or a record's"
    ),
    click.option("--system", metavar="TEXT", help="a system message, with a chat template"),
    click.option(
        "--chat-template/--no-chat-template", default=True, help="the model's own, if any (on)"
    ),
)


def model_plan(options: dict[str, Any]) -> ModelPlan:
    """From model_options' values; fetches the default model if none is given."""
    path, name = options["model"], None
    if path is None:
        from csb.cli.default_model import default_model

        path, name = default_model()
    from csb.native.library import build_info

    layers = options["n_gpu_layers"]
    has_device = options["rpc"] is not None or _has_device()
    can_serve = options["rpc"] is None or build_info()["options"].get("GGML_RPC") == "ON"
    if layers != 0 and options["devices"] is None and can_serve:  # else an error comes: one line
        _say_what_is_missing(has_device)
    return ModelPlan(
        path=Path(path),
        name=name,
        n_gpu_layers=layers if layers is not None else (-1 if has_device else 0),
        devices=options["devices"],
        split_mode=options["split_mode"],
        main_gpu=options["main_gpu"],
        tensor_split=options["tensor_split"],
        rpc=options["rpc"],
        repack=options["repack"],
        mmap=options["mmap"],
    )


def _say_what_is_missing(has_device: bool) -> None:
    """Who builds csb for a device expects one, unless -ngl 0 or -dev says what is wanted."""
    from csb.native.devices import missing
    from csb.render.output import note

    for line in missing():
        note(line if has_device else f"{line}; everything runs on the CPU")


def _has_device() -> bool:
    from csb.native.library import system_info

    return any(d["type"] in ("gpu", "igpu") for d in system_info()["devices"])


def context_plan(options: dict[str, Any]) -> ContextPlan:
    from csb.provenance import physical_cores

    threads = options["threads"] or physical_cores()
    return ContextPlan(
        n_ctx=options["n_ctx"],
        n_batch=options["n_batch"],
        n_ubatch=options["n_ubatch"],
        n_threads=threads,
        n_threads_batch=options["threads_batch"] or threads,
        flash_attn=options["flash_attn"],
        type_k=options["cache_type_k"],
        type_v=options["cache_type_v"],
        offload_kqv=options["kv_offload"],
        op_offload=options["op_offload"],
        swa_full=options["swa_full"],
    )


def prompt_plan(options: dict[str, Any]) -> PromptPlan:
    if sum(options[name] is not None for name in ("prompt", "file", "tokens")) > 1:
        raise click.UsageError("give only one of -p, -f and --tokens", click.get_current_context())
    text = options["prompt"]
    if options["file"] is not None:
        text = read_text("-f", options["file"])
    return PromptPlan(
        text=DEFAULT_PROMPT if text is None else text,
        tokens=options["tokens"],
        system=options["system"],
        chat_template=options["chat_template"],
    )


def compare_plan(options: dict[str, Any]) -> ComparePlan:
    """From the values of the options above and whatever else a comparison takes."""
    prompt = prompt_plan(options)  # before a model is fetched for nothing
    rest = {f.name for f in fields(ComparePlan)} - {"model", "context", "prompt"}
    return ComparePlan(
        model=model_plan(options),
        context=context_plan(options),
        prompt=prompt,
        **{name: options[name] for name in rest if name in options},
    )


def read_text(option: str, name: str) -> str:
    """A text file, or stdin for "-". FileError names the option."""
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise FileError(f"{option} {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{option} {name}: is not UTF-8 text") from error


def keep_apart(**files: str | None) -> None:
    """Raises UsageError where two options name one file: what is written would end what is read."""
    given = {name: Path(path).resolve() for name, path in files.items() if path not in (None, "-")}
    for (one, path), (two, other) in itertools.combinations(given.items(), 2):
        if path == other:
            names = " and ".join(f"--{name.replace('_', '-')}" for name in (one, two))
            raise click.UsageError(f"{names} name the same file", click.get_current_context())


class Output(click.ParamType):
    """A file that will be written after a long run: whether it can be is found out before."""

    def __init__(self, stdout: bool = False, endings: tuple[str, ...] = ()) -> None:
        self.stdout, self.endings = stdout, endings
        self.name = "FILE|-" if stdout else "FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        path = Path(value)
        if value == "-":
            if not self.stdout:
                self.fail("-: must be a file", param, ctx)
            return str(value)
        if self.endings and path.suffix.lower() not in self.endings:
            self.fail(f"{value}: must end in {' or '.join(self.endings)}", param, ctx)
        new = not path.exists()
        try:
            with path.open("ab"):
                pass
            if new:
                path.unlink()
        except OSError as error:
            self.fail(f"{value}: can't be written: {error.strerror}", param, ctx)
        return os.fspath(path)


json_option = click.option(
    "--json", "json_path", type=Output(stdout=True), help="save as JSON; -: JSON alone on stdout"
)


def plot_option(what: str) -> Callable[[F], F]:
    endings = (".png", ".svg")
    return click.option(
        "--plot", type=Output(endings=endings), metavar="FILE", help=f"PNG or SVG: {what}"
    )


without_option = click.option(
    "--without",
    type=Switches(),
    default=(),
    metavar="NAMES",
    help=f"refuse these CPU kernels: {', '.join(KERNEL_SWITCHES)}",
)
