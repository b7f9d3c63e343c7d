"""csb's loop against the literal one, for every memory kind; ways back to the AR run; the audits
look without disturbing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
import speculative_method as literal
from conftest import TinyModel
from csb.errors import ArgumentError, UnsupportedError
from csb.measure.memory import Memory
from csb.measure.speculate import ways
from csb.measure.speculate.draft_model import DraftModel, check_vocabulary
from csb.measure.speculate.drafters import Drafter, Noisy, Oracle, Recorded
from csb.measure.speculate.loop import Loop
from csb.measure.speculate.measure import Looped, Speculated, prefix_of, speculate
from csb.measure.speculate.target import Target
from csb.measure.trajectory import digest
from csb.plan import ComparePlan, ContextPlan, ModelPlan
from csb.speculation.plan import Way

pytestmark = pytest.mark.native

UNGATED = Way()
KINDS = ("llama", "moe", "gemma3", "mamba", "lfm2", "qwen35")


def settings(**changes: object) -> dict[str, object]:
    return {
        "n_ctx": 512,
        "n_batch": 128,
        "n_ubatch": 128,
        "n_threads": 1,
        "n_threads_batch": 1,
        "flash_attn": "off",
        **changes,
    }


def tokens(n: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 512, n)]


def plan(memory: Memory, n: int, width: int) -> ComparePlan:
    return ComparePlan(
        ModelPlan(Path("m")),
        ContextPlan(),
        n_gen=n,
        width=width,
        stride=width,
        prefix=prefix_of(memory),
    )


def by_csb(
    model: csb.Model,
    prompt: list[int],
    *the_ways: Way,
    n: int = 32,
    width: int = 5,
    rate: float = 0.0,
    options: dict[str, object] | None = None,
) -> Speculated:
    with csb.Context(model, **(options or settings())) as context:  # type: ignore[arg-type]
        memory = Memory(context)
        made = speculate(
            memory,
            plan(memory, n, width),
            prompt,
            False,
            lambda ar: Noisy(ar, rate, [0], model.n_vocab),
            the_ways or (UNGATED,),
        )
    assert made.stopped is None
    return made


def wrong(ar: Sequence[int], rate: float) -> literal.Draft:
    noisy = Noisy(ar, rate, [0], 512)
    noisy.begin([0])
    return lambda ids, n: noisy.draft([0, *ids], n)


def digests(rows: list[np.ndarray]) -> list[bytes]:
    return [digest(row.reshape(1, -1)) for row in rows]


def assert_literal(expected: literal.Text, looped: Looped) -> None:
    assert looped.run.ids == expected.ids
    assert [turn.accepted for turn in looped.run.turns] == expected.accepted
    assert looped.digests == digests(expected.rows)


@pytest.mark.parametrize(("width", "rate"), [(2, 0.0), (5, 0.3), (16, 0.3)])
@pytest.mark.parametrize("arch", KINDS)
def test_the_literal_loop(tiny_model: TinyModel, arch: str, width: int, rate: float) -> None:
    states = arch in ("mamba", "lfm2", "qwen35")
    with csb.Model(tiny_model(arch, "bf16", n_layer=2)) as model:
        prompt = tokens(40)
        ar = literal.ar(model, settings(), prompt, 32)
        made = by_csb(model, prompt, width=width, rate=rate)
        (looped,) = made.loops
        assert made.baseline is not None and made.baseline.ids == ar.ids
        assert made.baseline.digests == digests(ar.rows)
        expected = literal.loop(model, settings(), prompt, 32, width, wrong(ar.ids, rate), states)
        assert_literal(expected, looped)
        assert looped.faults == []
        assert states or not looped.run.count["again"]
        assert looped.run.count["again"] or not (states and rate)


@pytest.mark.parametrize("place", [20, 250])
def test_a_sliding_window_ring(tiny_model: TinyModel, place: int) -> None:
    """Restored before every block, so that its layout is the same however often it was."""
    ring = settings(swa_full=False, n_ubatch=64, n_batch=64)
    with csb.Model(tiny_model("gemma3", "bf16", n_layer=2, sliding_window=64)) as model:
        made = by_csb(model, tokens(place), options=ring, rate=0.3)
        (looped,) = made.loops
        assert looped.faults == [] and len(looped.audits) >= 2
        assert looped.run.count["again"] > 0


def test_a_prompt_of_one_token(tiny_model: TinyModel) -> None:
    for arch in ("llama", "mamba"):
        with csb.Model(tiny_model(arch, "bf16", n_layer=2)) as model:
            ar = literal.ar(model, settings(), [7], 12)
            looped = by_csb(model, [7], n=12, rate=0.3).loops[0]
            expected = literal.loop(
                model, settings(), [7], 12, 5, wrong(ar.ids, 0.3), arch == "mamba"
            )
            assert_literal(expected, looped)


def test_it_ends_with_the_text(tiny_model: TinyModel) -> None:
    """An end-of-generation token in the middle of an accepted block is the last one."""
    path = tiny_model("llama", "bf16", n_layer=2, tokenizer="bpe")
    with csb.Model(path) as model:
        ids = literal.ar(model, settings(), tokens(20), 32).ids
    end = next(token for i, token in enumerate(ids) if i > 10 and token not in ids[:i])
    ends = tiny_model("llama", "bf16", n_layer=2, tokenizer="bpe", eos=end)
    with csb.Model(ends) as model:
        for way in (UNGATED, Way("single"), Way("margin", 0.3)):
            made = by_csb(model, tokens(20), UNGATED, way)
            for looped in made.loops:
                assert looped.run.ended
                assert looped.run.ids == ids[: ids.index(end) + 1] or looped.partings
                assert looped.faults == []


@pytest.mark.parametrize("arch", ["llama", "gemma3", "moe", "mamba", "lfm2"])
def test_rows_decoded_alone_have_the_ar_runs_bits(tiny_model: TinyModel, arch: str) -> None:
    with csb.Model(tiny_model(arch, "bf16", n_layer=2)) as model:
        every = [UNGATED, Way("margin", 0.0), Way("margin", np.inf), Way("single")]
        if arch in ("llama", "gemma3", "moe"):
            every += [Way("repair", 0.0), Way("repair", np.inf)]
        made = by_csb(model, tokens(40), *every, rate=0.3)
        assert made.gates == {"all_alone_equals_ar": True, "gate_0_equals_ungated": True}
        by_way = {str(looped.way): looped for looped in made.loops}
        assert made.baseline is not None
        for way in ("margin:inf", "single"):
            assert by_way[way].digests == made.baseline.digests
            assert by_way[way].equal_rows == len(made.baseline.ids)
            assert all(by_way[way].run.alone)
        assert by_way["margin:0"].digests == by_way["none"].digests
        assert by_way["single"].run.count["blocks"] < by_way["margin:inf"].run.count["blocks"]


def test_a_gate_that_does_not_hold_is_seen(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that lets a row through: the controls of TAU 0 and inf must fail."""
    monkeypatch.setattr(ways, "first_under", lambda margins, tau: 0 if tau == 0 else None)
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        made = by_csb(model, tokens(40), UNGATED, Way("margin", 0.0), Way("margin", np.inf))
    assert made.gates == {"all_alone_equals_ar": False, "gate_0_equals_ungated": False}


