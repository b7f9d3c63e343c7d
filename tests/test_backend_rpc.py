"""llama.cpp's RPC backend: its own server on the loopback address, and the ways it can be lost."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import backend
import csb
import pytest
from conftest import TinyModel
from csb import record
from csb.nodes import NO_HOOK
from process import SHORT, child, launch

pytestmark = backend.needs("rpc")

HELLO = struct.Struct("<Q3B25x")  # the answer's size, the version, what concerns other transports


def program() -> str:
    """The server that was built and installed with this csb."""
    folders = [sysconfig.get_path("scripts"), str(Path(csb.__file__).parents[1] / "bin")]
    found = shutil.which("ggml-rpc-server", path=os.pathsep.join(folders))
    assert found, f"no ggml-rpc-server in {folders}"
    return found


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serving(**options: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server on one thread: its address and its process."""
    port = free_port()
    command = [program(), "-t", "1", "-p", str(port)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )
    try:
        for _ in range(400):
            assert process.poll() is None
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


Server = tuple[str, "subprocess.Popen[bytes]"]


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def saved(path: Path, *arguments: object) -> record.Record:
    done = child(*arguments, "--json", path)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    return record.load(path)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
def test_a_server_of_one_kind_gives_the_local_bits(
    server: Server, tiny_model: TinyModel, tmp_path: Path, dtype: str
) -> None:
    """The server runs the same CPU kernels, so every number must be the local run's."""
    given = ("-m", tiny_model(dtype=dtype, n_layer=2), *SHORT, "-c", "256", "--no-repack")
    there = saved(tmp_path / "there.json", *given, "--rpc", server[0])
    here = saved(tmp_path / "here.json", *given)
    assert there["ar"] == here["ar"]
    assert there["cells"] == here["cells"]
    assert there["controls"]["failed"] == [] and there["controls"]["complete"]
    for path in ("single", "block"):
        found = there["kernels"][path]
        assert found["not_observable"] == {f"RPC0[{server[0]}]": NO_HOOK}
        assert found["kernels"] == {}


def test_the_record_says_what_lies_where(
    server: Server, tiny_model: TinyModel, tmp_path: Path
) -> None:
    model = tiny_model(n_layer=4)
    given = ("-m", model, *SHORT, "-c", "256", "--rpc", server[0])
    found = saved(tmp_path / "r.json", *given)["provenance"]
    (device,) = (d for d in found["system"]["devices"] if d["backend"] == "RPC")
    assert (device["name"], device["description"]) == ("RPC0", server[0])
    assert 0 < device["memory_free"] <= device["memory_total"]
    assert found["parameters"]["rpc"] == {"value": server[0], "source": "asked"}
    assert found["parameters"]["devices"]["value"] == ["RPC0"]
    assert found["parameters"]["n_gpu_layers"] == {"value": 5, "source": "library"}
    offload = found["offload"]
    assert (offload["layers"], offload["output"]) == (["RPC0"] * 4, "RPC0")
    (there,) = (b for b in offload["buffers"] if b["device"] == "RPC0")
    assert there["name"] == f"RPC0[{server[0]}]"
    assert not there["host"]
    # 4 layers of keys and values, 2 heads of 64 numbers of 16 bits, 256 cells
    assert there["memory"] == 2 * 4 * 256 * 2 * 64 * 2
    assert there["model"] > 0.8 * found["model"]["size"]

    partly = saved(tmp_path / "less.json", *given, "-ngl", "2", "--no-kv-offload")
    for path in ("single", "block"):
        ran = partly["kernels"][path]
        assert ran["kernels"] and ran["not_observable"] == {f"RPC0[{server[0]}]": NO_HOOK}
    less = partly["provenance"]
    assert less["offload"]["layers"] == ["CPU", "CPU", "CPU", "RPC0"]
    assert less["parameters"]["n_gpu_layers"]["value"] == 2
    assert less["parameters"]["offload_kqv"] == {"value": False, "source": "library"}
    buffers = less["offload"]["buffers"]
    assert sum(b["memory"] for b in buffers if not b["host"]) == 0
    (there,) = (b for b in buffers if b["device"] == "RPC0")
    assert 0 < there["model"] < 0.5 * found["model"]["size"]


