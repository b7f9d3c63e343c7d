"""A model's weights as F32, in a file that is there for as long as it is needed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from csb.errors import UnsupportedError
from csb.exit_codes import Exit
from csb.models.hashing import cache_dir
from csb.native import net, worker
from csb.native.library import quantize
from csb.native.model import Model


@contextlib.contextmanager
def f32_file(model: Model, wanted_by: str) -> Iterator[Path]:
    """In the cache folder; the model's own if it has no other weights. UnsupportedError where the
    disk has no room for it."""
    if set(model.info["tensor_types"]) == {"f32"}:
        yield model.path
        return
    root = cache_dir()
    root.mkdir(parents=True, exist_ok=True)
    needed, free = 4 * int(model.info["n_params"]), shutil.disk_usage(root).free
    if needed > free:
        raise UnsupportedError(
            f"{wanted_by} writes the model as F32: {needed / 1e9:.1f} GB, {root} has "
            f"{free / 1e9:.1f} GB free (CSB_CACHE_DIR chooses another folder)"
        )
    with tempfile.TemporaryDirectory(prefix=".f32-", dir=root) as folder:
        path = Path(folder) / "f32.gguf"

        def stop() -> NoReturn:
            """llama.cpp's quantizer can't be stopped, so the process ends under it."""
            shutil.rmtree(folder, ignore_errors=True)
            net.leave(Exit.INTERRUPTED, "interrupted")

        worker.run(lambda: quantize(model.path, path, "f32"), stop)
        yield path
