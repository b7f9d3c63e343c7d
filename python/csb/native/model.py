"""A loaded GGUF model: vocabulary, metadata, description."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from csb.errors import ArgumentError
from csb.native import checks
from csb.native.handle import Handle
from csb.native.library import c_options, library, load


class Model(Handle):
    """A GGUF file opened by llama.cpp.

    Options (None: llama.cpp's default): n_gpu_layers (-1 all), devices (names joined by commas,
    "none" for the CPU alone), split_mode ("none", "layer", "row"), main_gpu, tensor_split (numbers
    joined by commas), use_extra_bufts (repacked weights), use_mmap, check_tensors, draft (a DFlash
    draft, for csb.native.draft). library_file: another libcsb than the installed one, for this
    model and what is made from it.

    Raises FileError (missing, no GGUF, cut short), UnsupportedError (no decoder), DeviceError (no
    room for the weights), ArgumentError (a bad option). Source: csb_model_open.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int | None = None,
        devices: str | None = None,
        split_mode: str | None = None,
        main_gpu: int | None = None,
        tensor_split: str | None = None,
        use_extra_bufts: bool | None = None,
        use_mmap: bool | None = None,
        check_tensors: bool | None = None,
        draft: bool | None = None,
        library_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.lib = library() if library_file is None else load(Path(library_file))
        self._close = self.lib.csb_model_close
        self.path = Path(path)
        options = c_options(
            {
                "n_gpu_layers": n_gpu_layers,
                "devices": devices,
                "split_mode": split_mode,
                "main_gpu": main_gpu,
                "tensor_split": tensor_split,
                "use_extra_bufts": use_extra_bufts,
                "use_mmap": use_mmap,
                "check_tensors": check_tensors,
                "draft": draft,
            }
        )
        pointer = ctypes.c_void_p()
        file = checks.text(os.fsencode(path), "path")
        self.lib.csb_model_open(file, *options, ctypes.byref(pointer))
        self._pointer = pointer

    def _text(self, function: str, *arguments: Any) -> str | None:
        answer = ctypes.c_char_p()
        getattr(self.lib, function)(self.pointer, *arguments, ctypes.byref(answer))
        return None if answer.value is None else answer.value.decode("utf-8", "backslashreplace")

    @functools.cached_property
    def info(self) -> dict[str, Any]:
        """What csb_model_describe says: architecture, sizes in bytes, token ids, flags."""
        info: dict[str, Any] = json.loads(self._text("csb_model_describe") or "{}")
        return info

    @property
    def files(self) -> list[Path]:
        """The file, or all parts of a split model in order."""
        part = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", self.path.name)
        if not part:
            return [self.path]
        stem, n = part[1], int(part[2])
        return [self.path.with_name(f"{stem}-{i:05}-of-{n:05}.gguf") for i in range(1, n + 1)]

    @property
    def n_vocab(self) -> int:
        return int(self.info["n_vocab"])

    @property
    def chat_template(self) -> str | None:
        """The Jinja text in the file, None if there is none."""
        return self._text("csb_model_chat_template")

    def metadata(self, key: str) -> str:
        """A metadata value as text. ArgumentError if the model has no such key."""
        return self._text("csb_model_metadata", checks.text(key, "key")) or ""

    def tokenize(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids. add_special: with BOS where the model wants it; parse_special: read the
        text's <|...|> as special tokens. UnsupportedError if the model has no tokenizer."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ArgumentError(f"text is no valid Unicode: {error.reason}") from None
        buffer = _grow(
            np.int32,
            len(data) + 8,
            lambda capacity, out, n: self.lib.csb_model_tokenize(
                self.pointer,
                data,
                len(data),
                int(add_special),
                int(parse_special),
                capacity,
                out,
                n,
            ),
        )
        return [int(t) for t in buffer]

    def detokenize(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """The tokens' bytes, not always valid UTF-8. special: spell special tokens out."""
        ids = checks.whole_array(tokens, "tokens")
        return _grow(
            np.uint8,
            16 * len(ids) + 16,
            lambda capacity, out, n: self.lib.csb_model_detokenize(
                self.pointer, ids, len(ids), int(special), capacity, out, n
            ),
        ).tobytes()

    def piece(self, token: int) -> bytes:
        """The token's bytes as it stands in a text, special tokens spelled out."""
        return _grow(
            np.uint8,
            64,
            lambda capacity, out, n: self.lib.csb_model_token_piece(
                self.pointer, checks.whole(token, "token"), capacity, out, n
            ),
        ).tobytes()

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation. Never, for a model without a tokenizer."""
        answer = ctypes.c_int32()
        self.lib.csb_model_token_is_eog(
            self.pointer, checks.whole(token, "token"), ctypes.byref(answer)
        )
        return bool(answer.value)


def _grow(
    dtype: Any, capacity: int, call: Callable[[int, Any, Any], object]
) -> np.ndarray[Any, Any]:
    """Calls with a buffer and, if the answer is longer than it, once more with one that fits."""
    while True:
        buffer = np.empty(capacity, dtype=dtype)
        n = ctypes.c_int32()
        call(capacity, buffer.ctypes.data, ctypes.byref(n))
        if n.value <= capacity:
            return buffer[: n.value]
        capacity = n.value
