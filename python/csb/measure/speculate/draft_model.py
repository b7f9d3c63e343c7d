"""A smaller model as drafter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from csb.errors import ArgumentError, UnsupportedError
from csb.measure.memory import Memory
from csb.measure.session import Session
from csb.measure.speculate.verified import best_tokens, read
from csb.native.context import Context, Rows
from csb.native.model import Model

PADDING = 128  # entries by which two vocabularies of one tokenizer may differ, as llama.cpp has it


def check_vocabulary(target: Model, draft: Model, kind: str = "model") -> None:
    """Raises ArgumentError unless both models mean the same by every token id. kind: of drafter."""
    n = target.n_vocab, draft.n_vocab
    both_text = target.info["has_tokenizer"], draft.info["has_tokenizer"]
    if abs(n[0] - n[1]) > PADDING or both_text[0] != both_text[1]:
        raise ArgumentError(
            f"--drafter {kind}:{draft.path}: another vocabulary ({n[1]} tokens, the target {n[0]})"
        )
    if all(both_text):
        for token in range(min(n)):
            if target.piece(token) != draft.piece(token):
                raise ArgumentError(
                    f"--drafter {kind}:{draft.path}: token {token} is {draft.piece(token)!r} there "
                    f"and {target.piece(token)!r} in the target"
                )


class DraftModel:
    """Drafts greedily on a context of its own. Its memory must be one that can be cut back: it
    follows the text by cutting off what the target did not give."""

    def __init__(self, context: Context, target: Model) -> None:
        self._context, self._memory = context, Memory(context)
        if not self._memory.cuts_back:
            raise UnsupportedError(
                f"--drafter model:{context.model.path}: a {self._memory.kind} memory can't be cut "
                "back, which a drafter does at every step"
            )
        self._n_vocab = target.n_vocab
        self._row = np.empty((1, context.n_vocab), np.float32)
        self._held: list[int] = []  # the tokens in its memory

    @property
    def model(self) -> Model:
        return self._context.model

    @property
    def decode_seconds(self) -> float:
        return self._context.decode_seconds

    def cancel(self) -> None:
        self._context.cancel()

    def begin(self, prompt: Sequence[int]) -> None:
        self._memory.prefill(prompt[:-1])
        self._held = list(prompt[:-1])

    def draft(self, text: Sequence[int], n: int) -> list[int]:
        drafted: list[int] = []
        if n < 1:
            return drafted
        row = self._follow(text)
        while True:
            token = best_tokens(read(row))[0]
            if token >= self._n_vocab:  # padding that the target lacks
                return drafted
            drafted.append(token)
            if len(drafted) == n or self._context.model.is_eog(token):
                return drafted
            row = self._context.steps([token], len(self._held), self._row)
            self._held.append(token)

    def _follow(self, text: Sequence[int]) -> Rows:
        """The text in the memory, and the row after its last token."""
        same = min(len(self._held), len(text) - 1)
        while same and self._held[:same] != list(text[:same]):
            same -= 1
        self._memory.rewind(same)
        n_batch = int(self._context.value("n_batch"))
        last = max(same, len(text) - n_batch)  # one call, but for a text that has grown beyond it
        self._memory.extend(text[same:last], same, n_batch)
        n = len(text) - last
        self._context.decode(text[last:], last, outputs=[i + 1 == n for i in range(n)])
        self._held = list(text)
        return self._context.logits([n - 1], self._row)


@contextlib.contextmanager
def beside(session: Session, path: Path) -> Iterator[DraftModel]:
    """That file's model as drafter for the session's, on its devices, with its context's sizes and
    threads."""
    asked = session.asked
    with session.another_model(path) as model:
        check_vocabulary(session.model, model)
        with Context(
            model,
            n_ctx=asked.n_ctx,
            n_batch=asked.n_batch,
            n_ubatch=asked.n_ubatch,
            n_threads=asked.n_threads,
            n_threads_batch=asked.n_threads_batch,
            flash_attn=asked.flash_attn,
            offload_kqv=asked.offload_kqv,
            op_offload=asked.op_offload,
        ) as context:
            yield DraftModel(context, session.model)
