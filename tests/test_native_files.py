"""Files that can't be opened or quantized: the right exception, one line that names the file."""

import os
import re
import shutil

import csb
import numpy as np
import pytest
import tiny
from csb.errors import ArgumentError, CsbError, FileError, UnsupportedError
from csb.native.library import quantize
from gguf import GGUFReader, GGUFWriter

pytestmark = pytest.mark.native


def refused(kind, said, path, call=csb.Model):
    with pytest.raises(CsbError, match=re.escape(f"{path}: {said}")) as caught:
        call(path)
    assert type(caught.value) is kind
    assert len(str(caught.value).splitlines()) == 1


def refused_by_both(kind, said, path, tmp_path):
    refused(kind, said, path)
    target = tmp_path / "quantized.gguf"
    refused(kind, said, path, lambda p: quantize(p, target, "q8_0"))
    assert not target.exists()


@pytest.fixture(params=["folder", "empty", "text", "short", "fifo", "missing"])
def no_model(request, tmp_path):
    path = tmp_path / "model.gguf"
    match request.param:
        case "folder":
            path.mkdir()
            return path, "is a folder, not a GGUF file"
        case "empty":
            path.touch()
            return path, "is empty"
        case "text":
            path.write_text("<html>\nnot found")
            return path, 'is no GGUF file (it starts with "<htm")'
        case "short":
            path.write_bytes(b"GG\n")
            return path, 'is no GGUF file (it starts with "GG.")'
        case "fifo":
            os.mkfifo(path)
            return path, "is not a regular file"
    return path, "No such file or directory"


def test_what_is_no_model(no_model, tmp_path):
    refused_by_both(FileError, no_model[1], no_model[0], tmp_path)


def test_a_file_of_another_byte_order_or_version(tiny_model, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model().read_bytes()[:4] + b"\0\0\0\x03" * 100)
    refused_by_both(FileError, "is cut short or damaged (", path, tmp_path)


def test_a_header_cut_anywhere(tiny_model, tmp_path):
    whole = tiny_model(tokenizer="bpe")
    header = GGUFReader(whole).data_offset
    path = tmp_path / "cut.gguf"
    cuts = {5, 8, 16, 23, 24, 25, *range(30, 300, 7), *range(300, header, 401), header - 1}
    for n in sorted(cuts):
        tiny.truncate(whole, path, n)
        refused(FileError, "is cut short", path)


def test_data_cut_anywhere(tiny_model, tmp_path):
    whole = tiny_model()
    header = GGUFReader(whole).data_offset
    path = tmp_path / "cut.gguf"
    size = whole.stat().st_size
    for n in (header, header + 1, (header + size) // 2, size - 1):
        tiny.truncate(whole, path, n)
        refused_by_both(FileError, f"is cut short ({n} bytes of {size})", path, tmp_path)


def test_a_vocabulary_alone(tmp_path):
    path = tiny.vocab_only(tmp_path / "vocab.gguf")
    refused_by_both(FileError, "holds a vocabulary and no weights", path, tmp_path)


def test_an_encoder(tiny_model):
    refused(UnsupportedError, "attends in both directions: it is no decoder", tiny_model("bert"))


def test_an_unknown_architecture(tmp_path):
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "no\nsuch")
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    tiny._finish(writer, path)
    refused(UnsupportedError, "llama.cpp can't load it: llama_model_load: error loading", path)
    with pytest.raises(UnsupportedError, match=r"unknown model architecture: 'no.such'"):
        csb.Model(path)


def test_a_vocabulary_with_a_token_twice(tiny_model, tmp_path):
    path = tmp_path / "model.gguf"
    data = tiny_model(tokenizer="bpe").read_bytes()
    path.write_bytes(data.replace("\u0120w300".encode(), "\u0120w301".encode(), 1))
    said = "is damaged (its vocabulary has a token twice: ..w301)"
    refused_by_both(FileError, said, path, tmp_path)


def test_a_missing_tensor(tiny_model, tmp_path):
    path = tmp_path / "model.gguf"
    reader, writer = GGUFReader(tiny_model()), GGUFWriter(path, "llama")
    tiny._copy_keys(reader, writer)
    for tensor in reader.tensors:
        if tensor.name != "blk.2.attn_k.weight":
            writer.add_tensor(tensor.name, tensor.data)
    tiny._finish(writer, path)
    with pytest.raises(FileError, match=r"model\.gguf: .*'blk\.2\.attn_k\.weight' not found"):
        csb.Model(path)


