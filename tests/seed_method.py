"""The seed's method, literally: two contexts, a full wipe and re-prefill of both before every
window, plain numpy on whole logits rows. What csb's cells are checked against, bit for bit; it
shares csb.Context with csb and nothing of csb.measure, csb.native.rows or csb.plan."""

from __future__ import annotations

from dataclasses import dataclass

import csb
import numpy as np


@dataclass
class SeedRun:
    ar: list[int]
    l_ar: list[np.float32]
    cells: list[dict[str, object]]


def prefill(context: csb.Context, tokens: list[int], n_batch: int) -> None:
    context.remove(0)
    for i in range(0, len(tokens), n_batch):
        context.decode(tokens[i : i + n_batch], i, outputs=False)


def argmax(row: np.ndarray) -> int:
    return int(np.argmax(row))  # numpy takes the first among equals


def run(
    model: csb.Model, settings: dict[str, object], prompt: list[int], n: int, width: int
) -> SeedRun:
    n_batch = int(settings["n_batch"])  # type: ignore[call-overload]
    with csb.Context(model, **settings) as one, csb.Context(model, **settings) as two:
        ar: list[int] = []
        l_ar: list[np.float32] = []
        prefill(one, prompt[:-1], n_batch)
        token = prompt[-1]
        for p in range(n):
            one.decode([token], len(prompt) - 1 + p)
            row = one.logits()[0]
            token = argmax(row)
            ar.append(token)
            l_ar.append(row[token])
            if model.is_eog(token):
                break
        return SeedRun(ar, l_ar, list(_cells(one, two, prompt, ar, n_batch, width)))


def _cells(one, two, prompt, ar, n_batch, width):  # type: ignore[no-untyped-def]
    for t in range(len(ar)):
        text = prompt + ar[:t]
        inputs = (text + ar[t:])[len(text) - 1 :][: min(width, len(ar) - t)]
        for context in (one, two):
            prefill(context, text[:-1], n_batch)
        single = []
        for k, token in enumerate(inputs):
            one.decode([token], len(text) - 1 + k)
            single.append(one.logits()[0])
        two.decode(inputs, len(text) - 1)
        block = two.logits(range(len(inputs)))
        for j in range(len(inputs)):
            s, b, target = single[j], block[j], ar[t + j]
            yield {
                "t": t,
                "j": j,
                "pos": t + j,
                "l_s": float(s[target]),
                "l_b": float(b[target]),
                "dlogit": float(s[target]) - float(b[target]),
                "amax_s": argmax(s),
                "amax_b": argmax(b),
                "lmax_s": float(s.max()),
                "lmax_b": float(b.max()),
                "n_diff": int((s.view(np.uint32) != b.view(np.uint32)).sum()),
                "max_abs": float(np.abs(s.astype(np.float64) - b).max()),
            }