def test_margin_decodes_alone_what_is_under_tau(tiny_model: TinyModel) -> None:
    tau = 0.2
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        looped = by_csb(model, tokens(40), Way("margin", tau), n=64).loops[0]
    run = looped.run
    assert any(run.alone) and not all(run.alone)
    assert all(m >= tau for m, alone in zip(run.margins, run.alone, strict=True) if not alone)
    assert sum(run.alone) == run.count["singles"]
    for turn in run.turns:
        assert turn.alone in (0, 1)


def test_repair_leaves_a_memory_written_one_by_one(tiny_model: TinyModel) -> None:
    """Before a row that it decodes alone: so that row has the AR run's bits while texts agree."""
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        made = by_csb(model, tokens(40), Way("repair", 0.2), n=64)
    looped, base = made.loops[0], made.baseline
    assert base is not None and any(looped.run.alone)
    parted = looped.partings[0].pos if looped.partings else len(base.ids)
    for p in range(min(parted + 1, len(base.ids))):
        if looped.run.alone[p]:
            assert looped.digests[p] == base.digests[p]
    assert not any(parting.alone for parting in looped.partings)


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f16"])
@pytest.mark.parametrize("flash", ["off", "on"])
def test_exact_kernels(tiny_model: TinyModel, dtype: str, flash: str) -> None:
    with csb.Model(tiny_model("llama", dtype, n_layer=2)) as model:
        made = by_csb(
            model, tokens(40), UNGATED, Way("kernels"), options=settings(flash_attn=flash), rate=0.3
        )
    plain, exact = made.loops
    assert made.baseline is not None
    assert exact.digests == made.baseline.digests
    assert plain.equal_rows < len(plain.run.ids)
    assert plain.run.count == exact.run.count or plain.partings


