"""README names every command, every exit code and every option, and its two first commands are
what CI and a newcomer run."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from csb.cli.app import COMMANDS, app
from csb.exit_codes import Exit

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def block(heading: str) -> list[str]:
    found = re.search(rf"^#+ .*{heading}.*?^```[^\n]*\n(.*?)^```", README, re.M | re.S)
    assert found
    return found[1].splitlines()


@pytest.mark.parametrize("heading", ["Quick start", "Tests"])
def test_one_line_commands(heading: str) -> None:
    assert len(block(heading)) == 1
    assert block(heading)[0].startswith("pip install ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option(name: str) -> None:
    assert f"csb {name}" in README
    command = app.get_command(click.Context(app), name)
    assert command is not None and command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name} has no help"
            names = [*parameter.opts, *parameter.secondary_opts]
            assert any(re.search(rf"{re.escape(n)}\b", README) for n in names), names


def test_every_exit_code() -> None:
    for code in Exit:
        if code is not Exit.FAULT:  # speculate's, which is not there yet
            assert re.search(rf"^\| {int(code)} \|", README, re.M), code
