"""csb quantize"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click

from csb.cli import options
from csb.errors import FileError
from csb.exit_codes import Exit
from csb.render.output import note, say
from csb.render.text import harmless


@click.command("quantize")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT", type=options.Output())
@click.option(
    "--type", "kind", required=True, metavar="TYPE", help="f32, f16, bf16, q8_0, q4_k_m ..."
)
@options.count("-t", "--threads", help="threads (all cores)")
@click.option("--pure", is_flag=True, help="every matrix of that type, no mixture")
def command(source: str, target: str, kind: str, threads: int | None, pure: bool) -> None:
    """Write a GGUF file again as another type, with llama.cpp's quantizer.

    Requantizing is allowed: from a quantized IN the result is no better than IN.
    """
    from csb.native import worker
    from csb.native.library import quantize
    from csb.native.model import Model

    with Model(source, n_gpu_layers=0) as model:  # says clearly what is wrong with it
        quantized = set(model.info["tensor_types"]) - {"f32", "f16", "bf16"}
    if Path(target).exists() and Path(target).samefile(source):
        raise FileError(f"{target}: IN and OUT are the same file")
    work = Path(f"{target}.part{os.getpid()}")

    def stop() -> NoReturn:
        """llama.cpp's quantizer can't be stopped, so the process ends under it."""
        work.unlink(missing_ok=True)
        note("interrupted")
        os._exit(Exit.INTERRUPTED)

    try:
        worker.run(lambda: quantize(Path(source), work, kind, threads or 0, pure), stop)
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    again = f", requantized from {', '.join(sorted(quantized))}" if quantized else ""
    size = Path(target).stat().st_size
    say(f"{harmless(target)}: {kind}, {size / 1e6:.1f} MB{again}\n")
