"""The bar by which commands show how far they are; on standard error, gone when they are through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcrucible.cli.console import stderr_console

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(
    *, spinner: bool = False, detail: bool = False, left: bool = False, hidden: bool = False
) -> Progress:
    """Return what shows a task's description, its bar, how many of how many, and the time so far.

    ``spinner``: one in front, for stretches whose length nobody knows.  ``detail``: the task's field of that name
    behind; every task then has to have it.  ``left``: how long it will take still.  ``hidden``: nothing is shown at
    all.  A task without a total shows a bar that only moves.
    """
    from rich.progress import (
        BarColumn,
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
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        *((TextColumn("left"), TimeRemainingColumn()) if left else ()),
        *((TextColumn("{task.fields[detail]}"),) if detail else ()),
    )
    return Progress(*columns, console=stderr_console(), transient=True, disable=hidden)
