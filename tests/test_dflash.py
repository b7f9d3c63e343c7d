"""A DFlash draft's context and the layer inputs it reads, each against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import csb
import dflash_method
import numpy as np
import pytest
import tiny
from conftest import TinyModel
from csb.errors import ArgumentError, FileError, UnsupportedError
from csb.measure.memory import same_bits
from csb.native.draft import DraftContext, describe

pytestmark = pytest.mark.native

MASK, BLOCK = 300, 8
TEXT = [int(i) for i in np.random.default_rng(3).integers(0, 256, 40)]
SETTINGS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "off"}
OWN = {"d2t": "f", "output.weight": "f e"}  # a vocabulary of the draft's own, n_ff tokens
F32 = {**SETTINGS, "type_k": "f32", "type_v": "f32"}


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("llama", tokenizer="bpe")


@pytest.fixture(scope="module")
def draft(tiny_model: TinyModel) -> Path:
    return tiny_model("dflash", tokenizer="bpe", mask=MASK)


def test_a_draft_says_what_it_is(draft: Path) -> None:
    with csb.Model(draft, draft=True) as model:
        said = {"block_size": BLOCK, "mask": MASK, "causal": False, "layers": [0, 2]}
        assert describe(model) == said


@pytest.mark.hooks
@pytest.mark.parametrize("calls", [(40,), (17, 1, 5, 17)])
def test_layer_inputs(target: Path, calls: tuple[int, ...]) -> None:
    with csb.Model(target) as model, csb.Context(model, **F32, n_ubatch=16) as context:
        expected = dflash_method.layer_inputs(model, TEXT, **F32)
        context.tap([0, 2])
        start = 0
        for n in calls:
            context.decode(TEXT[start : start + n], start, outputs=False)
            start += n
        first, rows = context.tapped()
        assert (first, rows.shape) == (0, (40, 512))
        assert np.abs(rows - expected).max() < 1e-5
        assert np.abs(rows[1:] - expected[:-1]).max() > 0.1  # the order is no accident
        first, rows = context.tapped()
        assert (first, len(rows)) == (-1, 0)


def test_layer_inputs_follow_the_memory(target: Path) -> None:
    with csb.Model(target) as model, csb.Context(model, **F32) as context:
        context.tap([2])
        context.decode(TEXT[:20], 0)
        whole = context.tapped()[1]
        context.remove(10)
        context.decode(TEXT[10:16], 10)  # six that were seen before
        context.remove(14)
        first, rows = context.tapped()
        assert (first, len(rows)) == (10, 4)
        assert np.abs(rows - whole[10:14]).max() < 1e-5
        context.decode(TEXT[14:18], 14)
        context.decode([5], 18)
        context.remove(16)
        out = np.empty((2, context.n_vocab), np.float32)
        context.steps(TEXT[16:18], 16, out)
        first, rows = context.tapped()
        assert first == 14 and np.abs(rows - whole[14:18]).max() < 1e-5
        state = context.save()
        context.restore(state)
        context.decode(TEXT[18:20], 18)
        assert context.tapped()[0] == 18
        context.decode(TEXT[20:22], 20)
        context.clear()
        assert context.tapped()[0] == -1


@pytest.mark.parametrize("arch", ["llama", "qwen3", "moe"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_reading_them_changes_no_bit(
    tiny_model: TinyModel, arch: str, dtype: str, flash: str
) -> None:
    """Blocks, single tokens, a prefill of more than one ubatch, and the memory."""
    path = tiny_model(arch, dtype)

    def rows(context: csb.Context) -> list[Any]:
        context.clear()
        context.decode(TEXT, 0, outputs=False)
        found = []
        for n in (1, 2, 5, 8, 16):
            context.decode(TEXT[:n], 40)
            found.append(context.logits(range(n)))
            context.remove(40)
        return [*found, context.save()]

    given = {**SETTINGS, "flash_attn": flash, "n_ubatch": 32}
    with csb.Model(path) as model, csb.Context(model, **given) as context:
        plain = rows(context)
        context.tap([0, 1, 2, 3])
        read = rows(context)
        assert context.tapped()[1].shape == (40, 4 * 256)  # what was cut off is no part
        context.tap([])
        again = rows(context)
    for a, b, c in zip(plain[:-1], read[:-1], again[:-1], strict=True):
        assert same_bits(a, b) and same_bits(a, c)
    assert np.array_equal(plain[-1], read[-1])


@pytest.mark.hooks
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("flash", ["on", "off"])
def test_a_block_is_numpys(target: Path, tmp_path: Path, causal: bool, flash: str) -> None:
    path = tiny.write(
        tmp_path / "draft.gguf",
        "dflash",
        tokenizer="bpe",
        mask=MASK,
        keys={"attention.causal": causal},
    )
    with csb.Model(target) as model, csb.Model(path, draft=True) as drafts:
        features = dflash_method.layer_inputs(model, TEXT, **SETTINGS)
        given = {**F32, "flash_attn": flash}
        with csb.Context(model, **SETTINGS) as beside, DraftContext(drafts, beside, **given) as c:
            for masks in (7, 4):
                block = [TEXT[3], *[MASK] * masks]
                c.clear()
                c.inject(features[:25].astype(np.float32), 0)
                c.inject(features[25:].astype(np.float32), 25)
                c.decode(block, 40)
                rows = c.logits(range(len(block)))
                expected = dflash_method.forward(
                    path, target, features, block[0], block[1:], causal
                )
                assert np.abs(rows - expected).max() < 2e-3 * np.abs(expected).max()
                other = dflash_method.forward(
                    path, target, features, block[0], block[1:], not causal
                )
                assert np.abs(rows - other).max() > 2e-2 * np.abs(expected).max()


@pytest.mark.hooks
def test_a_window(target: Path, tmp_path: Path) -> None:
    """The first layer sees 9 tokens back, and the block's own that come after."""
    keys = {
        "attention.sliding_window": 9,
        "attention.sliding_window_pattern": [True, False],
    }
    path = tiny.write(tmp_path / "d.gguf", "dflash", tokenizer="bpe", mask=MASK, keys=keys)
    block = [8, *[MASK] * 7]
    with csb.Model(target) as model, csb.Model(path, draft=True) as drafts:
        features = dflash_method.layer_inputs(model, TEXT, **SETTINGS)
        with csb.Context(model, **SETTINGS) as beside, DraftContext(drafts, beside, **F32) as c:
            c.inject(features.astype(np.float32), 0)
            c.decode(block, 40)
            c.remove(40)
            c.decode(block, 40)
            rows = c.logits(range(8))

    def off(window: int) -> float:
        expected = dflash_method.forward(path, target, features, 8, block[1:], window=window)
        return float(np.abs(rows - expected).max() / np.abs(expected).max())

    assert off(9) < 2e-3 and min(off(8), off(10), off(0)) > 1e-2


