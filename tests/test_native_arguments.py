"""Every argument that would make llama.cpp abort, or that C would misread: the right exception,
one line that names argument and value, nothing changed, and the process lives."""

import ctypes
import inspect
import re

import csb
import numpy as np
import pytest
from csb.errors import ArgumentError, CsbError, LibraryError, UnsupportedError
from csb.native.library import c_options, library, quantize, set_log_level

pytestmark = pytest.mark.native


@pytest.fixture
def model(tiny_model):
    with csb.Model(tiny_model(tokenizer="bpe")) as opened:
        yield opened


@pytest.fixture
def context(model):
    with csb.Context(
        model, n_ctx=256, n_batch=32, n_seq_max=2, kv_unified=True, n_threads=1, n_threads_batch=1
    ) as opened:
        opened.decode([1, 2, 3], 0)
        yield opened


def refused(kind, said, call):
    with pytest.raises(CsbError, match=re.escape(said)) as caught:
        call()
    assert type(caught.value) is kind
    assert len(str(caught.value).splitlines()) == 1


DECODES = {
    "no tokens": (([], 3), {}, "n_tokens = 0: must be at least 1"),
    "more than n_batch": (([1] * 33, 3), {}, "n_tokens = 33: is more than n_batch = 32"),
    "token -1": (([1, -1], 3), {}, "tokens = -1: is outside the model's vocabulary"),
    "token n_vocab": (([512], 3), {}, "tokens = 512: is outside"),
    "token beyond 32 bits": (([2**32 + 1], 3), {}, "tokens = 4294967297: is beyond 32 bits"),
    "token beyond 64 bits": (([2**70], 3), {}, "tokens are object"),
    "tokens no whole numbers": (([1.5], 3), {}, "tokens are float64: must be whole numbers"),
    "tokens in a table": (([[1, 2], [3, 4]], 3), {}, "tokens has shape (2, 2)"),
    "sequence -1": (([1], 3), {"seq_ids": -1}, "seq_ids = -1: must be from 0 to n_seq_max - 1"),
    "sequence n_seq_max": (([1], 0), {"seq_ids": 2}, "seq_ids = 2: must be"),
    "too few sequences": (([1, 2], 3), {"seq_ids": [0]}, "seq_ids has 1 entries for 2 tokens"),
    "too many flags": (([1], 3), {"outputs": [1, 0]}, "outputs has 2 entries for 1 tokens"),
    "a gap": (([1], 4), {}, "positions = 4 at entry 0: the sequence's next position is 3"),
    "going back": (([1], 2), {}, "positions = 2 at entry 0: the sequence's next position is 3"),
    "a gap inside": (([1, 2], [3, 5]), {}, "positions = 5 at entry 1: the sequence's next"),
    "twice the same": (([1, 2], [3, 3]), {}, "positions = 3 at entry 1: the sequence's next"),
    "a negative position": (([1], -1), {}, "positions = -1 at entry 0"),
    "not from 0": (([1], 1), {"seq_ids": 1}, "positions = 1 at entry 0: the sequence's next"),
    "position beyond 32 bits": (([1], 2**32 + 3), {}, "start = 4294967299: is beyond 32 bits"),
    "position wraps": (([1, 1], 2**31 - 1), {}, "start = 2147483648: is beyond 32 bits"),
    "position no whole number": (([1], 3.0), {}, "start = 3.0: must be a whole number"),
}


@pytest.mark.parametrize("case", DECODES)
def test_decode(context, case):
    arguments, options, said = DECODES[case]
    before, rows = context.save(), context.logits([2])
    refused(ArgumentError, said, lambda: context.decode(*arguments, **options))
    np.testing.assert_array_equal(context.save(), before)
    np.testing.assert_array_equal(context.logits([2]), rows)  # the decode before's
    context.decode([4], 3)


def test_a_full_context(context):
    for start in range(3, 256, 32):
        context.decode([1] * min(32, 256 - start), start)
    said = "positions = 256: the context is full (n_ctx 256)"
    refused(ArgumentError, said, lambda: context.decode([1], 256))
    assert context.bounds() == (0, 255)
    assert context.remove(255)
    context.decode([1], 255)


