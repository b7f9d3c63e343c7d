"""Models: description, metadata, vocabulary; and what build and machine this is."""

import ctypes
import json

import csb
import numpy as np
import pytest
import tiny
from csb.errors import ArgumentError, UnsupportedError
from csb.native.library import build_info, library, system_info
from gguf import GGUFReader

pytestmark = pytest.mark.native


def test_description(tiny_model):
    path = tiny_model("moe", dtype="bf16")
    tensors = GGUFReader(path).tensors
    kinds = [t.tensor_type.name.lower() for t in tensors]
    with csb.Model(path) as model:
        assert model.info == {
            "architecture": "qwen3moe",
            "description": model.info["description"],
            "type": "BF16",
            "size": sum(int(t.n_bytes) for t in tensors),
            "n_params": sum(int(t.n_elements) for t in tensors),
            "n_vocab": 512,
            "n_ctx_train": 2048,
            "n_layer": 4,
            "n_embd": 256,
            "n_swa": 0,
            "n_expert": 8,
            "is_recurrent": False,
            "is_hybrid": False,
            "has_tokenizer": False,
            "add_bos": False,
            "add_eos": False,
            "bos": -1,
            "eos": -1,
            "tensor_types": {kind: kinds.count(kind) for kind in set(kinds)},
            "devices": model.info["devices"],
        }
        assert "qwen3moe" in model.info["description"]


def test_metadata_and_chat_template(tiny_model):
    template = tiny.CHATML + "{# caf\u00e9 #}"
    with csb.Model(tiny_model(tokenizer="bpe", chat_template=template)) as model:
        assert model.metadata("general.name") == "tiny llama"
        assert model.metadata("llama.block_count") == "4"
        assert model.chat_template == template
        with pytest.raises(ArgumentError, match=r"key = no\.such: the model has no such metadata"):
            model.metadata("no.such")
    with csb.Model(tiny_model()) as model:
        assert model.chat_template is None


TEXTS = ["", "a", "Explain it", "caf\u00e9 \u4e16\u754c \U0001f600\n\t", "x" * 9000]


@pytest.mark.parametrize("text", TEXTS, ids=["empty", "a", "ascii", "unicode", "long"])
def test_the_tiny_tokens_are_the_text_s_bytes(tiny_model, text):
    with csb.Model(tiny_model(tokenizer="bpe")) as model:
        tokens = model.tokenize(text)
        assert tokens == list(text.encode())
        assert model.detokenize(tokens) == text.encode()


def test_special_tokens(tiny_model):
    text = "<|im_start|>a<|im_end|>"
    with csb.Model(tiny_model(tokenizer="bpe", bos=True)) as model:
        assert model.tokenize("a") == [tiny.BOS, 97]
        assert model.tokenize("a", add_special=False) == [97]
        assert model.tokenize(text, parse_special=True) == [tiny.BOS, 256, 97, 257]
        assert model.tokenize(text, add_special=False) == list(text.encode())
        assert model.detokenize([256, 97, 257]) == b"a"
        assert model.detokenize([256, 97, 257], special=True) == text.encode()
        assert model.piece(257) == b"<|im_end|>"
        assert model.info["bos"] == tiny.BOS
        assert model.info["add_bos"]


def test_pieces(tiny_model):
    with csb.Model(tiny_model(tokenizer="bpe")) as model:
        assert [model.piece(i) for i in range(256)] == [bytes([i]) for i in range(256)]
        assert model.piece(300) == b" w300"
        assert model.detokenize([0xE4, 0xB8]) == b"\xe4\xb8"  # half a character
        assert [i for i in range(512) if model.is_eog(i)] == [tiny.IM_END]


def test_a_model_without_a_tokenizer(tiny_model):
    with csb.Model(tiny_model()) as model:
        assert not any(model.is_eog(i) for i in range(512))
        for call in (
            lambda: model.tokenize("a"),
            lambda: model.detokenize([1]),
            lambda: model.piece(1),
        ):
            with pytest.raises(UnsupportedError, match="the model has no tokenizer"):
                call()


def test_a_buffer_too_small_gets_its_size_and_nothing_else(tiny_model):
    with csb.Model(tiny_model(tokenizer="bpe")) as model:
        lib, n = library(), ctypes.c_int32()
        out = np.full(8, -7, np.int32)
        lib.csb_model_tokenize(
            model.pointer, b"hello", 5, 0, 0, 4, out.ctypes.data, ctypes.byref(n)
        )
        assert n.value == 5
        assert (out[4:] == -7).all()
        raw = np.full(32, 7, np.uint8)
        lib.csb_model_token_piece(model.pointer, 257, 3, raw.ctypes.data, ctypes.byref(n))
        assert n.value == len("<|im_end|>")
        assert (raw[3:] == 7).all()
        lib.csb_model_detokenize(
            model.pointer,
            np.full(40, 257, np.int32),
            40,
            1,
            3,
            raw.ctypes.data,
            ctypes.byref(n),
        )
        assert n.value == 40 * len("<|im_end|>")
        assert (raw[3:] == 7).all()
        # and the Python side asks again with a buffer that fits
        assert model.detokenize([300] * 1000) == b" w300" * 1000


def test_the_build_is_described_alike_inside_and_beside_the_library():
    text = ctypes.c_char_p()
    library().csb_library_build(ctypes.byref(text))
    assert json.loads(text.value) == build_info()
    assert build_info()["options"]["GGML_LLAMAFILE"] == "ON"


def test_the_machine_is_described():
    info = system_info()
    assert "LLAMAFILE = 1" in info["system_info"]
    (cpu,) = (d for d in info["devices"] if d["type"] == "cpu")
    assert cpu["memory_total"] >= cpu["memory_free"] > 2**20
