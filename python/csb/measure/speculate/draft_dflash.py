"""A DFlash draft as drafter: it reads what goes into some of the target's layers.

Each decode of the target leaves the inputs of those layers behind. They go into the draft's memory
at the same positions; then one call with the text's last token and masks after it gives a draft for
every mask. That call's own tokens are removed again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csb.errors import InvalidMeasurement, UnsupportedError
from csb.measure.memory import Memory, same_bits
from csb.measure.session import Session
from csb.measure.speculate.draft_model import check_vocabulary
from csb.native import draft as native
from csb.native import worker
from csb.native.context import Context, Rows
from csb.native.draft import DraftContext
from csb.native.model import Model

CALL = 512  # tokens of one call into the draft's memory


class DFlash:
    """Drafts for one target context. `width`: rows of a verify decode; the masks are one fewer, but
    no more than the draft was trained for."""

    def __init__(self, context: DraftContext, target: Context, width: int) -> None:
        self.facts = native.describe(context.model)
        self._context, self._target = context, target
        self._call = min(int(context.value(name)) for name in ("n_batch", "n_ubatch"))
        masks = min(width, int(self.facts["block_size"])) - 1
        self._masks = [int(self.facts["mask"])] * masks
        self._rows = np.empty((masks, context.n_vocab), np.float32)
        self._held = 0  # positions of the target's text in the memory

    @property
    def model(self) -> Model:
        return self._context.model

    @property
    def decode_seconds(self) -> float:
        return self._context.decode_seconds

    def cancel(self) -> None:
        self._context.cancel()

    def begin(self, prompt: Sequence[int]) -> None:
        self._cut(0)

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        if n < 1:
            return []
        self._follow(len(text) - 1)
        self._context.decode([text[-1], *self._masks], self._held)
        rows = self._context.logits(range(1, len(self._masks) + 1), self._rows)
        self._cut(self._held)
        best = rows.argmax(axis=1)  # the lowest id among equals; of a NaN, where there is one
        # a draft with a vocabulary of its own has -inf for every other token
        if not np.isfinite(np.take_along_axis(rows, best[:, None], axis=1)).all():
            raise InvalidMeasurement("logits of the draft are NaN or infinite")
        return [int(token) for token in best[:n]]

    def _follow(self, length: int) -> None:
        """What the target has decoded since, up to the text's last token."""
        first, rows = self._target.tapped()
        if len(rows):
            if first > self._held:
                raise InvalidMeasurement(
                    f"the draft has positions up to {self._held - 1}, and the target's layer "
                    f"inputs are there from {first} on"
                )
            if first < self._held:  # they were decoded again
                self._cut(first)
            for i in range(0, len(rows), self._call):
                self._context.inject(rows[i : i + self._call], first + i)
            self._held = first + len(rows)
        if self._held != length:
            raise InvalidMeasurement(
                f"the draft has {self._held} positions of a text of {length}: layer inputs are "
                "missing"
            )

    def _cut(self, length: int) -> None:
        if not self._context.remove(length) or self._context.bounds()[1] >= length:
            raise InvalidMeasurement("llama.cpp could not cut the draft's memory back")
        self._held = length


@contextlib.contextmanager
def beside(session: Session, path: Path, width: int) -> Iterator[DFlash]:
    """The draft of that file for the session's context, whose layer inputs are outputs of its graph
    from here on: in the AR run as in the loop."""
    kind = session.memory.kind
    if not session.memory.cuts_back:
        raise UnsupportedError(
            f"--drafter dflash:{path}: reads what the target's decodes leave behind, for which its "
            f"memory must be cut back; a {kind.replace('_', ' ')} memory can't be"
        )
    with _model(session, path) as model, _context(session, model, width) as context:
        drafter = DFlash(context, session.context, width)
        session.context.tap(drafter.facts["layers"])
        yield drafter


def _model(session: Session, path: Path) -> Model:
    model = session.another_model(path, draft=True)
    try:
        check_vocabulary(session.model, model, "dflash")
    except BaseException:
        model.close()
        raise
    return model


def _context(session: Session, model: Model, width: int) -> DraftContext:
    asked = session.asked
    try:
        return DraftContext(
            model,
            session.context,
            n_ctx=int(session.context.value("n_ctx_seq")) + width,  # its blocks reach beyond
            n_batch=max(CALL, width),
            n_ubatch=max(CALL, width),
            n_threads=asked.n_threads,
            n_threads_batch=asked.n_threads_batch,
            flash_attn=asked.flash_attn,
            offload_kqv=asked.offload_kqv,
            op_offload=asked.op_offload,
        )
    except UnsupportedError as error:
        raise UnsupportedError(f"--drafter dflash:{model.path}: {error}") from error


def leaves_bits_alone(session: Session, drafter: DFlash, prompt: Sequence[int], width: int) -> bool:
    """Whether the target gives the same bits with its layer inputs read as without: all logits of a
    block and of a token alone after the prompt, and the memory's state."""

    def rows() -> tuple[Rows, Rows, Any]:
        memory, start = Memory(session.context), len(prompt) - 1
        n = min(width, int(session.context.value("n_ctx_seq")) - start)
        inputs = [prompt[-1], *(prompt[i % len(prompt)] for i in range(n - 1))]
        out = np.empty((n, session.context.n_vocab), np.float32)
        one = np.empty((1, session.context.n_vocab), np.float32)
        memory.prefill(prompt[:-1])
        memory.block(inputs, start, out)
        state = session.context.save()
        memory.rewind(start)
        return out, memory.single(inputs[:1], start, one), state

    def both() -> bool:
        read = rows()
        session.context.tap([])
        plain = rows()
        session.context.tap(drafter.facts["layers"])
        same = same_bits(read[0], plain[0]) and same_bits(read[1], plain[1])
        return same and np.array_equal(read[2], plain[2])

    return worker.run(both, session.context.cancel)