OTHER_CALLS = {
    "row not asked for": (lambda c: c.logits([3]), "entries = 3: the last decode has no"),
    "row -1": (lambda c: c.logits([-1]), "entries = -1: the last decode has no"),
    "row beyond 32 bits": (lambda c: c.logits([2**32]), "entries = 4294967296: is beyond"),
    "rows too many": (lambda c: c.logits([0, 1], out=np.empty((1, 512), "f4")), "out has shape"),
    "rows in float64": (lambda c: c.logits(out=np.empty((1, 512))), "out has shape (1, 512)"),
    "rows not contiguous": (
        lambda c: c.logits(out=np.empty((1, 1024), "f4")[:, ::2]),
        "out must be contiguous and writeable",
    ),
    "rows read-only": (
        lambda c: c.logits(out=np.frombuffer(bytes(2048), np.float32).reshape(1, 512)),
        "out must be contiguous and writeable",
    ),
    "remove from -1": (lambda c: c.remove(-1), "p0 = -1: must not be negative"),
    "remove backwards": (lambda c: c.remove(2, 1), "p1 = 1: is before p0"),
    "remove beyond 32 bits": (lambda c: c.remove(2**32), "start = 4294967296: is beyond"),
    "remove from sequence 2": (lambda c: c.remove(0, seq_id=2), "seq_id = 2: must be from 0"),
    "bounds of sequence -1": (lambda c: c.bounds(-1), "seq_id = -1: must be from 0"),
    "save sequence 2": (lambda c: c.save(seq_id=2), "seq_id = 2: must be from 0"),
    "restore to sequence 2": (lambda c: c.restore(c.save(), seq_id=2), "seq_id = 2: must be"),
    "restore numbers": (lambda c: c.restore(np.zeros(100)), "state is float64 of shape (100,)"),
    "restore zeros": (lambda c: c.restore(np.zeros(99, "u1")), "bytes are not a whole state"),
    "restore nothing": (lambda c: c.restore(np.zeros(0, "u1")), "size = 0: is less than a header"),
}


@pytest.mark.parametrize("case", OTHER_CALLS)
def test_other_calls(context, case):
    call, said = OTHER_CALLS[case]
    before = context.save()
    refused(ArgumentError, said, lambda: call(context))
    np.testing.assert_array_equal(context.save(), before)


VOCABULARY_CALLS = {
    "piece -1": (lambda m: m.piece(-1), "token = -1: is outside the model's vocabulary"),
    "piece n_vocab": (lambda m: m.piece(512), "token = 512: is outside the model's vocabulary"),
    "piece beyond 32 bits": (lambda m: m.piece(2**32 + 65), "token = 4294967361: is beyond"),
    "eog n_vocab": (lambda m: m.is_eog(512), "token = 512: is outside the model's vocabulary"),
    "eog beyond 32 bits": (lambda m: m.is_eog(2**32), "token = 4294967296: is beyond"),
    "detokenize -1": (lambda m: m.detokenize([65, -1]), "token = -1: is outside"),
    "detokenize n_vocab": (lambda m: m.detokenize([512]), "token = 512: is outside"),
    "half a surrogate": (lambda m: m.tokenize("\ud800"), "text is no valid Unicode"),
    "NUL in a key": (lambda m: m.metadata("general.name\0x"), "must not contain a NUL"),
}


@pytest.mark.parametrize("case", VOCABULARY_CALLS)
def test_vocabulary(model, case):
    call, said = VOCABULARY_CALLS[case]
    refused(ArgumentError, said, lambda: call(model))


def test_a_nul_in_a_text_is_a_byte_like_others(model):
    assert model.tokenize("a\0b") == [97, 0, 98]


def test_no_decode_yet(model):
    with csb.Context(model, n_ctx=256) as fresh:
        refused(ArgumentError, "entries = 0: the last decode has no", fresh.logits)