@pytest.mark.parametrize("arch", KINDS)
def test_audits_do_not_disturb(tiny_model: TinyModel, arch: str) -> None:
    """The same loop with nobody looking: every row has the same bits."""
    with csb.Model(tiny_model(arch, "bf16", n_layer=2)) as model:
        made = by_csb(model, tokens(40), n=48, rate=0.3)
        looped, base = made.loops[0], made.baseline
        assert base is not None and len(looped.audits) >= 3
        with csb.Context(model, **settings()) as context:  # type: ignore[arg-type]
            target = Target(Memory(context))
            alone = Loop(
                target, Noisy(base.ids, 0.3, [0], 512), ways.settle(UNGATED, target, 5), 5, 48
            )
            seen: list[bytes] = []
            run = alone.run(tokens(40), lambda step: seen.extend(digest(v.row) for v in step.given))
    assert run.ids == looped.run.ids and seen == looped.digests
    assert run.count == looped.run.count


def test_every_16th_token_is_audited(tiny_model: TinyModel) -> None:
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        looped = by_csb(model, tokens(40), n=48, rate=0.3).loops[0]
    assert [audit.pos for audit in looped.audits if audit.why == "audit"] == [15, 31, 47]


def test_the_last_token_is_audited(tiny_model: TinyModel) -> None:
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        looped = by_csb(model, tokens(40), n=20).loops[0]
    assert [(a.pos, a.why) for a in looped.audits if a.why != "parting"] == [
        (15, "audit"),
        (19, "end"),
    ]


def test_repair_needs_a_memory_that_can_be_cut_back(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("mamba", "bf16", n_layer=2)) as model,
        pytest.raises(UnsupportedError),
    ):
        by_csb(model, tokens(8), Way("repair", 0.1))


# ---- a text that parts ----


@pytest.fixture(scope="module")
def parted(tiny_model: TinyModel) -> tuple[Path, list[int]]:
    """A model and a prompt whose loop parts from AR by rounding; which depends on the kernels."""
    path = tiny_model("llama", "bf16", n_layer=2)
    with csb.Model(path) as model:
        for seed in range(1, 60):
            made = by_csb(model, tokens(30, seed), n=64, options=quantized())
            if made.loops[0].partings:
                return path, tokens(30, seed)
    pytest.fail("no prompt of 60 parted")


def quantized() -> dict[str, object]:
    return settings(type_k="q4_0")


def test_a_parting_in_numbers(parted: tuple[Path, list[int]]) -> None:
    path, prompt = parted
    with csb.Model(path) as model:
        looped = by_csb(model, prompt, n=64, options=quantized()).loops[0]
        ar = literal.ar(model, quantized(), prompt, 64)
        expected = literal.loop(
            model, quantized(), prompt, 64, 5, lambda ids, n: ar.ids[len(ids) : len(ids) + n]
        )
        assert_literal(expected, looped)
        first = looped.partings[0]
        p = next(i for i in range(64) if expected.ids[i] != ar.ids[i])
        x, y = ar.ids[p], expected.ids[p]
        assert (first.pos, first.ar_id, first.id) == (p, x, y)
        of = lambda row: float(row[x]) - float(row[y])  # noqa: E731
        assert first.ar_margin == of(ar.rows[p]) > 0
        assert first.loop == of(expected.rows[p]) <= 0
        assert first.ar_margin == pytest.approx(first.drift + first.gap + first.loop)
        assert looped.faults == []

        replay = looped.replay
        assert replay is not None
        for ids, nll in ((ar.ids, replay.nll_ar), (looped.run.ids, replay.nll_text)):
            assert nll == pytest.approx(single_nll(model, prompt, ids), abs=1e-9)
        assert replay.digests == digests(ar.rows[: p + 1])


