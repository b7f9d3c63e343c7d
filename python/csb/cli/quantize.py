"""csb quantize"""

from __future__ import annotations

import os
from pathlib import Path

import click

from csb.errors import FileError
from csb.render.text import harmless


@click.command("quantize")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option(
    "--type", "kind", required=True, metavar="TYPE", help="f32, f16, bf16, q8_0, q4_k_m ..."
)
@click.option("-t", "--threads", type=click.IntRange(min=0), default=0, help="threads (all cores)")
@click.option("--pure", is_flag=True, help="every matrix of that type, no mixture")
def command(source: str, target: str, kind: str, threads: int, pure: bool) -> None:
    """Write a GGUF file again as another type, with llama.cpp's quantizer.

    Requantizing is allowed: from a quantized IN the result is no better than IN.
    """
    from csb.native.library import quantize
    from csb.native.model import Model

    if Path(target).exists() and Path(target).samefile(source):
        raise FileError(f"{target}: IN and OUT are the same file")
    with Model(source, n_gpu_layers=0) as model:  # says clearly what is wrong with it
        quantized = set(model.info["tensor_types"]) - {"f32", "f16", "bf16"}
    work = Path(f"{target}.part{os.getpid()}")
    try:
        quantize(Path(source), work, kind, threads, pure)
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)
    again = f", requantized from {', '.join(sorted(quantized))}" if quantized else ""
    size = Path(target).stat().st_size
    click.echo(f"{harmless(target)}: {kind}, {size / 1e6:.1f} MB{again}")
