"""Watching a decode: what a node says of itself, what it reads and gives, and that looking on
changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import csb
import gguf
import numpy as np
import pytest
from conftest import TinyModel
from csb.errors import UnsupportedError
from csb.measure.memory import same_bits
from csb.native.watch import Node
from csb.nodes import nodes_of
from test_seed import tokens

pytestmark = pytest.mark.native

Watcher = Callable[[Node], None]
OUT = Node.OUTPUT
W = 3


def ignore(node: Node) -> None:
    pass


@pytest.fixture(scope="module")
def context(tiny_model: TinyModel) -> Iterator[csb.Context]:
    with open_context(tiny_model("llama", "bf16", n_layer=2)) as made:
        yield made


def open_context(path: Path, **options: Any) -> csb.Context:
    given = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "on", **options}
    return csb.Context(csb.Model(path), **given)


def decode(context: csb.Context, before: Watcher = ignore, after: Watcher = ignore) -> np.ndarray:
    """Seven tokens unwatched, then W watched."""
    context.remove(0)
    context.decode(tokens(7), 0)
    with context.watch(before, after):
        context.decode(tokens(W, seed=2), 7)
    return context.logits(range(W))


def seen_at(context: csb.Context, op: str, name: str, look: Callable[[Node], Any]) -> Any:
    """What look(node) says before the one node of that op and name runs."""
    found = []

    def before(node: Node) -> None:
        if (node.info["op"], node.info["name"]) == (op, name):
            found.append(look(node))

    decode(context, before)
    assert len(found) == 1
    return found[0]


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def infos(context: csb.Context) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    decode(context, lambda node: found.append(node.info))
    return found


# ---- describing ---------------------------------------------------------------------------------


def test_before_and_after_every_node_in_order(context: csb.Context) -> None:
    calls: list[tuple[str, str, str]] = []

    def note(when: str) -> Watcher:
        return lambda node: calls.append((when, node.info["op"], node.info["name"]))

    with context.trace(kernels=False) as trace:
        decode(context, note("before"), note("after"))
    traced = [(n["op"], n["name"]) for n in nodes_of(trace.calls[-1])]
    quiet = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
    expected = [node for node in traced if node[0] not in quiet]
    assert len(expected) < len(traced)
    assert calls[0::2] == [("before", *node) for node in expected]
    assert calls[1::2] == [("after", *node) for node in expected]


def test_a_product_describes_itself(context: csb.Context) -> None:
    (norm,) = (i for i in infos(context) if i["name"] == "attn_norm-1")
    product = seen_at(context, "MUL_MAT", "Vcur-1", lambda node: node.info)
    weight, value = product["src"]
    assert (product["backend"], product["view"], product["type"]) == ("CPU", False, "f32")
    assert (product["ne"], product["nb"]) == ([128, W, 1, 1], [4, 512, 512 * W, 512 * W])
    assert (weight["index"], weight["name"], weight["kind"]) == (0, "blk.1.attn_v.weight", "weight")
    assert (weight["type"], weight["block"], weight["block_bytes"]) == ("bf16", 1, 2)
    assert (weight["ne"], weight["nb"][:2]) == ([256, 128, 1, 1], [2, 512])
    assert (value["index"], value["name"], value["kind"]) == (1, "attn_norm-1", "value")
    assert value["root"] == "attn_norm-1" and not weight["repacked"]
    assert norm["ne"] == value["ne"]


def test_ids_tell_who_made_a_source(context: csb.Context) -> None:
    nodes = {(i["op"], i["name"]): i for i in infos(context)}
    gated = nodes["SWIGLU", "ffn_swiglu-0"]
    made = [nodes["MUL_MAT", f"ffn_{part}-0"]["id"] for part in ("gate", "up")]
    assert [s["id"] for s in gated["src"]] == made
    assert len({i["id"] for i in nodes.values()}) == len(nodes)


def test_attention_describes_its_cache(context: csb.Context) -> None:
    """Keys and values lie cell by cell, the heads of a cell together: seen as [d, cells, heads]."""
    (attention, _) = (i for i in infos(context) if i["op"] == "FLASH_ATTN_EXT")
    for source, root in ((1, "cache_k_l0"), (2, "cache_v_l0")):
        cache = attention["src"][source]
        assert (cache["kind"], cache["root"], cache["type"]) == ("memory", root, "f16")
        assert (cache["ne"], cache["nb"][:3]) == ([64, 256, 2, 1], [2, 2 * 2 * 64, 2 * 64])
    scale = np.array(attention["op_params"], np.int32).view(np.float32)[0]
    assert scale == np.float32(1 / 8)


def test_what_writes_into_a_cache_is_a_view(context: csb.Context) -> None:
    views = [i for i in infos(context) if i["view"]]
    assert [i["root"] for i in views] == [f"cache_{x}_l{layer}" for layer in (0, 1) for x in "kv"]
    assert {i["kind"] for i in views} == {"memory"}


# ---- reading ------------------------------------------------------------------------------------


def test_values_are_those_of_the_model(tiny_model: TinyModel) -> None:
    path = tiny_model("llama", "f32", n_layer=2)
    file, read = tensors(path), {}

    def after(node: Node) -> None:
        read.setdefault((node.info["op"], node.info["name"]), node.read(OUT)[0, 0])

    with open_context(path) as context:
        rows = decode(context, after=after)
    embd = file["token_embd.weight"].data[tokens(W, seed=2)]
    assert same_bits(read["GET_ROWS", "embd"], embd)
    assert same_bits(read["MUL_MAT", "result_output"], rows)
    wide = embd.astype(np.float64)
    scale = 1 / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(read["RMS_NORM", "norm-0"], wide * scale, rtol=1e-5)
    x = read["MUL", "attn_norm-0"].astype(np.float64)
    expected = x @ file["blk.0.attn_v.weight"].data.astype(np.float64).T
    np.testing.assert_allclose(read["MUL_MAT", "Vcur-0"], expected, rtol=1e-3, atol=1e-5)


def test_weights_are_the_file_s(context: csb.Context) -> None:
    file = tensors(context.model.path)
    seen = {}

    def before(node: Node) -> None:
        for source in node.info["src"]:
            if source["kind"] == "weight":
                seen[source["name"]] = node.read(source["index"])

    decode(context, before)
    assert set(seen) == set(file)
    for name, values in seen.items():
        assert values.tobytes() == file[name].data.tobytes(), name


CACHES = {"f16, permuted": ("on", "f16"), "f16, transposed": ("off", "f16"), "q8_0": ("on", "q8_0")}


@pytest.mark.parametrize("case", CACHES)
def test_slabs_of_a_cache(tiny_model: TinyModel, case: str) -> None:
    """The cells of this call hold what the call wrote there, whatever the view's strides; and a
    slab along any dimension is that slab of the whole."""
    flash, kind = CACHES[case]
    written: dict[str, np.ndarray] = {}
    checked = []

    def before(node: Node) -> None:
        info = node.info
        if info["op"] == "SET_ROWS":
            written[info["root"]] = node.read(0).reshape(W, 2, 64)
        for source in info["src"]:
            if source["kind"] != "memory" or info["view"]:
                continue
            at, whole = source["index"], node.read(source["index"])
            transposed = source["ne"][0] == 256
            cells = np.swapaxes(whole[0], 1, 2) if transposed else whole[0]  # [heads, cells, d]
            wrote = written[source["root"]].transpose(1, 0, 2)
            if kind == "q8_0":
                assert whole.shape == (1, 2, 256, 64 // 32 * 34)
                back = gguf.dequantize(cells[:, 7 : 7 + W], gguf.GGMLQuantizationType.Q8_0)
                step = np.abs(wrote).max() / 127
                assert 0 < np.abs(back - wrote).max() <= step
            else:
                assert cells[:, 7 : 7 + W].tobytes() == wrote.astype(np.float16).tobytes()
                assert not np.array_equal(cells[:, 7], cells[:, 6])
            assert_slabs(node, at, whole)
            checked.append((info["op"], source["root"], transposed))

    with open_context(
        tiny_model("llama", "bf16", n_layer=2), flash_attn=flash, type_k=kind, type_v=kind
    ) as context:
        decode(context, before)
    ops = ("FLASH_ATTN_EXT",) * 2 if flash == "on" else ("MUL_MAT", "MUL_MAT")
    expected = [(ops[0], "cache_k_l0", False), (ops[1], "cache_v_l0", flash == "off")]
    assert checked[:2] == expected and len(checked) == 4


def assert_slabs(node: Node, at: int, whole: np.ndarray) -> None:
    tensor = node.tensor(at)
    for dim in range(4):
        block = tensor["block"] if dim == 0 else 1
        per_block = whole.shape[3] * tensor["block"] // tensor["ne"][0] if dim == 0 else 1
        n = tensor["ne"][dim] // block
        for first, count in {(0, n), (0, 1), (n - 1, 1), (n // 2, n - n // 2)}:
            slab = node.read(at, dim, first * block, count * block)
            places = range(first * per_block, (first + count) * per_block)
            assert slab.tobytes() == np.take(whole, places, axis=3 - dim).tobytes()


def test_slabs_of_every_source(tiny_model: TinyModel) -> None:
    """Views of values too: heads permuted, gates cut out of a wider row, ids of experts."""
    strided = set()

    def before(node: Node) -> None:
        for source in node.info["src"]:
            if source["repacked"] or (source["kind"], source["index"]) == ("weight", 0):
                continue
            nb = [n for n, e in zip(source["nb"], source["ne"], strict=True) if e > 1]
            strided.update({node.info["op"]} if nb != sorted(nb) else set())
            assert_slabs(node, source["index"], node.read(source["index"]))

    for arch, flash in (("moe", "off"), ("qwen35", "on")):
        with open_context(tiny_model(arch, "bf16", n_layer=2), flash_attn=flash) as context:
            decode(context, before)
    assert {"MUL_MAT", "FLASH_ATTN_EXT"} <= strided


# ---- running once more, and changing nothing ----------------------------------------------------


class Everything:
    """Reads every source that can be read, runs every node alone and holds it against the real
    output."""

    def __init__(self) -> None:
        self.equal: list[bool] = []
        self.refused: list[bool] = []
        self.again: np.ndarray | None = None

    def before(self, node: Node) -> None:
        for source in node.info["src"]:
            if not source["repacked"]:
                node.read(source["index"])
        try:
            self.again = node.rerun()
        except UnsupportedError:
            self.again = None
            self.refused.append(node.info["view"])

    def after(self, node: Node) -> None:
        if self.again is not None:
            self.equal.append(self.again.tobytes() == node.read(OUT).tobytes())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "moe", "mamba", "lfm2", "qwen35"])
def test_watching_changes_nothing(tiny_model: TinyModel, arch: str, dtype: str, flash: str) -> None:
    def rows() -> np.ndarray:
        context.remove(0)
        context.decode(tokens(7), 0)
        context.decode(tokens(5, seed=2), 7)
        block = context.logits(range(5))
        context.decode([1], 12)
        return np.concatenate([block, context.logits()])

    look = Everything()
    with open_context(tiny_model(arch, dtype, n_layer=2), flash_attn=flash) as context:
        plain = rows()
        with context.watch(look.before, look.after):
            watched = rows()
    assert same_bits(plain, watched) and np.isfinite(plain).all()
    assert len(look.equal) > 60 and all(look.equal)
    assert look.refused and all(look.refused)


# ---- writing ------------------------------------------------------------------------------------


def test_what_is_written_is_run(context: csb.Context) -> None:
    """One row of a norm's input made zero: that row's output is zero, the others stay; put back,
    all is as before."""
    plain = decode(context)
    done = []

    def before(node: Node) -> None:
        if (node.info["op"], node.info["name"]) != ("MUL", "ffn_norm-1"):
            return
        source, first = node.read(0), node.rerun()
        node.write(np.zeros_like(source[:, :, 1:2]), 0, dim=1, first=1)
        changed = node.read(0)
        assert not changed[0, 0, 1].any()
        assert same_bits(np.delete(changed, 1, 2), np.delete(source, 1, 2))
        second = node.rerun()
        assert not second[0, 0, 1].any() and first[0, 0, 1].any()
        assert same_bits(np.delete(second, 1, 2), np.delete(first, 1, 2))
        node.write(source, 0)
        assert same_bits(node.rerun(), first)
        done.append(node)

    assert same_bits(decode(context, before), plain) and len(done) == 1


def test_what_is_written_into_an_output_goes_on(context: csb.Context) -> None:
    """The last norm's rows swapped after it ran: the logits' rows are."""
    plain = decode(context)

    def after(node: Node) -> None:
        if node.info["name"] == "result_norm":
            node.write(np.ascontiguousarray(node.read(OUT)[:, :, ::-1]), OUT)

    assert same_bits(decode(context, after=after), plain[::-1])


@pytest.mark.parametrize("case", CACHES)
def test_slabs_are_written_where_they_are_read(tiny_model: TinyModel, case: str) -> None:
    """Along each dimension: those places have the new bytes, no others do."""
    flash, kind = CACHES[case]
    checked = []

    def before(node: Node) -> None:
        for source in node.info["src"]:
            if source["kind"] != "memory" or node.info["view"]:
                continue
            at, whole = source["index"], node.read(source["index"])
            for dim in range(4):
                block = source["block"] if dim == 0 else 1
                first = source["ne"][dim] // block - 1
                slab = node.read(at, dim, first * block, block)
                other = ~slab
                node.write(other, at, dim, first * block)
                expected = whole.copy()
                n = slab.shape[3 - dim]
                places = np.moveaxis(expected, 3 - dim, 0)
                places[-n:] = np.moveaxis(other, 3 - dim, 0)
                assert node.read(at).tobytes() == expected.tobytes()
                node.write(slab, at, dim, first * block)
                assert node.read(at).tobytes() == whole.tobytes()
                checked.append((source["root"], dim))

    options = {"flash_attn": flash, "type_k": kind, "type_v": kind}
    with open_context(tiny_model("llama", "bf16", n_layer=1), **options) as context:
        plain = decode(context)
        bits = as_bits(before)
        assert same_bits(decode(context, bits), plain)
    assert checked == [(f"cache_{x}_l0", dim) for x in "kv" for dim in range(4)]


def as_bits(look: Watcher) -> Watcher:
    """Half floats as whole numbers, so that any bytes can be written."""

    class Bits:
        def __init__(self, node: Node) -> None:
            self.node, self.info = node, node.info

        def read(self, *places: int) -> np.ndarray:
            values = self.node.read(*places)
            return values.view(np.uint16) if values.dtype == np.float16 else values

        def write(self, values: np.ndarray, *places: int) -> None:
            self.node.write(values, *places)

    return lambda node: look(Bits(node))  # type: ignore[arg-type]
