"""A located window as a picture: growth by layer, and where the difference is created. Needs the
extra `plot`."""

from __future__ import annotations

import math
from typing import Any

from csb.errors import UnsupportedError
from csb.located import REGIONS, layer_shares


def draw(record: dict[str, Any], path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'csb[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    layers = [at["layer"] for at in record["growth"]]
    places = range(len(layers))
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(max(5.0, 0.22 * len(layers) + 2), 6), layout="constrained"
    )
    # equal bits have no place on a logarithmic axis
    relative = [at["relative"] or math.nan for at in record["growth"]]
    above.set_yscale("log")
    above.plot(places, relative, marker="o", markersize=3)
    above.set_ylabel("difference at the layer's end\n(RMS over RMS)")
    title = f"window {record['window']}, {len(record['equal_rows'])} rows"
    off = f", without {', '.join(record['without'])}" if record["without"] else ""
    above.set_title(title + off, fontsize=9)

    shares = layer_shares(record["nodes"])
    bottom = [0.0] * len(layers)
    for region in REGIONS:
        heights = [100 * shares[layer][region] for layer in layers]
        below.bar(places, heights, bottom=bottom, label=region)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    below.set_ylim(0, 1.05 * max(bottom) or 1)
    below.set_ylabel("created by itself\n(% of the squares)")
    below.set_xlabel("layer")
    names = ["head" if layer is None else str(layer) for layer in layers]
    below.set_xticks(places, names, fontsize=6)
    figure.legend(loc="outside lower center", ncols=len(REGIONS), fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