def test_a_name_with_control_characters(tmp_path):
    with pytest.raises(FileError) as caught:
        csb.Model(tmp_path / "two\nlines\x1b[31m.gguf")
    assert str(caught.value) == f"{tmp_path}/two\\x0alines\\x1b[31m.gguf: No such file or directory"


def test_a_name_that_is_no_unicode(tiny_model, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf")
    with pytest.raises(FileError, match=r"/caf\\xe9\.gguf: No such file"):
        csb.Model(path)
    shutil.copy(tiny_model(), path)
    with csb.Model(path) as model:
        assert model.n_vocab == 512


def test_a_name_with_a_nul(tiny_model):
    with pytest.raises(ArgumentError, match="must not contain a NUL"):
        csb.Model(f"{tiny_model()}\0.gguf")


@pytest.fixture
def parts(tiny_model, tmp_path):
    return tiny.split(tiny_model(), tmp_path / "split", 3)


def test_a_split_model(parts, tiny_model):
    rows = []
    for path in (parts[0], tiny_model()):
        with csb.Model(path) as model, csb.Context(model, n_ctx=256, n_threads=1) as context:
            context.decode([1], 0)
            rows.append(context.logits())
    np.testing.assert_array_equal(rows[0].view(np.uint32), rows[1].view(np.uint32))


def test_a_first_part_without_tensors(parts, tmp_path):
    prefix, reader = tmp_path / "meta", GGUFReader(parts[0])
    writer = GGUFWriter(f"{prefix}-00001-of-00004.gguf", "llama")
    tiny._copy_keys(reader, writer)
    for kv in writer.kv_data[0].items():
        if kv[0] == "split.count":
            kv[1].value = 4
    tiny._finish(writer, tmp_path / "meta-00001-of-00004.gguf")
    for i, part in enumerate(parts):
        reader = GGUFReader(part)
        path = tmp_path / f"meta-0000{i + 2}-of-00004.gguf"
        writer = GGUFWriter(path, "llama")
        writer.add_uint16("split.no", i + 1)
        writer.add_uint16("split.count", 4)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        tiny._finish(writer, path)
    with csb.Model(tmp_path / "meta-00001-of-00004.gguf") as model:
        assert model.info["n_layer"] == 4


def test_another_part_than_the_first(parts):
    with pytest.raises(FileError, match=r"split-00002-of-00003\.gguf: .*illegal split file idx"):
        csb.Model(parts[1])


def test_a_missing_part(parts):
    parts[2].unlink()
    with pytest.raises(FileError, match=r"split-00001-of-00003\.gguf: .*00003-of-00003"):
        csb.Model(parts[0])


@pytest.mark.parametrize("n", [100, -1])
def test_a_part_cut_short(parts, n):
    tiny.truncate(parts[1], parts[1], n)
    with pytest.raises(FileError, match=r"split-00001-of-00003\.gguf: llama\.cpp can't load it: "):
        csb.Model(parts[0])


def test_a_part_under_another_name(parts, tmp_path):
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    refused(FileError, "llama.cpp can't load it: llama_model_load: error loading", renamed)


def test_the_quantizer_can_not_write(tiny_model, tmp_path):
    target = tmp_path / "no" / "such" / "folder.gguf"
    with pytest.raises(FileError, match="can't be quantized"):
        quantize(tiny_model(), target, "q8_0")


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0", "q4_k_m", "iq4_nl", "Q6_K"])
def test_quantizing(tiny_model, tmp_path, kind):
    target = tmp_path / "out.gguf"
    quantize(tiny_model(), target, kind, pure=True)
    matrices = {t.tensor_type.name for t in GGUFReader(target).tensors if len(t.shape) == 2}
    assert matrices == {{"q4_k_m": "Q4_K"}.get(kind, kind.upper())}
    again = tmp_path / "again.gguf"
    quantize(target, again, "bf16", threads=1)  # requantizing is allowed
    with csb.Model(again) as model:
        assert model.info["n_layer"] == 4