@pytest.mark.hooks
def test_a_vocabulary_of_its_own(target: Path, tmp_path: Path) -> None:
    """Of 384 tokens: the others' logits are -inf."""
    ids = np.random.default_rng(5).permutation(512)[:384]
    path = tiny.write(
        tmp_path / "draft.gguf",
        "dflash",
        tokenizer="bpe",
        mask=MASK,
        tensors=OWN,
        values={"d2t": ids},
        n_ff=384,
    )
    with csb.Model(target) as model, csb.Model(path, draft=True) as drafts:
        features = dflash_method.layer_inputs(model, TEXT, **SETTINGS)
        with csb.Context(model, **SETTINGS) as beside, DraftContext(drafts, beside, **F32) as c:
            c.inject(features.astype(np.float32), 0)
            c.decode([9, MASK, MASK], 40)
            rows = c.logits([0, 1, 2])
    expected = dflash_method.forward(path, target, features, 9, [MASK, MASK])
    assert np.array_equal(np.isneginf(rows), np.isneginf(expected))
    finite = np.isfinite(expected)
    assert finite.sum() == 3 * 384
    largest = np.abs(expected[finite]).max()
    assert np.abs(rows[finite] - expected[finite]).max() < 2e-3 * largest


def test_a_draft_outlives_its_target_s_handles(target: Path, draft: Path) -> None:
    model, drafts = csb.Model(target), csb.Model(draft, draft=True)
    context = csb.Context(model, **SETTINGS)
    beside = DraftContext(drafts, context, **SETTINGS)
    rows = np.ones((4, 512), np.float32)
    beside.inject(rows, 0)
    beside.decode([1, MASK], 4)
    before = beside.logits([0, 1])
    for handle in (context, model, drafts):
        handle.close()
    beside.remove(4)
    beside.decode([1, MASK], 4)
    assert same_bits(beside.logits([0, 1]), before)
    beside.close()


def test_a_draft_refuses(target: Path, draft: Path) -> None:
    with (
        csb.Model(target) as model,
        csb.Model(draft, draft=True) as drafts,
        csb.Context(model, **SETTINGS) as context,
        DraftContext(drafts, context, **SETTINGS, n_batch=64, n_ubatch=16) as beside,
    ):
        row = np.zeros((1, 512), np.float32)
        with pytest.raises(ArgumentError, match="width = 511"):
            beside.inject(np.zeros((1, 511), np.float32), 0)
        with pytest.raises(ArgumentError, match="next position is 0"):
            beside.inject(row, 1)
        for position in (-1, 2**31 - 1):
            with pytest.raises(ArgumentError, match="position"):
                beside.inject(row, position)
        with pytest.raises(ArgumentError, match="n_tokens = 17"):
            beside.inject(np.zeros((17, 512), np.float32), 0)
        with pytest.raises(ArgumentError, match="n_tokens = 0"):
            beside.inject(np.zeros((0, 512), np.float32), 0)
        with pytest.raises(ArgumentError, match="float32"):
            beside.inject(np.zeros((1, 512), np.float64), 0)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="n_ubatch"):
            beside.decode([MASK] * 17, 0)
        with pytest.raises(ArgumentError, match="every row"):
            beside.decode([MASK] * 4, 0, outputs=[False, True, True, True])
        beside.inject(row, 0)
        with pytest.raises(ArgumentError, match="next position is 1"):
            beside.inject(row, 0)
        with pytest.raises(ArgumentError, match="none of a draft"):
            DraftContext.inject(context, row, 0)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="beside its target"):
            csb.Context(drafts, **SETTINGS)
        with pytest.raises(ArgumentError, match="not opened as a draft"):
            DraftContext(model, context, **SETTINGS)
        with pytest.raises(ArgumentError, match="not opened as a draft"):
            describe(model)
        with pytest.raises(ArgumentError, match="one sequence"):
            DraftContext(drafts, context, **SETTINGS, n_seq_max=2)
        with pytest.raises(UnsupportedError, match="does not give the input of layer 0"):
            DraftContext(drafts, beside, **SETTINGS)


