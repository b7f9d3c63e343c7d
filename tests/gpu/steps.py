"""The csb runs of `tests/gpu/run measure`: what is run, with which switches, and its ending."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_table import ROWS

TYPES = ("F16", "BF16", "Q8_0", "Q4_K_M")
SWITCHES = {  # each in a process of its own: llama.cpp reads them once
    "default": {},
    "no fusion": {"GGML_CUDA_DISABLE_FUSION": "1"},
    "no graphs": {"GGML_CUDA_DISABLE_GRAPHS": "1"},
    "neither": {"GGML_CUDA_DISABLE_FUSION": "1", "GGML_CUDA_DISABLE_GRAPHS": "1"},
}
RUNS = 3


@dataclass
class Step:
    """One csb process. `fine`: the exit codes it should end with; 3, "perturbed", is a finding."""

    name: str
    arguments: list[str]
    switches: dict[str, str] = field(default_factory=dict)
    fine: tuple[int, ...] = (0, 1, 3)
    one_line: bool = False  # on stderr, no more and no less
    alone: bool = False  # no other step beside it
    exit: int | None = None  # None: not run
    seconds: float = 0.0
    said: str = ""  # its last line on stdout
    complaint: str = ""  # its lines on stderr

    @property
    def ok(self) -> bool:
        lines = len(self.complaint.splitlines())
        return self.exit in self.fine and (lines == 1 or not self.one_line)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "fine": list(self.fine), "ok": self.ok}


def plan(models: dict[str, Path], out: Path, cpu: bool, n: int, budget: bool) -> list[Step]:
    """The most wanted first. Record files are out/NAME.json."""
    made = []
    how: dict[str, Any]

    def add(name: str, command: str, model: str, *rest: str, **how: Any) -> None:
        where = ["-m", str(models[model]), "-ngl", "0" if cpu else "99", "-t", "1"]
        saved = ["--json", str(out / f"{name}.json")]
        made.append(Step(name, [command, *where, *rest, *saved], **how))

    rows = ",".join(map(str, ROWS))
    for kind in TYPES:  # CUPTI's records are easiest to read without graphs
        for switch in ("no graphs", "default"):
            how = {"switches": SWITCHES[switch], "alone": True}
            add(f"trace {kind} {switch}", "trace", kind, "--rows", rows, "-fa", "on", **how)
    for kind in TYPES:
        for run in range(1, RUNS + 1):
            add(f"compare {kind} default {run}", "compare", kind, "-n", str(n))
    for kind in TYPES:
        for switch in SWITCHES:
            if switch != "default":
                how = {"switches": SWITCHES[switch]}
                add(f"compare {kind} {switch} 1", "compare", kind, "-n", str(n), **how)
    for kind in TYPES:
        for switch in ("default", "no fusion"):
            add(f"locate {kind} {switch}", "locate", kind, switches=SWITCHES[switch])
        add(f"widths {kind}", "widths", kind, "--widths", "1..17")
    more = "1" if cpu else "4"
    add("compare BF16 on the CPU", "compare", "BF16", "-n", str(n), "-dev", "none", "-t", more)
    add("compare BF16 reference", "compare", "BF16", "-n", str(n), "--reference", "cpu", "-t", more)
    both = [str(out / f"compare BF16 {where}.json") for where in ("on the CPU", "default 1")]
    made.append(Step("diff CPU GPU", ["diff", *both], alone=True))
    if budget:
        for kind in ("BF16", "Q8_0"):
            add(f"budget {kind}", "budget", kind)
        for kind in ("BF16", "Q8_0"):  # after the comparisons they read
            for switch in ("no fusion", "no graphs"):
                other = str(out / f"compare {kind} {switch} 1.json")
                rest = ("-n", str(n), "--lines", "noise", "--against", other)
                add(f"budget {kind} {switch}", "budget", kind, *rest, alone=True)
    made += list(_faults(models["BF16"], cpu))
    return made


def _faults(model: Path, cpu: bool) -> Iterator[Step]:
    """Each is one clear line; what was asked for can't be had, but for the last, which runs on the
    CPU."""
    asked = ["compare", "-m", str(model), "-t", "1"]
    yield Step("no such device", [*asked, "-dev", "CUDA9"], fine=(2,), one_line=True)
    if not cpu:
        large = [*asked, "-ngl", "99", "-c", "16000000"]
        yield Step("device memory too small", large, fine=(2,), one_line=True)
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        yield Step("no device visible", [*asked, "-n", "4"], hidden, (0, 1), one_line=True)


def run(step: Step, limit: float) -> None:
    """Runs it to its end, or kills it after `limit` seconds (then exit is -9)."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "csb", *step.arguments],
        env=os.environ | step.switches,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    step.exit, step.seconds = process.returncode, time.monotonic() - begin
    step.said = out.splitlines()[-1] if out else ""
    step.complaint = err.strip()


def run_all(steps: list[Step], deadline: float, workers: int) -> None:
    """Steps that are `alone` by themselves, the others `workers` at a time, in order. None begins
    after the deadline (time.monotonic), and none outlives it."""

    def one(step: Step) -> None:
        left = deadline - time.monotonic()
        if left > 0:
            run(step, left)
            print(f"{step.seconds:6.1f} s  exit {step.exit}  {step.name}", flush=True)

    batch: list[Step] = []
    with ThreadPoolExecutor(workers) as pool:
        for step in [*steps, None]:
            if step is not None and not step.alone:
                batch.append(step)
                continue
            list(pool.map(one, batch))
            batch = []
            if step is not None:
                one(step)
