"""Vulkan, on Mesa's software device or any other: CSB_TEST_BACKEND=vulkan, and where only a
software device is there GGML_VK_VISIBLE_DEVICES=0, which llama.cpp passes over otherwise.

In one process as far as can be: a device compiles each pipeline when it is first used.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import backend
import csb
import numpy as np
import pytest
from conftest import TinyModel
from csb import record
from csb.measure import evidence
from csb.measure.memory import Memory
from csb.native.devices import why_no_vulkan
from csb.native.library import build_info, system_info
from csb.nodes import PRODUCTS
from process import Run, child

pytestmark = backend.needs("vulkan")

GIVEN = ("--tokens", "1,2,3,4,5", "-t", "1", "-c", "256")
DEVICE = "Vulkan0"


def saved(run: Run, path: Path, *arguments: object) -> record.Record:
    done = run(*arguments, "--json", path)
    assert (done.code in (0, 1), done.err) == (True, "")
    return record.load(path)


def test_the_record_names_the_device(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    found = saved(run, tmp_path / "r.json", "-m", tiny_model(n_layer=2), *GIVEN, "-n", "4")
    provenance = found["provenance"]
    assert provenance["build"]["hooks"]["vulkan"]
    (device,) = (d for d in provenance["system"]["devices"] if d["name"] == DEVICE)
    (known,) = (
        d for d in provenance["system"]["vulkan"]["devices"] if d["name"] == device["description"]
    )
    assert device["driver"] == f"{known['driver']} {known['driver_info']}"
    assert device["api"] == f"Vulkan {known['api']}"
    assert int(known["api"].split(".")[0]) >= 1 and known["driver"]
    assert provenance["parameters"]["devices"]["value"] == [DEVICE]
    assert provenance["parameters"]["n_gpu_layers"]["value"] == 3
    assert "GGML_VK_DEBUG_MARKERS" not in provenance["switches"]
    offload = provenance["offload"]
    assert (offload["layers"], offload["output"]) == ([DEVICE] * 2, DEVICE)
    held = [b for b in offload["buffers"] if b["device"] == DEVICE and not b["host"]]
    assert sum(b["model"] for b in held) > 0.5 * provenance["model"]["size"]
    assert sum(b["memory"] for b in held) == 2 * 2 * 256 * 2 * 64 * 2
    assert found["controls"]["complete"] and not found["controls"]["failed"]
    assert found["kernels"]["single"]["kernels"] != found["kernels"]["block"]["kernels"]


def test_it_computes_what_the_cpu_does(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    """To rounding: 16-bit floats in attention."""
    given = ("-m", tiny_model(n_layer=2, sharp=4.0), *GIVEN, "-n", "4")
    there = saved(run, tmp_path / "there.json", *given)
    here = saved(run, tmp_path / "here.json", *given, "-dev", "none")
    assert [a["id"] for a in there["ar"]] == [a["id"] for a in here["ar"]]
    for path in ("l_s", "l_b"):
        ours, theirs = (np.array([c[path] for c in r["cells"]]) for r in (there, here))
        assert 0 < np.abs(ours - theirs).max() < 0.1
    assert here["provenance"]["offload"]["layers"] == ["CPU", "CPU"]
    # csb diff names the device and the kernels first, then the first cell
    done = run("diff", tmp_path / "here.json", tmp_path / "there.json")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("the first that differs: t=0"))
    settings = lines[:first]
    assert any(line.startswith("devices: ") and DEVICE in line for line in settings)
    assert any("single_kernels" in line and "mul_mat_vec_f32" in line for line in settings)


def test_part_of_the_layers(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    given = ("-m", tiny_model(n_layer=2), *GIVEN, "-n", "2", "-ngl", "2")
    for options, where in (((), {DEVICE}), (("--no-kv-offload", "--no-op-offload"), set())):
        found = saved(run, tmp_path / "r.json", *given, *options)["provenance"]
        assert found["offload"]["layers"] == ["CPU", DEVICE]
        assert found["parameters"]["n_gpu_layers"]["value"] == 2
        for name in ("offload_kqv", "op_offload"):
            assert found["parameters"][name] == {"value": not options, "source": "library"}
        buffers = found["offload"]["buffers"]
        assert {b["device"] for b in buffers if b["memory"] and not b["host"]} == where


# -- kernels -------------------------------------------------------------------------------------


def traced(run: Run, *arguments: object) -> dict[int, list[dict[str, Any]]]:
    """{rows: nodes}"""
    done = run("trace", *arguments, *GIVEN, "--json", "-")
    assert (done.code, done.err) == (0, "")  # 3: tracing changed a bit
    return {call["rows"]: call["nodes"] for call in json.loads(done.out)["calls"]}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
def test_products_up_to_8_rows_are_mat_vec(run: Run, tiny_model: TinyModel, dtype: str) -> None:
    """llama.cpp-notes section 8; the last constant of a mat-vec pipeline is its number of rows."""
    found = traced(run, "-m", tiny_model(dtype=dtype, n_layer=1), "--rows", "1,2,8,9")
    for rows, nodes in found.items():
        products = [n for n in nodes if n["op"] in PRODUCTS and n["n"]]
        assert len(products) > 5
        assert {n["backend"] for n in products} == {DEVICE}
        assert all(n["kernels"] for n in products)
        for node in (n for n in products if n["src"][0]["name"].endswith(".weight")):
            main = [k for k in node["kernels"] if k.startswith(("mul_mat_vec", "matmul"))]
            assert len(main) == 1, node["kernels"]
            if rows <= 8:
                assert main[0].startswith(f"mul_mat_vec_{dtype}_")
                assert main[0].endswith(f", {rows}>")
            else:
                # quantized types share one, and the type is among its constants
                assert main[0].startswith(f"matmul_{'quant' if dtype == 'q8_0' else dtype}_")


def test_a_fused_node_has_no_kernel_of_its_own(run: Run, tiny_model: TinyModel) -> None:
    """A norm's factor runs with the norm. Every other node that computes is named."""
    empty = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "GET_ROWS")
    nodes = traced(run, "-m", tiny_model(n_layer=1), "--rows", "5")[5]
    unnamed = [n["op"] for n in nodes if not n["kernels"] and n["op"] not in empty]
    assert 0 < len(unnamed) < len(nodes) / 2
    assert set(unnamed) <= {"MUL", "ADD", "SET_ROWS", "ROPE"}
    done = run("trace", "-m", tiny_model(n_layer=1), *GIVEN, "--rows", "5", "--nodes")
    (line,) = (s for s in done.out.splitlines() if "MUL  " in s and "attn_norm-0" in s)
    assert "not observable" not in line