def test_taps_refuse(target: Path, tiny_model: TinyModel) -> None:
    with csb.Model(target) as model:
        with csb.Context(model, **SETTINGS) as context:
            for layers in ([-1], [5], [0, 99]):
                with pytest.raises(ArgumentError, match="no such layer"):
                    context.tap(layers)
            with pytest.raises(UnsupportedError, match="input of layer 4"):
                context.tap([0, 4])
            with pytest.raises(ArgumentError, match="no layer inputs are kept"):
                context.tapped()
            context.decode([1], 0)  # and none of them is on
        with (
            csb.Context(model, **SETTINGS, n_seq_max=2) as context,
            pytest.raises(ArgumentError, match="one sequence"),
        ):
            context.tap([0])
    with (
        csb.Model(tiny_model("gemma3")) as model,
        csb.Context(model, **SETTINGS) as context,
        pytest.raises(UnsupportedError, match="does not give the input of layer 0"),
    ):
        context.tap([0])


VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"arch": "llama", "mask": MASK}, "is no DFlash draft"),
    "no mask": ({}, "has no mask token"),
    "a mask outside the vocabulary": ({"mask": 5000}, "has no mask token"),
    "blocks of one": ({"mask": MASK, "keys": {"block_size": 1}}, "no block size"),
    "M-RoPE": ({"mask": MASK, "keys": {"rope.dimension_sections": [32, 0, 0, 0]}}, "M-RoPE"),
    "DSpark": (
        {"mask": MASK, "tensors": {"markov_w1.weight": "v s", "markov_w2.weight": "v s"}},
        "DSpark",
    ),
    "DFlash2": (
        {
            "mask": MASK,
            "keys": {
                **{"conv_kernel_size": 4, "conv_group_size": 256},
                **{"selector_rank": 16, "selector_top_k": 4},
            },
            "tensors": {
                "selector_predecessor.weight": "v s",
                "selector_successor.weight": "v s",
                "selector_hidden.weight": "s e",
                **{
                    f"blk.{i}.{part}_conv_base": "2 4 e" for i in (0, 1) for part in ("attn", "ffn")
                },
                **{
                    f"blk.{i}.{part}_conv_proj.weight": "x e"
                    for i in (0, 1)
                    for part in ("attn", "ffn")
                },
            },
        },
        "DFlash2",
    ),
    "a vocabulary of its own as floats": ({"mask": MASK, "tensors": OWN}, "no tokens"),
    "a vocabulary of its own, a token too far": (
        {"mask": MASK, "tensors": OWN, "values": {"d2t": np.arange(512) + 1}},
        "no tokens",
    ),
    "no layers": ({"mask": MASK, "keys": {"target_layers": None}}, "target_layers"),
    "a window for no layer": (
        {
            "mask": MASK,
            "keys": {
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": [False, False],
            },
        },
        "no layer that uses it",
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_files_that_are_no_drafts(name: str, tmp_path: Path) -> None:
    given, said = VARIANTS[name]
    path = tiny.write(tmp_path / "d.gguf", **{"arch": "dflash", "tokenizer": "bpe", **given})
    with pytest.raises((UnsupportedError, FileError), match=said) as caught:
        csb.Model(path, draft=True)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_draft_is_no_model(draft: Path) -> None:
    with pytest.raises(UnsupportedError, match="is a DFlash draft"):
        csb.Model(draft)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_embd": 512}, "embedding length is 512"),
        ({"n_vocab": 768}, "vocabulary size is 768"),
        ({"keys": {"target_layers": [0, 9]}}, "layer 9 of a target with 4 layers"),
        ({"keys": {"target_layers": [-1, 0]}}, "layer -1"),
        ({"keys": {"target_layers": [0, 4]}}, "does not give the input of layer 4"),
    ],
)
def test_drafts_of_other_targets(
    target: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    path = tiny.write(tmp_path / "d.gguf", "dflash", tokenizer="bpe", mask=MASK, **given)
    with (
        csb.Model(target) as model,
        csb.Model(path, draft=True) as drafts,
        csb.Context(model, **SETTINGS) as context,
        pytest.raises(UnsupportedError, match=said),
    ):
        DraftContext(drafts, context, **SETTINGS)
