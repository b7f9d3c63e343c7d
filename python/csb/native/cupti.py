"""Names a pip-installed CUPTI to libcsb, which opens CUPTI by itself."""

from __future__ import annotations

import os
from pathlib import Path

from csb.native import wheels
from csb.native.library import build_info


def name_wheel() -> None:
    """Names the wheel's library in CSB_CUPTI_WHEEL, where csb.h looks after the loader's places."""
    if build_info()["hooks"]["cupti"]:
        found = installed(int(build_info()["cupti_api"]))
        if found is not None:
            os.environ.setdefault("CSB_CUPTI_WHEEL", str(found))


def installed(api: int) -> Path | None:
    """The library of the wheel nvidia-cuda-cupti for the CUDA of this CUPTI_API_VERSION."""
    return wheels.library(f"libcupti.so.{api // 10000 if api >= 130000 else 12}")
