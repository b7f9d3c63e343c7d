"""What a record says about the build and the machine, so that no number stands alone."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import csb
from csb.native.devices import missing, system
from csb.native.library import SET_BY_CSB, build_info

# Environment variables that change what llama.cpp, its backends or their threads compute.
_PREFIXES = (
    *("GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_", "CUDA_", "HIP_", "VK_"),
    *("NVIDIA_", "CUBLAS_", "HSA_", "ROCR_", "SYCL_", "ONEAPI_", "MESA_", "RADV_", "LP_"),
    *("OPENBLAS_", "GOTO_", "BLIS_", "MKL_"),
)


def switches() -> dict[str, str]:
    """Environment switches in force. Taken before the library reads them."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES) and value != SET_BY_CSB
    }


def environment() -> dict[str, Any]:
    """Build, machine, devices and the time as plain data. Memory in bytes."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "csb": csb.__version__,
        "build": build_info(),
        "system": system(),
        "missing_devices": missing(),
        "switches": switches(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
    }


def _processor() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"name": name, "cores": os.cpu_count(), "physical_cores": physical_cores()}


def physical_cores() -> int:
    """Cores this process may run on, hyperthreads of one core counted once: llama.cpp's -t."""
    allowed = (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )
    siblings = set()
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text("ascii").strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))
