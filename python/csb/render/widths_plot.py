"""A map of widths as a picture: the class of every row by width and offset. Needs `plot`."""

from __future__ import annotations

from typing import Any

from csb.errors import InvalidMeasurement, UnsupportedError
from csb.widths import classes_at, make_map, places_of, summary


def draw(record: dict[str, Any], path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("--plot needs matplotlib: pip install 'csb[plot]'") from error
    places = places_of(record)
    if not places:
        raise InvalidMeasurement("nothing was measured: there is nothing to draw")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    widths = sorted(places[0])
    labels, cells = table(places)
    palette = pyplot.get_cmap("tab10" if len(labels) <= 10 else "tab20")
    colours = ListedColormap([palette(i % palette.N) for i in range(len(labels))])
    shown = [[float("nan") if c is None else labels.index(c) for c in row] for row in cells]

    size = (max(4.0, 0.32 * len(widths) + 2), max(3.0, 0.26 * len(cells) + 1.6))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    axes.imshow(
        shown, aspect="auto", cmap=colours, vmin=-0.5, vmax=len(labels) - 0.5, interpolation="none"
    )
    axes.set_xticks(range(len(widths)), [str(w) for w in widths])
    axes.set_xlabel("width: rows of the call (1: the single path)")
    axes.set_yticks(range(len(cells)))
    axes.set_ylabel("offset of the row")
    axes.set_title(_wrapped(summary(make_map(places))), fontsize=8)
    handles = [Patch(color=colours(i), label=f"as width {w}") for i, w in enumerate(labels)]
    figure.legend(handles=handles, loc="outside right upper", fontsize=7)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def table(places: list[dict[int, list[str]]]) -> tuple[list[int], list[list[int | None]]]:
    """The classes' names, which are their smallest widths, and by offset and width the class of the
    row; None: there is no such row."""
    widths = sorted(places[0])
    cells: list[list[int | None]] = []
    for offset in range(max(len(rows) for rows in places[0].values())):
        home = {w: c[0] for c in classes_at(places, offset) for w in c}
        cells.append([home.get(w) for w in widths])
    return sorted({c for row in cells for c in row if c is not None}), cells


def _wrapped(text: str, width: int = 70) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
