"""Aborts, signals, cancelling and forks, each in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.native

START = """
import ctypes, json, os, signal, sys, threading, time
import csb, numpy as np
from csb.errors import ArgumentError, CancelledError
from csb.native import net
from csb.native.library import library
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored under a shell's `&`
ONE = {"n_threads": 1, "n_threads_batch": 1}
def decode_short(context):
    context.decode([11, 500, 3, 77], 0)
    rows = context.logits(range(4)).copy()
    context.decode([9], 4)
    return np.vstack([rows, context.logits()]).tobytes()
def soon(seconds, call):  # on another thread; the list gets the time when it was called
    times = []
    def run():
        time.sleep(seconds)
        times.append(time.monotonic())
        call()
    threading.Thread(target=run, daemon=True).start()
    return times
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
"""


def child(script, *arguments, cwd=None, timeout=60):
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
    )


def answer(script, *arguments):
    """What the child prints as its last line, as JSON; it must end well and say nothing else."""
    done = child(script, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


# -- aborts -----------------------------------------------------------------------------------


def aborted(script, *arguments, cwd=None):
    """The child's stdout and the one line it leaves."""
    done = child(script + "\nlibrary().csb_net_test(b'', b'lost the device')", *arguments, cwd=cwd)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("csb: llama.cpp aborted: ")
    assert "lost the device" in lines[0]
    assert "/" not in lines[0].partition("; ")[0]  # llama.cpp's file without its folders
    return done.stdout, lines[0]


ARM = """
net.arm(sys.argv[1], '{"cells": [', '], "complete": false}')
for i in range(3):
    net.append(json.dumps({"t": i, "text": "a\\u00e9\\n"}))
"""
RECORD = {"cells": [{"t": i, "text": "a\u00e9\n"} for i in range(3)], "complete": False}


