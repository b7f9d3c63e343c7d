"""Model families: each is measured as the seed would, or refused with the reason."""

from __future__ import annotations

from typing import Any

import csb
import numpy as np
import pytest
import seed_method
from conftest import TinyModel
from csb.errors import UnsupportedError
from csb.measure.memory import Memory
from test_seed import assert_equal, by_csb, settings, tokens

pytestmark = pytest.mark.native

KINDS = {
    "llama": "attention",
    "qwen3": "attention",
    "moe": "attention",
    "gemma3": "sliding_window",
    "mamba": "recurrent",
    "lfm2": "hybrid",
    "qwen35": "hybrid",
}


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
@pytest.mark.parametrize("arch", KINDS)
def test_equals_the_seed(tiny_model: TinyModel, arch: str, dtype: str) -> None:
    """Two fresh contexts, wiped and prefilled anew, need no rollback at all: an independent check
    of the saved states that recurrent and hybrid memories are restored from."""
    path = tiny_model(arch, dtype)
    with csb.Model(path) as model:
        for place in (7, 252):
            prompt = tokens(place)
            expected = seed_method.run(model, settings(), prompt, 9, 4)
            measured = by_csb(model, settings(), prompt, 9, 4, "auto")
            assert measured.controls.complete and not measured.controls.failed
            assert_equal(expected, measured)


@pytest.mark.parametrize("arch", KINDS)
def test_memory_is_known(tiny_model: TinyModel, arch: str) -> None:
    with (
        csb.Model(tiny_model(arch, "bf16")) as model,
        csb.Context(model, n_ctx=256) as context,
    ):
        memory = Memory(context)
        assert memory.kind == KINDS[arch]
        assert memory.cuts_back == (arch in ("llama", "qwen3", "moe", "gemma3"))


def ring(**changes: Any) -> dict[str, object]:
    """A sliding-window cache of 256 cells, which a prompt of 300 tokens wraps around."""
    return settings(swa_full=False, n_ubatch=64, n_batch=64, **changes)


@pytest.mark.parametrize("place", [20, 252, 300, 420])
def test_sliding_window_ring(tiny_model: TinyModel, place: int) -> None:
    """Restored before every path, the AR run's too: the controls hold also where it wraps. The
    seed never restores, so its layout, and with it the last bits, may differ there."""
    path = tiny_model("gemma3", "bf16", sliding_window=64)
    with csb.Model(path) as model:
        with csb.Context(model, **ring()) as context:  # type: ignore[arg-type]
            assert context.value("swa_full") is False
            assert context.value("swa_cells") == 256
        measured = by_csb(model, ring(), tokens(place), 9, 4, "auto")
        assert measured.controls.complete and not measured.controls.failed
        assert measured.prefix.shared == 0
        expected = seed_method.run(model, ring(), tokens(place), 9, 4)
        if place + 9 < 256:
            assert_equal(expected, measured)
        else:
            ours, theirs = measured.cells["l_s"], [c["l_s"] for c in expected.cells]
            np.testing.assert_allclose(ours, np.array(theirs, float), atol=0.05)


def test_full_size_window_is_cut_back(tiny_model: TinyModel) -> None:
    """The other way of the same model: shared equals the seed where row counts do not matter."""
    path = tiny_model("gemma3", "f32", sliding_window=64)
    with csb.Model(path) as model:
        prompt = tokens(100)
        expected = seed_method.run(model, settings(), prompt, 12, 4)
        assert_equal(expected, by_csb(model, settings(), prompt, 12, 4, "shared"))


def test_an_encoder_is_refused(tiny_model: TinyModel) -> None:
    with pytest.raises(UnsupportedError, match="decoder"):
        csb.Model(tiny_model("bert"))
