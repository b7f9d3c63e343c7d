"""Opens what a plan names, and says what it became."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from csb import kernels
from csb.errors import ArgumentError
from csb.measure.memory import Memory
from csb.models.hashing import sha256_file
from csb.native import worker
from csb.native.context import Context
from csb.native.devices import missing, switched_off
from csb.native.handle import Handle
from csb.native.library import system_info
from csb.native.model import Model
from csb.native.rpc import add_rpc
from csb.plan import ContextPlan, ModelPlan
from csb.provenance import environment

PLAIN = {"f32", "f16", "bf16"}  # types whose values are not quantized in blocks


@dataclass
class Session:
    """A model, a context on it, and the seconds it took to get them."""

    model: Model
    context: Context
    plan: ModelPlan
    asked: ContextPlan
    load_seconds: float

    @property
    def memory(self) -> Memory:
        return Memory(self.context)

    @property
    def quantized(self) -> bool:
        """Whether weights or cache hold quantized blocks, which absorb small differences."""
        used = set(self.model.info["tensor_types"])
        used |= {
            self.context.value(t) for t in ("type_k", "type_v") if t in self.context.parameters
        }
        return not used <= PLAIN

    def another_context(self, **changes: Any) -> Context:
        """A second context like this session's but for these options."""
        return _context(self.model, self.asked, **changes)

    def another_model(self, path: Path, draft: bool = False) -> Model:
        """A second model, opened as this session's is and on the same devices."""
        return _model(replace(self.plan, path=path), draft)

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Every parameter with the value it became and where that was read: a public getter, the
        library's own structures, or `asked` where neither tells."""
        asked = {
            "main_gpu": self.plan.main_gpu,
            "tensor_split": self.plan.tensor_split,
            "rpc": self.plan.rpc,
            "use_extra_bufts": self.plan.repack,
            "use_mmap": self.plan.mmap,
            "swa_full": self.asked.swa_full,
            "type_k": self.asked.type_k,
            "type_v": self.asked.type_v,
        }
        known = {name: {"value": v, "source": "asked"} for name, v in asked.items()}
        known["devices"] = {"value": self.model.info["devices"], "source": "getter"}
        return known | self.context.parameters

    def provenance(self) -> dict[str, Any]:
        begin = time.perf_counter()
        files = [
            {"path": str(path), "size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in self.model.files
        ]
        info = self.model.info
        return {
            **environment(),
            "kernel_switches": kernels.in_force(),
            "model": {
                "files": files,
                **{
                    key: info[key]
                    for key in (
                        "architecture",
                        "description",
                        "type",
                        "size",
                        "n_params",
                        "n_layer",
                        "n_vocab",
                        "tensor_types",
                    )
                },
            },
            "parameters": self.parameters(),
            "offload": self.context.offload,
            "hash_seconds": time.perf_counter() - begin,
        }


def check_devices(devices: str | None) -> None:
    """Before a model is loaded for nothing."""
    if devices is not None and devices != "none":
        if "" in devices.split(","):
            raise ArgumentError(f"-dev '{devices}': must be names joined by commas, or none")
        known = [d["name"] for d in system_info()["devices"]]
        for name in devices.split(","):
            if name not in known:
                here = f"here are {', '.join(known)} (or none)"
                said = "; ".join([here, *missing(), *switched_off()])
                raise ArgumentError(f"-dev {devices}: there is no device {name}; {said}")


def check_split(plan: ModelPlan) -> None:
    """llama.cpp takes no notice of a part or a main device that isn't there."""
    if plan.devices is None:
        n = sum(d["type"] in ("gpu", "igpu") for d in system_info()["devices"])
    else:
        n = 0 if plan.devices == "none" else len(plan.devices.split(","))
    here = "here is 1 device" if n == 1 else f"here are {n} devices"
    if n and plan.main_gpu is not None and plan.main_gpu >= n:
        raise ArgumentError(f"-mg {plan.main_gpu}: {here}, counted from 0")
    if n and plan.tensor_split is not None and plan.tensor_split.count(",") >= n:
        raise ArgumentError(f"-ts {plan.tensor_split}: {here}")


def _model(plan: ModelPlan, draft: bool = False) -> Model:
    return Model(
        plan.path,
        n_gpu_layers=plan.n_gpu_layers,
        devices=plan.devices,
        split_mode=plan.split_mode,
        main_gpu=plan.main_gpu,
        tensor_split=plan.tensor_split,
        use_extra_bufts=plan.repack,
        use_mmap=plan.mmap,
        draft=draft,
    )


def _context(model: Model, plan: ContextPlan, **changes: Any) -> Context:
    return Context(model, **{**asdict(plan), **changes})  # a plan's fields are a context's options


@contextlib.contextmanager
def open_session(
    model_plan: ModelPlan, context_plan: ContextPlan | Callable[[Model], ContextPlan]
) -> Iterator[Session]:
    """context_plan: or what makes it once the model is there."""
    begin = time.perf_counter()
    model, context, plan = worker.run(lambda: _open(model_plan, context_plan), lambda: None)
    try:
        yield Session(model, context, model_plan, plan, time.perf_counter() - begin)
    finally:
        _close(context, model)


def _open(
    plan: ModelPlan, context_plan: ContextPlan | Callable[[Model], ContextPlan]
) -> tuple[Model, Context, ContextPlan]:
    if plan.rpc is not None:
        add_rpc(plan.rpc)
    check_devices(plan.devices)
    check_split(plan)
    model = _model(plan)
    try:
        made = context_plan(model) if callable(context_plan) else context_plan
        return model, _context(model, made), made
    except BaseException:
        model.close()
        raise


def _close(*handles: Handle) -> None:
    """Not waited for without an end: a device that does not answer must not keep the results."""

    def close() -> None:
        for handle in handles:
            handle.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(worker.GRACE)
