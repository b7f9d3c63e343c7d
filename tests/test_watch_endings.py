"""What a watcher may not do and how it can end: bad arguments, nodes used too late, exceptions,
Ctrl-C; and more than one context, trace or library."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb.errors import ArgumentError, CancelledError, CsbError, UnsupportedError
from csb.measure.memory import same_bits
from csb.native.library import _library_name, _package_file
from csb.native.watch import Node
from csb.nodes import nodes_of
from test_seed import tokens
from test_watch import (
    OUT,
    Everything,
    W,
    Watcher,
    decode,
    ignore,
    infos,
    open_context,
    seen_at,
    tensors,
)

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def context(tiny_model: TinyModel) -> Iterator[csb.Context]:
    with open_context(tiny_model("llama", "bf16", n_layer=2)) as made:
        yield made


BAD: dict[str, tuple[Callable[[Node], Any], str]] = {
    "source 2": (lambda n: n.read(2), "source = 2: the node has no such source"),
    "source -2": (lambda n: n.read(-2), "source = -2: the node has no such source"),
    "source 10": (lambda n: n.read(10), "source = 10: the node has no such source"),
    "write source 2": (lambda n: n.write(np.zeros(1), 2), "source = 2: the node has no such"),
    "dim 4": (lambda n: n.read(1, 4), "dim = 4: must be from -1 to 3"),
    "dim -2": (lambda n: n.read(1, -2), "dim = -2: must be from -1 to 3"),
    "write dim 4": (lambda n: n.write(np.zeros(1), 1, 4), "dim = 4: must be from -1 to 3"),
    "dim beyond": (lambda n: n.read(1, 2**32), "dim = 4294967296: is beyond 32 bits"),
    "first -1": (lambda n: n.read(1, 1, -1), "first = -1: these places are not in the tensor"),
    "first W": (lambda n: n.read(1, 1, W), f"first = {W}: these places are not"),
    "first beyond": (lambda n: n.read(1, 1, 2**64), "is beyond 32 bits"),
    "no places": (lambda n: n.read(1, 1, 0, 0), "first = 0: these places are not"),
    "count -1": (lambda n: n.read(1, 1, 0, -1), "first = 0: these places are not"),
    "too many": (lambda n: n.read(1, 1, 1, W), "first = 1: these places are not"),
    "far too many": (lambda n: n.read(1, 1, 1, 2**31 - 1), "first = 1: these places are not"),
    "parts of blocks": (lambda n: n.read(0, 0, 0, 16), "count = 16: must be whole blocks"),
    "a part's begin": (lambda n: n.read(0, 0, 8, 32), "first = 8: must be whole blocks"),
    "too few bytes": (
        lambda n: n.write(np.zeros((1, 1, 1, 255), "f4"), 1, 1),
        "size = 1020: is not these places' size",
    ),
    "of another width": (
        lambda n: n.write(np.zeros((1, 1, 1, 256)), 1, 1),
        "size = 2048: is not these places' size",
    ),
    "a weight": (lambda n: n.write(n.read(0), 0), "source = 0: weights are not written"),
}


@pytest.fixture(scope="module")
def q8_0(tiny_model: TinyModel) -> Iterator[csb.Context]:
    with open_context(tiny_model("llama", "q8_0", n_layer=2)) as made:
        yield made


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(q8_0: csb.Context, case: str) -> None:
    call, said = BAD[case]

    def look(node: Node) -> bool:
        values = node.read(1)
        with pytest.raises(CsbError, match=re.escape(said)) as caught:
            call(node)
        assert type(caught.value) is ArgumentError
        assert len(str(caught.value).splitlines()) == 1
        return same_bits(node.read(1), values)

    assert seen_at(q8_0, "MUL_MAT", "Vcur-1", look)


@pytest.mark.parametrize("field", ["out_json", "out_bytes", "bytes"])
def test_null(q8_0: csb.Context, field: str) -> None:
    """What Python's table never passes on."""
    raw = ctypes.CDLL(str(_package_file(_library_name())))
    raw.csb_error_message.restype = ctypes.c_char_p
    size = W * 256 * 4

    def look(node: Node) -> tuple[int, bytes]:
        at = ctypes.c_void_p(node._pointer)
        places = (ctypes.c_int32(1), ctypes.c_int32(-1), *[ctypes.c_int64(n) for n in (0, 1, size)])
        null = ctypes.c_void_p(None)
        status = {
            "out_json": lambda: raw.csb_node_describe(at, null),
            "out_bytes": lambda: raw.csb_node_read(at, *places, null),
            "bytes": lambda: raw.csb_node_write(at, *places, null),
        }[field]()
        return status, raw.csb_error_message()

    status, said = seen_at(q8_0, "MUL_MAT", "Vcur-1", look)
    assert (status, said.decode()) == (-10, f"{field} is NULL")


