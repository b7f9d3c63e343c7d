"""The model with F32 weights and an F32 cache: `--exact f32`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from csb.errors import UnsupportedError
from csb.measure.session import PLAIN, Session, open_session
from csb.models.hashing import cache_dir
from csb.native import worker
from csb.native.library import quantize
from csb.native.model import Model


def refuse(model: Model) -> None:
    """Raises UnsupportedError for quantized weights: in F32 they would be another model, whose
    activations are not quantized either."""
    others = sorted(set(model.info["tensor_types"]) - PLAIN)
    if others:
        raise UnsupportedError(
            f"--exact f32: the model has {', '.join(others)} weights; only f32, f16 and bf16 ones "
            "are the same numbers in F32"
        )


@contextlib.contextmanager
def session(given: Session) -> Iterator[Session]:
    """The same model and context, all in F32. Its file is made in the cache folder and removed."""
    context = replace(given.asked, type_k="f32", type_v="f32")
    if set(given.model.info["tensor_types"]) == {"f32"}:
        with open_session(given.plan, context) as opened:
            yield opened
        return
    root = cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".f32-", dir=root) as folder:
        path = Path(folder) / "f32.gguf"
        source = given.plan.path
        # llama.cpp's quantizer can't be stopped: an interrupt waits for it
        worker.run(lambda: quantize(source, path, "f32"), lambda: None)
        with open_session(replace(given.plan, path=path), context) as opened:
            yield opened