def test_a_budget_leaves_out_what_acts_here_alone(server: Server, tiny_model: TinyModel) -> None:
    """Threads and switches of this process reach no kernel of the server's."""
    given = ("budget", "-m", tiny_model(dtype="bf16", n_layer=2), *SHORT, "-c", "256")
    there = ("--rpc", server[0], "--lines", "threads,repack,switches")
    name = f"RPC0[{server[0]}]"
    done = child(*given, *there)
    assert (done.returncode, done.stderr) == (0, "")
    out = f"all products and attention run on {name}, out of reach from here"
    table, _, rest = done.stdout.partition("\n\nchanged:")
    *_, again, lines = table.partition("\na second time")
    lines = lines.splitlines()[1:]
    assert again
    assert len(lines) == 7 and all(s.endswith(f"  not measured: {out}") for s in lines)
    verdict = rest.splitlines()[-1]
    assert verdict == f"csb: what the gap comes from was not measured: {out}"

    done = child(*given, *there, "-ngl", "1")  # the layers here, the output there
    assert (done.returncode, done.stderr) == (0, "")
    *_, verdict = done.stdout.splitlines()
    assert verdict.startswith("csb: no switch removes the gap: --without llamafile leaves least, ")
    assert verdict.endswith(f"; the kernels on {name} can't be switched")


def test_a_switch_that_reaches_nothing_there(server: Server, tiny_model: TinyModel) -> None:
    given = ("-m", tiny_model(dtype="bf16"), *SHORT, "-c", "256", "--rpc", server[0])
    done = child(*given, "--without", "llamafile")
    assert (
        "without llamafile: had NO effect on the kernels that ran; kernels on RPC0 are out of its "
        "reach"
    ) in done.stdout.splitlines()


