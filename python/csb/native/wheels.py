"""Where NVIDIA's wheels keep their libraries: the loader does not look into Python's packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def library(name: str) -> Path | None:
    """The file of that name in an installed wheel: nvidia/cu13/lib, nvidia/cublas/lib ..."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob(f"*/lib/{name}")):
            return path
    return None
