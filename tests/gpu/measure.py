"""`tests/gpu/run measure`: a report on stdout; gpu.json and the records (records.tar.xz) in --out.

Exit code 0: every step ran to its end, whatever it found; 1: some did not; 2: there is no device or
no model to begin with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import findings
import steps
from csb.native.library import quantize
from csb.provenance import environment


def join(pack: Path, work: Path) -> Path:
    """The model out of its parts, which came in two folders. SystemExit: a part is not right."""
    about = json.loads((work / "model.json").read_text())
    target = work / str(about["name"])
    if not target.exists():
        folders = (work, pack / "2", pack / "1")
        names = [f"model.gguf.{i}" for i in range(about["parts"])]
        found = [next((f / n for f in folders if (f / n).exists()), None) for n in names]
        if None in found:
            raise SystemExit(f"part {found.index(None)} of {about['name']} is not here")
        data = b"".join(p.read_bytes() for p in found if p)
        if hashlib.sha256(data).hexdigest() != about["sha256"]:
            raise SystemExit(f"the parts of {about['name']} do not give its sha256")
        target.write_bytes(data)
    return target


def make_models(source: Path, work: Path) -> dict[str, Path]:
    """{type: file}. BF16 from the shipped file, as csb's default model; the others from that."""
    models = {kind: work / f"model-{kind}.gguf" for kind in steps.TYPES}
    for kind in ("BF16", *(t for t in steps.TYPES if t != "BF16")):
        if not models[kind].exists():
            half = work / "model.half"  # a killed run must not leave a file that looks whole
            quantize(source if kind == "BF16" else models["BF16"], half, kind)
            half.rename(models[kind])
    return models


def machine() -> dict[str, Any]:
    """csb's own account, and the driver's."""
    seen: dict[str, Any] = {"csb": environment()}
    query = "--query-gpu=name,driver_version,compute_cap,memory.total"
    try:
        seen["nvidia-smi"] = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=30,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        seen["nvidia-smi"] = str(error)
    return seen


def main() -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="the source model, if it did not come in parts")
    parser.add_argument("--cpu", action="store_true", help="try the stage without a device")
    parser.add_argument("--seconds", type=float, default=270, help="for all of it (270)")
    parser.add_argument("--workers", type=int, default=4, help="csb processes at a time (4)")
    parser.add_argument("-n", type=int, default=100, help="tokens of a comparison (100)")
    parser.add_argument("--only", default="", help="only the steps whose name holds this")
    given = parser.parse_args()

    here = machine()
    devices = [d["name"] for d in here["csb"]["system"]["devices"]]
    print(f"{here['nvidia-smi']}; csb's devices: {', '.join(devices)}", flush=True)
    if not given.cpu and "CUDA0" not in devices:
        print("; ".join(here["csb"]["missing_devices"]) or "this csb was not built for CUDA")
        return 2
    source = given.model or join(given.pack, given.work)
    models = make_models(source, given.work)
    print(f"{time.monotonic() - begin:6.1f} s  until the models were there", flush=True)

    records = given.work / "records"
    shutil.rmtree(records, ignore_errors=True)
    records.mkdir()
    helped = subprocess.run(
        [sys.executable, "-m", "csb", "--help"], stdout=subprocess.PIPE, text=True, check=True
    )
    planned = steps.plan(models, records, given.cpu, given.n, "\n  budget" in helped.stdout)
    planned = [s for s in planned if given.only in s.name]
    try:
        steps.run_all(planned, begin + given.seconds, given.workers)
    finally:
        loaded = findings.load(planned, records)
        found = findings.find(loaded, device=not given.cpu)
        text = "\n".join(["", *findings.report(found, planned, loaded)])
        print(text, flush=True)
        (given.out / "report.txt").write_text(text + "\n", "utf-8")
        made = {"machine": here, "steps": [s.to_json() for s in planned], **found}
        (given.out / "gpu.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")
        with tarfile.open(given.out / "records.tar.xz", "w:xz") as tar:
            tar.add(records, "records")
    print(f"{time.monotonic() - begin:6.1f} s  in all")
    return 0 if all(s.ok for s in planned) else 1


if __name__ == "__main__":
    sys.exit(main())
