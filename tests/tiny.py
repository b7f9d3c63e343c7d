"""Tiny random GGUF models for the tests: small enough to load in milliseconds, large enough
to take the real kernels (rows of 256, heads of 64).

The weights are random and the logits therefore flat: margins are small and flips many. A gap
on such a model proves that two paths differ, not how much they differ on a real one.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, TokenType
from tiny_archs import ARCHS, SHAPE, Arch, Value, sizes

Array = np.ndarray[Any, Any]

DTYPES = {
    "f32": (GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
}
KEEP_F32 = ("norm", "conv1d", ".conv.", "ffn_gate_inp", "position_embd", "token_types")
"""llama.cpp's converter keeps these in F32, with all that is 1-d or no `.weight`; some
kernels take nothing else."""

IM_START, IM_END, BOS, MERGED = 256, 257, 258, 259
"""Token ids of tokenizer="bpe"; the ids below 256 are the bytes themselves."""
SPECIALS = {IM_START: "<|im_start|>", IM_END: "<|im_end|>", BOS: "<|bos|>"}

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write(
    path: Path,
    arch: str = "llama",
    *,
    dtype: str = "f32",
    seed: int = 0,
    tokenizer: str | Path = "none",
    chat_template: str | None = None,
    bos: bool = False,
    eos: int = IM_END,
    sharp: float = 1.0,
    tie: tuple[int, int] | None = None,
    mask: int | None = None,
    keys: dict[str, Value | None] | None = None,
    tensors: dict[str, str] | None = None,
    values: dict[str, Array] | None = None,
    **shape: int,
) -> Path:
    """Write a model of one of ARCHS to `path` and return it. `shape` overrides sizes of SHAPE.

    sharp: scales the output head: margins grow, and gaps with them.
    tie: the output rows of these two tokens are identical, so that their logits tie exactly.
    eos: (bpe) the end-of-generation token; give it an id that the model generates to test
         how a run ends. With any other the text never ends: special tokens are never best.
    bos: (bpe) text is tokenized with a <|bos|> in front.
    tokenizer: none, bpe, or a file whose tokenizer is copied.
    mask: the id of the mask token that the file names.
    keys, tensors: in place of the architecture's own and beside them; None leaves a key out.
    values: tensors that are no noise.

    A tensor depends on seed, name and shape only: other options leave its values alone.
    """
    spec, dims = _resolve(arch, shape)
    if (tie or sharp != 1) and "output.weight" not in spec.top:
        raise ValueError(f"{arch} has no output head for sharp or tie")
    kept = {k: v for k, v in (spec.keys | (keys or {})).items() if v is not None}
    spec = replace(spec, keys=kept, top=spec.top | (tensors or {}))
    writer = _header(path, spec, dims, chat_template)
    _add_tokenizer(writer, tokenizer, dims["v"], bos, eos)
    if mask is not None:
        writer.add_mask_token_id(mask)
    quant, file_type = DTYPES[dtype]
    writer.add_file_type(file_type)
    never = tuple(SPECIALS) if tokenizer == "bpe" else ()
    for name, letters in _tensors(spec, dims):
        data = _values(name, tuple(dims[x] for x in letters.split()), seed)
        data = (values or {}).get(name, data)
        if name == "output.weight":
            data = _head(data, sharp, tie, never)
        if data.dtype == np.int64:
            writer.add_tensor(name, data)
            continue
        kind = GGMLQuantizationType.F32 if _keeps_f32(name, data) else quant
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    return _finish(writer, path)


def vocab_only(path: Path, *, bos: bool = False, chat_template: str | None = None) -> Path:
    """Write a GGUF with a tokenizer and no tensors, as llama.cpp's ggml-vocab-*.gguf are."""
    spec, dims = _resolve("llama", {})
    writer = _header(path, spec, dims, chat_template)
    _add_tokenizer(writer, "bpe", dims["v"], bos, IM_END)
    return _finish(writer, path)


def truncate(src: Path, dst: Path, n_bytes: int) -> Path:
    """Copy the first `n_bytes` of `src`; a negative number leaves out that many at the end."""
    dst.write_bytes(src.read_bytes()[:n_bytes])
    return dst


