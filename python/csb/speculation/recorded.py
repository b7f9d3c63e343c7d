"""Drafts from a file: what `--drafter file:TOKENS` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from csb.errors import FileError

Drafts = list[int] | dict[int, list[int]]


def read(path: Path) -> Drafts:
    """Token ids are a text, proposed by position; [{"pos": P, "draft": [ids]}, ...] are the drafts
    for each generated position; of a record of csb speculate its first loop's are taken."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"--drafter file:{path}: {getattr(error, 'strerror', error)}") from error
    try:
        made = _parse(text)
    except (ValueError, KeyError, IndexError, TypeError):
        made = None
    if not made:
        raise FileError(
            f"--drafter file:{path}: must hold token ids, drafts as "
            '[{"pos": 0, "draft": [1, 2]}], or a record of csb speculate'
        )
    return made


def _parse(text: str) -> Drafts | None:
    if text.lstrip()[:1] not in ("[", "{"):
        return [int(token) for token in text.replace(",", " ").split()]
    found: Any = json.loads(text)
    if isinstance(found, dict):
        found = found["prompts"][0]["runs"][0]["loops"][0]["turns"]
    if all(type(token) is int for token in found):
        return list(found)
    drafts = {entry["pos"]: entry["draft"] for entry in found}
    ids = [*drafts, *(token for draft in drafts.values() for token in draft)]
    return drafts if all(type(i) is int for i in ids) else None


def check(drafts: Drafts, n_vocab: int, path: Path) -> None:
    """Raises FileError for a token that the target does not have."""
    ids = drafts if isinstance(drafts, list) else [t for d in drafts.values() for t in d]
    for token in ids:
        if not 0 <= token < n_vocab:
            raise FileError(
                f"--drafter file:{path}: {token} is outside the model's vocabulary of {n_vocab}"
            )
