"""The unfinished record that an abort inside llama.cpp leaves behind (csb_net_*)."""

from __future__ import annotations

import os
from typing import NoReturn

from csb.native.checks import text
from csb.native.library import library


def arm(path: str, head: str, tail: str) -> None:
    """From now on an abort writes head, the parts given to `append` joined by commas, and tail to
    `path` ("-": stdout), says so in one line and leaves with exit code 2."""
    file = text(os.fsencode(path), "path")
    library().csb_net_arm(file, text(head, "head"), text(tail, "tail"))


def append(part: str) -> None:
    library().csb_net_append(text(part, "part"))


def leave(code: int, message: str) -> NoReturn:
    """Ends the process as an abort does, with this exit code and line: for a native call on another
    thread that does not come back."""
    library().csb_net_leave(code, text(message, "message"))
    raise AssertionError  # it does not return


def disarm() -> None:
    library().csb_net_disarm()
