"""`csb locate --export DIR`: the op where the difference starts, as a program without a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from csb.errors import ArgumentError, CsbError, FileError
from csb.op_file import Call, RecordedOp, Row, differing, load, save
from csb.render.text import harmless

SCRIPT = '''\
"""The op in op.npz, as the single path and as the block ran it: what differs, and by which kernels.
Needs csb alone: no model, no gguf."""

from pathlib import Path

import csb

op = csb.ops.load(Path(__file__).with_name("op.npz"))
single, block = op.single.run(), op.block.run()
differ = csb.ops.differing(single.values, block.values)
print(f"{op.node} ({op.single.op}): {differ} of {single.values.size} values of row {op.row} differ")
for path, call, ran in (("single", op.single, single), ("block", op.block, block)):
    same = csb.ops.differing(ran.values, call.values) == 0
    kernels = "+".join(ran.kernels or ["not observable"])
    print(f"{path}: {kernels}, {'the recorded bits' if same else 'OTHER bits than recorded'}")
'''


def check_folder(folder: Path) -> None:
    """Before a long run: that it is empty, or can be made."""
    with _errors(folder):
        if not folder.exists():
            folder.mkdir()
            folder.rmdir()
        elif not folder.is_dir() or any(folder.iterdir()):
            raise ArgumentError(f"--export {harmless(str(folder))}: must be a new or empty folder")


@contextlib.contextmanager
def _errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"--export {harmless(str(folder))}: {error.strerror}") from error


def export(op: RecordedOp, folder: Path) -> dict[str, Any]:
    """Writes op.npz and reproduce.py and runs what was written once. `reproduced`: it gave exactly
    the recorded bits; else `why` says what is otherwise."""
    check_folder(folder)
    with _errors(folder):
        folder.mkdir(exist_ok=True)
        (folder / "reproduce.py").write_text(SCRIPT, "utf-8")
    save(op, folder / "op.npz")
    why = _compare(load(folder / "op.npz"))
    return {
        "folder": str(folder),
        "row": op.row,
        "n_values": op.single.values.size,
        "n_diff": differing(op.single.values, op.block.values),
        "reproduced": why is None,
        "why": why,
    }


def _compare(op: RecordedOp) -> str | None:
    """What is otherwise than recorded, None where nothing is."""
    calls = {"single path": op.single, "block": op.block}
    try:
        found = {path: (call, call.run()) for path, call in calls.items()}
    except CsbError as error:
        return str(error)
    others = [
        _other(path, call, ran)
        for path, (call, ran) in found.items()
        if differing(ran.values, call.values)
    ]
    return "; ".join(others) or None


def _other(path: str, call: Call, ran: Row) -> str:
    names = "+".join(ran.kernels or ["not observable"])
    return (
        f"{path}: {differing(ran.values, call.values)} of {ran.values.size} values are not the "
        f"recorded ones, by {names}, recorded by {'+'.join(call.kernels) or 'not observable'}"
    )
