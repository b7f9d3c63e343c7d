"""What the tests of `csb budget` share: a short run of a tiny model, and its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from csb.exit_codes import Exit
from process import Result, Run

PROMPT = [5, 17, 300, 42, 9, 88]
IDS = ("--tokens", ",".join(map(str, PROMPT)), "-t", "1", "-n", "12", "-W", "4", "-fa", "off")
ALL = ("--every", "1")


def measure(run: Run, path: Path, *given: object) -> tuple[Result, dict[str, Any]]:
    saved = path.with_suffix(".budget.json")
    done = run("budget", "-m", path, *given, "--json", saved)
    assert done.code == Exit.DONE, done.err
    return done, json.loads(saved.read_text())


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    (line,) = (x for x in found["lines"] if x["name"] == name)
    return line
