"""The command line: `csb` and `python -m csb`. Commands parse, call one function and render."""

from __future__ import annotations

from csb.cli.app import main

__all__ = ["main"]
