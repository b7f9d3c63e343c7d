"""Prefix strategies: what `auto` may share and what it must not, and that each claim of equality
holds bit for bit."""

from __future__ import annotations

from pathlib import Path

import csb
import numpy as np
import pytest
import seed_method
import tiny
from csb.errors import UnsupportedError
from csb.measure import evidence
from csb.measure.compare import compare
from csb.measure.memory import Memory
from csb.measure.prefix import KERNELS_DIFFER, QUANTIZED
from csb.native.library import quantize
from csb.nodes import nodes_of
from csb.plan import ComparePlan, ContextPlan, ModelPlan
from test_seed import assert_equal, by_csb, settings, tokens

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefix")


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes may take any share of the run, so that what is shared depends on evidence alone."""
    monkeypatch.setattr(evidence, "LIMIT", 1e9)


def model_of(folder: Path, dtype: str, **shape: int) -> Path:
    path = folder / f"{dtype}-{'-'.join(map(str, shape.values()))}.gguf"
    return path if path.exists() else tiny.write(path, dtype=dtype, **{"n_layer": 2, **shape})


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("place", [30, 240, 500])
def test_shares_where_it_may(folder: Path, dtype: str, place: int) -> None:
    prompt, n = tokens(place), 30
    with csb.Model(model_of(folder, dtype)) as model:
        expected = seed_method.run(model, settings(), prompt, n, 5)
        measured = by_csb(model, settings(), prompt, n, 5, "auto", quantized=False)
        assert measured.prefix.shared == n - 1 - (place + n > 513)  # prefix 513 ends in one row
        assert measured.prefix.equal == measured.prefix.probes
        assert len(measured.prefix.probes) >= evidence.FEWEST
        assert_equal(expected, measured)
        if place + n <= 512:
            assert_equal(expected, by_csb(model, settings(), prompt, n, 5, "shared"))


@pytest.mark.usefixtures("plenty")
def test_shares_some_row_counts_with_flash_attention(folder: Path) -> None:
    """On CPU a fresh prefill of under 64 rows attends with another kernel than a longer one."""
    prompt, n = tokens(41), 60  # prefixes 40..99
    options = settings(flash_attn="on")
    with csb.Model(model_of(folder, "bf16")) as model:
        expected = seed_method.run(model, options, prompt, n, 3)
        measured = by_csb(model, options, prompt, n, 3, "auto", quantized=False)
    assert measured.prefix.shared == 99 - 64 + 1
    assert measured.prefix.reprefilled == 63 - 41 + 1
    assert_equal(expected, measured)


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_one_row_past_a_multiple_of_n_ubatch(folder: Path, dtype: str) -> None:
    """Flash attention off, -ub 64: equal at every length but 65, 129, 193, where the last ubatch
    of a fresh prefill is one row and takes another kernel."""
    # A 32-bit cache: a 16-bit one rounds some of these differences away on so small a model.
    options = settings(n_ubatch=64, type_k="f32", type_v="f32")
    prompt, n = tokens(61), 140  # prefixes 60..199
    with csb.Model(model_of(folder, dtype)) as model:
        with csb.Context(model, **options) as context:
            text = tokens(200, seed=3)
            found = evidence.probe(Memory(context), text, range(60, 200), by_kernels=False)
            assert [length for length, equal in found.items() if not equal] == [65, 129, 193]
        expected = seed_method.run(model, options, prompt, n, 2)
        measured = by_csb(model, options, prompt, n, 2, "auto", quantized=False)
        by_hand = by_csb(model, options, prompt, n, 2, "shared")
    assert measured.prefix.equal == measured.prefix.probes
    assert (measured.prefix.shared, measured.prefix.reprefilled) == (139 - 3, 3)
    assert_equal(expected, measured)
    if dtype == "f32":  # BF16 activations round such small differences away again
        with pytest.raises(AssertionError):  # sharing everything is not the seed's measurement
            assert_equal(expected, by_hand)


@pytest.mark.usefixtures("plenty")
def test_agreement_by_luck_is_no_proof(folder: Path) -> None:
    """Repacked Q4_K: rows past the last multiple of four take another kernel. Quantized
    activations absorb that at many lengths, so probes can all agree while a window differs."""
    f32 = model_of(folder, "f32", n_embd=256, n_layer=1)
    path = folder / "q4_k.gguf"
    quantize(f32, path, "q4_k_m")
    n, place = 60, 41
    prompt = tokens(place)
    with csb.Model(path) as model:
        with csb.Context(model, **settings()) as context:
            text, lengths = tokens(place + n, seed=5), range(8, place + n - 1)
            found = evidence.probe(Memory(context), text, lengths, by_kernels=False)
            proven = evidence.probe(Memory(context), text, lengths, by_kernels=True)
        lucky = [length for length, equal in found.items() if equal]
        assert len(lucky) >= evidence.FEWEST, "no sample could agree by luck"
        assert len(lucky) < len(found), "nothing differs: the case proves nothing"
        assert not any(proven.values())
        measured = by_csb(model, settings(), prompt, n, 5, "auto", quantized=True)
        assert (measured.prefix.shared, measured.prefix.reason) == (0, KERNELS_DIFFER)
        assert_equal(seed_method.run(model, settings(), prompt, n, 5), measured)


@pytest.mark.usefixtures("plenty")
@pytest.mark.parametrize("kind", ["q8_0", "q4_1", "q4_k_s"])
def test_quantized_weights_are_shared_where_kernels_do_not_depend_on_rows(
    folder: Path, kind: str
) -> None:
    """Without repacking, Q8_0 and Q4_1 have one kernel from two rows on, Q4_K two."""
    path, (place, n) = folder / f"pure-{kind}.gguf", (4, 40)
    quantize(model_of(folder, "f32", n_embd=256), path, kind, pure=True)
    prompt = tokens(place)
    with csb.Model(path, use_extra_bufts=False) as model:
        measured = by_csb(model, settings(), prompt, n, 5, "auto", quantized=True)
        assert_equal(seed_method.run(model, settings(), prompt, n, 5), measured)
    few = 8 - place if kind == "q4_k_s" else 0  # prefixes of under eight tokens
    assert (measured.prefix.shared, measured.prefix.reprefilled) == (n - 1 - few, few)


@pytest.mark.usefixtures("plenty")
def test_a_quantized_cache_may_be_shared(folder: Path) -> None:
    options = settings(type_k="q8_0", type_v="q8_0", flash_attn="on")
    prompt, n = tokens(30), 20
    with csb.Model(model_of(folder, "bf16")) as model:
        measured = by_csb(model, options, prompt, n, 5, "auto", quantized=True)
        assert_equal(seed_method.run(model, options, prompt, n, 5), measured)
    assert measured.prefix.shared == n - 1


def test_without_kernel_records_quantized_weights_are_not_shared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csb.measure import prefix

    monkeypatch.setattr(prefix, "has_hooks", lambda: False)
    with csb.Model(model_of(folder, "bf16")) as model:
        measured = by_csb(model, settings(), tokens(30), 12, 5, "auto", quantized=True)
    assert (measured.prefix.shared, measured.prefix.reason) == (0, QUANTIZED)


def test_experts_rows_depend_on_their_routing(folder: Path) -> None:
    """A K-quant expert with eight rows and more takes the tiled kernel, with fewer vec_dot."""
    path = folder / "moe.gguf"
    tiny.write(folder / "moe-f32.gguf", "moe", dtype="f32", n_layer=2)
    quantize(folder / "moe-f32.gguf", path, "q4_k_s", pure=True)
    with (
        csb.Model(path, use_extra_bufts=False) as model,
        csb.Context(model, **settings()) as context,
    ):
        with context.trace() as trace:
            Memory(context).prefill(tokens(24))
        nodes = [n for n in nodes_of(trace.calls[0]) if n["op"] == "MUL_MAT_ID"]
        assert any(len(n["kernels"]) == 2 for n in nodes)
        assert evidence.kernels_at(trace.calls, 23, 512, 512) is None


def test_quantized_cache_counts_as_quantized(folder: Path) -> None:
    options = settings(type_k="q8_0", type_v="q8_0", flash_attn="on")
    with csb.Model(model_of(folder, "bf16")) as model, csb.Context(model, **options) as context:
        from csb.measure.session import Session

        session = Session(model, context, ModelPlan(model.path), ContextPlan(), 0.0)
        assert session.quantized


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_incremental(folder: Path, flash: str, dtype: str) -> None:
    """Across 256 and 512 cells: every single row has the AR run's bits."""
    options = settings(flash_attn=flash)
    with csb.Model(model_of(folder, dtype)) as model:
        for place in (30, 250, 506):
            measured = by_csb(model, options, tokens(place), 20, 5, "incremental")
            table = measured.cells
            assert measured.controls.incremental_equal is True
            assert len(table) == 20 * 5 - 10
            assert table["l_s"].tobytes() == table["l_ar"].tobytes()


