"""Kernel switches: refuse a CPU kernel at run time, so that llama.cpp takes its next path.

    with csb.kernels.without("llamafile"):
        context.decode(tokens, start)

They hold for the whole process and are latched when a decode begins. Repacked weights have their
kernels from load time: for those open the model with use_extra_bufts=False (--no-repack).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from csb.errors import ArgumentError
from csb.native.library import library
from csb.native.table import KernelSwitch
from csb.plan import KERNEL_SWITCHES

SWITCHES = dict(zip(KERNEL_SWITCHES, KernelSwitch, strict=True))


def in_force() -> list[str]:
    """Names of the switches that the next decode will have."""
    now = ctypes.c_int32()
    library().csb_kernels_get(ctypes.byref(now))
    return [name for name, switch in SWITCHES.items() if now.value & switch]


def _mask(names: tuple[str, ...]) -> int:
    mask = 0
    for name in names:
        if name not in SWITCHES:
            raise ArgumentError(f"no kernel switch {name!r}: one of {', '.join(SWITCHES)}")
        mask |= SWITCHES[name]
    return mask


@contextlib.contextmanager
def exactly(*names: str) -> Iterator[None]:
    """These switches and no others while the block runs. ArgumentError for an unknown name,
    UnsupportedError if this build has no hooks."""
    before, wanted = _mask(tuple(in_force())), _mask(names)
    library().csb_kernels_set(wanted)
    try:
        yield
    finally:
        library().csb_kernels_set(before)


def without(*names: str) -> contextlib.AbstractContextManager[None]:
    """These switches beside those in force while the block runs."""
    if not names:
        return contextlib.nullcontext()
    return exactly(*{*in_force(), *names})
