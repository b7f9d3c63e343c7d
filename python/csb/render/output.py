"""Where text goes: stdout and stderr, which may be closed or of a narrow encoding, and files."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO

import click

from csb.errors import FileError
from csb.render.text import harmless


def say(text: str) -> None:
    """A result's text to stdout. If nobody reads it the output ends, and the exit code stays."""
    _write(text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "backslashreplace"))


def save(text: str, path: str) -> None:
    """JSON to a file, or alone to stdout for "-", always as UTF-8."""
    if path == "-":
        _write(text.encode())
        return
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise FileError(f"--json {harmless(path)}: {error.strerror}") from error


def note(text: str) -> None:
    """A line to stderr; if that is closed nobody misses it."""
    with contextlib.suppress(OSError):
        click.echo(f"csb: {harmless(text)}", err=True)


def _write(data: bytes) -> None:
    try:
        click.echo(data, nl=False)
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        raise FileError(f"stdout: {error.strerror}") from error


def discard(stream: TextIO) -> None:
    """What the stream still buffers must not raise again at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)