def test_incremental_by_another_way(folder: Path) -> None:
    """Each window on a memory written token by token from scratch, as the AR run writes it."""
    prompt, n, width = tokens(12), 12, 4
    with csb.Model(model_of(folder, "bf16")) as model:
        measured = by_csb(model, settings(), prompt, n, width, "incremental")
        ar = measured.trajectory.ids
        with csb.Context(model, **settings()) as context:
            for t in range(n):
                text = prompt + ar
                context.remove(0)
                context.decode(prompt[:-1], 0, outputs=False)
                for k in range(t):
                    context.decode([text[len(prompt) - 1 + k]], len(prompt) - 1 + k)
                start = len(prompt) - 1 + t
                inputs = text[start : start + min(width, n - t)]
                context.decode(inputs, start)
                block = context.logits(range(len(inputs)))
                ours = measured.cells[measured.cells["t"] == t]
                theirs = np.array([block[j, ar[t + j]] for j in range(len(inputs))], np.float64)
                assert ours["l_b"].tobytes() == theirs.tobytes()


def test_block_by_another_way(folder: Path) -> None:
    """Each window's prefix written from scratch as full W-row calls whose tail is cut off."""
    prompt, n, width = tokens(12), 14, 4
    with csb.Model(model_of(folder, "bf16")) as model:
        measured = by_csb(model, settings(), prompt, n, width, "block")
        ar = measured.trajectory.ids
        text = prompt + ar
        with csb.Context(model, **settings()) as context:
            for t in range(1, n):
                start = len(prompt) - 1 + t
                context.remove(0)
                context.decode(prompt[:-1], 0, outputs=False)
                for i in range(len(prompt) - 1, start, width):
                    context.decode(text[i : i + width], i, outputs=False)
                context.remove(start)
                inputs = text[start : start + min(width, n - t)]
                context.decode(inputs, start)
                block = context.logits(range(len(inputs)))
                ours = measured.cells[measured.cells["t"] == t]
                theirs = np.array([block[j, ar[t + j]] for j in range(len(inputs))], np.float64)
                assert ours["l_b"].tobytes() == theirs.tobytes()
    assert measured.prefix.short_from == 12  # 15 written tokens in calls of four: 4 4 4 3


