"""If llama.cpp aborts the process, what was measured so far is written all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from csb import record
from csb.native import net

Append = Callable[[list[Any]], None]


PLACE = "ITEMS"  # where what is measured belongs


def of(head: dict[str, Any], key: str) -> dict[str, Any]:
    """The record of a run that llama.cpp aborts; what was measured becomes its list `key`."""
    return {**head, "complete": False, "outcome": "aborted", key: PLACE}


@contextlib.contextmanager
def kept(json_path: str | None, aborted: dict[str, Any]) -> Iterator[Append]:
    """While the block runs, an abort writes such a record to json_path, with everything that was
    appended in its place."""
    if json_path is None:
        yield lambda items: None
        return
    before, after = record.dumps(aborted).rsplit(f'"{PLACE}"', 1)
    net.arm(json_path, f"{before}[", f"]{after}")
    try:
        yield lambda items: net.append(",".join(map(record.compact, items)))
    finally:
        net.disarm()
