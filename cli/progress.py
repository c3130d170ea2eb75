"""How commands show how far they are: on a terminal by a bar that goes, in a log by a line now and then.

Both on standard error.  Where that is no terminal, a bar writes lines (:mod:`kvcrucible.cli.progress_lines`), and a
spinner nothing; where the command asks for nothing (``hidden``: mostly its ``--json``), neither shows anything.  What
tells how far it is may be called all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcrucible.cli.console import stderr_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.status import Status


def progress_bar(
    *,
    spinner: bool = False,
    detail: bool = False,
    left: bool = False,
    in_bytes: bool = False,
    hidden: bool = False,
) -> Progress:
    """Return what shows a task's description, its bar, how many of how many, and the time so far.

    ``spinner``: one in front, for stretches whose length nobody knows.  ``detail``: the task's field of that name
    behind; every task then has to have it.  ``left``: how long it will take still.  ``in_bytes``: what is counted are
    bytes, shown in MB and the like.  A task without a total shows a bar that only moves.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        *((SpinnerColumn(),) if spinner else ()),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if left else ()),
        *((TextColumn("{task.fields[detail]}"),) if detail else ()),
    )
    console = stderr_console()
    if not hidden and not console.is_terminal:
        from kvcrucible.cli.progress_lines import LoggedProgress

        return LoggedProgress(*columns, console=console)
    return Progress(*columns, console=console, transient=True, disable=hidden)


class Spinner:
    """A line that shows that something is going on, and lines above it that stay; made by :func:`spinner`."""

    def __init__(self, console: Console, status: Status | None) -> None:
        self._console, self._status = console, status

    def say(self, text: str) -> None:
        """Show ``text`` instead of what was said before."""
        if self._status is not None:
            self._status.update(text)

    def keep(self, text: str) -> None:
        """Print a line that stays."""
        if self._status is not None:
            self._console.print(text, style="dim")


@contextmanager
def spinner(text: str, *, hidden: bool = False) -> Iterator[Spinner]:
    """Show ``text``, for work of which nobody knows how much is left, until the block ends."""
    console = stderr_console()
    if hidden or not console.is_terminal:
        yield Spinner(console, None)
        return
    with console.status(text) as status:
        yield Spinner(console, status)
