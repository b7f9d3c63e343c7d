"""`--save-logits`: every row of both paths in one npz, written window by window."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from csb.errors import FileError
from csb.native.context import Rows
from csb.plan import Window
from csb.render.text import harmless


class LogitsFile:
    """Arrays prompt_tokens, and for each window t: inputs_T, single_T, block_T (float32 [rows,
    n_vocab]), T of five digits. Written as they come, so memory does not grow with the run; the
    file is begun with the first window, so a run that ends before it leaves what was there."""

    def __init__(self, path: Path | None, prompt: Sequence[int]) -> None:
        self._path, self._prompt = path, prompt
        self._zip: zipfile.ZipFile | None = None

    def __enter__(self) -> LogitsFile:
        return self

    def add(self, window: Window, single: Rows, block: Rows) -> None:
        if self._path is None:
            return
        with self._errors():
            if self._zip is None:
                self._zip = zipfile.ZipFile(self._path, "w", allowZip64=True)
                self._put("prompt_tokens", np.asarray(self._prompt, np.int32))
            self._put(f"inputs_{window.t:05}", np.asarray(window.inputs, np.int32))
            self._put(f"single_{window.t:05}", single)
            self._put(f"block_{window.t:05}", block)

    def _put(self, name: str, array: np.ndarray) -> None:
        assert self._zip is not None
        with self._zip.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(
                f"--save-logits {harmless(str(self._path))}: {error.strerror}"
            ) from error

    def __exit__(self, *exception: object) -> None:
        if self._zip is not None:
            with self._errors():
                self._zip.close()
