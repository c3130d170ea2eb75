"""How far a command is, in lines of a log: where no terminal shows a bar, silence looks like a run that hangs."""

from __future__ import annotations

from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

from kvcrucible.cli.console import visible

#: Seconds from one line to the next; what is over before the first is silent.
SECONDS_BETWEEN_LINES = 60.0


class LoggedProgress(Progress):
    """A progress without a bar.

    Where something goes on and nothing has been said for ``SECONDS_BETWEEN_LINES``, it writes one line.
    """

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        super().__init__(*columns, console=console, disable=True)
        self._began = self._said = monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, as its base does, and perhaps say so."""
        super().update(task_id, **changes)
        self._say(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance a task, as its base does, and perhaps say so."""
        super().advance(task_id, advance)
        self._say(task_id)

    def _say(self, task_id: TaskID) -> None:
        now = monotonic()
        if now - self._said < SECONDS_BETWEEN_LINES:
            return
        self._said = now
        task = self._tasks[task_id]
        far = f"{task.completed:,.0f}" + (f" of {task.total:,.0f}" if task.total is not None else "")
        detail = f"; {task.fields['detail']}" if task.fields.get("detail") else ""
        # Plain: what markup the description had was meant for a terminal.
        self.console.file.write(
            visible(f"{task.description}: {far}, {now - self._began:.0f} s{detail}") + "\n"
        )
