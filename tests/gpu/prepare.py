"""Packs what a machine without network lacks for `tests/gpu/run build` and `measure`.

build/gpu/1: llama.cpp's source as the cache has it, wheels of what csb needs at build and run time
(NumPy and NVIDIA's libraries are expected there), headers of cuBLAS and CUPTI where they are
installed here, and half of the default model as shipped. build/gpu/2: its other half.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from csb.models import catalog, store

ROOT = Path(__file__).parents[2]
LIMIT = 45_000_000  # bytes of one file
PARTS = 4
WHEELS = ("scikit-build-core", "pathspec", "packaging", "platformdirs", "click", "jinja2")
WHEELS += ("markupsafe", "rich", "markdown-it-py", "mdurl", "pygments")
GLIBC = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")


def source(target: Path) -> None:
    command = [sys.executable, str(ROOT / "vendor/llama.cpp/fetch.py")]
    found = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout[:-1])
    with tarfile.open(target, "w:xz") as tar:
        tar.add(found, f"llama.cpp/{found.name}")


def headers(target: Path) -> bool:
    """Of the wheels beside this Python, else of a toolkit."""
    places = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))
    places += sorted(Path("/usr/local").glob("cuda*/include"))
    found: dict[str, Path] = {}
    for place in places:
        for pattern in ("cublas*.h", "cupti*.h", "generated_*.h"):
            for path in place.glob(pattern):
                found.setdefault(path.name, path)
    if found:
        with tarfile.open(target, "w:xz") as tar:
            for name, path in found.items():
                tar.add(path.resolve(), f"headers/{name}")
    return bool(found)


def wheels(folder: Path, python: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "-d", str(folder)]
    command += [f"--platform={g}_x86_64" for g in GLIBC]
    subprocess.run([*command, *WHEELS], check=True)


def model(folders: list[Path]) -> None:
    """The default model in parts; model.json beside the first one says how they are joined."""
    path = store.fetch(catalog.DEFAULT)
    data = path.read_bytes()
    size = -(-len(data) // PARTS)
    for i in range(PARTS):
        part = folders[i * len(folders) // PARTS] / f"model.gguf.{i}"
        part.write_bytes(data[i * size : (i + 1) * size])
    about = {"name": path.name, "parts": PARTS, "sha256": hashlib.sha256(data).hexdigest()}
    (folders[0] / "model.json").write_text(json.dumps(about))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="Python's version there (3.12)")
    given = parser.parse_args()
    folders = [given.folder / "1", given.folder / "2"]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    source(folders[0] / "llama.cpp.tar.xz")
    if not headers(folders[0] / "headers.tar.xz"):
        print("no headers of cuBLAS and CUPTI are here: they must be there")
    wheels(folders[0] / "wheels", given.python)
    model(folders)
    for folder in folders:
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        for path in files:
            size = path.stat().st_size
            if size >= LIMIT:
                raise SystemExit(f"{path} has {size} bytes, more than {LIMIT}: cut it smaller")
            print(f"{size / 1e6:8.2f} MB  {path}")
        print(f"{sum(p.stat().st_size for p in files) / 2**20:8.1f} MiB in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
