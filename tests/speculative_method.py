"""The speculative loop, literally: csb.Context, numpy's argmax and lists. What csb's loop is held
against, bit for bit; it shares csb.Context with it and nothing of csb.measure, csb.native.rows or
csb.speculation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import csb
import numpy as np

Draft = Callable[[list[int], int], list[int]]  # generated so far, how many


@dataclass
class Text:
    ids: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # the row that gave each token
    accepted: list[int] = field(default_factory=list)  # drafted tokens that each step accepted


def prefill(context: csb.Context, tokens: list[int]) -> None:
    context.clear()
    size = context.value("n_batch")
    for i in range(0, len(tokens), size):
        context.decode(tokens[i : i + size], i, outputs=False)


def ar(model: csb.Model, settings: dict[str, object], prompt: list[int], n: int) -> Text:
    made = Text()
    with csb.Context(model, **settings) as context:  # type: ignore[arg-type]
        prefill(context, prompt[:-1])
        token = prompt[-1]
        while len(made.ids) < n:
            context.decode([token], len(prompt) - 1 + len(made.ids))
            made.rows.append(context.logits()[0])
            token = int(np.argmax(made.rows[-1]))
            made.ids.append(token)
            if model.is_eog(token):
                break
    return made


def loop(
    model: csb.Model,
    settings: dict[str, object],
    prompt: list[int],
    n: int,
    width: int,
    draft: Draft,
    states: bool = False,
) -> Text:
    """states: the memory is restored, for models whose memory can't be cut back."""
    made, ended = Text(), False
    with csb.Context(model, **settings) as context:  # type: ignore[arg-type]
        prefill(context, prompt[:-1])
        while len(made.ids) < n and not ended:
            text = prompt + made.ids
            start = len(text) - 1
            inputs = [text[-1], *draft(made.ids, min(width, n - len(made.ids)) - 1)]
            state = context.save() if states else None
            context.decode(inputs, start)
            rows = context.logits(range(len(inputs)))
            best = [int(np.argmax(row)) for row in rows]
            agreed = 0
            while agreed < len(inputs) - 1 and inputs[agreed + 1] == best[agreed]:
                agreed += 1
            given = best[: agreed + 1]
            for i, token in enumerate(given):
                if model.is_eog(token):
                    given, ended = given[: i + 1], True
                    break
            made.ids += given
            made.rows += list(rows[: len(given)])
            made.accepted.append(min(agreed, len(given)))
            if len(given) < len(inputs):
                if state is None:
                    assert context.remove(start + len(given))
                else:
                    context.restore(state)
                    context.decode(inputs[: len(given)], start, outputs=False)
    return made
