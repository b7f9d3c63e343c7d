"""A trace as a picture: each weight's kernel by row count. Needs the extra `plot`."""

from __future__ import annotations

from typing import Any

from csb.errors import UnsupportedError
from csb.nodes import weight_of


def draw(record: dict[str, Any], path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'csb[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    weights: dict[str, list[str]] = {}
    for column, call in enumerate(record["calls"]):
        for node in call["nodes"]:
            if weight := weight_of(node):
                row = weights.setdefault(weight, [""] * len(record["rows"]))
                row[column] = "+".join(node["kernels"]) or "not observable"
    names = sorted({kernel for row in weights.values() for kernel in row})
    cells = [[names.index(kernel) for kernel in row] for row in weights.values()]
    palette = pyplot.get_cmap("tab10")
    colours = ListedColormap([palette(i) for i in range(max(1, len(names)))])

    height = max(3.0, 0.09 * len(weights) + 1.5)
    figure, axes = pyplot.subplots(figsize=(7, height), layout="constrained")
    axes.imshow(
        cells, aspect="auto", cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, interpolation="none"
    )
    axes.set_xticks(range(len(record["rows"])), [str(n) for n in record["rows"]])
    axes.set_xlabel("rows of the call")
    axes.set_yticks(range(len(weights)), list(weights), fontsize=4)
    axes.set_title("kernel by weight and row count", fontsize=9)
    handles = [Patch(color=colours(i), label=name) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", fontsize=6)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