def split(src: Path, prefix: Path, parts: int) -> list[Path]:
    """Split a model into PREFIX-0000i-of-0000N.gguf as gguf-split does; load the first."""
    reader = GGUFReader(src)
    arch = reader.fields["general.architecture"].contents()
    paths = [Path(f"{prefix}-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for i, some in enumerate(np.array_split(np.arange(len(reader.tensors)), parts)):
        writer = GGUFWriter(paths[i], arch)
        if i == 0:
            _copy_keys(reader, writer)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in (reader.tensors[j] for j in some):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        _finish(writer, paths[i])
    return paths


def _resolve(arch: str, shape: dict[str, int]) -> tuple[Arch, dict[str, int]]:
    spec = ARCHS[arch]
    if unknown := shape.keys() - SHAPE.keys():
        raise TypeError(f"no such size: {', '.join(sorted(unknown))}; there are {', '.join(SHAPE)}")
    dims = sizes(SHAPE | spec.defaults | shape)
    if dims["l"] < len(spec.cycle):  # llama_decode aborts on a hybrid without attention
        raise ValueError(f"{arch} has {len(spec.cycle)} kinds of layers and n_layer {dims['l']}")
    return spec, dims


def _header(path: Path, spec: Arch, dims: dict[str, int], chat_template: str | None) -> GGUFWriter:
    writer = GGUFWriter(path, spec.name)
    writer.add_name(f"tiny {spec.name}")
    for key, raw in spec.keys.items():
        value = raw(dims) if callable(raw) else dims[raw] if isinstance(raw, str) else raw
        _add_key(writer, f"{spec.name}.{key}", value)
    if spec.name == "bert":  # the loader wants it even where there is no tokenizer
        writer.add_token_type_count(dims["2"])
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    return writer


def _add_key(writer: GGUFWriter, key: str, value: Value) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case list():
            writer.add_array(key, value)


def _add_tokenizer(writer: GGUFWriter, kind: str | Path, n_vocab: int, bos: bool, eos: int) -> None:
    if isinstance(kind, Path):
        _copy_keys(GGUFReader(kind), writer, "tokenizer.")
    elif kind == "bpe":
        _add_bpe(writer, n_vocab, bos, eos)
    elif kind == "none":
        writer.add_tokenizer_model("none")
    else:
        raise ValueError(f"tokenizer is none or bpe, not {kind}")


def _add_bpe(writer: GGUFWriter, n_vocab: int, bos: bool, eos: int) -> None:
    """Bytes, special tokens, then readable fillers that no merge can reach.

    The loader insists on merges. The only one joins two bytes that valid UTF-8 never has, so a
    text's tokens are exactly its UTF-8 bytes, and tests need no tokenizer to know them.
    """
    tokens = [*_byte_letters(), *SPECIALS.values(), _byte_letters()[0xFF] * 2]
    if n_vocab < len(tokens):
        raise ValueError(f"a bpe vocabulary has at least {len(tokens)} tokens, not {n_vocab}")
    tokens += [f"Ġw{i}" for i in range(len(tokens), n_vocab)]
    types = [TokenType.CONTROL if i in SPECIALS else TokenType.NORMAL for i in range(n_vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(tokens[MERGED])])
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(bos)
    if bos:
        writer.add_bos_token_id(BOS)


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself, or one from U+0100 on, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [b for b in range(256) if b not in printable]
    return [chr(b if b in printable else 0x100 + hidden.index(b)) for b in range(256)]


def _tensors(spec: Arch, dims: dict[str, int]) -> list[tuple[str, str]]:
    layers = [(f"blk.{i}.{n}", s) for i in range(dims["l"]) for n, s in spec.layer(i).items()]
    return [*spec.top.items(), *layers]


def _values(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """Random weights that keep activations of order one, each tensor with its own stream."""
    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, "f4")
    if name.endswith(("norm.weight", "ssm_d")):
        return 1 + noise / 10
    if name.endswith("ssm_a"):  # decay rates are negative
        return np.broadcast_to(-np.arange(1, shape[-1] + 1, dtype="f4"), shape).copy()
    if name.endswith("ssm_dt.bias"):  # softplus turns it into time steps of about 0.1
        return noise / 2 - 2
    if name.endswith(("conv1d.weight", ".conv.weight")):
        return noise / 2
    # larger embeddings let the last token matter more: greedy text repeats itself less
    return noise * np.float32(0.3 if name == "token_embd.weight" else 0.06)


def _head(data: Array, sharp: float, tie: tuple[int, int] | None, never: tuple[int, ...]) -> Array:
    data[list(never)] = 0  # a logit of 0 is never the best of hundreds
    if tie:
        data[tie[1]] = data[tie[0]]
    return data * np.float32(sharp)


def _keeps_f32(name: str, data: Array) -> bool:
    plain = data.ndim == 1 or not name.endswith(".weight")
    return plain or any(part in name for part in KEEP_F32)


def _copy_keys(reader: GGUFReader, writer: GGUFWriter, beginning: str = "") -> None:
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":  # the writer makes these
            continue
        if not key.startswith(beginning):
            continue
        sub_type = value.types[-1] if value.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value.contents(), value.types[0], sub_type)


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
