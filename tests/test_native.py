"""Contexts on tiny models: decoding, rows, memory, states."""

import threading

import csb
import numpy as np
import pytest
from csb.errors import ArgumentError, DecodeError, UnsupportedError
from gguf import GGUFReader

pytestmark = pytest.mark.native

PROMPT = [11, 500, 3, 77, 77, 401, 0, 254, 30, 129, 12, 250]
THREADS = {"n_threads": 1, "n_threads_batch": 1}  # more would wait for each other on a busy machine


@pytest.fixture
def open_context(tiny_model):
    """open_context(arch="llama", **context options) on the tiny model of that architecture."""
    opened = []

    def get(arch="llama", **options):
        model = csb.Model(tiny_model(arch))
        opened.extend([csb.Context(model, **{"n_ctx": 256, **THREADS, **options}), model])
        return opened[-2]

    yield get
    for handle in opened:
        handle.close()


def bits(rows):
    return rows.view(np.uint32)


def assert_same_bits(a, b):
    np.testing.assert_array_equal(bits(a), bits(b))


def reference_logits(path, tokens):
    """The llama architecture in numpy: every row's logits, float64."""
    reader = GGUFReader(path)
    w = {t.name.removesuffix(".weight"): t.data.astype(np.float64) for t in reader.tensors}
    n, heads, kv_heads, size = len(tokens), 4, 2, 64

    def norm(x, name):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * w[name]

    def rotate(x):  # [n, heads, size], pairs of neighbours
        angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    x = w["token_embd"][tokens]
    for i in range(4):
        b = f"blk.{i}."
        y = norm(x, b + "attn_norm")
        q = rotate((y @ w[b + "attn_q"].T).reshape(n, heads, size))
        k = rotate((y @ w[b + "attn_k"].T).reshape(n, kv_heads, size)).repeat(2, axis=1)
        v = (y @ w[b + "attn_v"].T).reshape(n, kv_heads, size).repeat(2, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        scores += np.triu(np.full((n, n), -np.inf), 1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", p, v).reshape(n, -1) @ w[b + "attn_output"].T
        y = norm(x, b + "ffn_norm")
        gate = y @ w[b + "ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[b + "ffn_up"].T)) @ w[b + "ffn_down"].T
    return norm(x, "output_norm") @ w["output"].T


def test_ten_lines_of_use(tiny_model):
    path = tiny_model(tokenizer="bpe")
    with csb.Model(path) as model, csb.Context(model, n_ctx=512) as context:
        tokens = model.tokenize("Explain the Pythagorean theorem")
        context.decode(tokens[:-1], start=0, outputs=False)
        state = context.save()
        context.decode(tokens[-1:], start=len(tokens) - 1)
        single = context.logits()
        context.restore(state)
        context.decode([tokens[-1], 65], start=len(tokens) - 1)
        block = context.logits([0, 1])
    expected = reference_logits(path, [*b"Explain the Pythagorean theorem", 65])[-2:]
    assert single.shape == (1, 512)
    # f16 cache: the attention's inputs are rounded to 11 bits
    np.testing.assert_allclose(np.vstack([single, block[1:]]), expected, atol=0.02)


@pytest.mark.parametrize(
    ("arch", "recurrent", "hybrid", "n_swa", "memory"),
    [
        ("llama", False, False, 0, "attention"),
        ("gemma3", False, False, 64, "sliding_window"),
        ("mamba", True, False, 0, "recurrent"),
        ("lfm2", False, True, 0, "hybrid"),
    ],
)
def test_kinds_of_memory(open_context, arch, recurrent, hybrid, n_swa, memory):
    context = open_context(arch)
    info = context.model.info
    assert (info["is_recurrent"], info["is_hybrid"], info["n_swa"]) == (recurrent, hybrid, n_swa)
    assert context.value("memory") == memory


# -- decoding ---------------------------------------------------------------------------------


def test_every_row_is_the_reference_s(open_context, tiny_model):
    context = open_context(flash_attn="off", type_k="f32", type_v="f32")
    context.decode(PROMPT, 0)
    expected = reference_logits(tiny_model(), PROMPT)
    # float32 sums of at most 512 products, through four layers
    np.testing.assert_allclose(context.logits(range(len(PROMPT))), expected, atol=2e-4)


def test_positions_and_output_flags(open_context, tiny_model):
    context = open_context(flash_attn="off", type_k="f32", type_v="f32")
    context.decode(PROMPT[:5], [0, 1, 2, 3, 4], outputs=[False, True, False, False, True])
    got = context.logits([4, 1])
    context.decode(PROMPT[5:], np.int64(5), outputs=False, seq_ids=[0] * 7)
    with pytest.raises(ArgumentError, match="entries = 0: the last decode has no logits row there"):
        context.logits([0])
    context.decode([1], 12)
    expected = reference_logits(tiny_model(), [*PROMPT, 1])
    np.testing.assert_allclose(got, expected[[4, 1]], atol=2e-4)
    np.testing.assert_allclose(context.logits(), expected[[12]], atol=2e-4)
    assert context.bounds() == (0, 12)


def test_threads_do_not_change_short_decodes(open_context):
    """Only flash attention over 512 cells and more splits a sum (llama.cpp-notes 2.4)."""
    rows = []
    for n in (1, 2, 3):
        context = open_context(n_threads=n, n_threads_batch=n)
        context.decode(PROMPT, 0)
        rows.append(context.logits(range(12)))
    assert_same_bits(rows[1], rows[0])
    assert_same_bits(rows[2], rows[0])


def test_rows_are_copies(open_context):
    context = open_context()
    context.decode(PROMPT, 0)
    first, again = context.logits([11]), context.logits([11])
    kept = first.copy()
    assert not np.shares_memory(first, again)
    context.decode([1], 12)
    assert_same_bits(first, kept)
    second = context.logits()
    assert np.count_nonzero(bits(second) != bits(first)) > 400
    out = np.zeros((1, 512), np.float32)
    assert context.logits(out=out) is out
    assert_same_bits(out, second)


def test_auto_flash_attention_becomes_what_runs(open_context):
    rows = {}
    for asked in ("on", "off", "auto"):
        context = open_context(flash_attn=asked)
        context.decode(PROMPT, 0)
        rows[asked, context.value("flash_attn")] = context.logits([11])
    (auto,) = (used for asked, used in rows if asked == "auto")
    assert isinstance(auto, bool)
    assert_same_bits(rows["auto", auto], rows["on" if auto else "off", auto])
    assert (bits(rows["on", True]) != bits(rows["off", False])).any()


@pytest.mark.parametrize("arch", ["llama", "qwen3", "moe", "gemma3"])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_removing_and_decoding_again_gives_the_same_bits(open_context, arch, flash_attn):
    context = open_context(arch, flash_attn=flash_attn)
    context.decode(PROMPT, 0, outputs=False)
    block = [5, 6, 7, 8]

    def run():
        context.decode(block, 12)
        assert context.bounds() == (0, 15)
        rows = context.logits(range(4))
        assert context.remove(12)
        assert context.bounds() == (0, 11)
        return rows

    first = run()
    for i, token in enumerate([9, 10, 11, 12]):  # other tokens in the same cells meanwhile
        context.decode([token], 12 + i)
    assert context.remove(12)
    assert_same_bits(run(), first)


def test_removing_all_but_a_part(open_context):
    context = open_context()
    context.decode(PROMPT, 0, outputs=False)
    assert context.remove(4, 8)
    assert context.bounds() == (0, 11)
    assert context.remove(0, 4)
    assert context.bounds() == (8, 11)
    assert context.remove(3, 3)
    assert context.remove(0)
    assert context.bounds() == (-1, -1)
    assert context.remove(100)


@pytest.mark.parametrize("data", [False, True])
def test_clear(open_context, data):
    context = open_context()
    context.decode(PROMPT, 0)
    first = context.logits([11])
    context.decode([1, 2, 3], 12)
    context.clear(data=data)
    assert context.bounds() == (-1, -1)
    context.decode(PROMPT, 0)
    assert_same_bits(context.logits([11]), first)


def test_a_memory_that_cannot_cut_says_so_and_changes_nothing(open_context):
    for arch in ("mamba", "lfm2"):
        context = open_context(arch)
        context.decode(PROMPT, 0, outputs=False)
        before = context.save()
        assert not context.remove(8)
        assert context.bounds()[1] == 11
        np.testing.assert_array_equal(context.save(), before)
        assert context.remove(0)
        assert context.bounds() == (-1, -1)


def test_ubatches_give_all_rows_in_batch_order(open_context):
    context = open_context(n_ubatch=4)
    context.decode(PROMPT, 0)
    rows = context.logits(range(12))
    context.clear()
    for i in range(0, 12, 4):
        context.decode(PROMPT[i : i + 4], i)
        assert_same_bits(context.logits(range(4)), rows[i : i + 4])


def test_sequences_are_apart(open_context):
    context = open_context(n_seq_max=2)
    context.decode(PROMPT, 0)
    alone = context.logits([11])
    context.decode(PROMPT[::-1], 0, seq_ids=1, outputs=False)
    assert context.bounds(0) == context.bounds(1) == (0, 11)
    context.decode([1], 12)
    first = context.logits()
    assert context.remove(0, seq_id=1)
    assert (context.bounds(0), context.bounds(1)) == ((0, 12), (-1, -1))
    assert context.remove(12)
    context.decode([1], 12)
    assert_same_bits(context.logits(), first)
    context.decode(PROMPT, 0, seq_ids=1)
    assert_same_bits(context.logits([11]), alone)


def test_one_batch_of_two_sequences(open_context, tiny_model):
    context = open_context(n_seq_max=2, flash_attn="off", type_k="f32", type_v="f32")
    ids = [0, 1] * 12
    tokens = [t for pair in zip(PROMPT, PROMPT[::-1], strict=True) for t in pair]
    context.decode(tokens, np.repeat(np.arange(12), 2), seq_ids=ids)
    got = context.logits(range(24))
    np.testing.assert_allclose(got[::2], reference_logits(tiny_model(), PROMPT), atol=2e-4)
    np.testing.assert_allclose(got[1::2], reference_logits(tiny_model(), PROMPT[::-1]), atol=2e-4)


def test_no_room_leaves_the_memory_as_it_was(open_context):
    context = open_context(n_seq_max=2, kv_unified=True)  # 256 cells for both together
    context.decode(np.arange(200), 0, outputs=False)
    before = context.save()
    with pytest.raises(DecodeError, match="no room in the memory") as caught:
        context.decode(np.arange(100), 0, seq_ids=1, outputs=False)
    assert caught.value.status == 1
    assert (context.bounds(0), context.bounds(1)) == ((0, 199), (-1, -1))
    np.testing.assert_array_equal(context.save(), before)
    context.decode(np.arange(56), 0, seq_ids=1)
    assert context.logits([55]).shape == (1, 512)


def test_decode_time_is_measured(open_context):
    context = open_context()
    assert context.decode_seconds == 0
    context.decode(PROMPT, 0)
    once = context.decode_seconds
    context.decode([1], 12)
    assert 0 < once < context.decode_seconds < 10


def test_decoding_on_another_thread(open_context):
    context = open_context()
    context.decode(PROMPT, 0)
    expected = context.logits([11])
    context.clear()
    got = []

    def work():
        context.decode(PROMPT, 0)
        got.append(context.logits([11]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_same_bits(got[0], expected)


# -- states -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("n_seq_max", [1, 2])
def test_a_restored_state_gives_the_same_bits(open_context, flash_attn, n_seq_max):
    options = {"flash_attn": flash_attn, "n_seq_max": n_seq_max}
    context = open_context(**options)
    context.decode(PROMPT, 0, outputs=False)
    state = context.save()
    context.decode([5, 6, 7], 12)
    expected = context.logits(range(3))

    context.restore(state)
    assert context.bounds() == (0, 11)
    np.testing.assert_array_equal(context.save(), state)
    context.decode([5, 6, 7], 12)
    assert_same_bits(context.logits(range(3)), expected)

    other = open_context(**options)
    other.decode([9] * 40, 0, outputs=False)
    other.restore(state)
    other.decode([5, 6, 7], 12)
    assert_same_bits(other.logits(range(3)), expected)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "qwen35", "gemma3"])
@pytest.mark.parametrize("partial", [False, True])
def test_states_of_memories_that_cannot_cut(open_context, arch, partial):
    """llama.cpp-notes 6.4: restored before every measured run, the first one too."""
    context = open_context(arch, swa_full=False)
    context.decode(PROMPT, 0, outputs=False)
    state = context.save(partial=partial)

    def run():
        context.restore(state, partial=partial)
        assert context.remove(12)
        assert context.bounds()[1] == 11
        context.decode([5, 6, 7], 12)
        return context.logits(range(3))

    assert_same_bits(run(), run())


def test_a_window_cut_back_too_far_is_refused(open_context):
    """The window's layers keep 64 positions and some; llama.cpp would go on without the others."""
    tokens = np.arange(600) % 512
    options = {"n_ctx": 1024, "n_batch": 1024, "n_ubatch": 64}
    ring = open_context("gemma3", swa_full=False, **options)
    full = open_context("gemma3", swa_full=True, **options)
    for context in (ring, full):
        context.decode(tokens, 0, outputs=False)
        assert context.bounds() == (0, 599)
        assert context.remove(500)
        context.decode([7], 500)
    # the ring's cells lie in another order, so f16 sums differ
    np.testing.assert_allclose(ring.logits(), full.logits(), atol=0.02)
    state = ring.save()
    for last in (300, 100):  # at 100 nothing of the window is left
        assert ring.remove(last)
        assert ring.bounds() == (0, last - 1)
        for position in (0, last):
            with pytest.raises(ArgumentError, match=f"positions = {position}"):
                ring.decode([7], position)
    with pytest.raises(ArgumentError, match="the sliding window has lost what comes before it"):
        ring.decode([7], 100)
    ring.restore(state)
    ring.decode([7], 501)
    assert ring.remove(0)
    assert ring.bounds() == (-1, -1)
    ring.decode([7], 0)


@pytest.mark.parametrize("arch", ["lfm2", "qwen35"])
def test_a_partial_state_needs_the_rest_cut_back(open_context, arch):
    context = open_context(arch)
    context.decode(PROMPT, 0, outputs=False)
    part = context.save(partial=True)
    context.decode([5, 6, 7], 12)
    first = context.logits(range(3))
    context.restore(part, partial=True)
    assert context.bounds() == (0, 14)  # of the attention's layers
    with pytest.raises(ArgumentError, match="positions = 12 at entry 0: the sequence's next"):
        context.decode([5], 12)
    with pytest.raises(ArgumentError, match="positions = 15: the memory's recurrent part stands"):
        context.decode([5], 15)
    assert context.remove(12)
    context.decode([5, 6, 7], 12)
    assert_same_bits(context.logits(range(3)), first)


def test_an_empty_state_empties(open_context):
    context = open_context()
    empty = context.save()
    context.decode(PROMPT, 0)
    first = context.logits([11])
    context.restore(empty)
    assert context.bounds() == (-1, -1)
    context.decode(PROMPT, 0)
    assert_same_bits(context.logits([11]), first)


def test_a_state_fits_another_sequence(open_context):
    context = open_context(n_seq_max=2)
    context.decode(PROMPT, 0, outputs=False)
    state = context.save()
    context.decode([5], 12)
    expected = context.logits()
    context.restore(state, seq_id=1)
    context.decode([5], 12, seq_ids=1)
    assert_same_bits(context.logits(), expected)


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_state_fits_where_sequences_share_a_cache(open_context, flash_attn):
    alone = open_context(flash_attn=flash_attn)
    alone.decode(PROMPT, 0, outputs=False)
    state = alone.save()
    alone.decode([5, 6, 7], 12)
    shared = open_context(flash_attn=flash_attn, n_seq_max=3, kv_unified=True)
    shared.decode([9] * 20, 0, seq_ids=1, outputs=False)
    shared.restore(state)
    np.testing.assert_array_equal(shared.save(), state)
    assert (shared.bounds(0), shared.bounds(1)) == ((0, 11), (0, 19))
    shared.remove(0, seq_id=1)
    shared.restore(state)  # on the cells that it had alone
    shared.decode([5, 6, 7], 12)
    assert_same_bits(shared.logits(range(3)), alone.logits(range(3)))


def test_a_damaged_state_is_refused(open_context):
    context = open_context()
    context.decode(PROMPT, 0, outputs=False)
    state = context.save()
    for damaged in (state[:-1], state[:20], state[:0], np.append(state, np.uint8(0))):
        with pytest.raises(ArgumentError):
            context.restore(damaged)
    generator = np.random.default_rng(0)
    for bit in range(8):  # the top bit of a float's last byte is its sign
        for where in [*range(64), *generator.integers(len(state), size=100), len(state) - 1]:
            damaged = state.copy()
            damaged[where] ^= 1 << bit
            with pytest.raises(ArgumentError):
                context.restore(damaged)
    for _ in range(100):  # a hash whose errors cancel out would let pairs through
        damaged = state.copy()
        start = int(generator.integers(40, len(state) - 64))
        damaged[start] ^= 0x80
        damaged[start + 32] ^= 0x80
        with pytest.raises(ArgumentError):
            context.restore(damaged)
    assert context.bounds() == (0, 11)
    np.testing.assert_array_equal(context.save(), state)


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("qwen3", {}),
        ("llama", {"type_k": "f32"}),
        ("llama", {"flash_attn": "off"}),
        ("llama", {"n_seq_max": 2}),
        ("llama", {"rope_freq_base": 5000.0}),
    ],
)
def test_a_state_from_elsewhere_is_refused(open_context, arch, options):
    context = open_context(flash_attn="on")
    context.decode(PROMPT, 0, outputs=False)
    state = context.save()
    other = open_context(arch, **{"flash_attn": "on", **options})
    other.decode([1, 2, 3], 0, outputs=False)
    with pytest.raises(ArgumentError, match="a state of another model or of other parameters"):
        other.restore(state)
    assert other.bounds() == (0, 2)


def test_a_state_of_the_other_kind_is_refused(open_context):
    context = open_context("lfm2")
    context.decode(PROMPT, 0, outputs=False)
    whole, part = context.save(), context.save(partial=True)
    assert len(part) < len(whole)
    with pytest.raises(ArgumentError, match="partial = 1: the state is of the other kind"):
        context.restore(whole, partial=True)
    with pytest.raises(ArgumentError, match="partial = 0: the state is of the other kind"):
        context.restore(part)


def test_a_state_longer_than_the_context_is_refused(open_context):
    long = open_context(n_ctx=512)
    long.decode(np.arange(300), 0, outputs=False)
    short = open_context(n_ctx=256)
    short.decode([1], 0)
    with pytest.raises(UnsupportedError, match=r"can't restore this state: .*not enough cells"):
        short.restore(long.save())
    assert short.bounds() == (-1, -1)
    short.decode([1], 0)


def test_offload_says_where_everything_lies(open_context):
    """On the CPU alone; devices have tests of their own."""
    context = open_context(n_ctx=256)
    info, offload = context.model.info, context.offload
    assert offload["backends"][-1] == "CPU"
    assert (offload["layers"], offload["output"]) == (["CPU"] * info["n_layer"], "CPU")
    assert all(b["host"] and b["device"] == "CPU" for b in offload["buffers"])
    assert sum(b["model"] for b in offload["buffers"]) >= info["size"]
    keys_and_values = 2 * info["n_layer"] * 256 * 2 * 64 * 2  # 2 heads of 64 numbers of 16 bits
    assert sum(b["memory"] for b in offload["buffers"]) == keys_and_values
    assert sum(b["compute"] for b in offload["buffers"]) > 0
    assert (context.value("n_gpu_layers"), context.value("split_mode")) == (0, "layer")