def test_a_repacked_weight_cannot_be_read(tiny_model: TinyModel) -> None:
    refused = set()

    def before(node: Node) -> None:
        for source in node.info["src"]:
            if source["repacked"]:
                with pytest.raises(UnsupportedError, match=r"\.weight is repacked"):
                    node.read(source["index"])
                refused.add(source["name"])

    path = tiny_model("llama", "q4_k_m", n_layer=2)
    with open_context(path) as context:
        decode(context, before)
    assert refused == {t.name for t in tensors(path).values() if t.tensor_type.name == "Q4_K"} - {
        "token_embd.weight"
    }


def test_what_writes_into_another_tensor_is_not_run_again(context: csb.Context) -> None:
    said = []

    def before(node: Node) -> None:
        if node.info["view"]:
            with pytest.raises(UnsupportedError, match="it is not run again") as caught:
                node.rerun()
            said.append(str(caught.value))

    decode(context, before)
    assert said[0] == "cache_k_l0 (view) writes into another tensor: it is not run again"
    assert len(said) == 4


def test_a_node_is_its_call_s_alone(context: csb.Context) -> None:
    """Kept nodes are refused afterwards, in later calls and on other threads."""
    kept: list[Node] = []
    tried: list[str] = []

    def refused(node: Node) -> None:
        for call in (lambda: node.read(OUT), node.rerun, lambda: node.write(np.zeros(1), OUT)):
            with pytest.raises(ArgumentError, match="not the one that is being watched"):
                call()
            tried.append(node.info["name"])

    def before(node: Node) -> None:
        _ = node.info
        if kept:
            refused(kept[-1])
        else:
            thread = threading.Thread(target=refused, args=(node,))
            thread.start()
            thread.join()
        kept.append(node)

    decode(context, before)
    assert len(tried) == 3 * len(kept) > 60
    refused(kept[-1])
    decode(context, lambda node: refused(kept[0]))


# ---- endings ------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", ["embd", "ffn_up-1", "result_output"])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, Stop])
def test_what_a_watcher_raises(
    context: csb.Context, when: str, at: str, kind: type[BaseException]
) -> None:
    """Nobody is called after it, it comes out of the block, and the context goes on."""
    plain, called = decode(context), []

    def look(node: Node) -> None:
        called.append(node.info["name"])
        if node.info["name"] == at:
            raise kind("here")

    with pytest.raises(kind, match="here"):
        decode(context, **{when: look})
    assert called.count(at) == 1 and called[-1] == at
    assert same_bits(decode(context), plain)
    assert called[-1] == at


def test_what_the_block_raises_stays(context: csb.Context) -> None:
    with pytest.raises(KeyError, match="mine"), context.watch(ignore, ignore):
        raise KeyError("mine")
    with pytest.raises(ArgumentError, match="positions = 99"), context.watch(ignore, ignore):
        context.decode([1], 99)


def test_a_cancel_from_the_watcher(context: csb.Context) -> None:
    plain, called = decode(context), []

    def before(node: Node) -> None:
        called.append(node.info["name"])
        if node.info["name"] == "ffn_up-0":
            context.cancel()

    with pytest.raises(CancelledError):
        decode(context, before)
    assert called.index("ffn_up-0") >= len(called) - 2
    assert same_bits(decode(context), plain)


