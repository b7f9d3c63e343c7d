"""The child that renders a chat template: one JSON request on stdin, one JSON line on stdout.

Run by its path under `python -I -S`, so it may import the standard library and jinja2 only.
The environment is the one Hugging Face transformers builds for `apply_chat_template`.
"""

from __future__ import annotations

import json
import math
import sys

if __name__ == "__main__" and len(sys.argv) > 1:
    sys.path[:] = sys.argv[1:]  # the parent's, since -I -S leaves only the standard library

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, nodes, sandbox
from jinja2.parser import Parser

MAX_DETAIL = 1000  # characters of an error's text: the parent shows fewer still
OUT_OF_MEMORY = b'\n{"error": "memory", "detail": ""}\n'  # made while there is memory to make it


class Refusal(jinja2.TemplateError):
    """The template called raise_exception."""


class TooLong(Exception):
    """The text passed its limit."""


class GenerationTag(ext.Extension):
    """`{% generation %}` marks trained text. A call block, as in transformers: it has a scope."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares an instance variable)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def raise_exception(message: object) -> None:
    raise Refusal(str(message))


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes HTML, which would change the prompt."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment(date: str) -> sandbox.ImmutableSandboxedEnvironment:
    """As transformers sets it up, but with a fixed clock."""
    env = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = datetime.fromisoformat(date).strftime
    return env


def limit_resources(max_memory: int, seconds: float) -> None:
    """What the system offers. The CPU limit is for a child whose parent died; time is the parent's.

    Memory has two names: OpenBSD knows only RLIMIT_DATA, and macOS may refuse RLIMIT_AS.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    wanted = {
        "RLIMIT_AS": max_memory,
        "RLIMIT_DATA": max_memory,
        "RLIMIT_CPU": math.ceil(seconds) + 1,
        "RLIMIT_CORE": 0,
    }
    for name, value in wanted.items():
        try:
            kind = getattr(resource, name)
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
        except (AttributeError, OSError, ValueError):
            continue


def bounded(chunks: Iterable[str], limit: int) -> str:
    """Join the chunks; stop at the first that passes `limit` bytes of UTF-8."""
    parts: list[str] = []
    size = 0
    for chunk in chunks:
        size += len(chunk.encode("utf-8", "surrogatepass"))
        if size > limit:
            raise TooLong
        parts.append(chunk)
    return "".join(parts)


def failure(error: str, exc: Exception) -> dict[str, str]:
    if isinstance(exc, jinja2.TemplateSyntaxError):
        detail = f"line {exc.lineno}: {exc.message}"
    elif isinstance(exc, Refusal):
        detail = str(exc)
    else:
        detail = f"{type(exc).__name__}: {exc}"
    return {"error": error, "detail": detail[:MAX_DETAIL]}


def answer(request: dict[str, Any]) -> dict[str, str]:
    """`{"text"}`, or `{"error", "detail"}` where error is compile, refused, long or render."""
    try:
        template = environment(request["date"]).from_string(request["template"])
    except MemoryError:
        raise
    except Exception as exc:  # also Python's own: a template can nest deeper than its compiler
        return failure("compile", exc)
    try:
        return {"text": bounded(template.generate(request["variables"]), request["max_text"])}
    except MemoryError:
        raise
    except Refusal as exc:
        return failure("refused", exc)
    except TooLong:
        return {"error": "long", "detail": ""}
    except Exception as exc:
        return failure("render", exc)


def main() -> None:
    request = json.load(sys.stdin.buffer)
    limit_resources(request["max_memory"], request["seconds"])
    try:
        # A newline first: whatever a library wrote to stderr stays on lines of its own.
        reply = b"\n" + json.dumps(answer(request)).encode("ascii") + b"\n"
    except MemoryError:
        reply = OUT_OF_MEMORY
    sys.stdout.buffer.write(reply)


if __name__ == "__main__":
    main()
