"""Render a model's chat template, as Hugging Face transformers does, in a child process.

The template is a program that came with the model file, so it gets jinja2's sandbox, and a
process of its own with limits on time, memory and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from csb.errors import CsbError

FIXED_DATE = "2025-01-01"  # what strftime_now() formats, so that a record can be reproduced
MAX_TEXT = 1 << 20  # bytes of UTF-8
MAX_REPLY = 6 * MAX_TEXT + 4096  # JSON writes one byte of text as up to six (\u0000)
MAX_MEMORY = 512 << 20  # address space: an idle child needs 30 to 250 MB of it
MAX_MESSAGE = 300
CHILD = Path(__file__).with_name("template_child.py")

# All the child's environment: the interpreter's libraries need these on some systems. The rest
# stays here (tokens and passwords are none of the template's business, and LANG can't change it).
ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH", "SYSTEMROOT")

REASONS = {
    "compile": "the model's chat template does not compile",
    "refused": "the model's chat template refused the messages",
    "render": "the model's chat template failed",
    "long": f"the model's chat template wrote more than {MAX_TEXT} bytes",
    "memory": f"the model's chat template needs more than {MAX_MEMORY >> 20} MiB of memory",
}


class TemplateError(CsbError):
    """The chat template gave no text. The message is one line and says what to do."""

    def __init__(self, reason: str, detail: str = "") -> None:
        advice = "; use --no-chat-template for raw text"
        if detail:
            reason += ": "
        room = MAX_MESSAGE - len(reason) - len(advice)
        super().__init__(reason + _one_line(detail, room) + advice)


def render(
    template: str,
    messages: list[dict[str, str]],
    *,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool = True,
    enable_thinking: bool = False,
    timeout_s: float = 10.0,
) -> str:
    """The prompt's text. It holds the template's own BOS: tokenize it without adding another.

    Raises TemplateError if the template can't be compiled, raises, or passes a limit.
    """
    request = {
        "template": template,
        "variables": {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "enable_thinking": enable_thinking,
        },
        "date": FIXED_DATE,
        "max_text": MAX_TEXT,
        "max_memory": MAX_MEMORY,
        "seconds": timeout_s,
    }
    output, code, expired = _run_child(json.dumps(request).encode("ascii"), timeout_s)
    if len(output) > MAX_REPLY:
        raise TemplateError(REASONS["long"])
    last = output.splitlines()[-1] if output.strip() else b""
    reply = _parse(last)
    if "text" in reply:
        return reply["text"]
    if reply.get("error") in REASONS:
        raise TemplateError(REASONS[reply["error"]], reply.get("detail", ""))
    if expired:
        raise TemplateError(f"the model's chat template took more than {timeout_s:g} s")
    raise TemplateError(
        f"the chat template renderer ended with code {code}", last.decode("utf-8", "replace")
    )


def _run_child(request: bytes, timeout_s: float) -> tuple[bytes, int, bool]:
    """Its output (at most MAX_REPLY + 1 bytes), its exit code, and whether time ran out.

    -I keeps the current directory and PYTHON* variables out, -S the .pth files, and both keep
    out the user's site-packages, where csb may live: so the child file is run by its path, and
    gets this process's sys.path, which adds nothing that is not trusted already. Not "", which
    means the directory the user happens to be in.
    """
    path = [entry for entry in sys.path if entry]
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(CHILD), *path]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a traceback then falls under the same limit
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        )
    except OSError as exc:
        raise TemplateError("the chat template renderer does not start", str(exc)) from exc
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(timeout_s, expire)
    timer.daemon = True
    with child:
        assert child.stdin is not None and child.stdout is not None
        try:
            timer.start()
            try:  # the child reads all of it before it writes, so neither side waits for the other
                with child.stdin:
                    child.stdin.write(request)
            except OSError:
                pass  # it is dead, and what it left on stdout says why
            output = child.stdout.read(MAX_REPLY + 1)
            if len(output) <= MAX_REPLY:
                child.wait()
        finally:
            timer.cancel()
            child.kill()
    return output, child.returncode, expired.is_set()


def _parse(line: bytes) -> dict[str, str]:
    """The reply; empty if it is none: the child may have died in the middle of it."""
    try:
        reply = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(reply, dict) or not all(isinstance(v, str) for v in reply.values()):
        return {}
    return reply


def _one_line(text: str, room: int) -> str:
    """Untrusted text for a terminal: what is not printable is escaped; cut to `room` characters."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:room]
    )
    return shown if len(text) <= room and len(shown) <= room else shown[: room - 3] + "..."