def test_an_open_context_outlives_its_model(tiny_model):
    model = csb.Model(tiny_model())
    context = csb.Context(model, n_ctx=256, n_threads=1, n_threads_batch=1)
    context.decode([1, 2, 3], 0)
    rows = context.logits([2])
    n_vocab = model.n_vocab
    model.close()
    model.close()
    refused(ArgumentError, "this Model is closed", lambda: model.metadata("general.name"))
    refused(ArgumentError, "this Model is closed", lambda: csb.Context(model))
    context.clear()
    context.decode([1, 2, 3], 0)
    np.testing.assert_array_equal(context.logits([2], np.empty((1, n_vocab), "f4")), rows)
    context.close()
    context.close()
    for call in (lambda: context.decode([1], 3), context.bounds, context.save, context.cancel):
        refused(ArgumentError, "this Context is closed", call)


def test_handles_that_are_not_open(model, context):
    """What is no handle, or none any more, is an error also for those who call C themselves."""
    lib, n = library(), ctypes.c_int32()
    closed = csb.Context(model, n_ctx=256)
    stale = ctypes.c_void_p(closed.pointer.value)
    closed.close()
    one, flag = np.zeros(1, np.int32), np.ones(1, np.int8)
    no_context, no_model = "context is not an open csb_context", "model is not an open csb_model"
    for handle in (ctypes.c_void_p(0x1234), ctypes.c_void_p(), stale, model.pointer):
        for call in (
            lambda h: lib.csb_context_decode(h, 1, one, one, one, flag),
            lambda h: lib.csb_context_cancel(h),
            lambda h: lib.csb_context_describe(h, ctypes.byref(n)),
            lambda h: lib.csb_context_seq_bounds(h, 0, ctypes.byref(n), ctypes.byref(n)),
        ):
            refused(ArgumentError, no_context, lambda c=call, h=handle: c(h))
        lib.csb_context_close(handle)  # does nothing with what is no context
    for handle in (ctypes.c_void_p(0x1234), ctypes.c_void_p(), context.pointer):
        refused(
            ArgumentError, no_model, lambda h=handle: lib.csb_model_describe(h, ctypes.byref(n))
        )
        lib.csb_model_close(handle)
    assert model.piece(65) == b"A"
    context.decode([4], 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, m, c: lib.csb_model_describe(m, None),
        lambda lib, m, c: lib.csb_model_open(None, 0, None, None, None),
        lambda lib, m, c: lib.csb_model_metadata(m, None, ctypes.byref(ctypes.c_char_p())),
        lambda lib, m, c: lib.csb_model_tokenize(m, None, 1, 0, 0, 0, None, None),
        lambda lib, m, c: lib.csb_model_tokenize(m, b"a", 1, 0, 0, 0, None, None),
        lambda lib, m, c: lib.csb_model_token_is_eog(m, 1, None),
        lambda lib, m, c: lib.csb_context_open(m, 1, None, None, ctypes.byref(ctypes.c_void_p())),
        lambda lib, m, c: lib.csb_context_describe(c, None),
        lambda lib, m, c: lib.csb_context_offload(c, None),
        lambda lib, m, c: lib.csb_context_seq_rm(c, 0, 0, 1, None),
        lambda lib, m, c: lib.csb_context_seq_bounds(c, 0, None, None),
        lambda lib, m, c: lib.csb_context_decode_time(c, None, None),
        lambda lib, m, c: lib.csb_context_state_size(c, 0, 0, None),
        lambda lib, m, c: lib.csb_quantize(b"a", None, b"f16", 0, 0),
        lambda lib, m, c: lib.csb_net_append(None),
        lambda lib, m, c: lib.csb_net_leave(2, None),
        lambda lib, m, c: lib.csb_library_build(None),
        lambda lib, m, c: lib.csb_library_add_rpc(None, 1),
    ],
)
def test_null_pointers(model, context, call):
    # out_* can't be NULL either: csb.h
    refused(ArgumentError, " is NULL", lambda: call(library(), model.pointer, context.pointer))


