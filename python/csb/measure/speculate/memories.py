"""Memories of one text, written in different ways, and the single path's rows on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from csb.measure.speculate.target import Call, Mark, Target
from csb.measure.trajectory import digest
from csb.native import rows as native_rows
from csb.native.context import Rows
from csb.native.table import Row

Write = Callable[[list[int]], None]  # leaves these tokens in the memory


def rows_at(target: Target, text: list[int], lengths: Sequence[int], write: Write) -> list[Rows]:
    """The single path's row after text[:length + 1] for each length, ascending, each on memory
    written by `write`."""
    made = []
    for length in lengths:
        write(text[:length])
        made.append(_single(target, text, length))
    return made


def walk(target: Target, text: list[int], lengths: Sequence[int]) -> list[Rows]:
    """Likewise on the memory as it is, cut back from the last length to the first."""
    made = []
    for length in reversed(lengths):
        target.back(Mark(length))
        made.append(_single(target, text, length))
    return made[::-1]


def _single(target: Target, text: list[int], length: int) -> Rows:
    row = np.empty((1, target.context.n_vocab), np.float32)
    return target.single(text[length], length, row)


def in_calls(target: Target, n_prompt: int, rows: int) -> Write:
    """The prompt without its last token as the AR run has it, what follows in calls of `rows`."""

    def write(tokens: list[int]) -> None:
        target.begin(tokens[: n_prompt - 1])
        with target.switches():
            target.memory.extend(tokens[n_prompt - 1 :], n_prompt - 1, rows)

    return write


def make_again(
    target: Target, prefix: Sequence[int], calls: Sequence[Call], wanted: Sequence[tuple[int, int]]
) -> list[bytes]:
    """A loop's calls once more, on a fresh memory: a digest for each wanted (call, row of it)."""
    found: dict[tuple[int, int], bytes] = {}
    marks: dict[int, Mark] = {}
    rows_of = {call: [row for c, row in wanted if c == call] for call, _ in wanted}
    out = np.empty(
        (max((len(call.tokens) for call in calls), default=1), target.context.n_vocab), np.float32
    )
    target.begin(prefix)
    for number, call in enumerate(calls):
        if call.kind == "mark":
            marks[number] = target.mark(call.length)
        elif call.kind == "back":
            target.back(marks.get(call.mark, Mark(call.length)), call.tokens)
        elif call.kind == "single":
            target.single(call.tokens[0], call.length, out[:1])
        else:
            target.block(call.tokens, call.length, out[: len(call.tokens)])
        for row in rows_of.get(number, ()):
            found[number, row] = digest(out[row : row + 1])
    return [found[place] for place in wanted]


def deficits(target: Target, prompt: list[int], ids: list[int], rows: int) -> list[float]:
    """A fresh decode of the prompt and the ids, these in calls of `rows`: how far below the best of
    its row each id is. The whole text but its last token is in the memory then."""
    text, start, n = prompt + ids, len(prompt) - 1, len(ids)
    rows = min(rows, int(target.context.value("n_batch")), max(1, n))
    out = np.empty((rows, target.context.n_vocab), np.float32)
    found: list[float] = []
    target.begin(text[:start])
    for p in range(0, n, rows):
        inputs = text[start + p : start + min(p + rows, n)]
        target.block(inputs, start + p, out[: len(inputs)])
        targets = ids[p : p + len(inputs)]
        table = native_rows.summarise(out[: len(inputs)], targets, temperature=0)
        found += [float(d) for d in table[:, Row.MAX] - table[:, Row.TARGET_L]]
    return found
