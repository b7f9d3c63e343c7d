"""BLAS: products of 32 rows and more leave the CPU's kernels, and csb says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import backend
import numpy as np
import pytest
from conftest import TinyModel
from csb import ops, record
from csb.measure import evidence
from csb.measure.prefix import ELSEWHERE
from csb.nodes import NO_HOOK, PRODUCTS
from process import Run, child

pytestmark = backend.needs("blas")

IDS = ",".join(map(str, range(7, 27)))
GIVEN = ("--tokens", IDS, "-t", "1", "-c", "512")


def traced(*arguments: object) -> dict[int, list[dict[str, Any]]]:
    """{rows: products that computed something}"""
    done = child("trace", *arguments, *GIVEN, "--rows", "1,31,32", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    calls = json.loads(done.stdout)["calls"]
    return {
        call["rows"]: [n for n in call["nodes"] if n["op"] in PRODUCTS and n["n"]] for call in calls
    }


def test_the_record_names_it(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    done = child("-m", tiny_model(n_layer=1), *GIVEN, "-n", "4", "--json", path)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    assert "backend: CPU,BLAS " in done.stdout
    found = record.load(path)["provenance"]
    assert found["build"]["options"]["GGML_BLAS"] == "ON"
    (device,) = (d for d in found["system"]["devices"] if d["name"] == "BLAS")
    assert (device["type"], device["backend"]) == ("accel", "BLAS")
    assert device["description"] == found["build"]["options"]["GGML_BLAS_VENDOR"]
    assert found["offload"]["backends"] == ["BLAS", "CPU"]


@pytest.mark.parametrize("dtype", ["bf16", "q8_0"])
def test_it_takes_products_of_32_rows_and_more(tiny_model: TinyModel, dtype: str) -> None:
    found = traced("-m", tiny_model(dtype=dtype, n_layer=2), "--no-repack")
    weights = {
        rows: [n for n in nodes if n["src"][0]["name"].endswith(".weight")]
        for rows, nodes in found.items()
    }
    assert {n["backend"] for n in weights[1]} == {n["backend"] for n in weights[31]} == {"CPU"}
    assert all(n["kernels"] for n in [*weights[1], *weights[31]])
    assert {n["backend"] for n in weights[32]} == {"BLAS"}
    assert not any(n["kernels"] for n in weights[32])


def test_the_table_says_where(tiny_model: TinyModel) -> None:
    done = child("trace", "-m", tiny_model(n_layer=1), *GIVEN, "--rows", "1,32")
    (line,) = (s for s in done.stdout.splitlines() if "ffn_up.weight" in s)
    assert line.startswith("*") and line.endswith("  not observable on BLAS")


def test_compare_says_what_it_did_not_see(tiny_model: TinyModel, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    given = ("-n", "40", "-W", "40", "--stride", "40", "--json", path)
    done = child("-m", tiny_model(dtype="bf16", n_layer=1), *GIVEN, *given)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")
    found = record.load(path)["kernels"]
    assert (found["single"]["not_observable"], found["block"]["not_observable"]) == (
        {},
        {"BLAS": NO_HOOK},
    )
    (line,) = (s for s in done.stdout.splitlines() if s.startswith("kernels: "))
    assert "ggml_vec_dot_bf16" in line and line.endswith(f"; not observable on BLAS ({NO_HOOK})")


def test_its_product_is_right() -> None:
    generator = np.random.default_rng(0)
    weight = generator.standard_normal((64, 96), np.float32)
    rows = generator.standard_normal((40, 96), np.float32)
    done = ops.mul_mat(weight, rows, device="BLAS")
    exact = rows.astype(np.float64) @ weight.astype(np.float64).T
    assert done.kernels is None
    assert np.abs(done.values - exact).max() < 1e-4


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` probes whatever it costs: on so small a model it would not."""
    monkeypatch.setattr(evidence, "LIMIT", 1e6)


def by_prefix(run: Run, model: Path, folder: Path, *prefixes: str) -> list[record.Record]:
    """Lengths on both sides of 32 rows, and rows of OpenBLAS's own remainders."""
    found = []
    for prefix in prefixes:
        path = folder / f"{prefix}.json"
        given = (*GIVEN, "-n", "80", "-fa", "off", "--no-repack", "--prefix", prefix)
        done = run("-m", model, *given, "--json", path)
        assert (done.code in (0, 1), done.err) == (True, "")
        found.append(record.load(path))
        assert not found[-1]["controls"]["failed"]
    return found


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_auto_shares_nothing_that_differs(
    run: Run, tiny_model: TinyModel, tmp_path: Path, dtype: str
) -> None:
    model = tiny_model(dtype=dtype, n_layer=2)
    auto, fresh, shared = by_prefix(run, model, tmp_path, "auto", "reprefill", "shared")
    assert 0 < len(auto["prefix"]["equal"]) < len(auto["prefix"]["probes"])
    assert 0 < auto["prefix"]["shared"] < 80
    assert auto["cells"] == fresh["cells"]
    assert shared["cells"] != fresh["cells"]


@pytest.mark.usefixtures("unhurried")
def test_auto_takes_no_proof_from_what_it_did_not_see(
    run: Run, tiny_model: TinyModel, tmp_path: Path
) -> None:
    (auto,) = by_prefix(run, tiny_model(dtype="q8_0", n_layer=2), tmp_path, "auto")
    assert (auto["prefix"]["shared"], auto["prefix"]["reason"]) == (0, f"{ELSEWHERE} BLAS")