def test_negative_sizes(model, context):
    lib, out = library(), ctypes.byref(ctypes.c_int32())
    bad = {
        "n_bytes = -1": lambda: lib.csb_model_tokenize(model.pointer, b"a", -1, 0, 0, 0, None, out),
        "capacity = -1": lambda: lib.csb_model_tokenize(
            model.pointer, b"a", 1, 0, 0, -1, None, out
        ),
        "n_rows = -1": lambda: lib.csb_context_logits(
            context.pointer, -1, np.zeros(1, np.int32), np.zeros(512, np.float32)
        ),
        "n_options = -1": lambda: lib.csb_context_open(model.pointer, -1, None, None, out),
        "n_tokens = -1": lambda: lib.csb_context_decode(
            context.pointer, -1, *[np.zeros(1, np.int32)] * 3, np.zeros(1, np.int8)
        ),
    }
    for said, call in bad.items():
        refused(ArgumentError, said, call)
    state = np.zeros(10, np.uint8)
    refused(
        ArgumentError,
        "capacity = 10: is less than csb_context_state_size",
        lambda: lib.csb_context_state_get(context.pointer, 0, 0, 10, state, out),
    )
    assert not state.any()


# -- options ----------------------------------------------------------------------------------

FLAG = (2, "{} = 2: must be a whole number from 0 to 1")
CONTEXT_OPTIONS = {
    "n_ctx": (-1, "n_ctx = -1: must be a whole number from 0"),
    "n_batch": (0, "n_batch = 0: must be a whole number from 1"),
    "n_ubatch": (0, "n_ubatch = 0: must be a whole number from 1"),
    "n_seq_max": (257, "n_seq_max = 257: must be a whole number from 1 to 256"),
    "n_threads": (0, "n_threads = 0: must be a whole number from 1 to 512"),
    "n_threads_batch": (513, "n_threads_batch = 513: must be a whole number from 1 to 512"),
    "flash_attn": ("maybe", "flash_attn = maybe: must be one of on, off, auto"),
    "type_k": ("q3_k", "type_k = q3_k: must be one of f32, f16, bf16, q8_0"),
    "type_v": ("", "type_v = : must be one of f32, f16, bf16, q8_0"),
    "offload_kqv": FLAG,
    "op_offload": FLAG,
    "swa_full": FLAG,
    "kv_unified": FLAG,
    "rope_freq_base": (-1.0, "rope_freq_base = -1.0: must be a number that is not negative"),
    "rope_freq_scale": (float("nan"), "rope_freq_scale = nan: must be a number"),
}
MODEL_OPTIONS = {
    "n_gpu_layers": (-2, "n_gpu_layers = -2: must be a whole number from -1"),
    "devices": ("CUDA7", "devices = CUDA7: there is no device CUDA7; this build and machine have"),
    "split_mode": ("column", "split_mode = column: must be one of none, layer, row"),
    "main_gpu": (-1, "main_gpu = -1: must be a whole number from 0"),
    "tensor_split": ("1,x", "tensor_split = 1,x: must be numbers joined by commas"),
    "use_extra_bufts": FLAG,
    "use_mmap": FLAG,
    "check_tensors": FLAG,
    "draft": FLAG,
}


def keyword_options(cls):
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def test_every_option_has_a_case():
    assert list(CONTEXT_OPTIONS) == keyword_options(csb.Context)
    assert [*MODEL_OPTIONS, "library_file"] == keyword_options(csb.Model)


def test_a_library_that_is_none(tiny_model, tmp_path):
    (tmp_path / "libcsb.so").write_text("no library")
    for name in ("libcsb.so", "missing.so"):
        path = tmp_path / name
        refused(LibraryError, "cannot load", lambda p=path: csb.Model(tiny_model(), library_file=p))


@pytest.mark.parametrize("option", CONTEXT_OPTIONS)
def test_context_option(model, option):
    value, said = CONTEXT_OPTIONS[option]
    said = said.format(option)
    refused(ArgumentError, said, lambda: csb.Context(model, **{"n_ctx": 256, option: value}))


