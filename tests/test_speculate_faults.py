"""What is not rounding is found: every classic fault of a speculative loop, planted. And honest
runs are called rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
import tiny
from conftest import TinyModel
from csb.measure.memory import Memory
from csb.measure.speculate import loop as loops
from csb.measure.speculate.drafters import Ngram, Noisy, Oracle
from csb.measure.speculate.measure import Looped, Speculated, speculate
from csb.native.table import Row
from csb.speculation import record
from csb.speculation.plan import Way
from csb.speculation.texts import accept
from planted_loop import OffByOne, Planted, RowsOffByOne, StaleRow, TailKept, TailLeft
from process import Run
from test_speculate_loop import plan, settings, tokens

pytestmark = pytest.mark.native

Plant = Callable[[csb.Context], Planted]


def measured(
    path: Path,
    plant: Plant = Planted,
    *,
    n: int = 96,
    width: int = 5,
    rate: float = 0.3,
    prompt: list[int] | None = None,
    way: Way | None = None,
    drafter: str = "noisy",
    **options: object,
) -> tuple[Speculated, Planted]:
    with csb.Model(path) as model, csb.Context(model, **settings(**options)) as context:  # type: ignore[arg-type]
        planted = plant(context)
        memory = Memory(planted)  # type: ignore[arg-type]

        def make(ar: Any) -> Any:
            planted.on = True  # from here on the loop runs
            if drafter == "ngram":
                return Ngram()
            return Oracle(ar) if drafter == "oracle" else Noisy(ar, rate, [0], model.n_vocab)

        made = speculate(
            memory,
            plan(memory, n, width),
            prompt or tokens(40),
            False,
            make,
            [way or Way()],
        )
    return made, planted


def outcome(made: Speculated, way: str = "none") -> str:
    return str(record.of_run(made, "as given", way, lambda ids: "")["outcome"])


def assert_caught(made: Speculated, *kinds: str) -> Looped:
    assert made.stopped is None
    looped = made.loops[0]
    assert {fault.kind for fault in looped.faults} & set(kinds), looped.faults
    assert outcome(made) == "not rounding"
    return looped


@pytest.mark.parametrize("arch", ["llama", "gemma3", "moe"])
@pytest.mark.parametrize("fault", [TailLeft, OffByOne])
def test_a_memory_of_another_text(tiny_model: TinyModel, fault: Any, arch: str) -> None:
    for at in (2, 7):
        made, planted = measured(
            tiny_model(arch, "bf16", n_layer=2), lambda context, at=at: fault(context, at)
        )
        assert planted.fired == 1
        assert_caught(made, "memory")


@pytest.mark.parametrize("fault", [TailLeft, OffByOne])
@pytest.mark.parametrize("dtype", ["q8_0", "q4_k_m"])
def test_a_memory_of_another_text_with_quantized_weights_and_cache(
    tiny_model: TinyModel, fault: Any, dtype: str
) -> None:
    path = tiny_model("llama", dtype, n_layer=2)
    made, planted = measured(
        path, lambda context: fault(context, 4), flash_attn="on", type_k="q8_0", type_v="q8_0"
    )
    assert planted.fired == 1
    assert_caught(made, "memory")


def test_a_tail_that_is_left_openly(tiny_model: TinyModel) -> None:
    """Without shifted positions the memory's bounds tell at once."""
    made, planted = measured(tiny_model("llama", "bf16", n_layer=2), TailKept)
    assert planted.fired
    looped = assert_caught(made, "memory")
    assert looped.run.fault is not None and "positions" in looped.run.fault.what
    assert len(looped.run.ids) < 96


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_a_stale_row(tiny_model: TinyModel, arch: str) -> None:
    made, planted = measured(
        tiny_model(arch, "bf16", n_layer=2), lambda context: StaleRow(context, 6)
    )
    assert planted.fired == 1
    looped = assert_caught(made, "loop")
    assert looped.partings


def test_rows_off_by_one(tiny_model: TinyModel) -> None:
    """Every time, also when the calls are made again: only its size tells."""
    made, planted = measured(tiny_model("llama", "bf16", n_layer=2, sharp=8.0), RowsOffByOne)
    assert planted.fired
    assert_caught(made, "loop")


