"""csb: compare single-token and block decoding in llama.cpp.

import csb

with csb.Model("model.gguf") as model, csb.Context(model, n_ctx=512) as context:
    tokens = model.tokenize("Explain the Pythagorean theorem")
    context.decode(tokens[:-1], start=0, outputs=False)
    state = context.save()
    context.decode(tokens[-1:], start=len(tokens) - 1)
    single = context.logits()
    context.restore(state)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from csb.native.context import Context as Context
    from csb.native.model import Model as Model
    from csb.native.rpc import add_rpc as add_rpc

__version__ = "0.1.0"

_LAZY = {
    "Model": "csb.native.model",
    "Context": "csb.native.context",
    "add_rpc": "csb.native.rpc",
}
_MODULES = ("kernels", "errors", "ops")


def __getattr__(name: str) -> Any:  # so that importing csb needs no native library
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"csb.{name}")
    raise AttributeError(f"module 'csb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
