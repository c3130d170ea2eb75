"""Writing what failed for the commands that find something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvcrucible.cli.console import stderr_line
from kvcrucible.contract.errors import InputError

if TYPE_CHECKING:
    from kvcrucible.fuzz.campaign import Failure


def written_or_told(what: str, out: Path, write: Callable[[], Path]) -> Path | None:
    """Return where ``write`` has written ``what`` below the folder ``out``.

    A folder that cannot be written costs the file, never the report: then it is said on standard error, and None is
    returned.
    """
    try:
        return write()
    except (OSError, InputError) as error:
        stderr_line(f"no {what} was written to {out}: {error}; name another folder with --out")
        return None


def write_reproduction(failure: Failure | None, out: Path) -> Path | None:
    """Write a failing example and return where, None where there is no failure or it cannot be written."""
    if failure is None:
        return None
    from kvcrucible.fuzz.reproduction import write

    return written_or_told(
        "reproduction", out, lambda: write(out, failure.setting, failure.steps, failure.violations)
    )
