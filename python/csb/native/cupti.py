"""Where a pip-installed CUPTI lies: the loader does not look into Python's packages."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from csb.native.library import build_info


def name_wheel() -> None:
    """Names the wheel's library in CSB_CUPTI_WHEEL, where csb.h looks after the loader's places."""
    if build_info()["hooks"]["cupti"]:
        found = installed(int(build_info()["cupti_api"]))
        if found is not None:
            os.environ.setdefault("CSB_CUPTI_WHEEL", str(found))


def installed(api: int) -> Path | None:
    """The library of the wheel nvidia-cuda-cupti for the CUDA of this CUPTI_API_VERSION."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    major = api // 10000 if api >= 130000 else 12
    for folder in folders or ():
        for path in sorted(Path(folder).glob(f"*/lib/libcupti.so.{major}")):
            return path
    return None
