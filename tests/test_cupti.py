"""The CUPTI hook against a planted CUPTI, compiled with NVIDIA's own header: no GPU is needed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TinyModel
from csb.native import cupti
from csb.native.library import build_info
from csb.nodes import device_kernels_of
from csb.render.trace import render
from process import child

ROOT = Path(__file__).parents[1]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the hooks are there on Linux alone")

# as nvcc 13.0 and g++ mangle them
SYMBOLS = {
    "_Z13mul_mat_vec_qIL9ggml_type8ELi1ELb0EEvPKvPf": "mul_mat_vec_q<(ggml_type)8, 1, false>",
    "_Z2faILi128EL9ggml_type1ELS0_1EEvPKcPFfiE": "fa<128, (ggml_type)1, (ggml_type)1>",
    "_Z5unaryIXadL_ZN31_INTERNAL_8a7887d9_4_k_cu_plain6op_negEfEEfEvPKT0_PS1_": (
        "unary<&op_neg, float>"
    ),
    "_ZN33_GLOBAL__N__8a7887d9_4_k_cu_plain4anonIfEEvPT_": "(anonymous namespace)::anon<float>",
    "_Z3lamIZ2govEUlvE_EvT_": "lam<go()::{lambda()#1}>",
    "_Z5plainPf": "plain",
    "ampere_bf16_s16816gemm_bf16_128x64_tn": "ampere_bf16_s16816gemm_bf16_128x64_tn",
    "_Znot mangled": "_Znot mangled",
    "f": "f",
}
VEC, _, _, _, LAM, *_ = SYMBOLS


def headers() -> list[str]:
    """Folders of CUPTI's header and CUDA's: of the extra `test`'s wheels, else of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    wheels = (spec.submodule_search_locations if spec else None) or ()
    folders = [f for w in wheels for f in sorted(Path(w).glob("*/include"))]
    folders += sorted(Path("/usr/local").glob("cuda*/include"))
    if not any((f / "cupti_activity.h").exists() for f in folders):
        pytest.fail("cupti_activity.h is not here: pip install '.[test]'")
    return [f"-isystem{f}" for f in folders]


