"""CUDA's own libraries: what a CUDA build needs before libcsb, what they are, and why they find no
device.

libcsb holds no path of the machine that built it, so the libraries it was linked with are opened
first: the dynamic linker then takes those.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from csb.errors import LibraryError
from csb.native import wheels

CAPABILITY = (75, 76)  # cudaDevAttrComputeCapabilityMajor, ...Minor
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
    cudart = _opened(libraries, "libcudart")
    if cudart is None:
        return "none was found"
    cudart.cudaGetErrorString.restype = ctypes.c_char_p
    driver, needed = _asked(cudart.cudaDriverGetVersion), _asked(cudart.cudaRuntimeGetVersion)
    if driver == 0:
        return "NVIDIA's driver (libcuda.so.1) is not installed"
    if driver // 1000 < needed // 1000:
        return (
            f"NVIDIA's driver supports CUDA {_version(driver)}, and csb was built for CUDA "
            f"{_version(needed)}: install a newer driver"
        )
    count = ctypes.c_int()
    status = cudart.cudaGetDeviceCount(ctypes.byref(count))
    reason = cudart.cudaGetErrorString(status).decode() if status else "llama.cpp lists none"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return reason if visible is None else f"{reason} (CUDA_VISIBLE_DEVICES={visible})"


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """Of what was preloaded, whatever csb was linked with: {"runtime", "driver": the CUDA that it
    supports, "kernel_module", "cublas"}, without those that can't be told."""
    found = {"kernel_module": _kernel_module()}
    if cudart := _opened(libraries, "libcudart"):
        found["runtime"] = _version(_asked(cudart.cudaRuntimeGetVersion))
        found["driver"] = _version(_asked(cudart.cudaDriverGetVersion))
    if cublas := _opened(libraries, "libcublas"):
        parts = [_asked(cublas.cublasGetProperty, part, ...) for part in range(3)]
        found["cublas"] = ".".join(map(str, parts))
    return {name: version for name, version in found.items() if version not in ("", "0.0")}


def describe(libraries: Sequence[str], pci_id: str | None) -> dict[str, str]:
    """{"driver", "api": the compute capability} of the device at that PCI bus id; {} where the
    runtime knows none there."""
    cudart, device = _opened(libraries, "libcudart"), ctypes.c_int()
    if cudart is None or pci_id is None:
        return {}
    if cudart.cudaDeviceGetByPCIBusId(ctypes.byref(device), pci_id.encode()):
        return {}
    major, minor = (_asked(cudart.cudaDeviceGetAttribute, ..., n, device) for n in CAPABILITY)
    module, driver = _kernel_module(), _version(_asked(cudart.cudaDriverGetVersion))
    return {
        "driver": f"NVIDIA {module} (CUDA {driver})" if module else f"NVIDIA (CUDA {driver})",
        "api": f"compute capability {major}.{minor}",
    }


def _opened(libraries: Sequence[str], stem: str) -> ctypes.CDLL | None:
    """That one of the preloaded libraries."""
    names = (Path(p).name for p in libraries)
    found = next((name for name in names if name.startswith(f"{stem}.so")), None)
    return None if found is None else ctypes.CDLL(found)


def _asked(function: Callable[..., int], *arguments: object) -> int:
    """The number that a C function writes to where an argument is `...` (its only one, if there are
    none); 0 if it fails."""
    number = ctypes.c_int()
    passed = [ctypes.byref(number) if a is ... else a for a in arguments or (...,)]
    return 0 if function(*passed) else number.value


def _kernel_module(said: Path = Path("/proc/driver/nvidia/version")) -> str:
    try:
        found = re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", said.read_text("utf-8", "replace"))
    except OSError:
        return ""
    return found[1] if found else ""


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