def test_ctrl_c(context: csb.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode ends before its last node; nobody is called afterwards."""
    plain, called = decode(context), []
    every, cancelled, cancel = len(infos(context)), threading.Event(), context.cancel

    def note() -> None:
        cancel()
        cancelled.set()

    def before(node: Node) -> None:
        called.append(node.info["name"])
        if len(called) == 5:
            os.kill(os.getpid(), signal.SIGINT)
            assert cancelled.wait(60)  # the main thread has seen it

    monkeypatch.setattr(context, "cancel", note)
    with pytest.raises(KeyboardInterrupt):
        decode(context, before)
    assert 5 <= len(called) <= 6 < every
    seen = len(called)
    assert same_bits(decode(context), plain)
    assert len(called) == seen


# ---- more than one ------------------------------------------------------------------------------


def test_each_context_has_its_own_watcher(tiny_model: TinyModel) -> None:
    """One with a watcher, one with another, one with none, on three threads."""
    names = {"llama": "ffn_up-0", "moe": "ffn_moe_up-0", "qwen3": "ffn_up-0"}
    seen: dict[str, list[str]] = {arch: [] for arch in names}
    expected, found = {}, {}
    contexts = {arch: open_context(tiny_model(arch, "bf16", n_layer=1)) for arch in names}
    expected = {arch: decode(context) for arch, context in contexts.items()}

    def note(arch: str) -> Watcher:
        return lambda node: seen[arch].append(node.info["name"])

    def work(arch: str) -> None:
        for _ in range(20):
            watcher = ignore if arch == "qwen3" else note(arch)
            found[arch] = decode(contexts[arch], watcher)

    threads = [threading.Thread(target=work, args=(arch,)) for arch in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for arch, name in names.items():
        assert same_bits(found[arch], expected[arch])
        assert seen[arch].count(name) == (0 if arch == "qwen3" else 20)
        contexts[arch].close()
    assert len(set(map(len, (seen["llama"], seen["moe"])))) == 2


def test_traced_and_watched_at_once(context: csb.Context) -> None:
    """Nodes and kernels are those of an unwatched trace; only a norm is not fused with its
    product, because the two run one by one. Runs of a node alone are not its own."""
    look, calls = Everything(), []
    for watch in (False, True):
        with context.trace() as trace:
            rows = decode(context, *((look.before, look.after) if watch else ()))
        calls.append((nodes_of(trace.calls[-1]), rows))
    (plain, rows), (watched, again) = calls
    assert same_bits(rows, again) and all(look.equal)
    assert [(n["op"], n["name"]) for n in plain] == [(n["op"], n["name"]) for n in watched]
    for a, b in zip(plain, watched, strict=True):
        if a["op"] not in ("RMS_NORM", "MUL"):
            assert a["kernels"] == b["kernels"], a["name"]
            assert a["counts"] == b["counts"] or a["op"] == "MUL_MAT", a["name"]


def test_a_split_call_is_watched_ubatch_by_ubatch(tiny_model: TinyModel) -> None:
    rows = []

    def before(node: Node) -> None:
        if node.info["name"] == "result_output":
            rows.append(node.info["ne"][1])

    path = tiny_model("llama", "f32", n_layer=1)
    with open_context(path, n_ubatch=2) as context, context.watch(before, ignore):
        context.decode(tokens(5), 0)
    assert rows == [2, 2, 1]


def test_a_library_without_hooks_refuses(tiny_model: TinyModel, without_hooks: Path) -> None:
    with (
        csb.Model(tiny_model("llama", "f32", n_layer=1), library_file=without_hooks) as model,
        csb.Context(model, n_ctx=256) as context,
    ):
        with pytest.raises(UnsupportedError, match="no hooks"), context.watch(ignore, ignore):
            pass
        context.decode([1], 0)


def test_a_context_in_use_takes_no_watcher(context: csb.Context) -> None:
    said = []

    def other() -> None:
        with pytest.raises(ArgumentError, match="in use"), context.watch(ignore, ignore):
            pass
        said.append("in use")

    def before(node: Node) -> None:
        if not said:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    decode(context, before)
    assert said == ["in use"]