@pytest.mark.parametrize("prefix", ["shared", "incremental", "block"])
def test_refused_where_memory_cannot_be_cut_back(folder: Path, prefix: str) -> None:
    path = tiny.write(folder / "mamba.gguf", "mamba", n_layer=1)
    plan = ComparePlan(ModelPlan(path), ContextPlan(), n_gen=4, prefix=prefix)
    with (
        csb.Model(path) as model,
        csb.Context(model, n_ctx=256) as context,
        pytest.raises(UnsupportedError, match="reprefill"),
    ):
        compare(Memory(context), plan, [1, 2, 3], quantized=False)


class TestChoice:
    """What is probed, from the lengths alone."""

    def shapes(self, total: int, n_ubatch: int = 512, flash: bool = False) -> dict:
        return {n: evidence.shape_of(n, total, 512, n_ubatch, flash) for n in range(1, total + 1)}

    def test_shapes(self) -> None:
        shapes = self.shapes(200, n_ubatch=64)
        assert shapes[64].r == 64 and shapes[65].r == 1 and shapes[200].r == 8
        assert shapes[65].group == (64, False) and shapes[193].group == (8, False)
        assert evidence.shape_of(513, 600, 512, 512, False).r == 1  # a new batch
        assert evidence.shape_of(500, 600, 512, 64, False).group == (64, False)
        assert evidence.shape_of(80, 100, 512, 512, True).group == (100, True)

    def test_ends_and_a_run_are_probed(self) -> None:
        shapes = self.shapes(132)
        chosen = evidence.choose(range(34, 133), shapes, budget=10_000)
        assert evidence.FEWEST <= len(chosen) <= evidence.MOST
        assert {34, 132} <= set(chosen)
        run = max(sum(1 for k in range(8) if start + k in chosen) for start in range(1, 132))
        assert run == 8

    def test_too_dear(self) -> None:
        assert evidence.choose(range(34, 133), self.shapes(132), budget=100) == []

    def test_only_between_equal_probes(self) -> None:
        at = lambda r: evidence.Shape((100, False), r)  # noqa: E731
        equal = {at(1): True, at(10): True, at(20): True, at(30): False, at(40): True}
        may = [r for r in range(1, 50) if evidence.shareable(at(r), equal)]
        assert may == [*range(2, 21), 40]  # never a lone row, nothing past the last probe
        other = evidence.Shape((64, False), 15)
        assert not evidence.shareable(other, equal)
