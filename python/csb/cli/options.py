"""Options that commands share, and the types that check their values."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from csb.errors import CsbError, FileError
from csb.plan import CACHE_TYPES, DEFAULT_PROMPT, ContextPlan, ModelPlan, PromptPlan

F = TypeVar("F", bound=Callable[..., Any])


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
        if re.fullmatch(r"[\d\s,]+", value):
            text, source = value, "token ids"
        else:
            path = Path(value)
            try:
                text = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "is no text file"
                self.fail(f"{value}: {reason}", param, ctx)
            source = value
            if text.lstrip().startswith("{"):
                return self._of_record(path, param, ctx)
        try:
            ids = (
                json.loads(text)
                if text.lstrip().startswith("[")
                else text.replace(",", " ").split()
            )
            made = tuple(int(i) for i in ids)
        except (ValueError, TypeError):
            self.fail(f"{source}: must be token ids, as 1,2,3", param, ctx)
        if not made:
            self.fail(f"{source}: holds no token ids", param, ctx)
        return made

    def _of_record(self, path: Path, param: Any, ctx: Any) -> tuple[int, ...]:
        from csb.record import load

        try:
            return tuple(load(path)["prompt_tokens"])
        except CsbError as error:
            self.fail(str(error), param, ctx)


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


COUNT = click.IntRange(min=1)

model_options = _stack(
    click.option(
        "-m", "--model", "model", metavar="FILE", help="GGUF file; none: the default model"
    ),
    click.option("-ngl", "--n-gpu-layers", type=Layers(), help="layers on the device (all)"),
    click.option("-dev", "--device", "devices", metavar="NAMES", help="devices, or none"),
    click.option("-sm", "--split-mode", type=click.Choice(["none", "layer", "row"])),
    click.option("-mg", "--main-gpu", type=click.IntRange(min=0)),
    click.option("-ts", "--tensor-split", metavar="N,N"),
    click.option("--repack/--no-repack", default=True, help="repacked weights (on)"),
    click.option("--mmap/--no-mmap", default=True, help="map the file (on)"),
)

context_options = _stack(
    click.option("-c", "--ctx-size", "n_ctx", type=COUNT, default=4096, show_default=True),
    click.option("-b", "--batch-size", "n_batch", type=COUNT, default=512, show_default=True),
    click.option("-ub", "--ubatch-size", "n_ubatch", type=COUNT, default=512, show_default=True),
    click.option("-t", "--threads", type=COUNT, help="threads (the physical cores)"),
    click.option("-tb", "--threads-batch", type=COUNT, help="threads for blocks (as -t)"),
    click.option("-fa", "--flash-attn", type=Flash(), default="auto", show_default=True),
    click.option("-ctk", "--cache-type-k", type=click.Choice(CACHE_TYPES), default="f16"),
    click.option("-ctv", "--cache-type-v", type=click.Choice(CACHE_TYPES), default="f16"),
    click.option("--op-offload/--no-op-offload", default=True),
    click.option("--kv-offload/--no-kv-offload", default=True),
    click.option("--swa-full/--no-swa-full", default=True, help="full-size sliding window (on)"),
)

prompt_options = _stack(
    click.option("-p", "--prompt", metavar="TEXT", help=f'the prompt ("{DEFAULT_PROMPT}")'),
    click.option("-f", "--file", metavar="FILE", help="the prompt from a file, - is stdin"),
    click.option("--tokens", type=Tokens(), help="the prompt as token ids, or a record's"),
    click.option("--system", metavar="TEXT", help="a system message, with a chat template"),
    click.option("--chat-template/--no-chat-template", default=True, help="(on)"),
)


def model_plan(options: dict[str, Any]) -> ModelPlan:
    """From model_options' values; fetches the default model if none is given."""
    path, name = options["model"], None
    if path is None:
        from csb.cli.default_model import default_model

        path, name = default_model()
    layers = options["n_gpu_layers"]
    return ModelPlan(
        path=Path(path),
        name=name,
        n_gpu_layers=layers if layers is not None else (-1 if _has_device() else 0),
        devices=options["devices"],
        split_mode=options["split_mode"],
        main_gpu=options["main_gpu"],
        tensor_split=options["tensor_split"],
        repack=options["repack"],
        mmap=options["mmap"],
    )


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
    given = [name for name in ("prompt", "file", "tokens") if options[name] is not None]
    if len(given) > 1:
        names = {"prompt": "-p", "file": "-f", "tokens": "--tokens"}
        raise click.UsageError(f"give one of {', '.join(names[g] for g in given)}, not all")
    text = options["prompt"]
    if options["file"] is not None:
        text = _read_prompt(options["file"])
    return PromptPlan(
        text=DEFAULT_PROMPT if text is None else text,
        tokens=options["tokens"],
        system=options["system"],
        chat_template=options["chat_template"],
    )


def _read_prompt(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return data.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise FileError(f"-f {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"-f {name}: is not UTF-8 text") from error


class Output(click.ParamType):
    """A file that will be written after a long run: whether it can be is found out before."""

    name = "FILE|-"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        path = Path(value)
        if value == "-":
            return str(value)
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
    "--json", "json_path", type=Output(), help="the record; - alone on stdout"
)
