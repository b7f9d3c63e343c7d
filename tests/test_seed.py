"""csb's cells are the seed's, bit for bit, for every type, kernel family and prefix strategy that
claims equality."""

from __future__ import annotations

from pathlib import Path

import csb
import numpy as np
import pytest
import seed_method
import tiny
from csb.measure import evidence
from csb.measure.compare import Measurement, compare
from csb.measure.memory import Memory
from csb.native.library import quantize
from csb.plan import ComparePlan, ContextPlan, ModelPlan

pytestmark = pytest.mark.native

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k_m")
PLAIN = ("f32", "f16", "bf16")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("seed")
    made = {d: tiny.write(folder / f"{d}.gguf", dtype=d, n_layer=2) for d in PLAIN}
    for kind in TYPES[len(PLAIN) :]:
        made[kind] = folder / f"{kind}.gguf"
        quantize(made["f32"], made[kind], kind)
    return made


def settings(**changes: object) -> dict[str, object]:
    return {
        "n_ctx": 1024,
        "n_batch": 512,
        "n_ubatch": 512,
        "n_threads": 2,
        "n_threads_batch": 2,
        "flash_attn": "off",
        **changes,
    }


def by_csb(
    model: csb.Model,
    options: dict[str, object],
    prompt: list[int],
    n: int,
    width: int,
    prefix: str,
    quantized: bool = True,
) -> Measurement:
    plan = ComparePlan(ModelPlan(model.path), ContextPlan(), n_gen=n, width=width, prefix=prefix)
    with csb.Context(model, **options) as context:  # type: ignore[arg-type]
        measured = compare(Memory(context), plan, prompt, quantized)
    assert measured.stopped is None
    return measured


def assert_equal(expected: seed_method.SeedRun, measured: Measurement) -> None:
    assert measured.trajectory.ids == expected.ar
    assert measured.trajectory.logits == [float(x) for x in expected.l_ar]
    table = measured.cells
    assert len(table) == len(expected.cells)
    for key in expected.cells[0]:
        ours = table[key]
        theirs = np.array([c[key] for c in expected.cells], dtype=ours.dtype)
        assert ours.tobytes() == theirs.tobytes(), key


def tokens(n: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 512, n)]


# 10 windows around a length: across 256 cells, and across 512 where split-KV attention begins
PLACES = (30, 250, 506)


@pytest.mark.parametrize("flash", ["off", "on"])
@pytest.mark.parametrize("repack", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_types(models: dict[str, Path], kind: str, repack: bool, flash: str) -> None:
    options = settings(flash_attn=flash)
    with csb.Model(models[kind], use_extra_bufts=repack) as model:
        for place in PLACES:
            prompt = tokens(place)
            expected = seed_method.run(model, options, prompt, 10, 5)
            for prefix in ("reprefill", "auto"):
                measured = by_csb(model, options, prompt, 10, 5, prefix, kind not in PLAIN)
                assert_equal(expected, measured)


@pytest.mark.parametrize("kind", ["bf16", "q4_k_m"])
@pytest.mark.parametrize(
    ("width", "n_ubatch"),
    [(1, 512), (2, 512), (3, 512), (5, 512), (8, 512), (2, 1), (5, 2), (5, 4), (8, 3)],
)
def test_widths(
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    width: int,
    n_ubatch: int,
) -> None:
    monkeypatch.setattr(evidence, "LIMIT", 1e9)  # what is shared depends on evidence alone
    options, n = settings(n_ubatch=n_ubatch), 18
    whole = kind in PLAIN and n_ubatch == 512
    with csb.Model(models[kind]) as model:
        for place in (9, 250):
            prompt = tokens(place)
            expected = seed_method.run(model, options, prompt, n, width)
            measured = by_csb(model, options, prompt, n, width, "auto", kind not in PLAIN)
            if place > n:  # on short prefixes probes cost more than they save
                assert measured.prefix.shared == (n - 1 if whole else 0)
            assert_equal(expected, measured)
            for prefix in ("reprefill", "shared") if whole else ("reprefill",):
                assert_equal(expected, by_csb(model, options, prompt, n, width, prefix))


@pytest.mark.model
@pytest.mark.parametrize("flash", ["off", "on"])
def test_the_default_model(default_model: Path, flash: str) -> None:
    """A real model, its windows across 256 cells."""
    options, n = settings(flash_attn=flash), 6
    with csb.Model(default_model) as model:
        text = (
            "The square of the hypotenuse is the sum of the squares of the other two sides. " * 20
        )
        prompt = model.tokenize(text)[:254]
        expected = seed_method.run(model, options, prompt, n, 5)
        assert_equal(expected, by_csb(model, options, prompt, n, 5, "reprefill"))
