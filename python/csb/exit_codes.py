"""The exit codes of every command, from this one enum."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    DONE = 0
    DIFFERENT = 1
    ERROR = 2
    INVALID = 3
    FAULT = 4
    INTERRUPTED = 130


MEANING = {
    Exit.DONE: "done; compare: no flip (exact ties do not count); speculate: the text is AR's",
    Exit.DIFFERENT: "compare: a flip (see --fail-on); widths --against, diff: changed; "
    "speculate: parted, all of it rounding",
    Exit.ERROR: "usage, input, native or internal error: one line says what to do",
    Exit.INVALID: "the measurement is not valid: a control failed, or nothing was compared",
    Exit.FAULT: "speculate: what is not rounding: a fault of the loop or its memory",
    Exit.INTERRUPTED: "Ctrl-C or SIGTERM; what was measured is saved with complete: false",
}


def help_text() -> str:
    return "\n".join(["Exit codes:", *(f"  {int(c):<4} {m}" for c, m in MEANING.items())])
