"""SHA-256 of model files, remembered so that a file of many GB isn't read anew on every run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

import platformdirs

_LIMIT = 256
_SETTLED_NS = 2_000_000_000
_CHUNK = 1 << 20


def cache_dir() -> Path:
    """Return the folder csb may fill and the user may delete: $CSB_CACHE_DIR or the system's."""
    chosen = os.environ.get("CSB_CACHE_DIR")
    return Path(chosen).absolute() if chosen else Path(platformdirs.user_cache_dir("csb"))


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hash a file, or recall its hash while its size and times are unchanged.

    The inode's change time is part of the key: archives and links can bring another file of the
    same size and modification time to the same path. A file younger than the coarsest clock of
    a file system is not remembered, since it could change again without its time changing.
    """
    file_path = Path(path).absolute()
    key = str(file_path)
    before = _fingerprint(file_path)
    known = _load().get(key)
    if known is not None and known[:-1] == before:
        return str(known[-1])
    digest = hashlib.sha256()
    with file_path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if _fingerprint(file_path) == before and abs(time.time_ns() - max(before[1:])) > _SETTLED_NS:
        _remember(key, [*before, digest.hexdigest()])
    return digest.hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write so that a reader, or a crash, sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("x", encoding="ascii") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _fingerprint(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _load() -> dict[str, list[Any]]:
    """Read the memory; anything unreadable is forgotten, as it can be computed again."""
    try:
        found = json.loads((cache_dir() / "hashes.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if _is_entry(value)}


def _is_entry(value: object) -> bool:
    return (
        isinstance(value, list)
        and [type(item) for item in value] == [int, int, int, str]
        and len(value[3]) == 64
    )


def _remember(key: str, entry: list[Any]) -> None:
    """Add one entry, newest last. A lost race or an unwritable folder costs one more hashing."""
    memory = _load()
    memory.pop(key, None)
    memory[key] = entry
    with contextlib.suppress(OSError):
        cache_dir().mkdir(parents=True, exist_ok=True)
        write_json(cache_dir() / "hashes.json", dict(list(memory.items())[-_LIMIT:]))
