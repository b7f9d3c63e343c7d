"""vendor/llama.cpp/fetch.py: what it takes from a package, and what it leaves behind when it
fails. No network: the package is made here."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VENDOR = Path(__file__).parent.parent / "vendor" / "llama.cpp"


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("fetch", VENDOR / "fetch.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PIN = {
    "package": "some-package",
    "package_version": "1.0",
    "package_sha256": "ab" * 32,
    "prefix": "some_package-1.0/vendor/llama.cpp/",
    "paths": ["LICENSE", "include/", "src/"],
}
FILES = {"LICENSE": b"licence", "include/llama.h": b"// header", "src/a/b.cpp": b"int x;"}


def package(into: Path, extra: dict[str, bytes] | None = None) -> Path:
    path = into / "some_package-1.0.tar.gz"
    others = {"models/big.bin": b"0" * 1000, "LICENSE.txt": b"another", "src/../../evil": b"!"}
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {**FILES, **others, **(extra or {})}.items():
            member = tarfile.TarInfo(PIN["prefix"] + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo(PIN["prefix"] + "include/link.h")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def get(pin: dict[str, Any], into: Path) -> Path:
    return package(into)


def left(fetch: ModuleType) -> list[str]:
    root = fetch.cache_dir() / "llama.cpp"
    return sorted(p.name for p in root.iterdir()) if root.exists() else []


def test_only_listed_paths_are_unpacked(fetch: ModuleType) -> None:
    folder = fetch.fetch(PIN, get)
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert json.loads(found.pop(fetch.MANIFEST)) == {n: len(d) for n, d in FILES.items()}
    assert found == FILES
    assert left(fetch) == [folder.name]


def test_the_cache_is_used_and_keyed(fetch: ModuleType) -> None:
    first = fetch.fetch(PIN, get)
    again = fetch.fetch(PIN, lambda pin, into: pytest.fail("fetched twice"))
    assert again == first
    others = [{**PIN, "paths": ["LICENSE"]}, {**PIN, "package_sha256": "cd" * 32}]
    assert len({fetch.cache_key(pin) for pin in [PIN, *others]}) == 3


@pytest.mark.parametrize("damage", ["missing", "short", "no manifest", "empty manifest"])
def test_a_half_written_cache_is_made_anew(fetch: ModuleType, damage: str) -> None:
    folder = fetch.fetch(PIN, get)
    if damage == "missing":
        (folder / "include/llama.h").unlink()
    elif damage == "short":
        (folder / "src/a/b.cpp").write_bytes(b"int")
    elif damage == "no manifest":
        (folder / fetch.MANIFEST).unlink()
    else:
        (folder / fetch.MANIFEST).write_text("{}")
    assert fetch.fetch(PIN, get) == folder
    assert {n: (folder / n).read_bytes() for n in FILES} == FILES


def test_a_broken_package_leaves_nothing(fetch: ModuleType) -> None:
    def cut(pin: dict[str, Any], into: Path) -> Path:
        path = package(into, {"src/noise": bytes(range(256)) * 400})
        path.write_bytes(path.read_bytes()[:-300])
        return path

    def other(pin: dict[str, Any], into: Path) -> Path:
        path = into / "x.tar.gz"
        with tarfile.open(path, "w:gz"):
            pass
        return path

    for broken in (cut, other):
        with pytest.raises(fetch.FetchError, match="CSB_LLAMA_CPP_SOURCE"):
            fetch.fetch(PIN, broken)
        assert left(fetch) == []


def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_pip_that_fails_is_quoted(
    fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(tmp_path, monkeypatch, "print('ERROR: no network'); sys.exit(1)")
    with pytest.raises(fetch.FetchError, match=r"ERROR: no network; give your own checkout"):
        fetch.fetch(PIN)
    assert left(fetch) == []


def test_a_package_of_another_hash_is_refused(
    fetch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "pathlib.Path(sys.argv[sys.argv.index('-d') + 1], 'p.tar.gz').write_bytes(b'x')"
    fake_pip(tmp_path, monkeypatch, body)
    with pytest.raises(fetch.FetchError, match="wrong sha256"):
        fetch.fetch(PIN)
    assert left(fetch) == []


def test_an_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    done = subprocess.run(
        [sys.executable, str(VENDOR / "fetch.py")],
        env={"CSB_CACHE_DIR": str(blocker), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "CSB_LLAMA_CPP_SOURCE" in done.stderr


def test_the_pin_is_the_designs(fetch: ModuleType) -> None:
    pin = fetch.read_pin()
    assert pin["commit"] == "0c1e57098bba43ac29e6e3b677cdceebdd22334f"
    digest = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
    assert pin["package_sha256"] == digest