def compiled(target: Path, *arguments: object) -> Path:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}", *headers()]
    command = ["c++", *flags, *map(str, arguments), "-o", str(target), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The planted library."""
    target = tmp_path_factory.mktemp("fake") / "libcupti.so"
    return compiled(target, "-shared", "-fPIC", ROOT / "tests/native/fake_cupti.cpp")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook in a program of its own."""
    sources = [ROOT / "tests/native/cupti_test.cpp", ROOT / "csrc/hooks/cupti.cpp"]
    defines = ["-DCSB_CUPTI", '-DCSB_CUPTI_BESIDE=""']
    return compiled(tmp_path_factory.mktemp("hook") / "test", *defines, *sources)


Watch = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def watch(program: Path, fake: Path, tmp_path: Path) -> Watch:
    """watch(plan, n=1) -> what each of n watches found. The calls are in tmp_path / "log"."""

    def run(plan: str, n: int = 1, library: Path = fake) -> list[dict[str, Any]]:
        (tmp_path / "plan").write_text(plan)
        given = {
            "CSB_CUPTI_LIBRARY": str(library),
            "CSB_FAKE_CUPTI": str(tmp_path / "plan"),
            "CSB_FAKE_CUPTI_LOG": str(tmp_path / "log"),
        }
        done = subprocess.run(
            [program, str(n)], env=os.environ | given, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def found(*ran: tuple[str, int], lost: int = 0) -> dict[str, Any]:
    return {"lost": lost, "why_not": "", "ran": [list(r) for r in ran]}


@LINUX
def test_kernels_in_order_with_their_counts(watch: Watch) -> None:
    """Copies are not kernels; buffers come in any order, the clock tells."""
    plan = f"""ubatch
kernel 300 plain_b
copy
kernel 400 {VEC}
buffer
kernel 200 {VEC}
kernel 100 plain_a
forced
kernel 500 plain_a
ubatch
kernel 700 plain_b
"""
    name = SYMBOLS[VEC]
    assert watch(plan, 3) == [
        found(("plain_a", 2), (name, 2), ("plain_b", 1)),
        found(("plain_b", 1)),
        found(),
    ]


@LINUX
def test_activity_is_on_within_a_watch_alone(watch: Watch, tmp_path: Path) -> None:
    watch("ubatch\nkernel 1 a\nubatch\n", 2)
    one = [
        "cuptiActivityEnable 10",
        "cuptiActivityFlushAll 0",
        "cuptiActivityDisable 10",
        "cuptiActivityFlushAll 1",
        "cuptiActivityGetNumDroppedRecords",
    ]
    log = (tmp_path / "log").read_text().splitlines()
    assert log == ["cuptiActivityRegisterCallbacks", *one, *one]


@LINUX
def test_without_clock_the_order_of_the_records_stays(watch: Watch) -> None:
    assert watch("ubatch\nkernel 9 b\nkernel 0 a\nkernel 3 b\n") == [found(("b", 2), ("a", 1))]


@LINUX
def test_dropped_records_are_lost(watch: Watch) -> None:
    plan = "ubatch\nkernel 1 a\ndropped 3\nubatch\nkernel 2 b\n"
    assert watch(plan, 2) == [found(("a", 1), lost=3), found(("b", 1))]


@LINUX
def test_late_records_are_lost_and_not_the_next_ubatch_s(watch: Watch) -> None:
    plan = "ubatch\nkernel 1 a\nlate\nkernel 2 a\nkernel 3 a\nubatch\nkernel 4 b\n"
    assert watch(plan, 2) == [found(("a", 1)), found(("b", 1), lost=2)]


@LINUX
def test_an_incomplete_record_makes_the_ubatch_unobservable(watch: Watch) -> None:
    """Never the part of a list."""
    plan = "ubatch\nkernel 1 a\nincomplete\nkernel 2 b\nubatch\nkernel 3 c\n"
    first, second = watch(plan, 2)
    assert first["ran"] == [] and "record" in first["why_not"]
    assert second == found(("c", 1))


@LINUX
@pytest.mark.parametrize(
    "function",
    [
        "cuptiActivityRegisterCallbacks",
        "cuptiActivityEnable",
        "cuptiActivityFlushAll",
        "cuptiActivityDisable",
        "cuptiActivityGetNumDroppedRecords",
    ],
)
@pytest.mark.parametrize(("code", "text"), [(39, "planned failure"), (999, "error")])
def test_a_call_that_fails_is_the_reason(watch: Watch, function: str, code: int, text: str) -> None:
    plan = f"fail {function} {code}\nubatch\nkernel 1 a\n"
    (only,) = watch(plan)
    assert only == {"lost": 0, "why_not": f"{function}: {text} ({code})", "ran": []}


@LINUX
def test_a_library_that_cannot_be_opened(watch: Watch, tmp_path: Path) -> None:
    (only,) = watch("", library=tmp_path / "none.so")
    assert only["ran"] == [] and "\n" not in only["why_not"]
    assert "none.so" in only["why_not"] and "CSB_CUPTI_LIBRARY" in only["why_not"]


@LINUX
def test_another_library_has_not_the_functions(watch: Watch, tmp_path: Path) -> None:
    (tmp_path / "empty.cpp").write_text("int nothing;\n")
    other = compiled(tmp_path / "other.so", "-shared", "-fPIC", tmp_path / "empty.cpp")
    (only,) = watch("", library=other)
    assert only["why_not"].endswith("has no cuptiActivityRegisterCallbacks")


@LINUX
def test_short_names(program: Path) -> None:
    done = subprocess.run([program, "names", *SYMBOLS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(SYMBOLS.values())


@pytest.mark.parametrize(("api", "name"), [(28, "libcupti.so.12"), (130500, "libcupti.so.13")])
def test_the_wheel_of_the_header_s_cuda_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, api: int, name: str
) -> None:
    for folder, library in (("cuda_cupti", "libcupti.so.12"), ("cu13", "libcupti.so.13")):
        path = tmp_path / "nvidia" / folder / "lib" / library
        path.parent.mkdir(parents=True)
        path.touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    found = cupti.installed(api)
    assert found is not None and found.name == name
    assert cupti.installed(140000) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cupti.installed(api) is None


UBATCHES = [
    {"device_kernels": [{"kernel": "b", "count": 2}, {"kernel": "a", "count": 1}]},
    {"device_kernels": [{"kernel": "a", "count": 5}, {"kernel": "c", "count": 1}]},
]


def test_a_call_has_the_kernels_of_its_ubatches() -> None:
    counts, why_not, lost = device_kernels_of({"ubatches": UBATCHES})
    assert (list(counts.items()), why_not, lost) == ([("b", 2), ("a", 6), ("c", 1)], None, 0)
    broken = [*UBATCHES, {"device_not_observable": "why", "device_lost": 4}]
    assert device_kernels_of({"ubatches": broken}) == ({}, "why", 4)
    assert device_kernels_of({"ubatches": [{}]}) == ({}, None, 0)


def record(**kernels: Any) -> dict[str, Any]:
    """A trace of one product on a device, at one row and at four."""
    node = {
        "ubatch": 0,
        "name": "Qcur-0",
        "op": "MUL_MAT",
        "type": "f32",
        "ne": [8, 1, 1, 1],
        "backend": "CUDA0",
        "src": [{"name": "blk.0.attn_q.weight", "type": "bf16", "ne": [8, 8, 1, 1]}],
        "kernels": [],
        "refused": [],
        "counts": {},
    }
    shapes = [{"m": 8, "n": n, "k": 8, "class": "GEMV"} for n in (1, 4)]
    return {
        "rows": [1, 4],
        "prefix": 3,
        "without": [],
        "perturbed": False,
        "calls": [
            {
                "rows": shape["n"],
                "n_ubatches": 1,
                "n_splits": 1,
                "nodes": [node | shape],
                "device_kernels": [],
                "device_not_observable": None,
            }
            | {name: values[i] for name, values in kernels.items()}
            for i, shape in enumerate(shapes)
        ],
    }


def test_launches_stand_below_the_table() -> None:
    one = [{"kernel": "rms", "count": 2}, {"kernel": "vec<1, 2>", "count": 1}]
    four = [{"kernel": "rms", "count": 2}, {"kernel": "mma", "count": 1}]
    text = render(record(device_kernels=[one, four]))
    lines = text.splitlines()
    assert lines[2].split()[-4:] == ["kernels", "below", "kernels", "below"]
    assert [line.split("  ")[0] for line in lines[4:7]] == ["", "*", "*"]
    assert [line.split()[-2:] for line in lines[4:7]] == [["2", "2"], ["1", "0"], ["0", "1"]]
    assert "0 of 0 groups (1 not observable one by one) and 2 of 3 device kernels" in lines[-1]
    assert "rms" not in render(record(device_kernels=[one, four]), diff=True)


def test_the_reason_is_said_once() -> None:
    text = render(record(device_not_observable=["no CUPTI", "no CUPTI"]))
    assert text.count("no CUPTI") == 1
    assert text.splitlines()[2].endswith("not observable on CUDA0")


@LINUX
@pytest.mark.native
def test_trace_with_the_planted_library(
    fake: Path, tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through csb trace: the fake stands for the driver, so that a call on the CPU has records.
    A build without the hook must not even open it."""
    plan = [f"ubatch\nkernel 2 {VEC}\nkernel 1 plain", f"ubatch\nkernel 3 {LAM}\ndropped 2"]
    (tmp_path / "plan").write_text("\n".join([*plan, ""]))
    monkeypatch.setenv("CSB_CUPTI_LIBRARY", str(fake))
    monkeypatch.setenv("CSB_FAKE_CUPTI", str(tmp_path / "plan"))
    monkeypatch.setenv("CSB_FAKE_CUPTI_LOG", str(tmp_path / "log"))
    model = tiny_model("llama", "f32", n_layer=1)
    given = ("trace", "-m", str(model), "--tokens", "1,2,3", "-c", "256", "-t", "1", "-W", "3")
    done = child(*given, "--json", "-")
    saved = json.loads(done.stdout)
    assert not saved["perturbed"]
    calls = [c["device_kernels"] for c in saved["calls"]]
    if not build_info()["hooks"]["cupti"]:
        assert (done.returncode, calls, saved["complete"]) == (0, [[], []], True)
        assert not (tmp_path / "log").exists()
        return
    assert done.returncode == 3  # dropped records: not complete
    assert calls == [
        [{"kernel": "plain", "count": 1}, {"kernel": SYMBOLS[VEC], "count": 1}],
        [{"kernel": SYMBOLS[LAM], "count": 1}],
    ]
    assert [c["lost"] for c in saved["calls"]] == [0, 2]
    assert not saved["complete"]
    log = (tmp_path / "log").read_text().splitlines()
    assert log.count("cuptiActivityEnable 10") == log.count("cuptiActivityDisable 10") == 2
