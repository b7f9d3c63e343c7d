"""Plain text tables: a row is one line, however long."""

from __future__ import annotations


def columns(table: list[list[str]]) -> list[str]:
    """The rows with each column as wide as its longest cell."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