@pytest.mark.parametrize("option", MODEL_OPTIONS)
def test_model_option(tiny_model, option):
    value, said = MODEL_OPTIONS[option]
    said = said.format(option)
    refused(ArgumentError, said, lambda: csb.Model(tiny_model(), **{option: value}))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n_ctx", "12x"),
        ("n_ctx", ""),
        ("n_ctx", 2**24 + 1),
        ("n_ctx", 2**63),
        ("n_ctx", 2**32 + 256),
        ("n_threads", 513),
        ("n_threads", 1.5),
        ("n_threads_batch", 0),
        ("rope_freq_base", "inf"),
        ("rope_freq_base", "1,5"),
        ("rope_freq_scale", "0x1"),
        ("rope_freq_scale", ""),
        ("type_k", "f16\nn"),
    ],
)
def test_more_values(model, option, value):
    shown = str(value).replace("\n", "\\x0a")
    refused(
        ArgumentError, f"{option} = {shown}: must be", lambda: csb.Context(model, **{option: value})
    )


def test_unknown_options(model, tiny_model):
    lib, out = library(), ctypes.byref(ctypes.c_void_p())
    refused(
        ArgumentError,
        "unknown option n_ctxx",
        lambda: lib.csb_context_open(model.pointer, *c_options({"n_ctxx": 1}), out),
    )
    refused(
        ArgumentError,
        "unknown option n_ctx",
        lambda: lib.csb_model_open(str(tiny_model()).encode(), *c_options({"n_ctx": 1}), out),
    )
    with pytest.raises(TypeError, match="n_ctxx"):
        csb.Context(model, n_ctxx=1)


def test_a_nul_in_an_option(model):
    said = "type_k = 'f16\\x00': must not contain a NUL"
    refused(ArgumentError, said, lambda: csb.Context(model, type_k="f16\0"))


@pytest.mark.parametrize("flash_attn", ["on", "off", "auto"])
def test_a_cache_type_whose_blocks_no_head_fills(tiny_model, flash_attn):
    """Without flash attention llama.cpp would take it and read blocks from their middle."""
    small = tiny_model(n_embd=64, head_size=16)
    with csb.Model(small) as model:
        refused(
            UnsupportedError,
            "type_k = q8_0: the model's heads are no multiple of its blocks",
            lambda: csb.Context(model, n_ctx=256, type_k="q8_0", flash_attn=flash_attn),
        )
        csb.Context(model, n_ctx=256, type_k="bf16", flash_attn=flash_attn).close()


def test_a_quantized_v_cache_needs_flash_attention(model):
    refused(
        UnsupportedError,
        "llama.cpp can't make this context: llama_init_from_model: quantized V cache requires",
        lambda: csb.Context(model, n_ctx=256, type_v="q8_0", flash_attn="off"),
    )


def test_log_levels():
    for level in (0, 6):
        refused(ArgumentError, f"level = {level}: must be 1 to 5", lambda n=level: set_log_level(n))


# -- the quantizer ----------------------------------------------------------------------------


def test_quantizer_arguments(tiny_model, tmp_path):
    source, target = tiny_model(), tmp_path / "out.gguf"
    refused(
        ArgumentError,
        "type = q9: must be one of f32, f16, bf16",
        lambda: quantize(source, target, "q9"),
    )
    for threads in (-1, 513):
        refused(
            ArgumentError,
            f"n_threads = {threads}: must be from 0 to 512",
            lambda n=threads: quantize(source, target, "f16", n),
        )
    assert not target.exists()


def test_the_quantizer_does_not_write_over_what_it_reads(tiny_model, tmp_path):
    source = tmp_path / "model.gguf"
    source.write_bytes(tiny_model().read_bytes())
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    for target in (source, link):
        refused(ArgumentError, "is in_path", lambda t=target: quantize(source, t, "f16"))
    assert source.read_bytes() == tiny_model().read_bytes()