def without_labels() -> dict[str, str]:
    """This process's environment without what csb put there."""
    return {k: v for k, v in os.environ.items() if k != "GGML_VK_DEBUG_MARKERS"}


DIGEST = """
import hashlib, os, sys
import csb, numpy as np
from csb.native import library
if sys.argv[2] == "without":
    library.build_info()["hooks"]["vulkan"] = False
with csb.Model(sys.argv[1], n_gpu_layers=-1) as model:
    rows = []
    for flash in ("on", "off"):
        with csb.Context(model, n_ctx=256, n_threads=1, flash_attn=flash) as context:
            context.decode(range(20), 0)
            rows.append(context.logits(range(20)))
            context.decode([7], 20)
            rows.append(context.logits())
assert ("GGML_VK_DEBUG_MARKERS" in os.environ) == (sys.argv[2] == "with")
print(hashlib.sha256(b"".join(r.tobytes() for r in rows)).hexdigest())
"""


def test_labels_change_no_bit(tiny_model: TinyModel) -> None:
    found = set()
    for how in ("with", "without"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, tiny_model(dtype="bf16", n_layer=2), how],
            capture_output=True,
            text=True,
            env=without_labels(),
        )
        assert (done.returncode, done.stderr) == (0, "")
        found.add(done.stdout)
    assert len(found) == 1
    assert hashlib.sha256(b"").hexdigest() not in found


def test_without_labels_nothing_is_guessed(tiny_model: TinyModel) -> None:
    script = (
        "import sys; from csb.native import library; from csb.cli import main;"
        "library.build_info()['hooks']['vulkan'] = False; sys.exit(main(sys.argv[1:]))"
    )
    given = ("trace", "-m", str(tiny_model(n_layer=1)), *GIVEN, "--rows", "1,9")
    command = [sys.executable, "-c", script, *given]
    done = subprocess.run(command, capture_output=True, text=True, env=without_labels())
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = (s for s in done.stdout.splitlines() if "attn_q.weight" in s)
    assert line.split("  ")[-1] == f"not observable on {DEVICE}"
    assert "GGML_VK_DEBUG_MARKERS was not set when Vulkan was started" in done.stdout


