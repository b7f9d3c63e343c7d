"""CUDA's own libraries: what a CUDA build needs before libcsb, and why it finds no device.

libcsb holds no path of the machine that built it, so the libraries it was linked with are opened
first: the dynamic linker then takes those.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from csb.errors import LibraryError
from csb.native import wheels

PACKAGES = {"libcudart": "nvidia-cuda-runtime"}  # the others are cuBLAS's


def preload(libraries: Sequence[str]) -> None:
    """Opens each of _build.json's cuda_libraries: the loader's, else the file that was linked, else
    a wheel's. LibraryError: one is missing, or can't be loaded."""
    for linked in libraries:
        name = Path(linked).name
        wheel = wheels.library(name)
        found, reason = False, ""
        for place in (name, linked, *([str(wheel)] if wheel else [])):
            try:
                ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError as error:
                if Path(place).exists():
                    found, reason = True, str(error)
        else:
            what = f"can't be loaded ({reason})" if found else "is not installed"
            raise LibraryError(
                f"{name} {what}, and csb was built with it: pip install '{requirement(name)}', or "
                "install that version of CUDA's toolkit"
            )


def requirement(name: str) -> str:
    """The wheel that has a library, as pip takes it: CUDA 12's packages have its number in their
    names."""
    stem, _, major = name.partition(".so.")
    package = PACKAGES.get(stem, "nvidia-cublas")
    return f"{package}-cu{major}" if int(major) < 13 else f"{package}=={major}.*"


def why_no_device(libraries: Sequence[str]) -> str:
    """Why the CUDA runtime that was preloaded gives no device, as a phrase."""
    runtime = next((Path(p).name for p in libraries if Path(p).name.startswith("libcudart")), None)
    if runtime is None:
        return "none was found"
    cudart = ctypes.CDLL(runtime)
    cudart.cudaGetErrorString.restype = ctypes.c_char_p
    driver, needed, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cudart.cudaDriverGetVersion(ctypes.byref(driver))
    cudart.cudaRuntimeGetVersion(ctypes.byref(needed))
    if driver.value == 0:
        return "NVIDIA's driver (libcuda.so.1) is not installed"
    if driver.value // 1000 < needed.value // 1000:
        return (
            f"NVIDIA's driver supports CUDA {_version(driver.value)}, and csb was built for CUDA "
            f"{_version(needed.value)}: install a newer driver"
        )
    status = cudart.cudaGetDeviceCount(ctypes.byref(count))
    reason = cudart.cudaGetErrorString(status).decode() if status else "llama.cpp lists none"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return reason if visible is None else f"{reason} (CUDA_VISIBLE_DEVICES={visible})"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
