"""The program around the commands: which one runs, and what every ending looks like."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

import csb
from csb.errors import CsbError, InvalidMeasurement
from csb.exit_codes import Exit, help_text
from csb.native import worker
from csb.render.output import discard, note

# name: module and its click command, imported only when asked for
COMMANDS = {
    "compare": "csb.cli.compare",
    "trace": "csb.cli.trace",
    "widths": "csb.cli.widths",
    "locate": "csb.cli.locate",
    "budget": "csb.cli.budget",
    "diff": "csb.cli.diff",
    "speculate": "csb.cli.speculate",
    "models": "csb.cli.models",
    "quantize": "csb.cli.quantize",
    "bench": "csb.cli.bench",
    "info": "csb.cli.info",
}
DEFAULT = "compare"


class Commands(click.Group):
    """Commands by name; without one, `compare` with all the options that were given."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name]).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in COMMANDS and args[0] not in ("--help", "--version")):
            if args and not args[0].startswith("-"):
                known = ", ".join(COMMANDS)
                raise click.UsageError(f"no command {args[0]!r}; the commands are {known}", ctx)
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click would print an empty line of its own
            note("interrupted")
            raise click.exceptions.Exit(Exit.INTERRUPTED) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n" + help_text() + "\n")


@click.command(cls=Commands, context_settings={"help_option_names": ["--help"]})
@click.version_option(csb.__version__, prog_name="csb", message="%(prog)s %(version)s")
def app() -> None:
    """Compare decoding the same tokens one at a time and as one block, in llama.cpp.

    Without a command: compare. `csb compare --help` has its options.
    """


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM interrupt once: from then on to the process's end they are ignored, so
    that a second one does not lose what is being saved.

    A signal that was ignored before (a shell's `&` does that to Ctrl-C) stays so.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: h for n in numbers if (h := signal.getsignal(n)) is not signal.SIG_IGN}

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:
                signal.signal(number, handler)


def _leave() -> NoReturn:
    from csb.native import net

    net.leave(Exit.INTERRUPTED, "interrupted; a native call did not come back")


def _run(arguments: list[str] | None) -> int:
    try:
        result = app.main(args=arguments, prog_name="csb", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.DONE
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        note(error.format_message().rstrip(".") + where)
        return Exit.ERROR
    except click.ClickException as error:
        note(error.format_message())
        return Exit.ERROR
    except (KeyboardInterrupt, click.Abort):
        note("interrupted")
        return Exit.INTERRUPTED
    except InvalidMeasurement as error:
        note(str(error))
        return Exit.INVALID
    except (CsbError, OSError) as error:
        if os.environ.get("CSB_DEBUG") == "1":
            traceback.print_exc()
        note(str(error))
        return Exit.ERROR
    except SystemExit:  # what click makes of a closed stdout: only --help and --version come here
        return Exit.DONE
    except Exception as error:
        if os.environ.get("CSB_DEBUG") == "1":
            traceback.print_exc()
        note(f"internal error: {type(error).__name__}: {error} (CSB_DEBUG=1 shows where)")
        return Exit.ERROR


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    worker.stuck = _leave
    try:
        with _signals():
            code = _run(arguments)
    finally:
        worker.stuck = None
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # closed by whoever started csb
                stream.flush()
        except OSError:
            discard(stream)
    return int(code)
