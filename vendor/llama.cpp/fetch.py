"""Put the pinned llama.cpp source into the user's cache folder and print its path.

Run by CMake at configure time. The source comes out of a source package that pip downloads by
name; pip checks the hash before it prepares the package's metadata, so nothing of it runs
unchecked, and only the paths listed in pin.json are unpacked. A source folder appears in the
cache by one rename after its manifest was written, and is used only while the manifest's sizes
hold, so a half-written one is never built.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANIFEST = ".csb-manifest.json"
REMEDY = (
    "give your own checkout of llama.cpp with -C cmake.define.CSB_LLAMA_CPP_SOURCE=DIR, "
    "or run again with a working pip and network"
)


class FetchError(Exception):
    """One line that says what went wrong and what to do."""


def read_pin() -> dict[str, Any]:
    pin: dict[str, Any] = json.loads(Path(__file__).with_name("pin.json").read_text("utf-8"))
    return pin


def cache_dir() -> Path:
    """The folder `csb` itself uses (csb.models.store); platformdirs is a build requirement."""
    if moved := os.environ.get("CSB_CACHE_DIR"):
        return Path(moved)
    import platformdirs

    return Path(platformdirs.user_cache_dir("csb"))


def cache_key(pin: dict[str, Any]) -> str:
    """The package's hash and the list of unpacked paths: either one's change is a new folder."""
    paths = hashlib.sha256("\n".join(pin["paths"]).encode()).hexdigest()
    return f"{pin['package_sha256'][:16]}-{paths[:8]}"


def is_whole(folder: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((folder / MANIFEST).read_text("utf-8"))
        return bool(sizes) and all((folder / p).stat().st_size == n for p, n in sizes.items())
    except (OSError, ValueError):
        return False


def download(pin: dict[str, Any], into: Path) -> Path:
    """The source package, hash-checked by pip. Without build isolation: the hooks it prepares
    metadata with are csb's own build requirements, so nothing else is installed for it."""
    requirement = into / "requirements.txt"
    requirement.write_text(
        f"{pin['package']}=={pin['package_version']} --hash=sha256:{pin['package_sha256']}\n"
    )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", ":all:", "--require-hashes", "--disable-pip-version-check"]
    command += ["-d", str(into), "-r", str(requirement)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = list(into.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        said = [s.strip() for s in done.stdout.splitlines() if s.strip()]
        errors = [s for s in said if s.startswith(("ERROR", "error"))] or said[-1:] or ["no output"]
        raise FetchError(f"pip could not get {pin['package']}: {errors[0][:300]}; {REMEDY}")
    if hashlib.sha256(found[0].read_bytes()).hexdigest() != pin["package_sha256"]:
        raise FetchError(f"{found[0].name} has the wrong sha256; {REMEDY}")
    return found[0]


def unpack(package: Path, pin: dict[str, Any], into: Path) -> None:
    """Only regular files under the listed paths; the manifest of their sizes comes last."""
    sizes: dict[str, int] = {}
    with tarfile.open(package) as tar:
        for member in tar:
            name = member.name.removeprefix(pin["prefix"])
            wanted = name != member.name and any(
                name == p or (p.endswith("/") and name.startswith(p)) for p in pin["paths"]
            )
            if not wanted or not member.isfile() or ".." in Path(name).parts:
                continue
            data = tar.extractfile(member)
            assert data is not None
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data.read())
            sizes[name] = member.size
    if not sizes:
        raise FetchError(f"{package.name} holds none of the expected paths; {REMEDY}")
    (into / MANIFEST).write_text(json.dumps(sizes), "utf-8")


def install(source: Path, target: Path) -> None:
    """One rename. Two builds at once: the second finds the first one's folder, equal to its own."""
    if target.exists() and not is_whole(target):
        shutil.rmtree(target)
    try:
        source.rename(target)
    except OSError:
        if not is_whole(target):
            raise


def fetch(pin: dict[str, Any], get: Callable[[dict[str, Any], Path], Path] = download) -> Path:
    root = cache_dir() / "llama.cpp"
    target = root / cache_key(pin)
    if is_whole(target):
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as tmp:
            tree = Path(tmp) / "tree"
            tree.mkdir()
            unpack(get(pin, Path(tmp)), pin, tree)
            install(tree, target)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise FetchError(f"cannot put llama.cpp's source into {root}: {error}; {REMEDY}") from error
    return target


def main() -> int:
    try:
        print(fetch(read_pin()).as_posix())
    except FetchError as error:
        print(f"csb: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
