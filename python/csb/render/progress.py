"""Progress on stderr, where that is a terminal."""

from __future__ import annotations

import sys


class Steps:
    """Call it with (step, done, total); one bar for each step, with the time left."""

    def __enter__(self) -> Steps:
        self._bar = None
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._tasks: dict[str, object] = {}
            self._bar.start()
        return self

    def __call__(self, step: str, done: int, total: int) -> None:
        if self._bar is None:
            return
        if step not in self._tasks:
            self._tasks[step] = self._bar.add_task(step, total=total or None)
        self._bar.update(self._tasks[step], completed=done, total=total or None)  # type: ignore[arg-type]

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
