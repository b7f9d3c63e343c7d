"""The default model, fetched with progress on stderr."""

from __future__ import annotations

from pathlib import Path

from csb.models import catalog, store
from csb.native.library import build_info, quantize
from csb.render.progress import Steps


def default_model() -> tuple[Path, str]:
    """Its file and what it is called."""
    with Steps() as steps:
        path = store.default_model(
            lambda source, target, kind: quantize(source, target, kind.lower()),
            steps,
            commit=build_info()["llama_commit"],
        )
    return path, catalog.DEFAULT.description
