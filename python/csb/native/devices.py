"""Devices that this build could use and this machine does not give it."""

from __future__ import annotations

from csb.native.library import build_info, system_info


def missing() -> list[str]:
    """A line for each backend of this build that has no device here, with the reason. Empty for a
    CPU build, without loading the library."""
    build = build_info()
    if build["options"].get("GGML_CUDA") != "ON":
        return []
    if any(d["backend"] == "CUDA" for d in system_info()["devices"]):
        return []
    from csb.native.cuda import why_no_device

    return [f"no CUDA device: {why_no_device(build['cuda_libraries'])}"]
