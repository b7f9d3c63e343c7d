"""Helpers for text that holds foreign data: token texts, paths, names."""

from __future__ import annotations


def harmless(data: bytes | str) -> str:
    """The text with control characters and invalid UTF-8 escaped, so that it is one printable
    line on any terminal."""
    text = data if isinstance(data, str) else data.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