@pytest.mark.parametrize("way", [Way(), Way("margin", 0.01)])
def test_a_draft_accepted_unverified(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    def careless(draft: list[int], best: list[int]) -> list[int]:
        right = accept(draft, best)
        return [*draft[: len(right)], best[len(right)]] if len(right) <= len(draft) else right

    monkeypatch.setattr(loops, "accept", careless)
    made, _ = measured(tiny_model("llama", "bf16", n_layer=2), way=way)
    assert made.loops[0].run.fault is not None
    assert made.loops[0].run.fault.kind == "loop"
    assert outcome(made, way.kind) == "not rounding"


@pytest.fixture(scope="module")
def tied(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A model whose head has one row twice: whenever the first of the two is best, they tie."""
    made, _ = measured(tiny_model("llama", "f32", n_layer=2), n=40)
    assert made.baseline is not None
    low = next(t for t in made.baseline.ids[5:] if t < 500)
    path = tmp_path_factory.mktemp("tie") / "tie.gguf"
    return tiny.write(path, "llama", n_layer=2, tie=(low, 511)), low, 511


def test_an_honest_tie(tied: tuple[Path, int, int]) -> None:
    """Both runs take the lowest id."""
    path, low, high = tied
    made, _ = measured(path, n=40)
    looped = made.loops[0]
    assert 0.0 in looped.run.margins
    assert low in looped.run.ids and high not in looped.run.ids
    assert looped.faults == []


def test_the_last_of_a_tie(tied: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _, high = tied

    def last_wins(table: Any) -> list[int]:
        tie = table[:, Row.MAX] == table[:, Row.SECOND_L]
        return [int(t) for t in np.where(tie, table[:, Row.SECOND], table[:, Row.ARGMAX])]

    monkeypatch.setattr(loops, "best_tokens", last_wins)
    made, _ = measured(path, n=40)
    looped = assert_caught(made, "loop")
    assert looped.run.fault is not None
    assert looped.run.ids[looped.run.fault.pos] == high


HONEST: list[dict[str, Any]] = [
    {"arch": "llama", "dtype": "bf16"},
    {"arch": "llama", "dtype": "f32", "drafter": "ngram"},
    {"arch": "llama", "dtype": "q8_0", "width": 16},
    {"arch": "llama", "dtype": "q4_k_m", "width": 8},
    {"arch": "llama", "dtype": "bf16", "type_k": "q4_0", "way": Way("margin", 0.2)},
    {"arch": "qwen3", "dtype": "f16", "flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
    {"arch": "llama", "dtype": "bf16", "way": Way("repair", 0.2)},
    {"arch": "gemma3", "dtype": "q4_0", "flash_attn": "on", "type_k": "q4_0", "type_v": "q4_0"},
    {"arch": "moe", "dtype": "bf16", "drafter": "oracle"},
    {"arch": "moe", "dtype": "q8_0", "flash_attn": "on", "way": Way("single")},
    {"arch": "mamba", "dtype": "f32"},
    {"arch": "lfm2", "dtype": "q8_0"},
]


@pytest.mark.parametrize("how", HONEST, ids=lambda how: "-".join(map(str, how.values())))
def test_honest_runs(tiny_model: TinyModel, how: dict[str, Any]) -> None:
    options = dict(how)
    path = tiny_model(options.pop("arch"), options.pop("dtype"), n_layer=2)
    made, _ = measured(path, **options)
    way = how.get("way", Way()).kind
    assert made.stopped is None and made.loops[0].faults == []
    assert outcome(made, way) in ("equal to AR", "parted, all rounding")


def test_exit_code_4(run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "accept", lambda draft, best: [*draft, best[-1]])
    path = tiny_model("llama", "bf16", n_layer=2)
    given = ("--tokens", "1,2,3", "-n", "24", "-t", "1", "-c", "256", "--drafter", "noisy:0.3")
    done = run("speculate", "-m", path, *given)
    assert done.code == 4
    assert "NOT ROUNDING at" in done.out
    assert done.last.startswith("csb: not rounding: ")