def test_locate(run: Run, tiny_model: TinyModel) -> None:
    """Attention off: its products are where one row and five differ most on every device."""
    done = run("locate", "-m", tiny_model(n_layer=2), *GIVEN, "-fa", "off", "--json", "-")
    assert done.err == ""
    found = json.loads(done.out)
    assert done.code == (3 if found["perturbed"] else 0)
    created = [n for n in found["nodes"] if any(n["created"])]
    assert {n["name"] for n in created} >= {"kq-0", "kqv-0"}
    assert all(n["backend"] == DEVICE and n["single_kernels"] for n in created)


def test_locate_says_that_fusion_is_lost(tiny_model: TinyModel) -> None:
    """Watched nodes are computed one by one, which changes bits where they would be fused."""
    given = ("locate", "-m", tiny_model(dtype="bf16", n_layer=2), *GIVEN, "-ngl", "1")
    done = child(*given)
    if done.returncode == 3:
        _, hint, verdict = done.stdout.splitlines()
        assert hint.startswith(f"{DEVICE} computes several nodes as one, but not while they are ")
        assert "GGML_VK_DISABLE_FUSION=1" in hint
        assert verdict == "csb: watching CHANGED the logits: this run is not valid"
    script = "import sys; from csb.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, given)],
        capture_output=True,
        text=True,
        env={**os.environ, "GGML_VK_DISABLE_FUSION": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("csb: the difference starts at Qcur-0 ")


def test_widths(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    given = ("-m", tiny_model(dtype="bf16", n_layer=1), *GIVEN, "--widths", "1,8,9")
    done = run("widths", *given, "--places", "1", "--json", path)
    assert (done.code, done.err) == (0, "")
    assert "mul_mat_vec_bf16" in done.out and "matmul_bf16" in done.out


def test_auto_takes_no_proof_from_names(tiny_model: TinyModel) -> None:
    """A pipeline's name does not tell whether a row's sums depend on the rows beside it."""
    with (
        csb.Model(tiny_model(dtype="q8_0", n_layer=1)) as model,
        csb.Context(model, n_ctx=256) as context,
        pytest.raises(evidence.NoProof) as caught,
    ):
        evidence.probe(Memory(context), list(range(1, 61)), [20, 40], by_kernels=True)
    assert caught.value.backends == [DEVICE]


@pytest.mark.model
def test_the_default_model(default_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    done = child("-m", default_model, "-n", "4", "-t", "1", "--json", path, timeout=900)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    found = record.load(path)
    assert found["complete"] and not found["controls"]["failed"]
    assert len(found["cells"]) == 10
    assert found["provenance"]["offload"]["layers"] == [DEVICE] * 30
    assert found["kernels"]["single"]["kernels"]
    assert f"device {DEVICE} (" in done.stdout and ", Vulkan 1." in done.stdout


# -- what is missing -----------------------------------------------------------------------------


def without_a_device(model: Path, changes: dict[str, str]) -> str:
    """The one line of a run that has to do without, on the CPU."""
    env = {k: v for k, v in os.environ.items() if k != "GGML_VK_VISIBLE_DEVICES"} | changes
    done = child("-m", model, *GIVEN, "-n", "4", env=env)
    assert done.returncode in (0, 1)
    assert "backend: CPU" in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("csb: no Vulkan device: ")
    assert lines[0].endswith("; everything runs on the CPU")
    return lines[0]


def test_libvulkan_is_no_dependency() -> None:
    import importlib.resources

    with importlib.resources.as_file(importlib.resources.files("csb") / "libcsb.so") as path:
        done = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    assert "NEEDED" in done.stdout
    assert "vulkan" not in done.stdout


def test_no_loader(tiny_model: TinyModel, tmp_path: Path) -> None:
    for name in ("libvulkan.so.1", "libvulkan.so"):
        (tmp_path / name).write_text("none")
    line = without_a_device(tiny_model(n_layer=1), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert "its loader can't be opened (" in line


def test_no_driver(tiny_model: TinyModel, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none.json")
    changes = {"VK_ICD_FILENAMES": nowhere, "VK_DRIVER_FILES": nowhere}
    line = without_a_device(tiny_model(n_layer=1), changes)
    assert "no driver is installed; Debian's package mesa-vulkan-drivers" in line


def test_no_such_device(tiny_model: TinyModel) -> None:
    line = without_a_device(tiny_model(n_layer=1), {"GGML_VK_VISIBLE_DEVICES": "77"})
    assert "GGML_VK_VISIBLE_DEVICES=77 names none that can be used of 0 " in line


def test_vulkan_switched_off(tiny_model: TinyModel) -> None:
    """Whoever does that need not be told; whoever asks for the device then, does."""
    given = ("-m", tiny_model(n_layer=1), *GIVEN, "-n", "4")
    env = os.environ | {"GGML_DISABLE_VULKAN": "1"}
    done = child(*given, env=env)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    assert "backend: CPU" in done.stdout
    done = child(*given, "-dev", DEVICE, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no Vulkan device: GGML_DISABLE_VULKAN is set" in done.stderr
    found = json.loads(child("info", "--json", env=env).stdout)["system"]["vulkan"]
    assert found == {"loader_error": "", "error": "switched off", "devices": []}


def test_a_device_name_that_does_not_exist(run: Run, tiny_model: TinyModel) -> None:
    done = run("-m", tiny_model(n_layer=1), *GIVEN, "-dev", "Vulkan9")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"there is no device Vulkan9; here are {DEVICE}, " in done.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-dev", f"{DEVICE},{DEVICE}"), f"names {DEVICE} twice"),
        (("-sm", "row"), "split_mode = row: llama.cpp can't split tensors by rows here: "),
    ],
)
def test_what_no_device_does(
    run: Run, tiny_model: TinyModel, given: tuple[str, ...], said: str
) -> None:
    done = run("-m", tiny_model(n_layer=1), *GIVEN, *given)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


def test_a_part_on_the_device(run: Run, tiny_model: TinyModel, tmp_path: Path) -> None:
    given = ("-m", tiny_model(n_layer=2), *GIVEN, "-n", "4", "-ngl", "1")
    found = saved(run, tmp_path / "r.json", *given)
    assert (found["provenance"]["offload"]["layers"], found["provenance"]["offload"]["output"]) == (
        ["CPU", "CPU"],
        DEVICE,
    )
    assert f"backend: CPU,{DEVICE}" in run(*given).out


def test_a_cache_that_no_buffer_holds(run: Run, tiny_model: TinyModel) -> None:
    """llama.cpp would abort. A lower limit than 4 GiB is what software devices have."""
    model = tiny_model(n_layer=1)
    done = run("-m", model, "--tokens", "1,2,3", "-n", "2", "-t", "1", "-c", 1 << 24)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"is more than {DEVICE} takes in one piece" in done.err or "allocate" in done.err


def test_no_room_on_the_device(tiny_model: TinyModel) -> None:
    """4 GiB of cache where the process, and a software device in it, may have 3."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    if system_info()["vulkan"]["devices"][0]["type"] != "cpu":
        pytest.skip("this device has memory of its own")
    model = tiny_model(n_layer=16)
    given = ("-m", model, "--tokens", "1,2,3", "-n", "2", "-t", "1", "-c", 500_000)
    done = child(*given, preexec_fn=limit)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "allocate" in done.stderr


def test_reasons() -> None:
    """Those that this machine can't show."""
    one = {"name": "D", "type": "discrete", "driver": "d", "driver_info": "1", "api": "1.3.0"}

    def why(**found: Any) -> str:
        return why_no_vulkan({"loader_error": "", "error": "", "devices": [], **found}, {})

    missing = "libvulkan.so.1: cannot open shared object file: No such file or directory"
    assert "libvulkan1" in why(loader_error=missing, error="no loader")
    assert why(error="VkResult -3") == "its loader fails (VkResult -3)"
    assert why(devices=[one]).startswith("llama.cpp takes none of 0 D; GGML_VK_VISIBLE_DEVICES=0")
    assert why_no_vulkan(None, {}) == "none was found"


def test_this_build() -> None:
    assert build_info()["options"]["GGML_VULKAN"] == "ON"
