"""What compare says of where layers and kernels ran: CPU, devices, unseen. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from csb.nodes import NO_HOOK, observed
from csb.render.compare import _kernels
from csb.render.devices import ran_on

CPU = {"node": 0, "kernel": "ggml_vec_dot_f32", "accepted": True, "count": 1}
REFUSED = {"node": 0, "kernel": "llamafile_sgemm", "accepted": False, "count": 1}


def call(*backends: str, n_threads: int = 2, **more: Any) -> list[dict[str, Any]]:
    ubatch = {"backends": list(backends), "n_threads": n_threads, "kernels": [CPU, REFUSED], **more}
    return [{"ubatches": [ubatch, {**ubatch}]}]


def test_nothing_recorded() -> None:
    assert observed([]) is None
    assert _kernels({"single": "not observable", "block": "not observable"}) == "not observable"


def test_all_on_the_cpu() -> None:
    assert observed(call("CPU")) == {
        "n_threads": 2,
        "kernels": {"ggml_vec_dot_f32": 2},
        "not_observable": {},
    }


@pytest.mark.parametrize("name", ["RPC0[127.0.0.1:1]", "BLAS", "Metal"])
def test_a_backend_without_a_hook_is_named_beside_the_cpus_kernels(name: str) -> None:
    found = observed(call("CPU", name))
    assert found is not None
    assert found["not_observable"] == {name: NO_HOOK} and found["kernels"] == {
        "ggml_vec_dot_f32": 2
    }
    text = _kernels({"single": found, "block": found})
    assert text == (
        "single none of its own; block none of its own; both ggml_vec_dot_f32; 2 / 2 threads; "
        f"not observable on {name} (csb has no hook for this backend)"
    )


def test_a_devices_kernels() -> None:
    def ran(*names: str) -> dict[str, Any]:
        kernels = [{"kernel": name, "count": 3} for name in names]
        found = observed(call("CUDA0", n_threads=0, kernels=[], device_kernels=kernels))
        assert found is not None
        return found

    single, block = ran("a", "b"), ran("b", "c", "d")
    assert single["device_kernels"] == {"a": 6, "b": 6} and single["not_observable"] == {}
    assert _kernels({"single": single, "block": block}) == (
        "on the device single 1 and block 2 of their own, both 1 (csb trace lists them)"
    )


def test_the_reason_is_kept() -> None:
    why = {"device_not_observable": "no CUPTI"}
    found = observed(call("CPU", "CUDA0", n_threads=0, kernels=[], **why))
    assert found == {"n_threads": 0, "kernels": {}, "not_observable": {"CUDA0": "no CUPTI"}}
    assert _kernels({"single": found, "block": found}) == "not observable on CUDA0 (no CUPTI)"


@pytest.mark.parametrize(
    ("layers", "output", "said"),
    [
        (["CPU", "CPU"], "CPU", "CPU,BLAS"),
        (["CPU", "X0"], "X0", "CPU,X0,BLAS"),
        (["X0", "X1"], "X1", "X0,X1"),  # ggml lists BLAS there too, and gives it nothing
    ],
)
def test_where_layers_are(layers: list[str], output: str, said: str) -> None:
    devices = [{"name": name, "type": kind} for name, kind in (("BLAS", "accel"), ("X0", "gpu"))]
    offload = {"layers": layers, "output": output, "backends": ["X0", "BLAS", "CPU"]}
    assert ran_on({"offload": offload, "system": {"devices": devices}}) == said