def single_nll(model: csb.Model, prompt: list[int], ids: list[int]) -> list[float]:
    made = []
    with csb.Context(model, **quantized()) as context:  # type: ignore[arg-type]
        literal.prefill(context, prompt[:-1])
        for p, token in enumerate(ids):
            context.decode([prompt[-1] if p == 0 else ids[p - 1]], len(prompt) - 1 + p)
            row = context.logits()[0].astype(np.float64)
            made.append(float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[token]))
    return made


# ---- drafters with a model, and from a file ----


def test_a_smaller_model_drafts(tiny_model: TinyModel) -> None:
    """Its drafts are its own greedy continuation of the text, however the target cut it back."""
    target_path = tiny_model("llama", "bf16", n_layer=2)
    draft_path = tiny_model("llama", "bf16", n_layer=1)
    with csb.Model(target_path) as model, csb.Model(draft_path) as small:
        check_vocabulary(model, small)
        with (
            csb.Context(small, **settings()) as draft_context,  # type: ignore[arg-type]
            csb.Context(model, **settings()) as context,  # type: ignore[arg-type]
        ):
            memory = Memory(context)
            drafter = DraftModel(draft_context, model)
            made = speculate(
                memory, plan(memory, 24, 4), tokens(20), False, lambda ar: drafter, [UNGATED]
            )
        assert made.stopped is None
        looped = made.loops[0]
        for turn in looped.run.turns:
            text = tokens(20) + looped.run.ids[: turn.pos]
            expected = literal.ar(small, settings(), text, len(turn.draft)).ids
            assert turn.draft == expected
        assert looped.faults == []
        assert 0 < looped.run.decode_seconds < looped.run.seconds


def test_another_vocabulary_is_refused(tiny_model: TinyModel) -> None:
    words = tiny_model("llama", "bf16", n_layer=1, tokenizer="bpe")
    with csb.Model(words) as target:
        for path in (
            tiny_model("llama", "bf16", n_layer=1),
            tiny_model("llama", "bf16", n_layer=1, n_vocab=1024),
        ):
            with csb.Model(path) as draft, pytest.raises(ArgumentError, match="vocabulary"):
                check_vocabulary(target, draft)


def test_another_meaning_of_a_token_is_refused(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny_model("llama", "bf16", n_layer=1, tokenizer="bpe")
    with csb.Model(words) as target, csb.Model(words) as draft:
        check_vocabulary(target, draft)
        piece = draft.piece
        monkeypatch.setattr(draft, "piece", lambda t: b"other" if t == 300 else piece(t))
        with pytest.raises(ArgumentError, match="token 300"):
            check_vocabulary(target, draft)


def test_a_drafter_that_can_not_be_cut_back_is_refused(tiny_model: TinyModel) -> None:
    with (
        csb.Model(tiny_model("mamba", "bf16", n_layer=2)) as small,
        csb.Context(small, **settings()) as context,  # type: ignore[arg-type]
        pytest.raises(UnsupportedError, match="cut"),
    ):
        DraftModel(context, small)


def test_recorded_drafts_give_the_same_turns(tiny_model: TinyModel) -> None:
    with csb.Model(tiny_model("llama", "bf16", n_layer=2)) as model:
        first = by_csb(model, tokens(40), rate=0.3).loops[0]
        drafts = {turn.pos: turn.draft for turn in first.run.turns}

        def drafter(kind: Any) -> Looped:
            with csb.Context(model, **settings()) as context:  # type: ignore[arg-type]
                memory = Memory(context)
                return speculate(
                    memory, plan(memory, 32, 5), tokens(40), False, lambda ar: kind(), [UNGATED]
                ).loops[0]

        again = drafter(lambda: Recorded(drafts))
        assert (again.run.turns, again.digests) == (first.run.turns, first.digests)
        flat: Drafter = Oracle(first.run.ids)
        assert drafter(lambda: flat).run.ids == first.run.ids
