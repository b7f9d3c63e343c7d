"""What each option becomes is read back from the library, or shows in what the library does."""

import csb
import gguf
import numpy as np
import pytest
import tiny
from csb.errors import FileError
from csb.native.library import system_info
from gguf import GGUFReader, GGUFWriter
from test_native_arguments import keyword_options

pytestmark = pytest.mark.native

# value that is not llama.cpp's default, the parameter that shows it, what it shows, its source
CONTEXT = {
    "n_ctx": (768, "n_ctx", 768, "getter"),
    "n_batch": (96, "n_batch", 96, "getter"),
    "n_ubatch": (48, "n_ubatch", 48, "getter"),
    "n_seq_max": (3, "n_seq_max", 3, "getter"),
    "n_threads": (3, "n_threads", 3, "getter"),
    "n_threads_batch": (5, "n_threads_batch", 5, "getter"),
    "flash_attn": ("off", "flash_attn", False, "library"),
    "type_k": ("q8_0", "type_k", "q8_0", "library"),
    "type_v": ("bf16", "type_v", "bf16", "library"),
    "offload_kqv": (False, "offload_kqv", False, "library"),
    "op_offload": (False, "op_offload", False, "library"),
    "swa_full": (False, "swa_full", False, "library"),
    "kv_unified": (True, "kv_unified", True, "library"),
    "rope_freq_base": (5000.0, "rope_freq_base", 5000.0, "library"),
    "rope_freq_scale": (0.5, "rope_freq_scale", 0.5, "library"),
}


def parameters(path, **options):
    with csb.Model(path) as model, csb.Context(model, **options) as context:
        return context.parameters


@pytest.mark.parametrize("option", CONTEXT)
def test_context_option(tiny_model, option):
    value, name, shown, source = CONTEXT[option]
    path = tiny_model("gemma3")  # it has a sliding window for swa_full
    base = {"n_ctx": 2048, "n_ubatch": 64}  # longer than window and ubatch together
    plain, changed = parameters(path, **base), parameters(path, **{**base, option: value})
    assert plain[name]["value"] != shown
    assert changed[name] == {"value": shown, "source": source}


def test_every_context_option_is_read_back():
    assert list(CONTEXT) == keyword_options(csb.Context)


def test_what_llama_cpp_makes_of_numbers(tiny_model):
    path = tiny_model("llama", n_ctx=700)

    def values(*names, **options):
        shown = parameters(path, **options)
        return [shown[name]["value"] for name in names]

    assert values("n_ctx", n_ctx=0) == [768]  # the model's 700, in whole 256
    assert values("n_ctx", n_ctx=257) == [512]
    assert values("n_batch", "n_ubatch", n_ctx=256, n_batch=300) == [256, 256]
    assert values("n_ctx", "n_ctx_seq", n_ctx=512, n_seq_max=2) == [512, 256]
    assert values("n_ctx_seq", n_ctx=512, n_seq_max=2, kv_unified=True) == [512]


def test_all_cache_types(tiny_model):
    for kind in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        options = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "flash_attn": "on"}
        with (
            csb.Model(tiny_model()) as model,
            csb.Context(model, type_k=kind, type_v=kind, **options) as context,
        ):
            assert (context.value("type_k"), context.value("type_v")) == (kind, kind)
            context.decode(range(20), 0)
            assert np.isfinite(context.logits([19])).all()


def rows_of(path, **options):
    with (
        csb.Model(path, **options) as model,
        csb.Context(model, n_ctx=256, n_threads=1, n_threads_batch=1) as context,
    ):
        context.decode([1, 2, 3, 4], 0)
        rows = context.logits(range(4))
        context.decode([5], 4)
        return np.vstack([rows, context.logits()]).view(np.uint32)


@pytest.mark.parametrize(
    "options",
    [
        {"use_mmap": False},
        {"check_tensors": True},
        {"n_gpu_layers": 0},
        {"n_gpu_layers": -1, "devices": "none"},
        {"devices": "CPU"},
        {"split_mode": "none", "devices": "none"},
        {"main_gpu": 1, "split_mode": "layer", "tensor_split": "1,0.5", "devices": "none"},
    ],
    ids=str,
)
def test_model_options_that_change_no_bits_on_a_cpu(tiny_model, options):
    path = tiny_model()
    np.testing.assert_array_equal(rows_of(path, **options), rows_of(path, devices="none"))


def test_repacked_weights_run_other_kernels(tiny_model):
    """Q4_K rows in groups of four: repacked GEMM against vec_dot (llama.cpp-notes 1.6)."""
    here = system_info()["system_info"]
    if "REPACK = 1" not in here or "AVX2 = 1" not in here:
        pytest.skip("this build repacks no Q4_K")
    path = tiny_model(dtype="q4_k_m")
    repacked = rows_of(path, use_extra_bufts=True, devices="none")
    assert (repacked != rows_of(path, use_extra_bufts=False, devices="none")).any()


def test_checked_tensors(tiny_model, tmp_path):
    path = tmp_path / "nan.gguf"
    reader, writer = GGUFReader(tiny_model()), GGUFWriter(path, "llama")
    tiny._copy_keys(reader, writer)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if tensor.name == "blk.1.ffn_up.weight":
            data[3, 5] = np.nan
        writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType.F32)
    tiny._finish(writer, path)
    csb.Model(path).close()
    with pytest.raises(FileError, match=r"tensor 'blk\.1\.ffn_up\.weight' has invalid data"):
        csb.Model(path, check_tensors=True)
