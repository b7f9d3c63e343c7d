"""`csb budget`: the lines that are planned. Pure functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from csb import budget
from csb.budget import Facts

FACTS = Facts(
    context={
        "n_threads": 4,
        "n_ubatch": 512,
        "n_batch": 512,
        "flash_attn": True,
        "type_k": "f16",
        "type_v": "f16",
        "memory": "attention",
    },
    width=5,
    prefix="auto",
    cuts_back=True,
    hooks=True,
    repack=True,
    load_time=False,
)


def names(facts: Facts, *families: str) -> dict[str, str]:
    """{name: why not}"""
    return {x.name: x.why_not for x in budget.lines(facts, (1, 4), families) if x.family != "noise"}


@pytest.mark.parametrize(
    ("n", "others"), [(1, ["-t 2"]), (2, ["-t 1"]), (3, ["-t 1"]), (8, ["-t 1", "-t 4"])]
)
def test_thread_counts(n: int, others: list[str]) -> None:
    facts = replace(FACTS, context={**FACTS.context, "n_threads": n})
    assert list(names(facts, "threads")) == others


@pytest.mark.parametrize(
    ("width", "n_ubatch", "expected"),
    [
        (5, 512, {"-ub 1": "", "-ub 2": ""}),
        (2, 512, {"-ub 1": ""}),
        (16, 512, {"-ub 1": "", "-ub 8": ""}),
        (5, 2, {"-ub 1": "", "-ub 2": "the baseline has -ub 2"}),
    ],
)
def test_ubatches(width: int, n_ubatch: int, expected: dict[str, str]) -> None:
    facts = replace(FACTS, width=width, context={**FACTS.context, "n_ubatch": n_ubatch})
    assert names(facts, "ubatch") == expected


def test_caches_by_flash_attention() -> None:
    off = replace(FACTS, context={**FACTS.context, "flash_attn": False, "type_k": "bf16"})
    kinds = {"-ctk bf16 -ctv bf16", "-ctk q8_0 -ctv q8_0"}
    assert set(names(FACTS, "cache", "flash")) == {*kinds, "-fa off"}
    more = {"-ctk f16 -ctv f16", "-ctk f32 -ctv f32"}
    assert set(names(off, "cache", "flash")) == {*kinds, *more, "-fa on"}


def test_repacked_or_not() -> None:
    assert names(FACTS, "repack") == {"--no-repack": "nothing to repack"}
    floats = replace(FACTS, tensor_types=("f16", "f32"), load_time=None)
    assert names(floats, "repack") == {"--no-repack": "nothing to repack"}
    assert names(replace(floats, load_time=True), "repack")["--no-repack"] == ""  # AMX takes F16
    quantized = replace(FACTS, tensor_types=("q4_K",))
    assert names(replace(quantized, load_time=True), "repack") == {
        "--no-repack": "",
        "--no-repack --without llamafile,tiled,split-kv": "",
    }
    unseen = replace(quantized, load_time=None, hooks=False)
    assert names(unseen, "repack") == {"--no-repack": ""}
    off = names(replace(quantized, repack=False), "repack")
    assert off == {"--no-repack": "the baseline is without repacked weights already"}


def test_what_acts_on_the_cpu_needs_products_there() -> None:
    acting = ("threads", "repack", "switches")
    away = replace(FACTS, computed_on=("X0", "X1"), load_time=True, tensor_types=("q4_K",))
    why = "all products and attention run on X0, X1, out of reach from here"
    assert away.out_of_reach == ("X0", "X1")
    assert set(names(away, *acting).values()) == {why}
    assert set(names(away, "ubatch", "slots", "flash", "cache", "prefix").values()) == {""}
    partly = replace(away, computed_on=("CPU", "X0"))
    assert partly.out_of_reach == ("X0",)
    assert set(names(partly, *acting).values()) == {""}


def test_the_noise_is_always_there() -> None:
    for prefix, memory in (("auto", "prefilled again"), ("incremental", "baseline")):
        (line,) = budget.lines(replace(FACTS, prefix=prefix), (1,), ())
        assert (line.family, line.memory) == ("noise", memory)


def test_all_combinations_of_the_three_are_tried() -> None:
    tried = {x.switches for x in budget.lines(FACTS, (), ("switches",))}
    tried |= {x.switches for x in budget.combinations(repack=True)}
    facts = replace(FACTS, load_time=True, tensor_types=("q4_K",))
    unpacked = [x.switches for x in budget.lines(facts, (), ("repack",)) if not x.repack]
    unpacked += [x.switches for x in budget.combinations(repack=False)]
    assert len(tried - {(), ("reference",)}) == 7
    assert len(unpacked) == len(set(unpacked)) == 8
