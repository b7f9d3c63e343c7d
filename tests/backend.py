"""Tests of other backends: each runs where CSB_TEST_BACKEND names it, with a build that has it."""

from __future__ import annotations

import os

import pytest


def needs(name: str) -> list[pytest.MarkDecorator]:
    """For a module's pytestmark. Where the variable names the backend, a build without it fails."""
    asked = os.environ.get("CSB_TEST_BACKEND", "").split(",")
    why = f"a job of its own: CSB_TEST_BACKEND={name}"
    return [
        pytest.mark.native,
        pytest.mark.backend,
        pytest.mark.skipif(name not in asked, reason=why),
    ]
