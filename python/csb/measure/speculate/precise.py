"""The model with F32 weights and an F32 cache: `--exact f32`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from csb.errors import UnsupportedError
from csb.measure.f32 import f32_file
from csb.measure.session import PLAIN, Session, open_session
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
    """The same model and context, all in F32."""
    context = replace(given.asked, type_k="f32", type_v="f32")
    with (
        f32_file(given.model, "--exact f32") as path,
        open_session(replace(given.plan, path=path), context) as opened,
    ):
        yield opened