def test_a_diff_with_the_local_run(server: Server, tiny_model: TinyModel, tmp_path: Path) -> None:
    given = ("-m", tiny_model(dtype="bf16"), *SHORT, "-c", "256")
    saved(tmp_path / "here.json", *given)
    saved(tmp_path / "there.json", *given, "--rpc", server[0])
    done = child("diff", tmp_path / "here.json", tmp_path / "there.json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    name = f"RPC0[{server[0]}]"
    for path in ("single", "block"):
        assert f"{path}_kernels.not_observable.{name}: none -> {NO_HOOK}" in lines
        counts = [s for s in lines if s.startswith(f"{path}_kernels.kernels.")]
        assert counts and all(s.endswith(" -> not observable") for s in counts)


def test_info_lists_the_servers_devices(server: Server) -> None:
    done = child("info", "--rpc", server[0])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"RPC0 ({server[0]}), gpu, RPC" in done.stdout


def test_two_servers_share_the_model(tiny_model: TinyModel, tmp_path: Path) -> None:
    model = tiny_model(n_layer=4)
    given = ("-m", model, *SHORT, "-c", "256", "--no-repack")
    here = saved(tmp_path / "here.json", *given)
    with serving() as (one, _), serving() as (two, _):
        both = (*given, "--rpc", f"{one},{two}", "-ts", "3,2")
        split = saved(tmp_path / "split.json", *both)
        assert split["cells"] == here["cells"]
        layers = split["provenance"]["offload"]["layers"]
        assert layers == ["RPC0"] * 3 + ["RPC1"]
        single = saved(tmp_path / "single.json", *both, "-sm", "none", "-mg", "1")
        found = single["provenance"]["parameters"]
        assert found["devices"]["value"] == ["RPC1"]
        assert found["split_mode"] == {"value": "none", "source": "library"}
        assert single["cells"] == here["cells"]
        for option, said in (
            ("-mg 2", "-mg 2: here are 2 devices, counted"),
            ("-ts 1,1,1", "-ts "),
        ):
            assert refused(*given, "--rpc", f"{one},{two}", *option.split()).startswith(
                f"csb: {said}"
            )
        chosen = saved(tmp_path / "chosen.json", *both, "-dev", "RPC1", "-ts", "1")
        assert chosen["provenance"]["parameters"]["devices"]["value"] == ["RPC1"]


def test_a_draft_goes_where_its_target_does(
    server: Server, tiny_model: TinyModel, tmp_path: Path
) -> None:
    target, draft = tiny_model(n_layer=2), tiny_model(n_layer=1)
    given = ("--tokens", "1,2,3", "-n", "8", "-t", "1", "-c", "256", "--rpc", server[0])
    for device, where in (("RPC0", ["RPC0"]), ("none", [])):
        file = tmp_path / f"{device}.json"
        drafter = ("--drafter", f"model:{draft}", "-dev", device, "--json", file)
        done = child("speculate", "-m", target, *given, *drafter)
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        assert json.loads(file.read_text("utf-8"))["draft"]["devices"] == where


def test_trace_and_locate(server: Server, tiny_model: TinyModel) -> None:
    given = ("-m", tiny_model(n_layer=2), "--tokens", "1,2,3", "-t", "1", "-c", "256")
    given = (*given, "--rpc", server[0], "-fa", "off")
    done = child("trace", *given)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = (s for s in done.stdout.splitlines() if "attn_q.weight" in s)
    assert line.count(f"not observable on RPC0[{server[0]}]") == 2
    assert done.stdout.splitlines()[-1].endswith("the traced calls have the untraced calls' bits")
    done = child("locate", *given)
    assert (done.returncode, done.stderr) == (0, "")
    assert "attn_q.weight" in done.stdout.splitlines()[-1]


# -- servers that are not there, or are lost -----------------------------------------------------

LONG = ("-n", "300", "-W", "64", "-t", "1", "--tokens", "1,2,3", "--prefix", "reprefill")


def refused(*arguments: object) -> str:
    """The one line that csb leaves."""
    done = child(*arguments, "-n", "2", "-t", "1", "--tokens", "1,2,3")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    return done.stderr


@pytest.mark.parametrize(
    "address", ["", "localhost", ":50052", "a:b", "127.0.0.1:0", "127.0.0.1:65536", "[::1]:50052"]
)
def test_no_address(tiny_model: TinyModel, address: str) -> None:
    line = refused("-m", tiny_model(n_layer=1), "--rpc", address)
    assert line == (
        f"csb: RPC server '{address}': must be host:port, a name or an IPv4 address (llama.cpp's "
        "RPC has no IPv6) and a port from 1 to 65535\n"
    )


def test_no_server(tiny_model: TinyModel) -> None:
    address = f"127.0.0.1:{free_port()}"
    line = refused("-m", tiny_model(n_layer=1), "--rpc", address)
    assert line == f"csb: RPC server {address}: Connection refused\n"


def test_no_host(tiny_model: TinyModel) -> None:
    line = refused("-m", tiny_model(n_layer=1), "--rpc", "no-such-host.invalid:50052")
    assert line.startswith("csb: RPC server no-such-host.invalid:50052: no such host: ")


def test_no_device(server: Server, tiny_model: TinyModel) -> None:
    line = refused("-m", tiny_model(n_layer=1), "--rpc", server[0], "-dev", "RPC1")
    assert "there is no device RPC1; here are " in line and "RPC0" in line


def test_a_server_that_serves_another(server: Server, tiny_model: TinyModel) -> None:
    host, port = server[0].split(":")
    with socket.create_connection((host, int(port))):
        begin = time.monotonic()
        line = refused("-m", tiny_model(n_layer=1), "--rpc", server[0])
        assert 5 <= time.monotonic() - begin < 30
    assert "does not answer; a server serves one client at a time" in line
    time.sleep(0.2)  # it takes up what csb gave up, and must live
    assert server[1].poll() is None
    done = child("info", "--rpc", server[0])
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_by_two_names(server: Server, tiny_model: TinyModel) -> None:
    port = server[0].split(":")[1]
    model = tiny_model(n_layer=1)
    line = refused("-m", model, "--rpc", f"{server[0]},127.1:{port}")
    assert line == f"csb: RPC server 127.1:{port}: is {server[0]} by another name\n"
    assert child("info", "--rpc", f"{server[0]},{server[0]}").returncode == 0
    assert server[1].poll() is None


def test_a_server_killed_while_widths_are_mapped(
    server: Server, tiny_model: TinyModel, tmp_path: Path
) -> None:
    """Places that were there before are saved, as compare's cells are."""
    script = """
import os, signal, sys
from csb.cli import main
from csb.native import net
append, places = net.append, []
def after_three(part):
    append(part)
    places.append(part)
    if len(places) == 3:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
net.append = after_three
main(sys.argv[2:])
"""
    path = tmp_path / "r.json"
    given = ("-m", tiny_model(), "--tokens", "1,2,3", "-t", "1", "--rpc", server[0])
    given = ("widths", *given, "--widths", "1..4", "--places", "9", "--json", path)
    done = subprocess.run(
        ["python", "-c", script, str(server[1].pid), *map(str, given)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.endswith(f"; what was measured so far is in {path}\n")
    found = json.loads(path.read_text("utf-8"))
    assert (found["complete"], found["outcome"]) == (False, "aborted")
    assert [len(p["rows"]) for p in found["places"]] == [4, 4, 4]
    assert found["prompts"][0]["tokens"] == [1, 2, 3]


def test_which_of_two_servers_is_gone(server: Server, tiny_model: TinyModel) -> None:
    """Whatever llama.cpp aborts for, csb looks at its connections."""
    script = (
        "import csb, os, signal, sys, time; from csb.native.library import library\n"
        "csb.add_rpc(sys.argv[1]); os.kill(int(sys.argv[2]), signal.SIGKILL); time.sleep(0.5)\n"
        "library().csb_net_test(b'', b'why')"
    )
    with serving() as (other, process):
        given = [f"{server[0]},{other}", str(process.pid)]
        done = subprocess.run(
            ["python", "-c", script, *given], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith(f"csb: RPC server {other} is gone: llama.cpp aborted: ")


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Something that takes one connection, reads the greeting and says `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(33, socket.MSG_WAITALL)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "what answers there is no RPC server of llama.cpp"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no RPC server of llama.cpp"),
        (HELLO.pack(28, 6, 2, 1), "speaks RPC protocol 6.2, this build 7.0: take a server of the"),
        (HELLO.pack(28, 7, 9, 0), "speaks RPC protocol 7.9, this build 7.0: take a server of the"),
    ],
)
def test_another_kind_of_server(tiny_model: TinyModel, answer: bytes, said: str) -> None:
    with answering(answer) as address:
        line = refused("-m", tiny_model(n_layer=1), "--rpc", address)
    assert line.startswith(f"csb: RPC server {address}: {said}")


@pytest.mark.parametrize("what", ["weights", "memory"])
def test_no_room_on_the_server(tiny_model: TinyModel, what: str) -> None:
    """100 MB of addresses hold the server and nothing of this size."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20))

    model = tiny_model(n_layer=1, n_vocab=1 << 17 if what == "weights" else 512)
    n_ctx = 256 if what == "weights" else 1 << 20
    with serving(preexec_fn=limit) as (address, _):
        line = refused("-m", model, "--rpc", address, "-c", n_ctx)
    assert "failed to allocate" in line
    if what == "weights":
        assert f"failed to allocate RPC0[{address}] buffer of size" in line


def wait_for_rows(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists() or path.stat().st_size < 300_000:  # one window's rows
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


Start = Callable[[str], tuple["subprocess.Popen[str]", Path]]


@pytest.fixture
def measuring(text_model: Path, tmp_path: Path) -> Start:
    """Starts a long run through a server, and returns when it has cells: process, record."""

    def start(address: str) -> tuple[subprocess.Popen[str], Path]:
        rows, path = tmp_path / "rows.npz", tmp_path / "r.json"
        given = ("-m", text_model, *LONG, "--rpc", address, "--json", path, "--save-logits", rows)
        process = launch(*given)
        wait_for_rows(rows, process)
        return process, path

    return start


def check_unfinished(path: Path) -> None:
    found = record.load(path)
    assert (found["complete"], found["outcome"]) == (False, "aborted")
    assert 0 < len(found["cells"]) < 300 * 64 - 2016


def test_a_server_killed_in_a_run(server: Server, measuring: Start) -> None:
    process, path = measuring(server[0])
    server[1].kill()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"csb: RPC server {server[0]} is gone: llama.cpp aborted: ggml-rpc.cpp:")
    assert "Remote RPC server crashed" in err
    assert err.endswith(f"; what was measured so far is in {path}\n")
    check_unfinished(path)


def test_a_server_that_stops_answering_in_a_run(server: Server, measuring: Start) -> None:
    """It may only compute for long, so csb waits; Ctrl-C ends that all the same."""
    process, path = measuring(server[0])
    server[1].send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert (process.returncode, out) == (130, "")
    assert err == (
        "csb: interrupted; a native call did not come back; what was measured so far is in "
        f"{path}\n"
    )
    check_unfinished(path)


def test_ctrl_c_with_a_server_that_answers(server: Server, measuring: Start) -> None:
    process, path = measuring(server[0])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    found = record.load(path)
    assert (found["complete"], found["outcome"]) == (False, "incomplete")
    assert len(found["ar"]) == 300


@pytest.mark.parametrize("command", ["compare", "info"])
def test_ctrl_c_while_a_server_keeps_csb_waiting(text_model: Path, command: str) -> None:
    """Past its greeting: the loading hangs, and no handler would ever run on that thread."""
    given = (command, *(("-m", text_model, *LONG) if command == "compare" else ()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = launch(*given, "--rpc", f"127.0.0.1:{free_port_of(listening)}")
        greeting, _ = listening.accept()
        greeting.recv(33)
        greeting.sendall(HELLO.pack(28, 7, 0, 0))
        peer, _ = listening.accept()
        with greeting, peer:
            peer.recv(33)  # llama.cpp's own greeting, never answered
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=40)
    assert (process.returncode, err) == (
        130,
        "csb: interrupted; a native call did not come back\n",
    )


def free_port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def test_a_lost_machine_is_noticed(server: Server) -> None:
    """The kernel asks an idle connection whether the other end is still there."""
    script = (
        "import csb, sys, pathlib; csb.add_rpc(sys.argv[1]); csb.add_rpc(sys.argv[1]);"
        "print(pathlib.Path('/proc/self/net/tcp').read_text())"
    )
    done = subprocess.run(
        ["python", "-c", script, server[0]], capture_output=True, text=True, check=True
    )
    port = f":{int(server[0].split(':')[1]):04X}"
    lines = [line.split() for line in done.stdout.splitlines()]
    (mine,) = (s for s in lines if len(s) > 5 and s[2].endswith(port) and s[3] == "01")
    assert mine[5].startswith("02:")  # the keepalive timer runs
