"""What a CUDA build needs of the machine, with planted libraries: no CUDA is needed."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TinyModel
from csb import provenance
from csb.errors import LibraryError, UnsupportedError
from csb.native import cuda, devices, library, wheels
from csb.render.info import render_info
from process import SHORT, Run

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only there are libraries opened first")
CUDA_13 = ["/built/lib64/libcudart.so.13", "/built/lib/libcublasLt.so.13", "/w/libcublas.so.13"]
NOBODY_S = "libcsbcuda"  # no machine has it: neither the loader nor a wheel can find one


def plant(path: Path, source: str) -> Path:
    """A shared library compiled from C."""
    if not shutil.which("cc"):
        pytest.fail("needs a C compiler, as building csb does")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", text, "-o", path], check=True)
    return path


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that Python takes for the wheels' package `nvidia`, empty at first."""
    folder = tmp_path / "site-packages" / "nvidia"
    folder.mkdir(parents=True)
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    return folder


def said(libraries: list[str]) -> str:
    with pytest.raises(LibraryError) as caught:
        cuda.preload(libraries)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("libcudart.so.13", "nvidia-cuda-runtime==13.*"),
        ("libcublasLt.so.13", "nvidia-cublas==13.*"),
        ("libcublas.so.14", "nvidia-cublas==14.*"),
        ("libcudart.so.12", "nvidia-cuda-runtime-cu12"),
        ("libcublas.so.12", "nvidia-cublas-cu12"),
    ],
)
def test_the_package_that_has_a_library(name: str, package: str) -> None:
    assert cuda.requirement(name) == package


@LINUX
def test_a_missing_library_is_one_line(packages: Path) -> None:
    assert said([f"/built/{NOBODY_S}.so.13"]) == (
        f"{NOBODY_S}.so.13 is not installed, and csb was built with it: pip install "
        "'nvidia-cublas==13.*', or install that version of CUDA's toolkit"
    )


@LINUX
@pytest.mark.parametrize("where", ["wheel", "linked"])
def test_a_broken_library_says_the_loader_s_reason(packages: Path, where: str) -> None:
    folder = packages / "cu13" / "lib" if where == "wheel" else packages.parent
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NOBODY_S}.so.13"
    path.write_text("no library")
    linked = "/built" if where == "wheel" else folder
    line = said([f"{linked}/{NOBODY_S}.so.13"])
    assert line.startswith(f"{NOBODY_S}.so.13 can't be loaded ({path}: ")
    assert "pip install 'nvidia-cublas==13.*'" in line


@LINUX
def test_the_linked_file_comes_before_the_wheel(packages: Path, tmp_path: Path) -> None:
    """Both are global afterwards, as libcsb's own references need them."""
    name = f"{NOBODY_S}.so.21"
    linked = plant(tmp_path / name, "int planted_which(void) { return 1; }")
    wheel = plant(packages / "cu21" / "lib" / name, "int planted_which(void) { return 2; }")
    assert wheels.library(name) == wheel
    cuda.preload([str(linked)])
    assert ctypes.CDLL(None).planted_which() == 1


@LINUX
def test_a_wheel_s_library_is_found_and_global(packages: Path) -> None:
    name = f"{NOBODY_S}.so.22"
    plant(packages / "cublas" / "lib" / name, "int planted_wheel(void) { return 3; }")
    cuda.preload([f"/built/{name}"])
    assert ctypes.CDLL(None).planted_wheel() == 3


@LINUX
def test_what_the_loader_finds_comes_first(tmp_path: Path) -> None:
    name = f"{NOBODY_S}.so.13"
    plant(tmp_path / "system" / name, "int planted_which(void) { return 1; }")
    linked = plant(tmp_path / "built" / name, "int planted_which(void) { return 2; }")
    script = (
        f"import ctypes; from csb.native.cuda import preload; preload([{str(linked)!r}]);"
        "raise SystemExit(ctypes.CDLL(None).planted_which())"
    )
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "system")}
    assert subprocess.run([sys.executable, "-c", script], env=environment).returncode == 1


