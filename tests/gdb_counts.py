"""gdb runs this: how often each function was entered between two markers, call by call.

Reads functions.json in the working folder, a list of names, and writes hits.json: {"exit_code",
"calls": [{name: hits}]}. An inferior that stops anywhere else leaves none.
"""

import json
from pathlib import Path

import gdb

for setting in (
    *("breakpoint pending on", "pagination off", "confirm off", "debuginfod enabled off"),
    # elsewhere gdb 13 runs a first instruction that is VEX-coded and relative to rip wrongly
    "displaced-stepping off",
):
    gdb.execute(f"set {setting}")
marker = gdb.Breakpoint("csb_context_decode_time")


def at_marker(command):
    """Whether it ran up to the next marker, and not to its end."""
    before = marker.hit_count
    gdb.execute(command)
    if marker.hit_count == before and gdb.selected_inferior().pid:
        raise gdb.GdbError("the process stopped, and at no marker")
    return marker.hit_count > before


def probe(name):
    # at its first byte: gdb's own choice is after the prologue, where a loop might come back
    address = int(gdb.parse_and_eval(f"(long) &{name}"))
    point = gdb.Breakpoint(f"*{address:#x}")
    point.ignore_count = 1 << 30  # counted without stopping
    return point


if not at_marker("run"):
    raise gdb.GdbError("the process ended before the first marker")
points = {name: probe(name) for name in json.loads(Path("functions.json").read_text("utf-8"))}
calls = []
while True:
    for point in points.values():
        point.hit_count = 0
        point.enabled = True
    if not at_marker("continue"):
        raise gdb.GdbError("the process ended between two markers")
    calls.append({name: point.hit_count for name, point in points.items()})
    for point in points.values():
        point.enabled = False
    if not at_marker("continue"):
        break
code = int(gdb.parse_and_eval("$_exitcode"))
Path("hits.json").write_text(json.dumps({"exit_code": code, "calls": calls}), "utf-8")
