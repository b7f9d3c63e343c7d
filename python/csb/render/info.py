"""`csb info` as text."""

from __future__ import annotations

from typing import Any

from csb.render.devices import about
from csb.render.text import harmless

ELSEWHERE = {
    "GGML_LSX": "loongarch",
    "GGML_LASX": "loongarch",
    "GGML_RV": "riscv",
    "GGML_VXE": "s390",
}


def render_info(info: dict[str, Any]) -> str:
    build, system = info["build"], info["system"]
    options = _in_force(build["options"], build["system"])
    on = sorted(k for k, v in options.items() if v == "ON")
    other = {k: v for k, v in sorted(options.items()) if v not in ("ON", "OFF", "")}
    cuda = build["cuda"]
    hooks = [name for name, there in build["hooks"].items() if there]
    lines = [
        ("csb", info["csb"]),
        ("llama.cpp", f"{system['llama_version']} {build['llama_commit']}"),
        ("pinned", "yes" if build["llama_commit"] == build["llama_pin"] else "no"),
        ("compiler", f"{build['compiler']}, {build['build_type']}, {build['cpu_flags']}"),
        ("GGML options on", " ".join(on)),
        ("GGML options", " ".join(f"{k}={v}" for k, v in other.items())),
        ("built for", " ".join(build["cpu_features"])),
        *([("AMX", f"left out: {build['amx_left_out']}")] if build["amx_left_out"] else []),
        *([("CUDA", f"{cuda}, for {build['cuda_architectures']}")] if cuda else []),
        ("llama.cpp sees", system["system_info"]),
        ("processor", f"{info['processor']['name']}, {info['processor']['physical_cores']} cores"),
        *(
            (
                "device",
                f"{d['name']} ({about(d)}), {d['type']}, {d['backend']}, "
                f"{d['memory_free'] / 2**30:.1f} of {d['memory_total'] / 2**30:.1f} GiB free",
            )
            for d in system["devices"]
        ),
        *(("missing", line) for line in info["missing_devices"]),
        ("hooks", ", ".join(hooks) or "none in this build"),
        ("switches", " ".join(f"{k}={v}" for k, v in info["switches"].items()) or "none set"),
        ("python", f"{info['python']} on {info['platform']}"),
    ]
    return "".join(f"{name + ':':<17}{harmless(str(value))}\n" for name, value in lines)


def _in_force(options: dict[str, str], system: str) -> dict[str, str]:
    """Without the options of backends that were not built, and without those of other processors,
    which ggml leaves on; the JSON has them all."""
    left_out = [f"{k}_" for k, v in options.items() if v == "OFF"]
    left_out += [prefix for prefix, processor in ELSEWHERE.items() if processor not in system]
    return {k: v for k, v in options.items() if not k.startswith(tuple(left_out))}