@LINUX
@pytest.mark.native
def test_libcsb_is_not_opened_without_them(
    monkeypatch: pytest.MonkeyPatch, packages: Path, tmp_path: Path
) -> None:
    build = library.build_info() | {"cuda_libraries": [f"/built/{NOBODY_S}.so.13"]}
    monkeypatch.setattr(library, "build_info", lambda: build)
    with pytest.raises(LibraryError, match=f"^{NOBODY_S}.so.13 is not installed"):
        library.load(tmp_path / "libcsb.so")


def cudart(path: Path, driver: int, runtime: int, status: int) -> Path:
    return plant(
        path,
        f"""int cudaDriverGetVersion(int * v) {{ *v = {driver}; return 0; }}
        int cudaRuntimeGetVersion(int * v) {{ *v = {runtime}; return 0; }}
        int cudaGetDeviceCount(int * n) {{ *n = {0 if status else 2}; return {status}; }}
        const char * cudaGetErrorString(int s) {{ return s == 100 ? "no device" : "other"; }}""",
    )


@LINUX
@pytest.mark.parametrize(
    ("driver", "runtime", "status", "visible", "reason"),
    [
        (0, 13000, 35, None, "NVIDIA's driver (libcuda.so.1) is not installed"),
        (
            12040,
            13020,
            35,
            None,
            "NVIDIA's driver supports CUDA 12.4, and csb was built for CUDA 13.2: install a newer "
            "driver",
        ),
        (13000, 13020, 100, None, "no device"),
        (13000, 13000, 100, "", "no device (CUDA_VISIBLE_DEVICES=)"),
        (13010, 12080, 0, None, "llama.cpp lists none"),
    ],
)
def test_why_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    driver: int,
    runtime: int,
    status: int,
    visible: str | None,
    reason: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    path = cudart(tmp_path / "libcudart.so.13", driver, runtime, status)
    open_it = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: open_it(str(tmp_path / name)))
    assert cuda.why_no_device([f"/built/{path.name}", *CUDA_13[1:]]) == reason


def test_a_static_cuda_has_no_runtime_to_ask() -> None:
    assert cuda.why_no_device([]) == "none was found"
    assert cuda.describe([], "0000:01:00.0") == {}


@LINUX
def test_what_cuda_says_of_a_device(
    monkeypatch: pytest.MonkeyPatch, lists: Lists, tmp_path: Path
) -> None:
    """Name, driver and compute capability: the runtime's second device is the one at that place."""
    plant(
        tmp_path / "libcudart.so.13",
        """#include <string.h>
        int cudaDriverGetVersion(int * v) { *v = 13010; return 0; }
        int cudaRuntimeGetVersion(int * v) { *v = 13000; return 0; }
        int cudaDeviceGetByPCIBusId(int * d, const char * id) {
            *d = 1; return strcmp(id, "0000:c1:00.0") ? 1 : 0; }
        int cudaDeviceGetAttribute(int * v, int attribute, int device) {
            *v = attribute == 75 ? 8 + device : attribute == 76 ? 0 : -1; return 0; }""",
    )
    plant(
        tmp_path / "libcublas.so.13",
        "int cublasGetProperty(int part, int * v) { *v = 13 - 6 * part; return 0; }",
    )
    open_it = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: open_it(str(tmp_path / name)))
    monkeypatch.setattr(cuda, "_kernel_module", lambda: "580.65.06")
    lists("ON", ["CUDA", "CUDA", "CPU"])
    system = devices.system_info()
    for device, place in zip(
        system["devices"], ("0000:c1:00.0", "0000:01:00.0", None), strict=True
    ):
        device["id"] = place
    found = devices.system()
    assert found["cuda"] == {
        "kernel_module": "580.65.06",
        "runtime": "13.0",
        "driver": "13.1",
        "cublas": "13.7.1",
    }
    first, other, host = found["devices"]
    assert first["driver"] == "NVIDIA 580.65.06 (CUDA 13.1)"
    assert first["api"] == "compute capability 9.0"
    assert "api" not in other and "api" not in host