def test_an_abort_writes_the_armed_record(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("older and longer" * 1000)
    out, line = aborted(ARM, path)
    assert out == ""
    assert json.loads(path.read_text()) == RECORD
    assert line.endswith(f"; what was measured so far is in {path}")


def test_an_abort_writes_the_armed_record_to_stdout(tmp_path):
    out, line = aborted(ARM, "-", cwd=tmp_path)
    assert json.loads(out) == RECORD
    assert line.endswith("; what was measured so far is in the output")
    assert not list(tmp_path.iterdir())


def test_a_record_without_cells(tmp_path):
    _, line = aborted("net.append('1'); net.arm(sys.argv[1], '[', ']')", tmp_path / "r")
    assert line.endswith(f"; nothing was measured yet, the settings are in {tmp_path / 'r'}")
    assert (tmp_path / "r").read_text() == "[]"


def test_an_abort_writes_nothing_when_nothing_is_armed(tmp_path):
    for script in ("", ARM + "net.disarm()"):
        out, line = aborted(script, tmp_path / "record.json", cwd=tmp_path)
        assert out == ""
        assert line.endswith("lost the device")
        assert not list(tmp_path.iterdir())


def test_the_last_armed_record_counts(tmp_path):
    aborted(ARM + "net.arm(sys.argv[1] + '2', '<', '>'); net.append('x')", tmp_path / "r")
    assert [p.name for p in tmp_path.iterdir()] == ["r2"]
    assert (tmp_path / "r2").read_text() == "<x>"


def test_a_record_that_can_not_be_written_is_not_claimed(tmp_path):
    _, line = aborted(ARM, tmp_path / "no" / "folder" / "r.json")
    assert line.endswith("lost the device")


def test_a_path_with_a_line_break_leaves_one_line(tmp_path):
    path = tmp_path / "a\nb.json"
    aborted(ARM, path)
    assert json.loads(path.read_text()) == RECORD


def test_a_long_reason_or_one_of_many_lines_is_one_line():
    done = child("library().csb_net_test(b'', b'first' + b'x' * 9000 + b'\\nsecond')")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "firstxxx" in done.stderr


def test_what_was_logged_before_is_the_cause():
    """As CUDA does it: the reason is logged, the abort only says `CUDA error`."""
    script = "library().csb_net_test(b'CUDA error: out of memory\\n  in function f', b'CUDA error')"
    done = child(script)
    assert done.returncode == 2
    assert done.stderr.endswith(": CUDA error (CUDA error: out of memory)\n")


def test_several_threads_abort_and_one_line_is_said(tmp_path):
    script = """
    threads = [threading.Thread(target=library().csb_net_test, args=(b"", b"lost the device"))
               for _ in range(8)]
    for t in threads:
        t.start()
    """
    for _ in range(5):
        aborted(ARM + textwrap.dedent(script), tmp_path / "r")
        assert json.loads((tmp_path / "r").read_text()) == RECORD


def test_an_abort_while_the_record_grows(tmp_path):
    script = """
    net.arm(sys.argv[1], '[', ']')
    def grow():
        while True:
            net.append('"' + "x" * 100_000 + '"')
    threading.Thread(target=grow, daemon=True).start()
    time.sleep(0.05)
    """
    _, line = aborted(textwrap.dedent(script), tmp_path / "r")
    parts = json.loads((tmp_path / "r").read_text())
    assert set(parts) == {"x" * 100_000}
    assert line.endswith(str(tmp_path / "r"))


def test_an_abort_during_a_decode_on_another_thread(tiny_model, tmp_path):
    script = """
    model = csb.Model(sys.argv[2])
    context = csb.Context(model, n_ctx=2048, n_batch=2048, **ONE)
    thread = threading.Thread(target=context.decode, args=([1] * 2048, 0), daemon=True)
    thread.start()
    """
    aborted(ARM + textwrap.dedent(script), tmp_path / "r", tiny_model())
    assert json.loads((tmp_path / "r").read_text()) == RECORD


# -- a native call that does not come back ------------------------------------------------------


def test_leaving_writes_the_record_and_takes_the_code(tmp_path):
    done = child(ARM + "net.leave(130, 'gone\\nand more')", tmp_path / "r")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == f"csb: gone; what was measured so far is in {tmp_path / 'r'}\n"
    assert json.loads((tmp_path / "r").read_text()) == RECORD


def test_an_interrupt_does_not_wait_for_ever(tmp_path):
    """As the command line does it; without `stuck` the wait would go on."""
    script = """
    from csb.native import worker
    worker.GRACE = 0.3
    worker.stuck = lambda: net.leave(130, "interrupted")
    soon(0.2, interrupt)
    worker.run(lambda: time.sleep(30), lambda: None)
    """
    done = child(ARM + textwrap.dedent(script), tmp_path / "r", timeout=20)
    assert done.returncode == 130
    assert done.stderr == f"csb: interrupted; what was measured so far is in {tmp_path / 'r'}\n"
    assert json.loads((tmp_path / "r").read_text()) == RECORD


def test_a_second_interrupt_shortens_the_wait(tmp_path):
    script = """
    from csb.native import worker
    worker.LITTLE = 0.3
    worker.stuck = lambda: net.leave(130, "interrupted")
    soon(0.2, interrupt), soon(0.4, interrupt)
    worker.run(lambda: time.sleep(30), lambda: None)
    """
    begin = time.monotonic()
    done = child(ARM + textwrap.dedent(script), tmp_path / "r", timeout=30)
    assert (done.returncode, json.loads((tmp_path / "r").read_text())) == (130, RECORD)
    assert time.monotonic() - begin < 9  # GRACE is 10


# -- Ctrl-C and cancel ------------------------------------------------------------------------

# 8192 tokens with F32 flash attention on one thread take seconds, each ubatch's node little.
LONG = """
model = csb.Model(sys.argv[1])
options = {"n_ctx": 8192, "n_batch": 8192, "n_ubatch": 512, "type_k": "f32", "type_v": "f32", **ONE}
context = csb.Context(model, **options)
fresh = decode_short(csb.Context(model, **options))
tokens = np.arange(8192) % 512
def report(times, caught):
    late = time.monotonic() - times[0]
    last = context.bounds()[1]
    assert context.remove(0)
    print(json.dumps([caught, late, last, decode_short(context) == fresh]))
"""
LATEST = 1.0  # seconds; a node of the long prefill takes some hundredths, on a busy machine more


def check_cancelled(script, path, expected):
    caught, late, last, same = answer(LONG + textwrap.dedent(script), path)
    assert caught == expected
    assert late < LATEST
    assert last < 8191  # it did not run to its end
    assert (last + 1) % 512 == 0  # whole ubatches are left in the memory
    assert same  # the context works as a fresh one does


def test_ctrl_c_during_a_long_prefill(tiny_model):
    script = """
    times = soon(0.4, interrupt)
    try:
        context.decode(tokens, 0, outputs=False)
    except KeyboardInterrupt as error:
        report(times, "KeyboardInterrupt")
    """
    check_cancelled(script, tiny_model(), "KeyboardInterrupt")


def test_many_ctrl_c_during_a_long_prefill(tiny_model):
    script = """
    stop = threading.Event()
    def storm():
        time.sleep(0.4)
        times.append(time.monotonic())
        while not stop.is_set():
            interrupt()
            time.sleep(0.0005)
    times = []
    thread = threading.Thread(target=storm, daemon=True)
    thread.start()
    try:
        context.decode(tokens, 0, outputs=False)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        stop.set()
        thread.join()
        report(times, "KeyboardInterrupt")
    """
    check_cancelled(script, tiny_model(), "KeyboardInterrupt")


@pytest.mark.parametrize("on", ["the main thread", "another thread"])
def test_cancel_from_a_second_thread(tiny_model, on):
    script = """
    def decode():
        times = soon(0.4, context.cancel)
        try:
            context.decode(tokens, 0, outputs=False)
        except CancelledError as error:
            assert str(error) == "cancelled"
            report(times, "CancelledError")
    """
    run = {
        "the main thread": "\ndecode()",
        "another thread": "\nt = threading.Thread(target=decode)\nt.start()\nt.join()",
    }[on]
    check_cancelled(textwrap.dedent(script) + run, tiny_model(), "CancelledError")


def test_a_context_in_use_refuses_a_second_call_and_is_closed_when_it_ends(tiny_model):
    script = """
    lib, pointer = library(), context.pointer
    said = []
    def decode():
        try:
            context.decode(tokens, 0, outputs=False)
        except CancelledError:
            said.append("cancelled")
    thread = threading.Thread(target=decode)
    thread.start()
    time.sleep(0.4)
    for call in (context.bounds, context.save, context.logits, context.clear,
                 lambda: context.decode([1], 0)):
        try:
            call()
        except ArgumentError as error:
            said.append(str(error))
    context.cancel()
    context.close()
    model.close()
    thread.join()
    print(json.dumps(said))
    """
    in_use = ["context is in use by another thread"] * 5
    assert answer(LONG + textwrap.dedent(script), tiny_model()) == [*in_use, "cancelled"]


def test_ctrl_c_when_no_decode_runs(tiny_model):
    script = """
    context = csb.Context(csb.Model(sys.argv[1]), n_ctx=256, **ONE)
    first = decode_short(context)
    soon(0.2, interrupt)
    try:
        time.sleep(10)
    except KeyboardInterrupt:
        context.clear()
        print(json.dumps(decode_short(context) == first))
    """
    assert answer(script, tiny_model()) is True


def test_cancel_when_no_decode_runs_cancels_nothing(tiny_model):
    script = """
    context = csb.Context(csb.Model(sys.argv[1]), n_ctx=256, **ONE)
    first = decode_short(context)
    context.cancel()
    context.clear()
    print(json.dumps(decode_short(context) == first))
    """
    assert answer(script, tiny_model()) is True


def test_signals_at_any_moment_of_short_decodes(tiny_model):
    """Also just before a decode starts and just as it ends: no hang, no stray cancel, no context
    that is still in use."""
    script = """
    class Alarm(BaseException):
        pass
    def ring(signum, frame):
        raise Alarm
    signal.signal(signal.SIGALRM, ring)
    context = csb.Context(csb.Model(sys.argv[1]), n_ctx=256, **ONE)
    context.decode([1, 2, 3], 0)
    generator = np.random.default_rng(0)
    rung = 0
    for delay in generator.uniform(0.0002, 0.004, size=400):
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            while True:
                context.remove(3)
                context.decode([4], 3)
        except Alarm:
            rung += 1
        except CancelledError:
            pass  # never: no one but the waiting thread cancels
    context.clear()
    decode_short(context)
    print(rung)
    """
    assert answer(script, tiny_model(n_layer=1)) == 400


def test_cancels_at_any_moment_of_short_decodes(tiny_model):
    """A cancel hits the decode that runs when it comes, never the one after."""
    script = """
    context = csb.Context(csb.Model(sys.argv[1]), n_ctx=256, **ONE)
    context.decode([1, 2, 3], 0)
    phase = {"decoding": 0, "stop": False}
    def cancel():
        while not phase["stop"]:
            context.cancel()
            time.sleep(0.0003)
    thread = threading.Thread(target=cancel)
    thread.start()
    cancelled = 0
    for i in range(300):
        try:
            context.decode([4], 3)
            assert context.remove(3)
        except CancelledError:
            cancelled += 1
        assert context.bounds() == (0, 2)
    phase["stop"] = True
    thread.join()
    for i in range(100):  # the last cancel is gone
        context.decode([4], 3)
        context.remove(3)
    print(cancelled)
    """
    assert 0 < answer(script, tiny_model(n_layer=1)) <= 300


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "qwen35"])
def test_a_cancelled_decode_of_a_recurrent_memory_must_be_restored(tiny_model, arch):
    """llama.cpp can't take the tokens of the ubatch out again, and would go on from them."""
    script = """
    model = csb.Model(sys.argv[1])
    context = csb.Context(model, n_ctx=2048, n_batch=2048, **ONE)
    context.decode([1, 2, 3, 4], 0)
    state = context.save()
    context.decode([5], 4)
    expected = context.logits()
    context.restore(state)
    said = []
    soon(0.05, context.cancel)
    try:
        context.decode(np.arange(2000) % 512, 4, outputs=False)
    except CancelledError:
        said.append("cancelled")
    for position in (4, context.bounds()[1] + 1):
        try:
            context.decode([5], position)
        except ArgumentError as error:
            said.append(str(error))
    context.restore(state)
    context.decode([5], 4)
    said.append(context.logits().tobytes() == expected.tobytes())
    print(json.dumps(said))
    """
    cancelled, *refused, same = answer(textwrap.dedent(script), tiny_model(arch))
    assert cancelled == "cancelled"
    assert len(refused) == 2
    assert "clear, empty or restore it first" in refused[1]
    assert same is True


# -- forks ------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_decodes(tiny_model, threads):
    script = """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
    options = {"n_ctx": 256, "n_threads": int(sys.argv[2]), "n_threads_batch": int(sys.argv[2])}
    model = csb.Model(sys.argv[1])
    context = csb.Context(model, **options)
    first = decode_short(context)
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a hang ends the child
        context.clear()
        same = decode_short(context) == first
        same = same and decode_short(csb.Context(model, **options)) == first
        os._exit(0 if same else 3)
    print(os.waitpid(pid, 0)[1])
    """
    assert answer(script, tiny_model(), threads) == 0
