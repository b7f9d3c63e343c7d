"""Finds, checks and loads libcsb, once, when something first needs it.

Reading and rendering saved runs, `--help` and the chat template never come here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.resources
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csb.errors import (
    ArgumentError,
    CancelledError,
    CsbError,
    DecodeError,
    DeviceError,
    FileError,
    LibraryError,
    UnsupportedError,
)
from csb.native import worker
from csb.native.checks import text, whole
from csb.native.table import ABI_VERSION, SIGNATURES, STATUS, Status

SET_BY_CSB = "csb"  # the value of variables that csb sets for llama.cpp: any will do

# The installed package's files stay extracted for the process's life.
_files = contextlib.ExitStack()

_REBUILD = "build csb again on this machine: pip install --force-reinstall . (in csb's folder)"


def _package_file(name: str) -> Path:
    return _files.enter_context(
        importlib.resources.as_file(importlib.resources.files("csb") / name)
    )


def _library_name() -> str:
    return {"win32": "csb.dll", "darwin": "libcsb.dylib"}.get(sys.platform, "libcsb.so")


@functools.cache
def build_info() -> dict[str, Any]:
    """What this build is, without loading it: what csb_library_build returns, from _build.json."""
    try:
        info: dict[str, Any] = json.loads(_package_file("_build.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LibraryError(f"csb's native library is not installed: {_REBUILD}") from error
    return info


def has_hooks() -> bool:
    """Whether this build can record which CPU kernels ran."""
    return bool(build_info()["hooks"]["kernels"])


def _processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str] | None:
    """The processor's feature names as Linux gives them; None where they can't be read."""
    try:
        for line in cpuinfo.read_text("utf-8", "replace").splitlines():
            if line.startswith(("flags", "Features")):
                return set(line.partition(":")[2].split())
    except OSError:
        pass
    return None


def check_processor() -> None:
    """Refuses a library built for features this processor lacks, before any of its code runs."""
    here = _processor_features()
    missing = [f for f in build_info()["cpu_features"] if here is not None and f not in here]
    if missing:
        raise LibraryError(
            f"csb was built for a processor with {', '.join(missing)}, which this one lacks; "
            f"{_REBUILD}, or with -C cmake.define.GGML_NATIVE=OFF"
        )


def _error(status: int, message: str) -> CsbError:
    match status:
        case Status.ERROR_ARGUMENT:
            return ArgumentError(message)
        case Status.ERROR_FILE:
            return FileError(message)
        case Status.ERROR_UNSUPPORTED:
            return UnsupportedError(message)
        case Status.ERROR_DEVICE:
            return DeviceError(message)
        case Status.CANCELLED:
            return CancelledError(message)
        case Status.NO_SLOT | Status.ERROR_BATCH | Status.ERROR_ALLOCATION | Status.ERROR_COMPUTE:
            return DecodeError(message, status)
        case _:
            return LibraryError(message)


def _cause(error: OSError) -> str:
    """Why a library can't be loaded. glibc's text for one that it needs is no help."""
    found = re.match(r"(\S+\.so\S*): cannot open shared object file: No such file", str(error))
    if not found or "/" in found[1]:
        return str(error)
    package = "; Debian's package libopenblas0 has it" if "openblas" in found[1] else ""
    return f"it was built with {found[1]}, which is not installed{package}"


def load(path: Path) -> ctypes.CDLL:
    """A libcsb with every signature installed; a status other than OK raises its exception."""
    check_processor()
    # llama.cpp would start a debugger to print a backtrace; csb's own net prints one line.
    os.environ.setdefault("GGML_NO_BACKTRACE", SET_BY_CSB)
    if build_info().get("hooks", {}).get("vulkan"):  # read as Vulkan starts; they change no result
        os.environ.setdefault("GGML_VK_DEBUG_MARKERS", SET_BY_CSB)
    if libraries := build_info()["cuda_libraries"]:
        from csb.native.cuda import preload

        preload(libraries)
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"cannot load {path}: {_cause(error)}; {_REBUILD}") from error
    try:
        abi = int(lib.csb_abi_version())
    except AttributeError:
        abi = 0
    if abi != ABI_VERSION:
        raise LibraryError(
            f"{path} has ABI {abi}, this csb needs {ABI_VERSION}; {_REBUILD}",
        )

    lib.csb_error_message.restype = ctypes.c_char_p

    def raise_status(status: int, function: Any, arguments: Any) -> int:
        if status != Status.OK:
            raise _error(status, lib.csb_error_message().decode("utf-8", "backslashreplace"))
        return status

    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(lib, name)
        function.argtypes = arguments
        function.restype = result
        if result is STATUS and name != "csb_abi_version":
            function.errcheck = raise_status
    return lib


@functools.cache
def library() -> ctypes.CDLL:
    """The installed package's libcsb."""
    return load(_package_file(_library_name()))


def c_options(options: Mapping[str, object]) -> tuple[int, Any, Any]:
    """A mapping as csb.h's n_options, keys, values. Values None are left out, True is 1."""
    given = {k: v for k, v in options.items() if v is not None}
    strings = ctypes.c_char_p * max(1, len(given))
    keys = strings(*(k.encode() for k in given))
    values = strings(
        *(text(str(int(v) if isinstance(v, bool) else v), k) for k, v in given.items())
    )
    return len(given), keys, values


def system_info() -> dict[str, Any]:
    """llama.cpp's version, its system line and the devices: csb_library_system."""

    def ask() -> dict[str, Any]:
        answer = ctypes.c_char_p()
        library().csb_library_system(ctypes.byref(answer))
        info: dict[str, Any] = json.loads(answer.value or b"{}")
        return info

    return worker.run(ask, lambda: None)  # a device or server may not answer


def set_log_level(level: int) -> None:
    """llama.cpp's log from this level up goes to stderr: 1 debug to 4 error, 5 nothing."""
    library().csb_library_set_log_level(level)


def quantize(source: Path, target: Path, kind: str, threads: int = 0, pure: bool = False) -> None:
    """Writes `source` again with its matrices as `kind`, by llama.cpp's quantizer.

    Requantizing is allowed. threads 0: all cores. pure: every matrix of that type, no mixture.
    """
    paths = text(os.fsencode(source), "source"), text(os.fsencode(target), "target")
    library().csb_quantize(*paths, text(kind, "type"), whole(threads, "threads"), int(pure))
