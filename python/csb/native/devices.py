"""Devices that this build could use and this machine does not give it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from csb.native.library import build_info, system_info

VULKAN_OFF = "GGML_DISABLE_VULKAN"


def missing() -> list[str]:
    """A line for each backend of this build that has no device here, with the reason; none for what
    a switch turns off. Empty for a CPU build, without loading the library."""
    build = build_info()
    lines = []
    if build["options"].get("GGML_CUDA") == "ON" and not _there("CUDA"):
        from csb.native.cuda import why_no_device

        lines.append(f"no CUDA device: {why_no_device(build['cuda_libraries'])}")
    vulkan = build["options"].get("GGML_VULKAN") == "ON" and not switched_off()
    if vulkan and not _there("Vulkan"):
        lines.append(f"no Vulkan device: {why_no_vulkan(system_info().get('vulkan'), os.environ)}")
    return lines


def system() -> dict[str, Any]:
    """What csb_library_system says, and what only CUDA's own libraries say of its devices."""
    found, build = system_info(), build_info()
    if build["options"].get("GGML_CUDA") == "ON":
        from csb.native import cuda

        libraries = build["cuda_libraries"]
        found["cuda"] = cuda.versions(libraries)
        for device in found["devices"]:
            if device["backend"] == "CUDA":
                device |= cuda.describe(libraries, device["id"])
    return found


def switched_off() -> list[str]:
    """A line for each backend of this build whose devices a variable turns off."""
    built = build_info()["options"].get("GGML_VULKAN") == "ON"
    return [f"no Vulkan device: {VULKAN_OFF} is set"] if built and VULKAN_OFF in os.environ else []


def _there(backend: str) -> bool:
    return any(d["backend"] == backend for d in system_info()["devices"])


def why_no_vulkan(found: dict[str, Any] | None, switches: Mapping[str, str]) -> str:
    """Why llama.cpp has no Vulkan device, as a phrase. `found`: csb_library_system's "vulkan", None
    where this system's csb does not look."""
    if found is None:
        return "none was found"
    if "No such file" in found["loader_error"]:
        return "its loader (libvulkan.so.1) is not installed; Debian's package libvulkan1 has it"
    if found["loader_error"]:
        return f"its loader can't be opened ({found['loader_error']})"
    if found["error"] == "no driver":
        return "no driver is installed; Debian's package mesa-vulkan-drivers has free ones"
    if found["error"]:
        return f"its loader fails ({found['error']})"
    here = ", ".join(f"{i} {d['name']}" for i, d in enumerate(found["devices"]))
    visible = switches.get("GGML_VK_VISIBLE_DEVICES")
    if visible is not None:
        return f"GGML_VK_VISIBLE_DEVICES={visible} names none that can be used of {here}"
    return f"llama.cpp takes none of {here}; GGML_VK_VISIBLE_DEVICES=0 makes it take the first"
