"""The calls that tests/test_gdb.py looks at, made here under gdb and there under csb's trace."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import csb
from csb import kernels

VOCABULARY = 64


@dataclass
class Calls:
    """A decode of each of `rows` tokens on one prefix, on one thread."""

    model: str
    repack: bool
    rows: list[int]
    prefix: int = 19
    without: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def make(self, around: Callable[[csb.Context], contextlib.AbstractContextManager[Any]]) -> None:
        """Each call inside a block of its own; nothing but that one decode is in the block."""
        # two of three the same, so that the router sends many rows to the same experts
        ids = [5 if i % 3 else i % VOCABULARY for i in range(self.prefix + max(self.rows))]
        with (
            csb.Model(self.model, use_extra_bufts=self.repack) as model,
            csb.Context(model, n_threads=1, n_threads_batch=1, **self.options) as context,
            kernels.without(*self.without),
        ):
            context.decode(ids[: self.prefix], 0, outputs=False)
            for n in self.rows:
                context.remove(self.prefix)
                with around(context):
                    context.decode(ids[self.prefix : self.prefix + n], self.prefix)


@contextlib.contextmanager
def marked(context: csb.Context) -> Iterator[None]:
    """gdb stops in csb_context_decode_time, before the call and after it."""
    assert context.decode_seconds > 0
    yield
    assert context.decode_seconds > 0


if __name__ == "__main__":
    Calls(**json.loads(Path("calls.json").read_text("utf-8"))).make(marked)