@pytest.mark.parametrize(
    "said",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:14:52 UTC 2025\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)\n",
    ],
)
def test_the_kernel_module(tmp_path: Path, said: str) -> None:
    (tmp_path / "version").write_text(said + "GCC version:  gcc version 12.2.0\n")
    assert cuda._kernel_module(tmp_path / "version") == "580.65.06"
    assert cuda._kernel_module(tmp_path / "none") == ""


Lists = Callable[[str, list[str]], None]


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Lists:
    """A build with GGML_CUDA as given, on a machine where devices of these backends are listed."""

    def plant_build(cuda_option: str, backends: list[str]) -> None:
        build = {"options": {"GGML_CUDA": cuda_option}, "cuda_libraries": CUDA_13}
        system = {"devices": [{"backend": b} for b in backends]}
        monkeypatch.setattr(devices, "build_info", lambda: build)
        monkeypatch.setattr(devices, "system_info", lambda: system)
        monkeypatch.setattr(cuda, "why_no_device", lambda libraries: f"planted {len(libraries)}")

    return plant_build


def test_a_cuda_build_misses_a_device(lists: Lists) -> None:
    lists("ON", ["CPU"])
    assert devices.missing() == ["no CUDA device: planted 3"]
    lists("ON", ["CUDA", "CPU"])
    assert devices.missing() == []


def test_a_cpu_build_does_not_even_look(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    lists("OFF", ["CPU"])
    monkeypatch.setattr(devices, "system_info", lambda: pytest.fail("it is loaded for that"))
    assert devices.missing() == []


MISSING = "no CUDA device: NVIDIA's driver (libcuda.so.1) is not installed"


@pytest.mark.native
@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ((), 1),
        (("-ngl", "9"), 1),
        (("-ngl", "all"), 1),
        (("-ngl", "0"), 0),
        (("-dev", "none"), 0),
    ],
)
def test_a_run_says_it_once_where_a_device_is_expected(
    run: Run,
    tiny_model: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    lines: int,
) -> None:
    monkeypatch.setattr(devices, "missing", lambda: [MISSING])
    done = run("-m", tiny_model(), *SHORT, "-W", "2", *arguments)
    assert done.code in (0, 1)
    assert done.err == lines * f"csb: {MISSING}; everything runs on the CPU\n"


@pytest.mark.native
def test_only_the_error_is_said_where_servers_are_asked_of_a_build_without_rpc(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "missing", lambda: [MISSING])
    monkeypatch.setitem(library.build_info()["options"], "GGML_RPC", "OFF")
    refused = UnsupportedError("this build has no RPC")  # what such a build's library says

    def add(servers: str) -> None:
        raise refused

    monkeypatch.setattr("csb.measure.session.add_rpc", add)
    done = run("-m", tiny_model(), *SHORT, "--rpc", "127.0.0.1:50052")
    assert (done.code, done.out, done.err) == (2, "", f"csb: {refused}\n")


@pytest.mark.native
def test_a_device_that_is_asked_for_by_name(
    run: Run, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("csb.measure.session", "csb.native.devices"):
        monkeypatch.setattr(f"{module}.missing", lambda: [MISSING])
    done = run("-m", tiny_model(), *SHORT, "-dev", "CUDA0")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("csb: -dev CUDA0: there is no device CUDA0; here ")
    assert done.err.count("\n") == 1
    assert done.err.endswith(f"(or none); {MISSING}\n")


@pytest.mark.native
def test_info_and_record_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.environment()["missing_devices"] == devices.missing()
    monkeypatch.setattr(provenance, "missing", lambda: [MISSING])
    info: dict[str, Any] = provenance.environment()
    assert info["missing_devices"] == [MISSING]
    info["build"] = info["build"] | {"cuda": "13.0.88", "cuda_architectures": "80 90"}
    text = render_info(info)
    assert f"missing:         {MISSING}\n" in text
    assert "CUDA:            13.0.88, for 80 90\n" in text
