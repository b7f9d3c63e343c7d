"""How tests run csb: what a run gave, and csb in processes of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHORT = ("-n", "6", "-t", "1", "--tokens", "1,2,3")

# a shell's `&` makes its children ignore Ctrl-C
LAUNCH = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from csb.cli import main
raise SystemExit(main())
"""


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.splitlines()[-1]


Run = Callable[..., Result]


@dataclass
class Saved:
    """A run that was made: its command line and its record."""

    arguments: tuple[str, ...]
    record: dict[str, Any]


def child(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """`python -m csb` to its end."""
    command = [sys.executable, "-m", "csb", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60} | options
    return subprocess.run(command, text=True, **options)


def launch(*arguments: object) -> subprocess.Popen[str]:
    """csb, running and open to signals."""
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
